"""The channel of an event loop: what makes senders and receivers, and closes them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Generic, Self, TypeVar, final

import anyio
from anyio.abc import AsyncResource
from typing_extensions import TypeForm

from .._offset import Offset
from .._options import UNSET, Capacity, ChannelOptions, Compression, Durability, Retention, UnsetType
from .._wakeup.loops import run_through_cancellation
from .ack import AckReceiver
from .any_channel import AnyChannel, check_sequence
from .any_service import Terms, check_dead_letter, check_handler
from .dead_letter import DeadLetter
from .group import GroupReceiver
from .places import Start, Stop
from .receiver import FanOutReceiver, Receiver
from .retry import RetryPolicy
from .sender import Sender
from .serve import Service

T = TypeVar("T")


@final
class FileChannel(AnyChannel[T], AsyncResource, Generic[T]):
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
        *stop* it ends before the message there; with None it goes on live, with what is sent afterwards. Raises
        `ValueError` for an offset at which no message begins or a datetime without a time zone.
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

        An async handler runs in the event loop, any other callable in a worker thread. *ordered*: one message at a
        time, and a message that failed is tried again before the next one is begun. Otherwise up to *concurrency* of
        them at once, and others go on while one waits for its next attempt; `ValueError` for both together. A message
        that has used up its attempts, or does not decode, is sent to *dead_letter* and then acknowledged; without that,
        the service ends with `HandlerError` or `DecodeError`. With *grace*, handlers that are at work when the service
        stops get so many seconds, and are cancelled then.

        The name is registered when this returns, as by `ack_receiver`, with the same *start*, *expires* and errors. The
        service lets go of it when it has ended. With *group* it is a member of the group of that name, as by `group`;
        the *lease* on what is being handled is extended, and order is that of each member.
        """
        terms = Terms(group=group, ordered=ordered, concurrency=concurrency, retry=retry, grace=grace)
        checked = check_handler(handler)
        check_dead_letter(dead_letter, Sender, "filechannel.Sender")
        source = self._group_source(name, lease, start, expires) if group else self._ack_source(name, start, expires)
        return Service(source, checked, terms, dead_letter)

    async def remove_consumer(self, name: str) -> None:
        """Forget a consumer and its position; the name can begin anew.

        Raises `UnknownConsumerError` if there is none, and `ConsumerBusyError`, with nothing changed, if it has a live
        owner, or a live member, in this or any other process: close that, or let it `unsubscribe()`.
        """
        await self._errands.run(self._removal(name))

    async def join(self, name: str = "default") -> None:
        """Wait until a consumer has taken everything that was published when this was called.

        Whoever owns it, in any process. Raises `UnknownConsumerError` if it is not registered, or not any more.
        Cancelling it changes nothing.
        """
        pursuit = await self._errands.run(self._pursuit(name))
        try:
            while not pursuit.has_arrived():
                await anyio.sleep(pursuit.pause())
                self._check_open()
                if pursuit.is_stale:
                    await self._errands.run(pursuit.look_up)
        finally:
            pursuit.close()

    async def offset_of(self, sequence: int) -> Offset:
        """Return where the message with this number begins; `ValueError` if it is not stored.

        The number of the next message that will be sent counts as stored: it begins at the end.
        """
        self._check_open()
        check_sequence(sequence)
        return await self._errands.run(partial(self._offset_of, sequence))

    async def flush(self) -> None:
        """Wait until everything sent so far is on disk, under any durability; `StorageError` if it cannot be."""
        self._check_writable()
        await self._errands.run(self._flush)

    async def seal(self) -> None:
        """End the channel for good, durably: sends raise `ChannelSealedError`, receivers get `EndOfStream`."""
        self._check_writable()
        await self._errands.run(self._seal)

    async def purge(self) -> None:
        """Remove every message stored now; consumers go on with what is sent afterwards.

        Replays, and consumers of other processes, get `DataExpiredError` if they had not come so far.
        """
        self._check_writable()
        await self._errands.run(self._purge)

    async def configure(
        self,
        *,
        schema: TypeForm[object] | UnsetType = UNSET,
        durability: Durability | UnsetType = UNSET,
        capacity: Capacity | UnsetType | None = UNSET,
        retention: Retention | UnsetType = UNSET,
        compression: Compression | UnsetType = UNSET,
        spare_segments: int | UnsetType = UNSET,
    ) -> None:
        """Change what the channel has stored: its schema, or options that are not fixed at creation.

        A new *schema* is for those who open the channel afterwards; this object keeps its type. Messages of the old
        schema stay as they are, and raise `DecodeError` where the new type cannot read them.
        """
        self._check_writable()
        changes = ChannelOptions(
            durability=durability,
            capacity=capacity,
            retention=retention,
            compression=compression,
            spare_segments=spare_segments,
        )
        await self._errands.run(self._configuration(schema, changes))

    async def __aenter__(self) -> Self:
        """Use the channel in an `async with` block, which closes it. One that was unpickled is open from here on."""
        if self._open_store is None:
            await self._errands.run(lambda: self._store)
        return self

    async def aclose(self) -> None:
        """Close the channel and everything it created. Cancelled or not, it is closed when this ends."""
        if not self._is_over:
            self._close_handles()
            await run_through_cancellation(self._close_store)
