"""`GroupReceiver` for event loops: each message is delivered to one member of the group."""

from __future__ import annotations

from typing import Generic, TypeVar, final

from ..._format import own_receive
from ..base.group_receiver import BaseGroupReceiver
from ..subscription.start_position import Start
from .ack_receiver import Acknowledging

T_co = TypeVar("T_co", covariant=True)


@final
@own_receive
class GroupReceiver(BaseGroupReceiver[T_co], Acknowledging[T_co], Generic[T_co]):
    """A member of a group. Members share one stored position across threads and processes; each message goes to one.

    A received message belongs to this member until it is acked or nacked, or its lease ends. When the lease ends or the
    process dies, the message is redelivered to any member. `processing` extends the lease automatically,
    `Delivery.extend` does so explicitly. Acking after the lease has ended raises `LeaseExpiredError`. Closing returns
    outstanding messages, and this does not count as an attempt. `ack(n)` acknowledges the first *n* messages in the
    order in which this member received them.

    After the last message of a sealed channel, a receive waits until every member has acked its messages, and then
    raises `EndOfStream`.
    """

    async def seek(self, to: Start) -> None:
        """Move the whole group to another position. Raise `ValueError` if no message begins at that offset.

        Raises `AckError`, and changes nothing, while any member has an outstanding message or one is to be redelivered.
        """
        self._check_open()
        member, attempts = self._member, self._member.attempts()
        while not await self._subscription.blocking_calls.run(lambda: member.seek(to, attempts)):
            pass
