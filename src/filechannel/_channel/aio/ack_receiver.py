"""Receiving in an event loop with acknowledgement: what was handed out comes again until it is acked."""

from __future__ import annotations

from asyncio import Future
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Generic, Self, TypeVar, cast, final

from anyio import EndOfStream

from .._format import NOTHING, own_receive
from .._wakeup.loops import notice_cancellation, run_through_cancellation
from .any_ack_receiver import AnyAckReceiver
from .delivery import Delivery, Handed
from .places import Start
from .receiver import Receiver
from .turns import give_way_if_due, turn_is_over

T_co = TypeVar("T_co", covariant=True)

_SLICE = 256  # messages taken between two looks at the clock


class Acknowledging(AnyAckReceiver[T_co], Receiver[T_co], Generic[T_co]):
    """A receiver that acknowledges, for itself or as a member of a group."""

    async def receive_delivery(self) -> Delivery[T_co]:
        """Return the next message with what acknowledges it, waiting for it if need be. Errors as in `receive`."""
        found = NOTHING if turn_is_over() else self._take_delivery()
        return self._delivery(await self._wait_for(self._take_delivery) if found is NOTHING else found)

    def deliveries(self) -> AsyncIterator[Delivery[T_co]]:
        """Receive one delivery after the other in an `async for`, which ends where `receive` raises `EndOfStream`."""
        return _Deliveries(self)

    def processing(self) -> AbstractAsyncContextManager[T_co]:
        """Receive a message for the body of an `async with`: acked if that ends well, nacked if it raises.

        Cancelled, or left by anything else that is no `Exception`, it comes again without counting as an attempt.
        """
        return self._process()

    @asynccontextmanager
    async def _process(self) -> AsyncGenerator[T_co]:
        if self._acks.must_settle_acks:
            await notice_cancellation()  # the wait below is shielded: here a loop can be cancelled
        value, settling = self._settling(await self._wait_for(self._take_delivery))
        with settling:
            yield value
        if self._acks.must_settle_acks:
            await run_through_cancellation(self._acks.settle_position)

    async def unsubscribe(self) -> None:
        """Forget the name, and close this receiver and its clones."""
        self._check_open()
        await self._source.errands.run(self._source.forget)

    def _begin_wait(self) -> Future[None] | None:
        # A future knows of no delay that will be over.
        return None if self._acks.reader.native.next_due else super()._begin_wait()

    async def _take_slices(self, max_items: int) -> list[T_co]:
        """Take one by one, giving way in between; cancelled in the middle, all of it comes again."""
        found: list[Handed[T_co]] = []
        reader = self._acks.reader
        self._acks.check_position()  # only here: what is raised below is told again
        try:
            while len(found) < max_items:
                try:
                    self._check_open()
                    handed = reader.take_next_delivery() if found else reader.native.take_delivery()
                except Exception:
                    if not found:
                        raise
                    break  # told when what comes before it has been taken
                if handed is NOTHING:
                    break
                found.append(cast("Handed[T_co]", handed))
                if len(found) % _SLICE == 0:
                    await give_way_if_due()
        except BaseException:
            self._acks.take_back([(offset, token) for _, offset, _, _, token in found])
            raise
        return [value for value, *_ in found]


@final
@own_receive
class AckReceiver(Acknowledging[T_co], Generic[T_co]):
    """A receiver with a durable name whose position moves when messages are acknowledged.

    What is received stays outstanding until it is acked or nacked. The stored position is that of the oldest message
    that is not acked: after a crash, or when the receiver is closed, everything from there on comes again. Closing
    acknowledges nothing. Clones share the position and what is outstanding.

    After the last message of a sealed channel a receive waits as long as something is outstanding, since a nack would
    bring it again, and raises `EndOfStream` when everything is acked. Whoever acks in batches acks the rest before it
    asks for more.
    """

    async def seek(self, to: Start) -> None:
        """Go on at another place; clones go along. `ValueError` if no message begins at that offset.

        Nothing is acknowledged by that: what is outstanding, or was nacked, and begins before that place stays so, and
        the stored position waits for it. What begins there or later is not outstanding any more; it comes anyway.
        """
        await super().seek(to)


@final
class _Deliveries(AsyncIterator[Delivery[T_co]], Generic[T_co]):
    """Not a generator: one that was cancelled goes on."""

    def __init__(self, receiver: Acknowledging[T_co]) -> None:
        self._receiver = receiver

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delivery[T_co]:
        try:
            return await self._receiver.receive_delivery()
        except EndOfStream:
            raise StopAsyncIteration from None
