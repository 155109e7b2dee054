"""`AckReceiver` for event loops: messages are redelivered until they are acknowledged."""

from __future__ import annotations

from asyncio import Future
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Generic, Self, TypeVar, cast, final

from anyio import EndOfStream

from ..._format import NOTHING, own_receive
from ..._wakeup.event_loops import notice_cancellation, run_through_cancellation
from ..base.ack_receiver import BaseAckReceiver
from ..subscription.delivery import Delivery, DeliveryFields
from ..subscription.start_position import Start
from .cooperative_yield import slice_is_over, yield_if_due
from .receiver import Receiver

T_co = TypeVar("T_co", covariant=True)

_SLICE = 256  # messages taken between two checks of the clock


class Acknowledging(BaseAckReceiver[T_co], Receiver[T_co], Generic[T_co]):
    """A receiver with acknowledgement, for a single consumer or a member of a group."""

    async def receive_delivery(self) -> Delivery[T_co]:
        """Return the next message as a `Delivery` to acknowledge; wait for it if necessary. Errors as in `receive`."""
        found = NOTHING if slice_is_over() else self._take_delivery()
        return self._delivery(await self._wait_for(self._take_delivery) if found is NOTHING else found)

    def deliveries(self) -> AsyncIterator[Delivery[T_co]]:
        """Return an async iterator of deliveries, which ends where `receive` raises `EndOfStream`."""
        return _Deliveries(self)

    def processing(self) -> AbstractAsyncContextManager[T_co]:
        """Receive a message for the body of an `async with`: ack it if the body completes, nack it if the body raises.

        If the body is cancelled, or left by anything else that is not an `Exception`, the message is redelivered and
        this attempt does not count.
        """
        return self._process()

    @asynccontextmanager
    async def _process(self) -> AsyncGenerator[T_co]:
        if self._subscription.must_flush_acks:
            await notice_cancellation()  # the wait below is shielded: this is where a loop can be cancelled
        value, acknowledging = self._acknowledging(await self._wait_for(self._take_delivery))
        with acknowledging:
            yield value
        if self._subscription.must_flush_acks:
            await run_through_cancellation(self._subscription.flush_position)

    async def unsubscribe(self) -> None:
        """Remove the consumer, and close this receiver and its clones."""
        self._check_open()
        await self._subscription.blocking_calls.run(self._subscription.forget)

    def _begin_wait(self) -> Future[None] | None:
        # A future does not complete when the delay of a nacked message ends.
        return None if self._subscription.reader.native.next_due else super()._begin_wait()

    async def _take_slices(self, max_items: int) -> list[T_co]:
        """Take one message at a time and yield in between. If cancelled, all of them are redelivered."""
        found: list[DeliveryFields[T_co]] = []
        reader = self._subscription.reader
        self._subscription.check_position()  # only here: errors in the loop are raised again by the next receive
        try:
            while len(found) < max_items:
                try:
                    self._check_open()
                    taken = reader.take_next_delivery() if found else reader.native.take_delivery()
                except Exception:
                    if not found:
                        raise
                    break  # raised again when the messages before it were received
                if taken is NOTHING:
                    break
                found.append(cast("DeliveryFields[T_co]", taken))
                if len(found) % _SLICE == 0:
                    await yield_if_due()
        except BaseException:
            self._outstanding.return_undelivered([(offset, token) for _, offset, _, _, token in found])
            raise
        return [value for value, *_ in found]


@final
@own_receive
class AckReceiver(Acknowledging[T_co], Generic[T_co]):
    """A receiver with a consumer name whose position moves when messages are acknowledged.

    A received message stays outstanding until it is acked or nacked. The stored position is that of the oldest message
    that is not acked: after a crash, or when the receiver is closed, everything from there on is redelivered. Closing
    acknowledges nothing. Clones share the position and the outstanding messages.

    After the last message of a sealed channel, a receive waits while messages are outstanding, because a nack would
    redeliver them. It raises `EndOfStream` when everything is acked. If you ack in batches, ack the rest before you
    receive again.
    """

    async def seek(self, to: Start) -> None:
        """Move to another position, together with the clones. Raise `ValueError` if no message begins at the offset.

        Seeking acknowledges nothing. Messages before the new position that are outstanding, or were nacked, stay so,
        and the stored position does not move past them. Messages at or after the new position are not outstanding any
        more; they are received again in any case.
        """
        await super().seek(to)


@final
class _Deliveries(AsyncIterator[Delivery[T_co]], Generic[T_co]):
    """Not a generator: it can be used again after a cancellation."""

    def __init__(self, receiver: Acknowledging[T_co]) -> None:
        self._receiver = receiver

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delivery[T_co]:
        try:
            return await self._receiver.receive_delivery()
        except EndOfStream:
            raise StopAsyncIteration from None
