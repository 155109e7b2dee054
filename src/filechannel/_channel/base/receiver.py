"""What every receiver does without waiting, whether it waits in an event loop or in a thread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, NoReturn, Self, TypeVar, cast, final

from anyio import ClosedResourceError, EndOfStream, WouldBlock

from .. import _checks as checks
from .._format import NOTHING, Nothing, ReceiveCore
from .._offset import Offset
from .._storage.index import Mark
from .source import Source
from .statistics import ReceiverStatistics

T_co = TypeVar("T_co", covariant=True)


@final
@dataclass(frozen=True, slots=True)
class Record(Generic[T_co]):
    """A message and its place in the channel."""

    value: T_co
    offset: Offset
    sequence: int
    """Its number, counted from 0 at the birth of the channel."""


class AnyReceiver(ReceiveCore, Generic[T_co]):
    """Takes messages out of a channel in order. Any thread may use it; clones share its position."""

    def __init__(self, source: Source) -> None:
        source.acquire(self)
        self._source = source
        # Looked up once: this is the hot path. Closing replaces it.
        self._take: Callable[[], object] = source.counting(source.reader.native.take)
        if not source.is_counted:  # else the slow way, which counts
            self._attach(source.reader.native)

    if TYPE_CHECKING:  # ReceiveCore has it

        def receive_nowait(self) -> T_co:
            """Return the next message; `WouldBlock` if there is none."""
            ...

    def _receive_nowait_slowly(self) -> object:
        item = self._take()
        if item is NOTHING:
            self._check_end()
            raise WouldBlock
        self._source.settle_position_soon()
        return item

    def receive_record_nowait(self) -> Record[T_co]:
        """Return the next message with its offset and sequence; `WouldBlock` if there is none."""
        found = self._take_record()
        if found is NOTHING:
            self._check_end()
            raise WouldBlock
        self._source.settle_position_soon()
        value, offset, sequence = cast("tuple[T_co, Offset, int]", found)
        return Record(value, offset, sequence)

    def receive_many_nowait(self, max_items: int) -> list[T_co]:
        """Return up to *max_items* messages that are there; an empty list if there are none."""
        check_count("max_items", max_items)
        items = self._take_many(max_items)
        if items:
            self._source.settle_position_soon()
        return items

    def _take_many(self, max_items: int) -> list[T_co]:
        self._check_open()
        items = self._source.take_many(max_items)
        if not items:
            self._check_end()
        return cast("list[T_co]", items)

    def peek(self, n: int = 1) -> list[T_co]:
        """Return up to *n* messages that come next, without taking them."""
        check_count("n", n)
        self._check_open()
        scout = self._source.scout()
        try:
            return cast("list[T_co]", scout.take_many(n))
        finally:
            scout.close()

    def _has_news(self) -> bool:
        return self._is_closed or self._source.has_news()

    def _has_enough(self, max_items: int) -> bool:
        """Tell whether there is no use in waiting for more than is there."""
        source = self._source
        native = source.reader.native
        there = source.end.sequence - native.sequence + native.ready
        return there >= max_items or self._is_closed or source.is_complete

    def _take_record(self) -> object | Nothing:
        self._check_open()
        return self._source.counting(self._source.reader.native.take_record)()

    def _check_end(self) -> None:
        if self._source.has_ended():
            raise EndOfStream

    # Position

    @property
    def read_offset(self) -> Offset:
        """Where the next message begins."""
        self._check_open()
        return Offset(self._source.reader.native.offset)

    def _move(self, to: Mark) -> bool:
        """Stand at a place, and tell whether it is still there; if not, nothing has moved."""
        self._check_open()
        is_there = self._source.move(to)
        self._source.arrivals.wake_all()
        return is_there

    def statistics(self) -> ReceiverStatistics:
        """Return a snapshot of this receiver."""
        self._check_open()
        native, end = self._source.reader.native, self._source.end
        place = Mark(Offset(native.offset), native.sequence, 0)
        return ReceiverStatistics(
            read_offset=self.read_offset,
            next_sequence=native.sequence,
            lag_messages=end.sequence - native.sequence + native.ready,
            lag_bytes=self._source.store.backlog.between(place, end).size,
            unacked=native.outstanding,
            clones=len(self._source.users),
        )

    # Life

    def clone(self) -> Self:
        """Return another receiver that shares the position: each message goes to one of them."""
        self._check_open()
        return type(self)(self._source)

    @property
    def _is_closed(self) -> bool:
        return self._take is _closed

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedResourceError

    def close(self) -> None:
        """Close this receiver. The position stays where it is, and a task that waits in it is told.

        If a signal handler raises meanwhile, closing it again completes it.
        """
        self.detach()
        self._source.release(self)
        self._source.arrivals.wake_all()

    def detach(self) -> None:
        """Refuse everything from now on, and let go of nothing."""
        self._take = _closed
        self._detach()

    def __enter__(self) -> Self:
        """Use the receiver in a `with` block, which closes it."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the receiver."""
        self.close()

    def __repr__(self) -> str:
        cursor = self._source.cursor
        name = "" if cursor is None else f" name={cursor.name!r}"
        closed = " closed" if self._is_closed else ""
        return f"<{type(self).__name__} {str(self._source.store.path)!r}{name}{closed}>"

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled: a position belongs to one process."""
        raise TypeError(
            f"{self!r} cannot be pickled: its position belongs to this process; "
            "pickle the channel, and make a receiver of it in the other one"
        )


class Named:
    """What a receiver with a durable name has besides."""

    _source: Source

    @property
    def name(self) -> str:
        """The consumer's name."""
        assert self._source.cursor is not None
        return self._source.cursor.name

    @property
    def id(self) -> str:
        """What tells this consumer from every other one: the channel's path and the name."""
        return f"{self._source.store.path}#{self.name}"


def _closed() -> object:
    raise ClosedResourceError


def check_count(name: str, count: int) -> None:
    """Refuse what is not a number of messages, or none."""
    if type(count) is not int:
        raise TypeError(f"{name}={count!r}: must be a number of messages, not {type(count).__name__}")
    if count < 1:
        raise ValueError(f"{name}={count}: must be at least 1 message")


def check_linger(seconds: float) -> None:
    """Refuse what is not a time to wait for more."""
    checks.seconds_or_zero("linger", seconds)
