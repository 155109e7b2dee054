"""Receivers that acknowledge, without an event loop: alone, and as members of a group."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Generic, TypeVar, final

from anyio import EndOfStream

from .._channel.any_ack_receiver import AnyAckReceiver
from .._channel.any_group_receiver import AnyGroupReceiver
from .._channel.delivery import Delivery
from .._channel.places import Start
from .._format import NOTHING
from .receiver import Receiver
from .waiting import deadline

T_co = TypeVar("T_co", covariant=True)


class _Acknowledging(AnyAckReceiver[T_co], Receiver[T_co], Generic[T_co]):
    """A receiver that acknowledges, for itself or as a member of a group."""

    def receive_delivery(self, timeout: float | None = None) -> Delivery[T_co]:
        """Return the next message with what acknowledges it, waiting for it if need be. Errors as in `receive`."""
        return self._delivery(self._wait_for_delivery(timeout))

    def deliveries(self) -> Iterator[Delivery[T_co]]:
        """Receive one delivery after the other in a `for`, which ends where `receive` raises `EndOfStream`."""
        with suppress(EndOfStream):
            while True:
                yield self.receive_delivery()

    def processing(self, timeout: float | None = None) -> AbstractContextManager[T_co]:
        """Receive a message for the body of a `with`: acked if that ends well, nacked if it raises.

        Left by anything that is no `Exception`, Ctrl-C for one, it comes again without counting as an attempt.
        *timeout* is for the message to come.
        """
        return self._process(timeout)

    @contextmanager
    def _process(self, timeout: float | None) -> Generator[T_co]:
        value, settling = self._settling(self._wait_for_delivery(timeout))
        with settling:
            yield value
        if self._acks.must_settle_acks:
            self._acks.settle_position()

    def _wait_for_delivery(self, timeout: float | None) -> object:
        until = deadline(timeout)
        found = self._take_delivery()
        return self._wait_for(self._take_delivery, until) if found is NOTHING else found

    def unsubscribe(self) -> None:
        """Forget the name, and close this receiver and its clones."""
        self._check_open()
        self._source.errands.do_undisturbed(self._source.forget)


@final
class AckReceiver(_Acknowledging[T_co], Generic[T_co]):
    """A receiver with a durable name whose position moves when messages are acknowledged.

    What is received stays outstanding until it is acked or nacked. The stored position is that of the oldest message
    that is not acked: after a crash, or when the receiver is closed, everything from there on comes again. Closing
    acknowledges nothing. Clones share the position and what is outstanding.

    After the last message of a sealed channel a receive waits as long as something is outstanding, since a nack would
    bring it again, and raises `EndOfStream` when everything is acked. Whoever acks in batches acks the rest before it
    asks for more.
    """

    def seek(self, to: Start) -> None:
        """Go on at another place; clones go along. `ValueError` if no message begins at that offset.

        Nothing is acknowledged by that: what is outstanding, or was nacked, and begins before that place stays so, and
        the stored position waits for it. What begins there or later is not outstanding any more; it comes anyway.
        """
        super().seek(to)


@final
class GroupReceiver(AnyGroupReceiver[T_co], _Acknowledging[T_co], Generic[T_co]):
    """A member of a group that shares one durable position, over threads and processes: each message to one of them.

    What is received is this member's until it is acked or nacked, or its lease ends; then, or when the process dies, it
    comes again, to any member. `processing` extends the lease by itself, `Delivery.extend` by hand. Whoever acks too
    late gets `LeaseExpiredError`. Closing gives back what is outstanding, without counting that as an attempt.

    After the last message of a sealed channel a receive waits until every member has acked what it has, and raises
    `EndOfStream` then.
    """

    def seek(self, to: Start) -> None:
        """Let the whole group go on at another place. `ValueError` if no message begins at that offset.

        Raises `AckError`, and nothing is changed, while any member has a message, or one is to come again.
        """
        self._check_open()
        group = self._group
        while not group.errands.do(lambda: group.go_to(group.find(to, "to"))):
            pass
