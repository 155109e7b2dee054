"""`Receiver` for event loops: `BaseReceiver`, with methods that wait."""

from __future__ import annotations

from asyncio import Future
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Generic, TypeVar, cast, final

import anyio
from anyio import EndOfStream
from anyio.abc import ObjectReceiveStream

from ..._format import NOTHING, own_receive
from ..._offset import Offset
from ..._wakeup.event_loops import notice_cancellation, run_through_cancellation
from ..base.receiver import BaseReceiver, Named, Record, check_count, check_linger
from ..subscription.start_position import Start
from .cooperative_yield import begin_slice, slice_is_over, yield_if_due

T_co = TypeVar("T_co", covariant=True)

_SLICE = 1024  # messages decoded between two checks of the clock


@own_receive
class Receiver(BaseReceiver[T_co], ObjectReceiveStream[T_co], Generic[T_co]):
    """Receives messages from a channel in order. Any thread may use it; clones share its position."""

    if TYPE_CHECKING:  # ReceiveCore implements it

        async def receive(self) -> T_co:
            """Return the next message; wait for it if necessary. A cancelled receive consumes nothing.

            Raises `EndOfStream` after the last message of a sealed channel and at the end of a replay,
            `ClosedResourceError` if this receiver was closed, `DecodeError` for a message that does not decode, and
            `CorruptRecordError` for damaged bytes.
            """
            ...

    def _begin_wait(self) -> Future[None] | None:
        subscription = self._subscription
        return None if subscription.options.spin else subscription.waiters.start_waiting(self._has_data)

    def _end_wait(self, future: object, /) -> None:
        self._subscription.waiters.stop_waiting(cast("Future[None]", future))

    def _receive_slowly(self) -> Coroutine[object, object, object]:
        return self._wait_for(self._take)

    async def receive_record(self) -> Record[T_co]:
        """Return the next message with its offset and sequence; wait for it if necessary."""
        value, offset, sequence = cast("tuple[T_co, Offset, int]", await self._wait_for(self._take_record))
        return Record(value, offset, sequence)

    async def receive_many(self, max_items: int, linger: float = 0.0) -> list[T_co]:
        """Return between one and *max_items* messages; after the first, wait up to *linger* seconds for more.

        A cancelled call consumes nothing.
        """
        check_count("max_items", max_items)
        check_linger(linger)
        while True:
            await self._until_data()
            if linger > 0:
                await self._linger(max_items, linger)
            items = self._take_many(max_items) if max_items <= _SLICE else await self._take_slices(max_items)
            if items:
                await self._flush_position()
                return items

    async def __anext__(self) -> T_co:
        """Return the next message of an `async for` loop, which ends where `receive` raises `EndOfStream`."""
        try:
            return await self.receive()
        except EndOfStream:
            raise StopAsyncIteration from None

    # Waiting

    async def _wait_for(self, take: Callable[[], object]) -> object:
        # The common case is at the top: most waits are for one message, once, and there a microsecond matters.
        if slice_is_over():
            await yield_if_due()
        if self._subscription.must_flush_position:
            await notice_cancellation()
        while (item := take()) is NOTHING:
            await self._subscription.wait(self._has_data)
            begin_slice()
            self._check_open()
            if (item := take()) is not NOTHING:
                break
            self._check_end()
            await yield_if_due()
        if self._subscription.must_flush_position:
            await self._flush_position()
        return item

    async def _flush_position(self) -> None:
        """Wait until the position is on disk, if the options require it. The message is returned even if cancelled."""
        if self._subscription.must_flush_position:
            await run_through_cancellation(self._subscription.flush_position)

    async def _until_data(self) -> None:
        await yield_if_due()
        if self._subscription.must_flush_position:
            await notice_cancellation()  # the wait for a flush is shielded: this is where a loop can be cancelled
        self._check_open()
        if not self._subscription.has_data():
            await self._subscription.wait(self._has_data)
            begin_slice()
            self._check_open()
        self._check_end()

    async def _linger(self, max_items: int, seconds: float) -> None:
        """Wait until enough messages are available, at most this long."""
        with anyio.move_on_after(seconds):
            while not self._has_enough(max_items):
                await self._subscription.wait(lambda: self._has_enough(max_items))
        begin_slice()
        self._check_open()

    async def _take_slices(self, max_items: int) -> list[T_co]:
        """Read with a look-ahead reader, yield to the event loop in between, and consume everything at the end.

        If this is cancelled before that, nothing is consumed. If a clone consumes messages meanwhile, the messages that
        were read are stale: then it returns a single slice, which it takes at once.
        """
        self._subscription.check_position()
        items: list[object] = []
        look_ahead_reader = self._subscription.look_ahead_reader()
        native, start = look_ahead_reader.native, look_ahead_reader.native.offset
        end = start, native.sequence
        try:
            while len(items) < max_items:
                try:
                    more = look_ahead_reader.take_many(min(_SLICE, max_items - len(items)))
                except Exception:
                    break  # raised again when the messages before it were consumed
                if not more:
                    break
                items += more
                end = native.offset, native.sequence
                await yield_if_due()
            self._check_open()
            if items and self._subscription.reader.native.move_from(start, *end):
                self._subscription.took(len(items))
                return cast("list[T_co]", items)
            return self._take_many(_SLICE)
        finally:
            look_ahead_reader.close()

    async def seek(self, to: Start) -> None:
        """Move to another position, together with the clones. Raise `ValueError` if no message begins at the offset."""
        self._check_open()
        subscription = self._subscription
        while not self._move(await subscription.blocking_calls.run(lambda: subscription.find(to, "to"))):
            pass

    async def aclose(self) -> None:
        """Close this receiver."""
        self.close()


@final
@own_receive
class FanOutReceiver(Named, Receiver[T_co], Generic[T_co]):
    """A receiver with a consumer name. Every name receives every message, and resumes where it stopped."""

    async def unsubscribe(self) -> None:
        """Remove the consumer, and close this receiver and its clones."""
        self._check_open()
        await self._subscription.blocking_calls.run(self._subscription.forget)
