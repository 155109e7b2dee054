"""Receiving in an event loop as one of many: each message goes to one member of the group."""

from __future__ import annotations

from typing import Generic, TypeVar, final

from .._format import own_receive
from .ack import Acknowledging
from .any_group_receiver import AnyGroupReceiver
from .places import Start

T_co = TypeVar("T_co", covariant=True)


@final
@own_receive
class GroupReceiver(AnyGroupReceiver[T_co], Acknowledging[T_co], Generic[T_co]):
    """A member of a group that shares one durable position, over threads and processes: each message to one of them.

    What is received is this member's until it is acked or nacked, or its lease ends; then, or when the process dies, it
    comes again, to any member. `processing` extends the lease by itself, `Delivery.extend` by hand. Whoever acks too
    late gets `LeaseExpiredError`. Closing gives back what is outstanding, without counting that as an attempt.

    After the last message of a sealed channel a receive waits until every member has acked what it has, and raises
    `EndOfStream` then.
    """

    async def seek(self, to: Start) -> None:
        """Let the whole group go on at another place. `ValueError` if no message begins at that offset.

        Raises `AckError`, and nothing is changed, while any member has a message, or one is to come again.
        """
        self._check_open()
        group = self._group
        while not await group.errands.run(lambda: group.go_to(group.find(to, "to"))):
            pass
