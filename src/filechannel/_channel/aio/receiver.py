"""Receiving in an event loop: what `AnyReceiver` does, and waiting."""

from __future__ import annotations

from asyncio import Future
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Generic, TypeVar, cast, final

import anyio
from anyio import EndOfStream
from anyio.abc import ObjectReceiveStream

from .._format import NOTHING, own_receive
from .._offset import Offset
from .._wakeup.loops import notice_cancellation, run_through_cancellation
from .any_receiver import AnyReceiver, Named, Record, check_count, check_linger
from .places import Start
from .turns import begin_turn, give_way_if_due, turn_is_over

T_co = TypeVar("T_co", covariant=True)

_SLICE = 1024  # messages decoded between two looks at the clock


@own_receive
class Receiver(AnyReceiver[T_co], ObjectReceiveStream[T_co], Generic[T_co]):
    """Takes messages out of a channel in order. Any thread may use it; clones share its position."""

    if TYPE_CHECKING:  # ReceiveCore has it

        async def receive(self) -> T_co:
            """Return the next message, waiting for it if need be. A cancelled receive takes nothing.

            Raises `EndOfStream` after the last message of a sealed channel and where a replay stops,
            `ClosedResourceError` if this receiver was closed, `DecodeError` for a message that does not decode,
            `CorruptRecordError` for damaged bytes.
            """
            ...

    def _begin_wait(self) -> Future[None] | None:
        source = self._source
        return None if source.options.spin else source.arrivals.enter(self._has_news)

    def _end_wait(self, future: object, /) -> None:
        self._source.arrivals.leave(cast("Future[None]", future))

    def _receive_slowly(self) -> Coroutine[object, object, object]:
        return self._wait_for(self._take)

    async def receive_record(self) -> Record[T_co]:
        """Return the next message with its offset and sequence, waiting for it if need be."""
        value, offset, sequence = cast("tuple[T_co, Offset, int]", await self._wait_for(self._take_record))
        return Record(value, offset, sequence)

    async def receive_many(self, max_items: int, linger: float = 0.0) -> list[T_co]:
        """Return at least one message and at most *max_items*: what is there, and what comes within *linger* seconds.

        A cancelled call takes nothing.
        """
        check_count("max_items", max_items)
        check_linger(linger)
        while True:
            await self._until_news()
            if linger > 0:
                await self._linger(max_items, linger)
            items = self._take_many(max_items) if max_items <= _SLICE else await self._take_slices(max_items)
            if items:
                await self._settle_position()
                return items

    async def __anext__(self) -> T_co:
        """Return the next message of an `async for`, which ends where `receive` raises `EndOfStream`."""
        try:
            return await self.receive()
        except EndOfStream:
            raise StopAsyncIteration from None

    # Waiting

    async def _wait_for(self, take: Callable[[], object]) -> object:
        # What most waits need is what is at the top: they wait for one message, once, and a microsecond counts there.
        if turn_is_over():
            await give_way_if_due()
        if self._source.must_settle_position:
            await notice_cancellation()
        while (item := take()) is NOTHING:
            await self._source.wait(self._has_news)
            begin_turn()
            self._check_open()
            if (item := take()) is not NOTHING:
                break
            self._check_end()
            await give_way_if_due()
        if self._source.must_settle_position:
            await self._settle_position()
        return item

    async def _settle_position(self) -> None:
        """Wait until the position is on disk, if the options say so. What was taken is handed out, cancelled or not."""
        if self._source.must_settle_position:
            await run_through_cancellation(self._source.settle_position)

    async def _until_news(self) -> None:
        await give_way_if_due()
        if self._source.must_settle_position:
            await notice_cancellation()  # the wait for a flush is shielded: here a loop of receives can be cancelled
        self._check_open()
        if not self._source.has_news():
            await self._source.wait(self._has_news)
            begin_turn()
            self._check_open()
        self._check_end()

    async def _linger(self, max_items: int, seconds: float) -> None:
        """Wait until enough messages are there, or for so long."""
        with anyio.move_on_after(seconds):
            while not self._has_enough(max_items):
                await self._source.wait(lambda: self._has_enough(max_items))
        begin_turn()
        self._check_open()

    async def _take_slices(self, max_items: int) -> list[T_co]:
        """Read ahead with another reader, giving way in between, and take it all at the end.

        Cancelled in the middle, nothing was taken. If a clone took messages meanwhile, what was read is stale:
        then one slice at once has to do.
        """
        self._source.check_position()
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
                self._source.took(len(items))
                return cast("list[T_co]", items)
            return self._take_many(_SLICE)
        finally:
            scout.close()

    async def seek(self, to: Start) -> None:
        """Go on at another place; clones go along. `ValueError` if no message begins at that offset."""
        self._check_open()
        source = self._source
        while not self._move(await source.errands.run(lambda: source.find(to, "to"))):
            pass

    async def aclose(self) -> None:
        """Close this receiver."""
        self.close()


@final
@own_receive
class FanOutReceiver(Named, Receiver[T_co], Generic[T_co]):
    """A receiver with a durable name: every name gets every message, and goes on where it stopped."""

    async def unsubscribe(self) -> None:
        """Forget the name, and close this receiver and its clones."""
        self._check_open()
        await self._source.errands.run(self._source.forget)
