"""`AckReceiver` and `GroupReceiver` for threads."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Generic, TypeVar, final

from anyio import EndOfStream

from .._channel.base.ack_receiver import BaseAckReceiver
from .._channel.base.group_receiver import BaseGroupReceiver
from .._channel.subscription.delivery import Delivery
from .._channel.subscription.start_position import Start
from .._format import NOTHING
from .deadline import deadline
from .receiver import Receiver

T_co = TypeVar("T_co", covariant=True)


class _Acknowledging(BaseAckReceiver[T_co], Receiver[T_co], Generic[T_co]):
    """A receiver with acknowledgement, for a single consumer or a member of a group."""

    def receive_delivery(self, timeout: float | None = None) -> Delivery[T_co]:
        """Return the next message as a `Delivery` to acknowledge; wait for it if necessary. Errors as in `receive`."""
        return self._delivery(self._wait_for_delivery(timeout))

    def deliveries(self) -> Iterator[Delivery[T_co]]:
        """Iterate over deliveries, until `receive` would raise `EndOfStream`."""
        with suppress(EndOfStream):
            while True:
                yield self.receive_delivery()

    def processing(self, timeout: float | None = None) -> AbstractContextManager[T_co]:
        """Receive a message for the body of a `with`: ack it if the body completes, nack it if the body raises.

        If the body is left by anything that is not an `Exception`, such as Ctrl-C, the message is redelivered and this
        attempt does not count. *timeout* limits the wait for the message.
        """
        return self._process(timeout)

    @contextmanager
    def _process(self, timeout: float | None) -> Generator[T_co]:
        value, acknowledging = self._acknowledging(self._wait_for_delivery(timeout))
        with acknowledging:
            yield value
        if self._subscription.must_flush_acks:
            self._subscription.flush_position()

    def _wait_for_delivery(self, timeout: float | None) -> object:
        until = deadline(timeout)
        found = self._take_delivery()
        return self._wait_for(self._take_delivery, until) if found is NOTHING else found

    def unsubscribe(self) -> None:
        """Remove the consumer, and close this receiver and its clones."""
        self._check_open()
        self._subscription.blocking_calls.do_undisturbed(self._subscription.forget)


@final
class AckReceiver(_Acknowledging[T_co], Generic[T_co]):
    """A receiver with a consumer name whose position moves when messages are acknowledged.

    A received message stays outstanding until it is acked or nacked. The stored position is that of the oldest message
    that is not acked: after a crash, or when the receiver is closed, everything from there on is redelivered. Closing
    acknowledges nothing. Clones share the position and the outstanding messages.

    After the last message of a sealed channel, a receive waits while messages are outstanding, because a nack would
    redeliver them. It raises `EndOfStream` when everything is acked. If you ack in batches, ack the rest before you
    receive again.
    """

    def seek(self, to: Start) -> None:
        """Move to another position, together with the clones. Raise `ValueError` if no message begins at the offset.

        Seeking acknowledges nothing. Messages before the new position that are outstanding, or were nacked, stay so,
        and the stored position does not move past them. Messages at or after the new position are not outstanding any
        more; they are received again in any case.
        """
        super().seek(to)


@final
class GroupReceiver(BaseGroupReceiver[T_co], _Acknowledging[T_co], Generic[T_co]):
    """A member of a group. Members share one stored position across threads and processes; each message goes to one.

    A received message belongs to this member until it is acked or nacked, or its lease ends. When the lease ends or the
    process dies, the message is redelivered to any member. `processing` extends the lease automatically,
    `Delivery.extend` does so explicitly. Acking after the lease has ended raises `LeaseExpiredError`. Closing returns
    outstanding messages, and this does not count as an attempt.

    After the last message of a sealed channel, a receive waits until every member has acked its messages, and then
    raises `EndOfStream`.
    """

    def seek(self, to: Start) -> None:
        """Move the whole group to another position. Raise `ValueError` if no message begins at that offset.

        Raises `AckError`, and changes nothing, while any member has an outstanding message or one is to be redelivered.
        """
        self._check_open()
        member, attempts = self._member, self._member.attempts()
        while not self._subscription.blocking_calls.do(lambda: member.seek(to, attempts)):
            pass
