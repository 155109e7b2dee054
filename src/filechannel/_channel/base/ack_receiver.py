"""`BaseAckReceiver`: everything a receiver with acknowledgement does without waiting."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Generic, Protocol, Self, TypeVar, cast

from ..._errors import AckError, counted_messages
from ..._format import AckCore, Nothing
from ..._offset import Offset
from ..subscription.delivery import Delivery, DeliveryFields
from ..subscription.outstanding import Outstanding
from ..subscription.transaction_position import TransactionInput
from .receiver import BaseReceiver, Named, check_count

T_co = TypeVar("T_co", covariant=True)


class Acknowledgable(Protocol):
    """An object that delivers messages and tracks which of them are acknowledged."""

    @property
    def unack_count(self) -> int:
        """The number of outstanding messages: delivered, and neither acked nor nacked."""
        ...

    def ack(self, n: int = 1) -> None:
        """Acknowledge the oldest *n* outstanding messages. Raise `AckError`, and change nothing, if there are fewer."""
        ...

    def nack(self, n: int | None = None) -> None:
        """Redeliver the newest *n* outstanding messages, all if None. Raise `AckError` if there are fewer."""
        ...


class BaseAckReceiver(AckCore, Named, BaseReceiver[T_co], Generic[T_co]):
    """Delivers messages, and moves its cursor when they are acknowledged. Clones share both."""

    def __init__(self, outstanding: Outstanding) -> None:
        subscription = outstanding.subscription
        super().__init__(subscription)
        self._outstanding = outstanding
        self._take_outstanding: Callable[[], object] = subscription.counting(subscription.reader.native.take_delivery)

    if TYPE_CHECKING:  # AckCore implements it

        def ack(self, n: int = 1) -> None:
            """Acknowledge the oldest *n* outstanding messages: they are never redelivered.

            Raises `AckError`, and changes nothing, if there are fewer.
            """
            ...

    def _ack_slowly(self, n: int) -> None:
        check_count("n", n)
        self._check_open()
        if not self._outstanding.ack(n):
            raise self._too_many(n)

    def _drained(self) -> None:
        """Wake the waiters: if that was the last message of a sealed channel, they get `EndOfStream`."""
        self._outstanding.claims.after_ack()

    def nack(self, n: int | None = None) -> None:
        """Redeliver the newest *n* outstanding messages, in order and before any new message; all of them if None.

        Raises `AckError`, and changes nothing, if there are fewer.
        """
        if n is not None:
            check_count("n", n)
        self._check_open()
        if not self._outstanding.nack(n):
            raise self._too_many(n)

    def _too_many(self, n: int | None) -> AckError:
        count = self.unack_count
        return AckError(self.name, f"n={n}: only {counted_messages(count)} {'is' if count == 1 else 'are'} outstanding")

    @property
    def unack_count(self) -> int:
        """The number of outstanding messages: delivered, and neither acked nor nacked."""
        self._check_open()
        return self._subscription.reader.native.outstanding

    def clone(self) -> Self:
        """Return another receiver that shares the position: each message is received by one of them."""
        self._check_open()
        return type(self)(self._outstanding)

    @property
    def transaction_input(self) -> TransactionInput:
        """The outstanding messages as the input of a step. For `transaction`."""
        return self._outstanding.transaction

    @property
    def read_offset(self) -> Offset:
        """The offset of the next message, which may be one that is redelivered."""
        self._check_open()
        native = self._subscription.reader.native
        return Offset(next((offset for offset, _ in native.ready_positions(1)), native.offset))

    def _take_delivery(self) -> object | Nothing:
        self._check_open()
        return self._take_outstanding()

    def _delivery(self, found: object) -> Delivery[T_co]:
        value, offset, sequence, attempt, token = cast("DeliveryFields[T_co]", found)
        return Delivery(self._outstanding, value, offset, sequence, attempt, token)

    def _acknowledging(self, found: object) -> tuple[T_co, AbstractContextManager[None]]:
        """Return a message, and a context manager that acks or nacks it when its body ends."""
        value, offset, _, _, token = cast("DeliveryFields[T_co]", found)
        return value, self._outstanding.acknowledging(offset, token)
