"""What every receiver that acknowledges does without waiting, in an event loop or in a thread."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar, cast

from .._errors import AckError
from .._format import AckCore, Nothing
from .._offset import Offset
from .ack_source import AckSource
from .any_receiver import AnyReceiver, Named, check_count
from .delivery import Delivery, Handed

T_co = TypeVar("T_co", covariant=True)


class Acknowledgable(Protocol):
    """Whatever hands messages out and waits to be told what became of them."""

    @property
    def unack_count(self) -> int:
        """How many messages are outstanding: handed out, and neither acked nor nacked."""
        ...

    def ack(self, n: int = 1) -> None:
        """Acknowledge the oldest *n* outstanding messages; `AckError`, and nothing changed, if there are fewer."""
        ...

    def nack(self, n: int | None = None) -> None:
        """Let the newest *n* outstanding messages come again, all if None; `AckError` if there are fewer."""
        ...


class AnyAckReceiver(AckCore, Named, AnyReceiver[T_co], Generic[T_co]):
    """Hands messages out, and moves its cursor when they are acknowledged. Clones share both."""

    def __init__(self, source: AckSource) -> None:
        super().__init__(source)
        self._acks = source
        self._take_held: Callable[[], object] = source.counting(source.reader.native.take_delivery)

    if TYPE_CHECKING:  # AckCore has it

        def ack(self, n: int = 1) -> None:
            """Acknowledge the oldest *n* outstanding messages: they never come again.

            Raises `AckError`, and nothing changed, if there are fewer.
            """
            ...

    def _ack_slowly(self, n: int) -> None:
        check_count("n", n)
        self._check_open()
        if not self._acks.ack(n):
            raise self._too_many(n)

    def _drained(self) -> None:
        """It may have been the last one of a sealed channel: then whoever waits is told that this is the end."""
        self._acks.tell()

    def nack(self, n: int | None = None) -> None:
        """Let the newest *n* outstanding messages come again, in order and before anything new; all of them if None.

        Raises `AckError`, and nothing changed, if there are fewer.
        """
        if n is not None:
            check_count("n", n)
        self._check_open()
        if not self._acks.nack(n):
            raise self._too_many(n)

    def _too_many(self, n: int | None) -> AckError:
        return AckError(self.name, f"n={n}: only {self.unack_count} messages are outstanding")

    @property
    def unack_count(self) -> int:
        """How many messages are outstanding: handed out, and neither acked nor nacked."""
        self._check_open()
        return self._acks.reader.native.outstanding

    def peek(self, n: int = 1) -> list[T_co]:
        """Return up to *n* messages that come next, those that come again first, without taking them."""
        check_count("n", n)
        self._check_open()
        return cast("list[T_co]", self._acks.peek(n))

    @property
    def read_offset(self) -> Offset:
        """Where the next message begins, which may be one that comes again."""
        self._check_open()
        native = self._acks.reader.native
        return Offset(next((offset for offset, _ in native.coming(1)), native.offset))

    def _take_delivery(self) -> object | Nothing:
        self._check_open()
        return self._take_held()

    def _delivery(self, found: object) -> Delivery[T_co]:
        value, offset, sequence, attempt, token = cast("Handed[T_co]", found)
        return Delivery(self._acks, value, offset, sequence, attempt, token)

    def _settling(self, found: object) -> tuple[T_co, AbstractContextManager[None]]:
        """Return a message, and what settles it when its body ends."""
        value, offset, _, _, token = cast("Handed[T_co]", found)
        return value, self._acks.settling(offset, token)
