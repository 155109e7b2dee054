"""`BaseGroupReceiver`: everything a member of a group does without waiting."""

from __future__ import annotations

from typing import Generic, Self, TypeVar

from ... import _checks as checks
from ..._errors import DecodeError
from ..subscription.delivery import Delivery
from ..subscription.group_member import GroupMember
from ..subscription.outstanding import Outstanding
from .ack_receiver import BaseAckReceiver

T_co = TypeVar("T_co", covariant=True)


class BaseGroupReceiver(BaseAckReceiver[T_co], Generic[T_co]):
    """A member of a group. Clones are the same member."""

    def __init__(self, outstanding: Outstanding, member: GroupMember) -> None:
        super().__init__(outstanding)
        self._member = member

    def clone(self) -> Self:
        """Return another receiver of the same member, which shares its claims."""
        self._check_open()
        return type(self)(self._outstanding, self._member)

    @property
    def lease(self) -> float:
        """For how many seconds a delivery belongs to this member, unless the lease is extended."""
        return self._member.lease

    def undecodable(self, error: DecodeError) -> Delivery[bytes]:
        """Return the delivery of the message for which a receive of this member just raised *error*.

        Like any other message, it belongs to this member until its lease ends, but `ack(n)` and `nack(n)` do not count
        it. Its value is the payload. Raises `AckError` if it was already acknowledged or redelivered.
        """
        checks.instance_of(DecodeError, "the DecodeError of a receive")("error", error)
        self._check_open()
        sequence, attempt, token = self._member.undecodable(error.offset)
        return Delivery(self._outstanding, error.payload, error.offset, sequence, attempt, token)
