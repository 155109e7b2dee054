"""Transactions for threads: the output and the acknowledgements of a step take effect together."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Generic, Self, TypeVar, final

from .._channel.base.transaction import BaseStep, Leaving, check_arguments
from .ack_receiver import AckReceiver
from .sender import Sender

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
U = TypeVar("U")
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

    def receive(self, timeout: float | None = None) -> T_co:
        """Return the next message; wait for it if necessary. Errors as in `AckReceiver.receive`."""
        self._check_active()
        return self._rx.receive(timeout)

    def receive_many(self, max_items: int, linger: float = 0.0, timeout: float | None = None) -> list[T_co]:
        """Return between one and *max_items* messages, as `AckReceiver.receive_many` does."""
        self._check_active()
        return self._rx.receive_many(max_items, linger, timeout)

    def __enter__(self) -> Self:
        """Begin the step. The first step of a process looks up the consumer's position in both channels."""
        self._begin()
        try:
            while not self._is_prepared:
                self._subscription.blocking_calls.do(self._prepare)
        except BaseException:
            self._end()
            raise
        return self

    def _leave(
        self,
        _block: object,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Send and acknowledge, or do neither."""
        try:
            if error is None:
                self._commit()
            else:
                self._redeliver(error)
        except BaseException:
            self._redeliver()
            raise
        finally:
            self._end()

    if TYPE_CHECKING:

        def __exit__(
            self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
        ) -> None:
            """Send and acknowledge, or do neither."""
    else:
        __exit__ = Leaving(_leave)

    def _commit(self) -> None:
        if self._payloads:
            self._tx.append_with(self._append)
        self._acknowledge()
        if self._subscription.must_flush_acks:
            self._subscription.flush_position()


def transaction(rx: AckReceiver[T], tx: Sender[U]) -> Step[T, U]:
    """Receive and send in one step, in a `with` block.

    If the block completes, the messages sent with `step.send` become visible as one batch, and the received messages
    are acknowledged. Both take effect together, even across a crash. If the block raises, nothing is sent and the
    received messages are redelivered. If it is left by anything that is not an `Exception`, such as Ctrl-C, this does
    not count as an attempt. Errors are those of the async `filechannel.transaction`.
    """
    check_arguments(rx, tx, AckReceiver, Sender, "filechannel.transaction")
    return Step(rx, tx)
