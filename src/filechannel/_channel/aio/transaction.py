"""Transactions for event loops: the output and the acknowledgements of a step take effect together."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Generic, Self, TypeVar, final

from ..._wakeup.event_loops import notice_cancellation, run_through_cancellation
from ..base.transaction import BaseStep, Leaving, check_arguments
from .ack_receiver import AckReceiver
from .cooperative_yield import yield_if_due
from .sender import Sender

T = TypeVar("T")
U = TypeVar("U")
T_co = TypeVar("T_co", covariant=True)
U_contra = TypeVar("U_contra", contravariant=True)


@final
class Step(BaseStep[T_co, U_contra], Generic[T_co, U_contra]):
    """One step of a transaction: receive messages, and send the results.

    All messages that the receiver returns in the block belong to the step. After the last message of a sealed channel,
    a second `receive` in the same step waits for the end of the stream, which does not come before the step is over.
    """

    def __init__(self, rx: AckReceiver[T_co], tx: Sender[U_contra]) -> None:
        super().__init__(rx, tx)
        self._rx = rx
        self._tx = tx

    async def receive(self) -> T_co:
        """Return the next message; wait for it if necessary. Errors as in `AckReceiver.receive`."""
        self._check_active()
        return await self._rx.receive()

    async def receive_many(self, max_items: int, linger: float = 0.0) -> list[T_co]:
        """Return between one and *max_items* messages, as `AckReceiver.receive_many` does."""
        self._check_active()
        return await self._rx.receive_many(max_items, linger)

    async def __aenter__(self) -> Self:
        """Begin the step. The first step of a process looks up the consumer's position in both channels."""
        await yield_if_due()
        self._begin()
        try:
            while not self._is_prepared:
                await self._subscription.blocking_calls.run(self._prepare)
        except BaseException:
            self._end()
            raise
        return self

    async def _leave(
        self,
        _block: object,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Send and acknowledge, or do neither."""
        try:
            if error is None:
                await self._commit()
            else:
                self._redeliver(error)
        except BaseException:
            self._redeliver()
            raise
        finally:
            self._end()

    if TYPE_CHECKING:

        async def __aexit__(
            self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
        ) -> None:
            """Send and acknowledge, or do neither."""
    else:
        __aexit__ = Leaving(_leave)

    async def _commit(self) -> None:
        # Everything that may be cancelled comes first: once the batch is in the channel, the step has taken effect.
        if self._subscription.must_flush_acks:
            await notice_cancellation()
        if self._payloads:
            await self._tx.append_with(self._append)
        else:
            await yield_if_due()
        self._acknowledge()
        if self._subscription.must_flush_acks:
            await run_through_cancellation(self._subscription.flush_position)


def transaction(rx: AckReceiver[T], tx: Sender[U]) -> Step[T, U]:
    """Receive and send in one step, in an `async with` block.

    If the block completes, the messages sent with `step.send` become visible as one batch, and the received messages
    are acknowledged. Both take effect together, even across a crash. If the block raises, or is cancelled, nothing is
    sent and the received messages are redelivered; a cancellation does not count as an attempt. The same holds if the
    end of the block itself raises: its errors are those of `Sender.send_many`.

    Entering the block raises `AckError` if messages are outstanding already or another step is active,
    `ConsumerMismatchError` if earlier steps of this consumer sent to another channel, and `ClosedResourceError`.
    """
    check_arguments(rx, tx, AckReceiver, Sender, "filechannel.blocking.transaction")
    return Step(rx, tx)
