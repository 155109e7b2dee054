"""What every member of a group does without waiting, in an event loop or in a thread."""

from __future__ import annotations

from typing import Generic, TypeVar

from .. import _checks as checks
from .._errors import DecodeError
from .any_ack_receiver import AnyAckReceiver
from .delivery import Delivery
from .group_source import GroupSource

T_co = TypeVar("T_co", covariant=True)


class AnyGroupReceiver(AnyAckReceiver[T_co], Generic[T_co]):
    """A member of a group. Clones are the same member."""

    def __init__(self, source: GroupSource) -> None:
        super().__init__(source)
        self._group = source

    @property
    def lease(self) -> float:
        """For how many seconds a message is this member's own, unless it extends that."""
        return self._group.lease

    def undecodable(self, error: DecodeError) -> Delivery[bytes]:
        """Return what settles the message that a receive of this member has just raised *error* for.

        Such a message is this member's until its lease ends, like any other, but is none of those that `ack(n)` and
        `nack(n)` are about. Its value is the payload. Raises `AckError` if it was settled already.
        """
        checks.instance_of(DecodeError, "the DecodeError of a receive")("error", error)
        self._check_open()
        sequence, attempt, token = self._group.refused(error.offset)
        return Delivery(self._group, error.payload, error.offset, sequence, attempt, token)
