"""The channel itself, without an event loop."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Generic, TypeVar, final

from typing_extensions import TypeForm

from .._channel.any_channel import AnyChannel, check_sequence
from .._channel.any_service import Terms, check_dead_letter, check_handler
from .._channel.dead_letter import DeadLetter
from .._channel.places import Start, Stop
from .._channel.retry import RetryPolicy
from .._channel.thread_service import Service
from .._offset import Offset
from .._options import UNSET, Capacity, ChannelOptions, Compression, Durability, Retention, UnsetType
from .acknowledging import AckReceiver, GroupReceiver
from .receiver import FanOutReceiver, Receiver
from .sender import Sender
from .waiting import deadline

T = TypeVar("T")


@final
class FileChannel(AnyChannel[T], Generic[T]):
    """A durable, typed channel in a directory. Made by `open_channel`; closing it closes what it created.

    Pickled, it is absolute path, type and options, and opens the directory when it is first used.
    """

    def sender(self) -> Sender[T]:
        """Return a new sender."""
        return Sender(self)

    def receiver(
        self, name: str = "default", *, start: Start = "earliest", expires: float | None = None
    ) -> FanOutReceiver[T]:
        """Return the receiver of a durable name: every name gets every message.

        *start* counts only the first time a name appears. The name is registered when this returns, so everything
        sent afterwards is received. With *expires*, a name that has no live owner for so many seconds is removed, by
        whoever notices; it is stored with the name, and None leaves what is stored. Raises `ConsumerBusyError` if the
        name has a live owner, `ConsumerMismatchError` if it is that of a group, and `ValueError` for an offset at which
        no message begins or a datetime without a time zone.
        """
        return FanOutReceiver(self._named_source(name, start, expires))

    def ack_receiver(
        self, name: str = "default", *, start: Start = "earliest", expires: float | None = None
    ) -> AckReceiver[T]:
        """Return a receiver of a durable name that moves on when messages are acknowledged.

        The name is the same as that of `receiver`, and so are *start*, *expires* and the errors: one of the two owns it
        at a time, and goes on where the other stopped.
        """
        return AckReceiver(self._ack_source(name, start, expires))

    def group(
        self, name: str, *, lease: float = 30.0, start: Start = "earliest", expires: float | None = None
    ) -> GroupReceiver[T]:
        """Join a group of competing consumers, and return a member: each message goes to one of them.

        Members may be in any thread and any process; they share one durable position, and come and go freely. What a
        member receives is its own for *lease* seconds, and longer if it extends that; it comes again, to any member,
        when its member dies, lets the lease end or nacks it. *start* and *expires* are those of `receiver`, the latter
        without any live member. Raises `ConsumerMismatchError` if the name is that of a single consumer.
        """
        return GroupReceiver(self._group_source(name, lease, start, expires))

    def replay(self, start: Start = "earliest", stop: Stop = "latest") -> Receiver[T]:
        """Return a receiver of history without a name: it stores no position and holds no data back.

        It gives what was published when this was called, from *start* on, and then `EndOfStream`. With an offset as
        *stop* it ends before the message there; with None it goes on live, with what is sent afterwards.
        """
        return Receiver(self._replay_source(start, stop))

    def serve(
        self,
        handler: Callable[[T], object],
        *,
        name: str = "default",
        group: bool = False,
        ordered: bool = True,
        concurrency: int = 1,
        retry: RetryPolicy = RetryPolicy(),  # noqa: B008 (frozen)
        dead_letter: Sender[DeadLetter] | None = None,
        grace: float | None = None,
        lease: float = 30.0,
        start: Start = "earliest",
        expires: float | None = None,
    ) -> Service:
        """Return what gives every message to *handler*, under a durable name, and acknowledges what it has handled.

        Arguments and errors are those of the async `FileChannel.serve`. Up to *concurrency* threads call the handler.
        With *grace*, a thread whose handler is at work so many seconds after the service was stopped is left alone;
        its message comes again.
        """
        terms = Terms(group=group, ordered=ordered, concurrency=concurrency, retry=retry, grace=grace)
        checked = check_handler(handler)
        check_dead_letter(dead_letter, Sender, "filechannel.blocking.Sender")
        source = self._group_source(name, lease, start, expires) if group else self._ack_source(name, start, expires)
        return Service(source, checked, terms, dead_letter)

    def remove_consumer(self, name: str) -> None:
        """Forget a consumer and its position; the name can begin anew.

        Raises `UnknownConsumerError` if there is none, and `ConsumerBusyError`, with nothing changed, if it has a live
        owner, or a live member, in this or any other process: close that, or let it `unsubscribe()`.
        """
        self._errands.do_undisturbed(self._removal(name))

    def join(self, name: str = "default", timeout: float | None = None) -> None:
        """Wait until a consumer has taken everything that was published when this was called.

        Whoever owns it, in any process. Raises `TimeoutError` if it has not in time, and `UnknownConsumerError` if it
        is not registered, or not any more.
        """
        until = deadline(timeout)
        pursuit = self._errands.do(self._pursuit(name))
        try:
            while not pursuit.has_arrived():
                left = math.inf if until is None else until - time.monotonic()
                if left <= 0:
                    raise TimeoutError(f"consumer {name!r} has not caught up in time")
                time.sleep(min(pursuit.pause(), left))
                self._check_open()
                if pursuit.is_stale:
                    self._errands.do(pursuit.look_up)
        finally:
            pursuit.close()

    def offset_of(self, sequence: int) -> Offset:
        """Return where the message with this number begins; `ValueError` if it is not stored."""
        self._check_open()
        check_sequence(sequence)
        return self._errands.do(lambda: self._offset_of(sequence))

    def flush(self) -> None:
        """Wait until everything sent so far is on disk, under any durability; `StorageError` if it cannot be."""
        self._check_writable()
        self._errands.do(self._flush)

    def seal(self) -> None:
        """End the channel for good, durably: sends raise `ChannelSealedError`, receivers get `EndOfStream`."""
        self._check_writable()
        self._errands.do(self._seal)

    def purge(self) -> None:
        """Remove every message stored now; consumers go on with what is sent afterwards.

        Replays, and consumers of other processes, get `DataExpiredError` if they had not come so far.
        """
        self._check_writable()
        self._errands.do_undisturbed(self._purge)

    def configure(
        self,
        *,
        schema: TypeForm[object] | UnsetType = UNSET,
        durability: Durability | UnsetType = UNSET,
        capacity: Capacity | UnsetType | None = UNSET,
        retention: Retention | UnsetType = UNSET,
        compression: Compression | UnsetType = UNSET,
        spare_segments: int | UnsetType = UNSET,
    ) -> None:
        """Change what the channel has stored: its schema, or options that are not fixed at creation."""
        self._check_writable()
        changes = ChannelOptions(
            durability=durability,
            capacity=capacity,
            retention=retention,
            compression=compression,
            spare_segments=spare_segments,
        )
        self._errands.do_undisturbed(self._configuration(schema, changes))
