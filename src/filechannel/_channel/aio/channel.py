"""`FileChannel` for event loops: it creates senders and receivers, and closes them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Generic, Never, Self, TypeVar, final

import anyio
from anyio.abc import AsyncResource
from typing_extensions import TypeForm

from ..._offset import Offset
from ..._options import (
    UNSET,
    Capacity,
    ChannelOptions,
    Compression,
    Durability,
    Retention,
    UnsetType,
    refuse_other_options,
)
from ..._wakeup.event_loops import run_through_cancellation
from ..base.channel import BaseChannel, check_sequence
from ..base.dead_letter import DeadLetter
from ..base.retry_policy import RetryPolicy
from ..base.service import ServiceConfig, check_dead_letter, check_handler
from ..subscription.start_position import Start, Stop
from .ack_receiver import AckReceiver
from .group_receiver import GroupReceiver
from .receiver import FanOutReceiver, Receiver
from .sender import Sender
from .service import Service

T = TypeVar("T")


@final
class FileChannel(BaseChannel[T], AsyncResource, Generic[T]):
    """A durable, typed channel in a directory. `open_channel` returns it; closing it closes everything it created.

    A pickled channel consists of the absolute path, the type and the options. After unpickling, it opens the directory
    when it is first used.
    """

    def sender(self) -> Sender[T]:
        """Return a new sender."""
        return Sender(self)

    def receiver(
        self, name: str = "default", *, start: Start = "earliest", expires: float | None = None
    ) -> FanOutReceiver[T]:
        """Return the receiver of a consumer name. Every name receives every message.

        The name is registered when this returns, so every message sent afterwards is received. *start* says where a new
        name starts: at ``"earliest"``, the oldest stored message; at ``"latest"``, after the newest one; at an
        `Offset`; or at a datetime with a time zone. A known name ignores *start* and resumes at its stored position.
        With *expires*, the name is removed after that many seconds without a live owner, by any process that has the
        channel open. The value is stored with the name; None keeps the stored value.

        Raises `ConsumerBusyError` if the name has a live owner, `ConsumerMismatchError` if it is the name of a group,
        and `ValueError` for an offset at which no message begins or a datetime without a time zone.
        """
        return FanOutReceiver(self._named_subscription(name, start, expires))

    def ack_receiver(
        self, name: str = "default", *, start: Start = "earliest", expires: float | None = None
    ) -> AckReceiver[T]:
        """Return a receiver of a consumer name whose position moves when messages are acknowledged.

        It shares its names with `receiver`, and *start*, *expires* and the errors are the same. Only one of the two can
        own a name at a time, and it resumes where the other one stopped.
        """
        return AckReceiver(self._outstanding(name, start, expires))

    def group(
        self, name: str, *, lease: float = 30.0, start: Start = "earliest", expires: float | None = None
    ) -> GroupReceiver[T]:
        """Join a group and return a member. Each message is delivered to one member of the group.

        Members can be in any thread and any process, can join and leave at any time, and share one stored position. A
        delivery belongs to its member for *lease* seconds, or longer if the member extends the lease. It is
        redelivered, to any member, if its member dies, lets the lease expire or nacks it. *start* and *expires* are
        those of `receiver`; a group expires when it has no live member. Raises `ConsumerMismatchError` if the name is
        that of a single consumer.
        """
        return GroupReceiver(*self._join_group(name, lease, start, expires))

    def replay(self, start: Start = "earliest", stop: Stop = "latest") -> Receiver[T]:
        """Return a receiver that reads history without a consumer: it stores no position and keeps no data on disk.

        It returns the messages from *start* on that were published when this was called, and then raises `EndOfStream`.
        *start* is as in `receiver`. If *stop* is an offset, it ends before the message there. If *stop* is None, it
        continues with messages that are sent afterwards. Raises `ValueError` for an offset at which no message begins
        or a datetime without a time zone.
        """
        return Receiver(self._replay_subscription(start, stop))

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
        """Return a service that calls *handler* for each message of a consumer, and acknowledges it afterwards.

        An async handler runs in the event loop, any other callable in a worker thread. With *ordered*, messages are
        handled one at a time, and a failed message is retried before the next one is started. Otherwise up to
        *concurrency* messages are handled at the same time, and other messages are handled while one waits for its next
        attempt. *ordered* with a *concurrency* above 1 raises `ValueError`. *retry* says how often and after which
        pauses a failed message is retried. A message that has used up its attempts, or does not decode, is sent to
        *dead_letter* and then acknowledged. Without *dead_letter*, the service ends with `HandlerError` or
        `DecodeError`. With *grace*, handlers that are running when the service stops are cancelled after that many
        seconds.

        The name is registered when this returns, as with `ack_receiver`, with the same *start*, *expires* and errors.
        The service releases it when it ends. With *group*, the service is a member of the group of that name, as with
        `group`; it extends the *lease* on messages that are being handled, and order holds for each member only.
        """
        config = ServiceConfig(group=group, ordered=ordered, concurrency=concurrency, retry=retry, grace=grace)
        checked = check_handler(handler)
        check_dead_letter(dead_letter, Sender, "filechannel.Sender")
        outstanding = self._served(name, start, expires, group=group, lease=lease)
        return Service(outstanding, checked, config, dead_letter)

    async def remove_consumer(self, name: str) -> None:
        """Remove a consumer and its position. The name can be registered again.

        Raises `UnknownConsumerError` if there is no such consumer. Raises `ConsumerBusyError`, and changes nothing, if
        it has a live owner, or a live member, in this or any other process: close that one, or let it `unsubscribe()`.
        """
        await self._blocking_calls.run(self._removal(name))

    async def join(self, name: str = "default") -> None:
        """Wait until a consumer has consumed everything that was published when this was called.

        The owner of the consumer can be in any process. Raises `UnknownConsumerError` if it is not registered, or is
        removed meanwhile. Cancelling changes nothing.
        """
        catch_up_wait = await self._blocking_calls.run(self._catch_up_wait(name))
        try:
            while not catch_up_wait.has_caught_up():
                await anyio.sleep(catch_up_wait.pause())
                self._check_open()
                if catch_up_wait.is_stale:
                    await self._blocking_calls.run(catch_up_wait.look_up)
        finally:
            catch_up_wait.close()

    async def offset_of(self, sequence: int) -> Offset:
        """Return the offset of the message with this sequence. Raise `ValueError` if it is not stored.

        The sequence of the next message to be sent is valid too: its offset is the end of the log.
        """
        self._check_open()
        check_sequence(sequence)
        return await self._blocking_calls.run(partial(self._offset_of, sequence))

    async def flush(self) -> None:
        """Wait until everything sent so far is on disk, with any durability. Raise `StorageError` if a flush fails."""
        self._check_writable()
        await self._blocking_calls.run(self._flush)

    async def seal(self) -> None:
        """Seal the channel for good, durably: sends raise `ChannelSealedError`, receivers end with `EndOfStream`."""
        self._check_writable()
        await self._blocking_calls.run(self._seal)

    async def purge(self) -> None:
        """Remove all messages that are stored now. Consumers resume with what is sent afterwards.

        Replays, and consumers of other processes, get `DataExpiredError` if they had not received all of them.
        """
        self._check_writable()
        await self._blocking_calls.run(self._purge)

    async def configure(
        self,
        *,
        schema: TypeForm[object] | UnsetType = UNSET,
        durability: Durability | UnsetType = UNSET,
        capacity: Capacity | UnsetType | None = UNSET,
        retention: Retention | UnsetType = UNSET,
        compression: Compression | UnsetType = UNSET,
        spare_segments: int | UnsetType = UNSET,
        **others: Never,
    ) -> None:
        """Change the stored schema, or stored options that are not fixed at creation.

        A new *schema* applies to channels that are opened afterwards; this object keeps its type. Messages of the old
        schema are not changed, and raise `DecodeError` where the new type cannot decode them.
        """
        self._check_writable()
        refuse_other_options(others)
        changes = ChannelOptions(
            durability=durability,
            capacity=capacity,
            retention=retention,
            compression=compression,
            spare_segments=spare_segments,
        )
        await self._blocking_calls.run(self._configuration(schema, changes))

    async def __aenter__(self) -> Self:
        """Use the channel in an `async with` block, which closes it. An unpickled channel is opened here."""
        if self._open_store is None:
            await self._blocking_calls.run(lambda: self._store)
        return self

    async def aclose(self) -> None:
        """Close the channel and everything it created. It is closed when this ends, cancelled or not."""
        if not self._is_over:
            self._close_handles()
            await run_through_cancellation(self._close_store)
