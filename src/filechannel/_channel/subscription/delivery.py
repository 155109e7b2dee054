"""One message that was handed out, to be acknowledged by itself."""

from __future__ import annotations

from typing import Generic, Protocol, TypeAlias, TypeVar, final

from .. import _checks as checks
from .._offset import Offset

T_co = TypeVar("T_co", covariant=True)
Handed: TypeAlias = tuple[T_co, Offset, int, int, int]
"""Message, offset, sequence, attempt, token."""


class Owner(Protocol):
    """Who handed it out, and is told what became of it."""

    def settle(self, offset: Offset, token: int) -> None:
        """It is done; `AckError` if it is not outstanding."""
        ...

    def give_back(self, offset: Offset, token: int, delay: float = 0.0) -> None:
        """It has failed; `AckError` if it is not outstanding."""
        ...

    def extend(self, offset: Offset, token: int) -> None:
        """It takes longer; `AckError` if it is not outstanding."""
        ...


@final
class Delivery(Generic[T_co]):
    """A message, its place in the channel, and what settles it. Deliveries may be settled in any order."""

    __slots__ = ("_owner", "_token", "attempt", "offset", "sequence", "value")

    value: T_co
    offset: Offset
    sequence: int
    """Its number, counted from 0 at the birth of the channel."""
    attempt: int
    """How often it was handed out, 1 the first time.

    Counted from 1 again when the consumer is opened again; in a group, only when the machine has started anew.
    """

    def __init__(self, owner: Owner, value: T_co, offset: Offset, sequence: int, attempt: int, token: int) -> None:
        self._owner = owner
        self._token = token
        self.value = value
        self.offset = offset
        self.sequence = sequence
        self.attempt = attempt

    def ack(self) -> None:
        """Say that it is done: it never comes again, once everything before it is acknowledged too.

        Raises `AckError`, and nothing changed, if it was settled already or came again since, and
        `ClosedResourceError` if every receiver that shares the position was closed: then it comes again. In a group,
        `LeaseExpiredError` if its lease has ended and it is, or soon will be, somebody else's.
        """
        self._owner.settle(self.offset, self._token)

    def nack(self, delay: float = 0) -> None:
        """Let it come again, before anything new, or *delay* seconds later while others go on. Errors as in `ack`."""
        checks.seconds_or_zero("delay", delay)
        self._owner.give_back(self.offset, self._token, delay)

    def extend(self) -> None:
        """Begin its lease anew: it stays ours for as long as when it was handed out. Errors as in `ack`.

        Only messages of a group have a lease; with others this does nothing. In an event loop it raises `WouldBlock`,
        and nothing changed, if a process that was stopped keeps the group's lock.
        """
        self._owner.extend(self.offset, self._token)

    def __repr__(self) -> str:
        return f"<Delivery {self.value!r} offset={self.offset} sequence={self.sequence} attempt={self.attempt}>"
