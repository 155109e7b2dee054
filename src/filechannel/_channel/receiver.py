"""Receiving: `receive_nowait` and its kin do it, the async methods add waiting."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Self, TypeVar, cast, final

import anyio
from anyio import ClosedResourceError, EndOfStream, WouldBlock
from anyio.abc import ObjectReceiveStream

from .._format import NOTHING, Nothing, ReceiveCore, own_receive
from .._offset import Offset
from .source import Source, Start
from .statistics import ReceiverStatistics
from .turns import begin_turn, give_way_if_due

T_co = TypeVar("T_co", covariant=True)

_SLICE = 1024  # messages decoded between two looks at the clock


@final
@dataclass(frozen=True, slots=True)
class Record(Generic[T_co]):
    """A message and its place in the channel."""

    value: T_co
    offset: Offset
    sequence: int
    """Its number, counted from 0 at the birth of the channel."""


@own_receive
class Receiver(ReceiveCore, ObjectReceiveStream[T_co], Generic[T_co]):
    """Takes messages out of a channel in order. Any thread may use it; clones share its position."""

    def __init__(self, source: Source) -> None:
        source.acquire(self)
        self._source = source
        # Looked up once: this is the hot path. Closing replaces it.
        self._take: Callable[[], object] = source.reader.native.take
        self._attach(source.reader.native)

    if TYPE_CHECKING:  # ReceiveCore has them

        async def receive(self) -> T_co:
            """Return the next message, waiting for it if need be. A cancelled receive takes nothing.

            Raises `EndOfStream` after the last message of a sealed channel and where a replay stops,
            `ClosedResourceError` if this receiver was closed, `DecodeError` for a message that does not decode,
            `CorruptRecordError` for damaged bytes.
            """
            ...

        def receive_nowait(self) -> T_co:
            """Return the next message; `WouldBlock` if there is none."""
            ...

    async def _receive_slowly(self) -> object:
        return await self._wait_for(self._take)

    def _receive_nowait_slowly(self) -> object:
        item = self._take()
        if item is NOTHING:
            self._check_end()
            raise WouldBlock
        return item

    async def receive_record(self) -> Record[T_co]:
        """Return the next message with its offset and sequence, waiting for it if need be."""
        value, offset, sequence = cast("tuple[T_co, Offset, int]", await self._wait_for(self._take_record))
        return Record(value, offset, sequence)

    async def receive_many(self, max_items: int, linger: float = 0.0) -> list[T_co]:
        """Return at least one message and at most *max_items*: what is there, and what comes within *linger* seconds.

        A cancelled call takes nothing.
        """
        _check_count("max_items", max_items)
        _check_linger(linger)
        while True:
            await self._until_news()
            if linger > 0:
                await self._linger(max_items, linger)
            items = self.receive_many_nowait(max_items) if max_items <= _SLICE else await self._take_slices(max_items)
            if items:
                return items

    def receive_many_nowait(self, max_items: int) -> list[T_co]:
        """Return up to *max_items* messages that are there; an empty list if there are none."""
        _check_count("max_items", max_items)
        self._check_open()
        items = self._source.reader.take_many(max_items)
        if not items:
            self._check_end()
        return cast("list[T_co]", items)

    def peek(self, n: int = 1) -> list[T_co]:
        """Return up to *n* messages that come next, without taking them."""
        _check_count("n", n)
        self._check_open()
        scout = self._source.scout()
        try:
            return cast("list[T_co]", scout.take_many(n))
        finally:
            scout.close()

    async def __anext__(self) -> T_co:
        """Return the next message of an `async for`, which ends where `receive` raises `EndOfStream`."""
        try:
            return await self.receive()
        except EndOfStream:
            raise StopAsyncIteration from None

    # Waiting

    async def _wait_for(self, take: Callable[[], object]) -> object:
        while True:
            await give_way_if_due()
            item = take()
            if item is not NOTHING:
                return item
            await self._until_news()

    async def _until_news(self) -> None:
        await give_way_if_due()
        self._check_open()
        source = self._source
        if not source.has_news():
            await source.arrivals.wait(lambda: self._is_closed or source.has_news())
            begin_turn()
            self._check_open()
        self._check_end()

    async def _linger(self, max_items: int, seconds: float) -> None:
        """Wait until enough messages are there, or for so long."""
        source = self._source

        def enough() -> bool:
            there = source.end.sequence - source.reader.native.sequence
            return there >= max_items or self._is_closed or source.is_complete

        with anyio.move_on_after(seconds):
            while not enough():
                await source.arrivals.wait(enough)
        begin_turn()
        self._check_open()

    async def _take_slices(self, max_items: int) -> list[T_co]:
        """Read ahead with another reader, giving way in between, and take it all at the end.

        Cancelled in the middle, nothing was taken. If a clone took messages meanwhile, what was read is stale:
        then one slice at once has to do.
        """
        items: list[object] = []
        scout = self._source.scout()
        native, start = scout.native, scout.native.offset
        end = start, native.sequence
        try:
            while len(items) < max_items:
                try:
                    more = scout.take_many(min(_SLICE, max_items - len(items)))
                except Exception:
                    break  # told when what comes before it has been taken
                if not more:
                    break
                items += more
                end = native.offset, native.sequence
                await give_way_if_due()
            self._check_open()
            if items and self._source.reader.native.move_from(start, *end):
                return cast("list[T_co]", items)
            return self.receive_many_nowait(_SLICE)
        finally:
            scout.close()

    def _take_record(self) -> object | Nothing:
        self._check_open()
        return self._source.reader.native.take_record()

    def _check_end(self) -> None:
        if self._source.has_ended():
            raise EndOfStream

    # Position

    @property
    def read_offset(self) -> Offset:
        """Where the next message begins."""
        self._check_open()
        return Offset(self._source.reader.native.offset)

    async def seek(self, to: Start) -> None:
        """Go on at another place; clones go along. `ValueError` if no message begins at that offset."""
        self._check_open()
        source = self._source
        place = await source.errands.run(lambda: source.find(to, "to"))
        self._check_open()
        source.reader.move(place)
        source.arrivals.wake_all()

    def statistics(self) -> ReceiverStatistics:
        """Return a snapshot of this receiver."""
        self._check_open()
        native, end = self._source.reader.native, self._source.end
        return ReceiverStatistics(
            read_offset=Offset(native.offset),
            next_sequence=native.sequence,
            lag_messages=end.sequence - native.sequence,
            lag_bytes=end.offset - native.offset,
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
        """Close this receiver. The position stays where it is, and a task that waits in it is told."""
        if self._is_closed:
            return
        self.detach()
        self._source.release(self)
        self._source.arrivals.wake_all()

    def detach(self) -> None:
        """Refuse everything from now on, and let go of nothing."""
        self._take = _closed
        self._detach()

    async def aclose(self) -> None:
        """Close this receiver."""
        self.close()

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


@final
@own_receive
class FanOutReceiver(Receiver[T_co], Generic[T_co]):
    """A receiver with a durable name: every name gets every message, and goes on where it stopped."""

    @property
    def name(self) -> str:
        """The consumer's name."""
        assert self._source.cursor is not None
        return self._source.cursor.name

    @property
    def id(self) -> str:
        """What tells this consumer from every other one: the channel's path and the name."""
        return f"{self._source.store.path}#{self.name}"

    async def unsubscribe(self) -> None:
        """Forget the name, and close this receiver and its clones."""
        self._check_open()
        await self._source.errands.run(self._source.forget)


def _closed() -> object:
    raise ClosedResourceError


def _check_count(name: str, count: int) -> None:
    if type(count) is not int:
        raise TypeError(f"{name}={count!r}: must be a number of messages, not {type(count).__name__}")
    if count < 1:
        raise ValueError(f"{name}={count}: must be at least 1 message")


def _check_linger(seconds: float) -> None:
    if not isinstance(seconds, int | float):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"linger={seconds!r}: must be a number of seconds, not {type(seconds).__name__}")
    if not seconds >= 0:
        raise ValueError(f"linger={seconds!r}: must be a number of seconds, 0 or more")
