"""Exactly-once steps without an event loop."""

# A step is a part of its receiver and its sender.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Generic, Self, TypeVar, final

from .._channel.any_transaction import AnyStep, Leaving, check_arguments
from .acknowledging import AckReceiver
from .sender import Sender

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
U = TypeVar("U")
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

    def receive(self, timeout: float | None = None) -> T_co:
        """Return the next message, waiting for it if need be. Errors as in `AckReceiver.receive`."""
        self._check_on()
        return self._rx.receive(timeout)

    def receive_many(self, max_items: int, linger: float = 0.0, timeout: float | None = None) -> list[T_co]:
        """Return at least one message and at most *max_items*, as `AckReceiver.receive_many` does."""
        self._check_on()
        return self._rx.receive_many(max_items, linger, timeout)

    def __enter__(self) -> Self:
        """Begin the step; the first one of a process looks up how far the consumer has come, in both channels."""
        self._begin()
        try:
            while not self._is_prepared:
                self._source.errands.do(self._prepare)
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
        """Send and acknowledge, or neither."""
        try:
            if error is None:
                self._commit()
            else:
                self._give_back(error)
        except BaseException:
            self._give_back()
            raise
        finally:
            self._end()

    if TYPE_CHECKING:

        def __exit__(
            self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
        ) -> None:
            """Send and acknowledge, or neither."""
    else:
        __exit__ = Leaving(_leave)

    def _commit(self) -> None:
        if self._payloads:
            self._tx._connection.flusher.refuse_reentry()
            self._tx._flush_now(self._tx._patiently(self._append, None))
        self._settle()
        if self._source.must_settle_acks:
            self._source.settle_position()


def transaction(rx: AckReceiver[T], tx: Sender[U]) -> Step[T, U]:
    """Receive and send in one step, for a `with` block.

    If the block ends well, what was sent with `step.send` becomes visible at once, as one batch, and what was received
    is acknowledged; together, also across a crash. If it raises, nothing is sent and what was received comes again;
    left by anything that is no `Exception`, Ctrl-C for one, that does not count as an attempt. Errors are those of the
    async `filechannel.transaction`.
    """
    check_arguments(rx, tx, AckReceiver, Sender, "filechannel.transaction")
    return Step(rx, tx)
