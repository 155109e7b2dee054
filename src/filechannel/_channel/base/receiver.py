"""`BaseReceiver`: everything a receiver does without waiting, for event loops and threads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, NoReturn, Self, TypeVar, cast, final

from anyio import ClosedResourceError, EndOfStream, WouldBlock

from ... import _checks as checks
from ..._format import NOTHING, Nothing, ReceiveCore
from ..._offset import LogPosition, Offset
from ..status.statistics import ReceiverStatistics
from ..subscription.subscription import Subscription

T_co = TypeVar("T_co", covariant=True)


@final
@dataclass(frozen=True, slots=True)
class Record(Generic[T_co]):
    """A message with its offset and sequence."""

    value: T_co
    """The message."""
    offset: Offset
    """Where the message begins in the log."""
    sequence: int
    """The number of the message, counted from 0 since the channel was created."""


class BaseReceiver(ReceiveCore, Generic[T_co]):
    """Receives messages from a channel in order. Any thread may use it; clones share its position."""

    def __init__(self, subscription: Subscription) -> None:
        subscription.acquire(self)
        self._subscription = subscription
        # Looked up once, for the hot path. Closing replaces it.
        self._take: Callable[[], object] = subscription.counting(subscription.reader.native.take)
        if not subscription.is_counted:  # otherwise the slow path, which counts
            self._attach(subscription.reader.native)

    if TYPE_CHECKING:  # ReceiveCore implements it

        def receive_nowait(self) -> T_co:
            """Return the next message. Raise `WouldBlock` if there is none."""
            ...

    def _receive_nowait_slowly(self) -> object:
        item = self._take()
        if item is NOTHING:
            self._check_end()
            raise WouldBlock
        self._subscription.flush_position_soon()
        return item

    def receive_record_nowait(self) -> Record[T_co]:
        """Return the next message with its offset and sequence. Raise `WouldBlock` if there is none."""
        found = self._take_record()
        if found is NOTHING:
            self._check_end()
            raise WouldBlock
        self._subscription.flush_position_soon()
        value, offset, sequence = cast("tuple[T_co, Offset, int]", found)
        return Record(value, offset, sequence)

    def receive_many_nowait(self, max_items: int) -> list[T_co]:
        """Return up to *max_items* messages that are available; an empty list if there are none."""
        check_count("max_items", max_items)
        items = self._take_many(max_items)
        if items:
            self._subscription.flush_position_soon()
        return items

    def _take_many(self, max_items: int) -> list[T_co]:
        self._check_open()
        items = self._subscription.take_many(max_items)
        if not items:
            self._check_end()
        return cast("list[T_co]", items)

    def peek(self, n: int = 1) -> list[T_co]:
        """Return up to *n* of the next messages, messages to be redelivered first, without consuming them."""
        check_count("n", n)
        self._check_open()
        return cast("list[T_co]", self._subscription.peek(n))

    def _has_data(self) -> bool:
        return self._is_closed or self._subscription.has_data()

    def _has_enough(self, max_items: int) -> bool:
        """Return whether waiting for more messages is unnecessary or useless."""
        subscription = self._subscription
        native = subscription.reader.native
        there = subscription.end.sequence - native.sequence + native.ready
        return there >= max_items or self._is_closed or subscription.is_complete

    def _take_record(self) -> object | Nothing:
        self._check_open()
        return self._subscription.counting(self._subscription.reader.native.take_record)()

    def _check_end(self) -> None:
        if self._subscription.has_ended():
            raise EndOfStream

    # Position

    @property
    def read_offset(self) -> Offset:
        """The offset of the next message."""
        self._check_open()
        return Offset(self._subscription.reader.native.offset)

    def _move(self, to: LogPosition) -> bool:
        """Seek. Return False, without moving, if the target was reclaimed."""
        self._check_open()
        is_there = self._subscription.move(to)
        self._subscription.waiters.wake_all()
        return is_there

    def statistics(self) -> ReceiverStatistics:
        """Return a snapshot of this receiver."""
        self._check_open()
        native, end = self._subscription.reader.native, self._subscription.end
        log_position = LogPosition(Offset(native.offset), native.sequence)
        return ReceiverStatistics(
            read_offset=self.read_offset,
            next_sequence=native.sequence,
            lag_messages=end.sequence - native.sequence + native.ready,
            lag_bytes=self._subscription.store.backlog.between(log_position, end).size,
            unacked=native.outstanding,
            clones=len(self._subscription.users),
        )

    # Lifecycle

    def clone(self) -> Self:
        """Return another receiver that shares the position: each message is received by one of them."""
        self._check_open()
        return type(self)(self._subscription)

    @property
    def _is_closed(self) -> bool:
        return self._take is _closed

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedResourceError

    def close(self) -> None:
        """Close this receiver. The position does not move, and a task that waits in it gets `ClosedResourceError`.

        If a signal handler raises meanwhile, call it again to complete the close.
        """
        self.detach()
        self._subscription.release(self)
        self._subscription.waiters.wake_all()

    def detach(self) -> None:
        """Refuse all further calls, without releasing anything."""
        self._take = _closed
        self._detach()

    def __enter__(self) -> Self:
        """Use the receiver in a `with` block, which closes it."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the receiver."""
        self.close()

    def __repr__(self) -> str:
        cursor = self._subscription.cursor
        name = "" if cursor is None else f" name={cursor.name!r}"
        closed = " closed" if self._is_closed else ""
        return f"<{type(self).__name__} {str(self._subscription.store.path)!r}{name}{closed}>"

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled: a position belongs to one process."""
        raise TypeError(
            f"{self!r} cannot be pickled: its position belongs to this process; "
            "pickle the channel, and create a receiver in the other process"
        )


class Named:
    """The properties of a receiver with a consumer name."""

    _subscription: Subscription

    @property
    def name(self) -> str:
        """The consumer's name."""
        return self._subscription.name

    @property
    def id(self) -> str:
        """Identifies this consumer among all consumers: the channel's path and the name."""
        return f"{self._subscription.store.path}#{self.name}"


def _closed() -> object:
    raise ClosedResourceError


def check_count(name: str, count: int) -> None:
    """Raise `TypeError` or `ValueError` for anything but a positive number of messages."""
    if type(count) is not int:
        raise TypeError(f"{name}={count!r}: must be a number of messages, not {type(count).__name__}")
    if count < 1:
        raise ValueError(f"{name}={count}: must be at least 1 message")


def check_linger(seconds: float) -> None:
    """Raise `TypeError` or `ValueError` for anything but a duration of 0 or more."""
    checks.seconds_or_zero("linger", seconds)
