"""Receiving and sending in one step, in an event loop: what is sent and what is acknowledged take effect together."""

# A step is a part of its receiver and its sender.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Generic, Self, TypeVar, final

from .._wakeup.loops import notice_cancellation, run_through_cancellation
from .ack import AckReceiver
from .any_transaction import AnyStep, Leaving, check_arguments
from .sender import Sender
from .turns import give_way_if_due

T = TypeVar("T")
U = TypeVar("U")
T_co = TypeVar("T_co", covariant=True)
U_contra = TypeVar("U_contra", contravariant=True)


@final
class Step(AnyStep[T_co, U_contra], Generic[T_co, U_contra]):
    """One step of a transaction: receive messages, and send what is made of them.

    Whatever the receiver hands out in the block belongs to the step. After the last message of a sealed channel a
    second `receive` in the same step waits for its end, which does not come before the step is over.
    """

    def __init__(self, rx: AckReceiver[T_co], tx: Sender[U_contra]) -> None:
        super().__init__(rx, tx)
        self._rx = rx
        self._tx = tx

    async def receive(self) -> T_co:
        """Return the next message, waiting for it if need be. Errors as in `AckReceiver.receive`."""
        self._check_on()
        return await self._rx.receive()

    async def receive_many(self, max_items: int, linger: float = 0.0) -> list[T_co]:
        """Return at least one message and at most *max_items*, as `AckReceiver.receive_many` does."""
        self._check_on()
        return await self._rx.receive_many(max_items, linger)

    async def __aenter__(self) -> Self:
        """Begin the step; the first one of a process looks up how far the consumer has come, in both channels."""
        await give_way_if_due()
        self._begin()
        try:
            while not self._is_prepared:
                await self._source.errands.run(self._prepare)
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
        """Send and acknowledge, or neither."""
        try:
            if error is None:
                await self._commit()
            else:
                self._give_back(error)
        except BaseException:
            self._give_back()
            raise
        finally:
            self._end()

    if TYPE_CHECKING:

        async def __aexit__(
            self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
        ) -> None:
            """Send and acknowledge, or neither."""
    else:
        __aexit__ = Leaving(_leave)

    async def _commit(self) -> None:
        # Whatever may be cancelled comes first: once the batch is in the channel, the step has happened.
        if self._source.must_settle_acks:
            await notice_cancellation()
        if self._payloads:
            await self._tx._before_append()
            await self._tx._until_visible(await self._tx._patiently(self._append))
        else:
            await give_way_if_due()
        self._settle()
        if self._source.must_settle_acks:
            await run_through_cancellation(self._source.settle_position)


def transaction(rx: AckReceiver[T], tx: Sender[U]) -> Step[T, U]:
    """Receive and send in one step, for an `async with` block.

    If the block ends well, what was sent with `step.send` becomes visible at once, as one batch, and what was received
    is acknowledged; together, also across a crash. If it raises, or is cancelled, nothing is sent and what was received
    comes again; a cancellation does not count as an attempt. So it is if the end of the block itself raises: the
    errors are those of `Sender.send_many`.

    Entering raises `AckError` if messages are outstanding already or another step is on, `ConsumerMismatchError` if
    steps of this consumer went into another channel, and `ClosedResourceError`.
    """
    check_arguments(rx, tx, AckReceiver, Sender, "filechannel.blocking.transaction")
    return Step(rx, tx)
