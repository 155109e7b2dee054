"""`Delivery`: one delivered message, acknowledged individually."""

from __future__ import annotations

from typing import Final, Generic, Protocol, TypeAlias, TypeVar, final

from ... import _checks as checks
from ..._offset import Offset

T_co = TypeVar("T_co", covariant=True)
DeliveryFields: TypeAlias = tuple[T_co, Offset, int, int, int]
"""Message, offset, sequence, attempt, token: a plain tuple, because the native core makes one for each message."""
VALUE: Final = 0
OFFSET: Final = 1
SEQUENCE: Final = 2
ATTEMPT: Final = 3
TOKEN: Final = 4


class Owner(Protocol):
    """The subscription that delivered a message and tracks its outcome."""

    def acknowledge(self, offset: Offset, token: int) -> None:
        """Acknowledge a message. Raise `AckError` if it is not outstanding."""
        ...

    def redeliver(self, offset: Offset, token: int, delay: float = 0.0) -> None:
        """Redeliver a message after a failed attempt. Raise `AckError` if it is not outstanding."""
        ...

    def extend(self, offset: Offset, token: int) -> None:
        """Extend the lease of a message. Raise `AckError` if it is not outstanding."""
        ...


@final
class Delivery(Generic[T_co]):
    """A message with its offset and sequence, to be acked or nacked. Deliveries may be acknowledged in any order."""

    __slots__ = ("_owner", "_token", "attempt", "offset", "sequence", "value")

    value: T_co
    """The message."""
    offset: Offset
    """Where the message begins in the log."""
    sequence: int
    """The number of the message, counted from 0 since the channel was created."""
    attempt: int
    """How often it was delivered, 1 the first time.

    Starts again at 1 when the consumer is opened again; in a group, only when the machine was restarted.
    """

    def __init__(self, owner: Owner, value: T_co, offset: Offset, sequence: int, attempt: int, token: int) -> None:
        self._owner = owner
        self._token = token
        self.value = value
        self.offset = offset
        self.sequence = sequence
        self.attempt = attempt

    def ack(self) -> None:
        """Acknowledge the message. It is never redelivered once everything before it is acknowledged too.

        Raises `AckError`, and changes nothing, if it was already acknowledged or redelivered, and `ClosedResourceError`
        if all receivers that share the position were closed: then it is redelivered. In a group, raises
        `LeaseExpiredError` if its lease has ended and it belongs, or soon will belong, to another member.
        """
        self._owner.acknowledge(self.offset, self._token)

    def nack(self, delay: float = 0) -> None:
        """Redeliver it before any new message. With *delay*, redeliver it that many seconds later. Errors as in `ack`.

        Other messages do not wait for the end of the delay.
        """
        checks.seconds_or_zero("delay", delay)
        self._owner.redeliver(self.offset, self._token, delay)

    def extend(self) -> None:
        """Restart its lease: it belongs to this member for the full lease time again. Errors as in `ack`.

        Only messages of a group have a lease; for others this does nothing. In an event loop it raises `WouldBlock`,
        and changes nothing, if a stopped process holds the group's lock.
        """
        self._owner.extend(self.offset, self._token)

    def __repr__(self) -> str:
        return f"<Delivery {self.value!r} offset={self.offset} sequence={self.sequence} attempt={self.attempt}>"
