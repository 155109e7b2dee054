"""The same channel without async, for threads, scripts and Spark executors.

    from filechannel.blocking import open_channel

    with open_channel("data/orders", Order) as orders, orders.sender() as tx:
        tx.send(Order(1, "pen", 3))

Methods that wait take a *timeout* in seconds and raise `TimeoutError` when it is over; they let go of the GIL while
they wait, and Ctrl-C interrupts them. Any thread may use any object. Everything that does not wait is the same code as
in the async classes.
"""

# A step is a part of its receiver and its sender.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Generic, Self, TypeVar, cast, final, overload

from anyio import EndOfStream
from typing_extensions import TypeForm

from . import _checks as checks
from ._channel.any_ack_receiver import Acknowledgable, AnyAckReceiver
from ._channel.any_channel import AnyChannel, check_sequence
from ._channel.any_group_receiver import AnyGroupReceiver
from ._channel.any_receiver import AnyReceiver, Named, Record, check_count, check_linger
from ._channel.any_sender import AnySender
from ._channel.any_service import Terms, check_dead_letter, check_handler
from ._channel.any_transaction import AnyStep, check_arguments
from ._channel.codec import Codec, CodecName
from ._channel.dead_letter import DeadLetter
from ._channel.delivery import Delivery
from ._channel.recipe import Recipe
from ._channel.redrive import Letters, check_channels
from ._channel.retry import RetryPolicy
from ._channel.source import Start, Stop
from ._channel.thread_service import Service
from ._errors import Busy, FileChannelError, NoRoomYetError
from ._format import NOTHING
from ._offset import Offset
from ._options import UNSET, Capacity, ChannelOptions, Compression, Durability, Retention, UnsetType
from ._storage.backlog import Batch
from ._storage.store import Store
from ._wakeup.patience import no_longer_than

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
T_contra = TypeVar("T_contra", contravariant=True)
U = TypeVar("U")
U_contra = TypeVar("U_contra", contravariant=True)
R = TypeVar("R")

_LONGEST_PAUSE = 0.02  # seconds between two looks for room where nobody can be woken
_PAUSE = 0.001  # seconds; only for a thread that runs an event loop, and should not be here

__all__ = [
    "AckReceiver",
    "Acknowledgable",
    "Delivery",
    "FanOutReceiver",
    "FileChannel",
    "GroupReceiver",
    "Receiver",
    "Record",
    "Sender",
    "Service",
    "Step",
    "open_channel",
    "redrive",
    "transaction",
]


@final
class Sender(AnySender[T_contra], Generic[T_contra]):
    """Puts messages into a channel. Any number of senders, in any thread and any process."""

    if TYPE_CHECKING:

        def send(self, item: T_contra, timeout: float | None = None) -> None:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
            """Send one message. On return every receiver can get it; it is on disk only under `Durability.FSYNC`.

            Raises `TimeoutError`, and nothing was sent, if it was full, or another process kept it, for so long.
            A message that is in the channel is not taken back: from there on it takes as long as the flush does. Other
            errors are those of the async `send`.
            """
            ...

    else:
        send = AnySender._send_here

    def _send_here_slowly(self, item: object, timeout: float | None) -> None:
        self._connection.flusher.refuse_reentry()
        offset = self._patiently(lambda: self._put(item), timeout)
        self._flush_now(offset)

    def send_many(self, items: Iterable[T_contra], timeout: float | None = None) -> Offset:
        """Send messages as one batch and return the offset of the first; all of them or, with an error, none."""
        batch = cast("list[object]", list(items))
        self._connection.flusher.refuse_reentry()
        offset = self._patiently(lambda: self._append(batch), timeout)
        if batch:
            self._flush_now(offset)
        return offset

    def send_payload(self, payload: bytes, timeout: float | None = None) -> None:
        """Send a message that is encoded already, as it is; `CodecError` if it does not decode, else as `send`."""
        self._check_payload(payload)
        self._connection.flusher.refuse_reentry()
        self._flush_now(self._patiently(lambda: self._append_payload(payload), timeout))

    def _patiently(self, append: Callable[[], R], timeout: float | None) -> R:
        """Append, waiting no longer than so for another process that is in the middle of it, or was stopped there."""
        until = _until(timeout)
        while True:
            try:
                with no_longer_than(until):
                    return append()
            except NoRoomYetError:
                return self._in_line(append, until)
            except Busy:
                if until is not None and time.monotonic() >= until:
                    store = self._connection.store
                    raise TimeoutError(f"{store.path}: {_who(store)} kept it for too long; nothing was sent") from None
            time.sleep(_PAUSE)

    def _in_line(self, append: Callable[[], R], until: float | None) -> R:
        """Append when there is room and it is our turn."""
        line = self._connection.line
        place = self._join_line()
        try:
            while line.sleep(place, until, _LONGEST_PAUSE):
                self._check_open()
                try:
                    with line.serving(), no_longer_than(until):
                        return append()
                except NoRoomYetError as full:
                    place.batch = Batch(full.size, full.messages)
                except Busy:
                    time.sleep(_PAUSE)
            raise TimeoutError(f"{self._owner.path} stayed full for too long; nothing was sent")
        finally:
            line.leave(place)

    def _flush_now(self, offset: int) -> None:
        connection = self._connection
        if not connection.writer.deferred:
            return
        try:
            connection.flusher.commit_for(offset)
        except FileChannelError:
            raise
        except BaseException:
            self._flush_later(offset)  # Ctrl-C: it is in the channel, and does not stay unseen
            raise


class Receiver(AnyReceiver[T_co], Generic[T_co]):
    """Takes messages out of a channel in order. Any thread may use it; clones share its position."""

    if TYPE_CHECKING:

        def receive(self, timeout: float | None = None) -> T_co:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
            """Return the next message, waiting for it if need be; `TimeoutError` if none comes in time.

            Raises `EndOfStream` after the last message of a sealed channel and where a replay stops,
            `ClosedResourceError` if this receiver was closed, `DecodeError` for a message that does not decode.
            """
            ...

    else:
        receive = AnyReceiver._receive_here

    def _receive_here_slowly(self, timeout: float | None) -> object:
        until = _until(timeout)
        item = self._take()
        item = self._wait_for(self._take, until) if item is NOTHING else item
        self._settle_position()
        return item

    def _settle_position(self) -> None:
        """Wait until the position is on disk, if the options say so."""
        if self._source.must_settle_position:
            self._source.settle_position()

    def receive_record(self, timeout: float | None = None) -> Record[T_co]:
        """Return the next message with its offset and sequence, waiting for it if need be."""
        until = _until(timeout)
        found = self._take_record()
        found = self._wait_for(self._take_record, until) if found is NOTHING else found
        self._settle_position()
        value, offset, sequence = cast("tuple[T_co, Offset, int]", found)
        return Record(value, offset, sequence)

    def receive_many(self, max_items: int, linger: float = 0.0, timeout: float | None = None) -> list[T_co]:
        """Return at least one message and at most *max_items*: what is there, and what comes within *linger* seconds.

        *timeout* is for the first one.
        """
        check_count("max_items", max_items)
        check_linger(linger)
        until = _until(timeout)
        while True:
            if linger > 0:
                self._until_news(until)
                self._source.sleep(lambda: self._has_enough(max_items), time.monotonic() + linger)
                self._check_open()
            items = self._take_many(max_items)
            if items:
                self._settle_position()
                return items
            if not self._source.watch_until(self._has_news, until):
                self._until_news(until)

    def __iter__(self) -> Iterator[T_co]:
        """Receive one message after the other, until the end of the stream."""
        return self

    def __next__(self) -> T_co:
        """Return the next message of a `for`, which ends where `receive` raises `EndOfStream`."""
        try:
            return self.receive()
        except EndOfStream:
            raise StopIteration from None

    def _wait_for(self, take: Callable[[], object], until: float | None) -> object:
        while True:
            if self._source.watch_until(self._has_news, until) and (item := take()) is not NOTHING:
                return item
            self._until_news(until)
            if (item := take()) is not NOTHING:
                return item

    def _until_news(self, until: float | None) -> None:
        self._check_open()
        if not self._source.has_news() and not self._source.sleep(self._has_news, until):
            raise TimeoutError("no message came in time")
        self._check_open()
        self._check_end()

    def seek(self, to: Start) -> None:
        """Go on at another place; clones go along. `ValueError` if no message begins at that offset."""
        self._check_open()
        while not self._move(self._source.errands.do(lambda: self._source.find(to, "to"))):
            pass


@final
class FanOutReceiver(Named, Receiver[T_co], Generic[T_co]):
    """A receiver with a durable name: every name gets every message, and goes on where it stopped."""

    def unsubscribe(self) -> None:
        """Forget the name, and close this receiver and its clones."""
        self._check_open()
        self._source.errands.do(self._source.forget)


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
        until = _until(timeout)
        found = self._take_delivery()
        return self._wait_for(self._take_delivery, until) if found is NOTHING else found

    def unsubscribe(self) -> None:
        """Forget the name, and close this receiver and its clones."""
        self._check_open()
        self._source.errands.do(self._source.forget)


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


@final
class Step(AnyStep[T_co, U_contra], Generic[T_co, U_contra]):
    """One step of a transaction: receive messages, and send what is made of them.

    Whatever the receiver hands out in the block belongs to the step. After the last message of a sealed channel a
    second `receive` in the same step waits for its end, which does not come before the step is over.
    """

    def __init__(self, rx: AckReceiver[T_co], tx: Sender[U_contra]) -> None:
        super().__init__(rx, tx)
        self._rx = rx
        self._tx = tx

    def receive(self, timeout: float | None = None) -> T_co:
        """Return the next message, waiting for it if need be. Errors as in `AckReceiver.receive`."""
        self._check_on()
        return self._rx.receive(timeout)

    def receive_many(self, max_items: int, linger: float = 0.0, timeout: float | None = None) -> list[T_co]:
        """Return at least one message and at most *max_items*, as `AckReceiver.receive_many` does."""
        self._check_on()
        return self._rx.receive_many(max_items, linger, timeout)

    def __enter__(self) -> Self:
        """Begin the step; the first one of a process looks up how far the consumer has come, in both channels."""
        self._begin()
        try:
            while not self._is_prepared:
                self._source.errands.do(self._prepare)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Send and acknowledge, or neither."""
        try:
            if error is None:
                self._commit()
            else:
                self._give_back(error)
        except BaseException:
            self._give_back()
            raise
        finally:
            self._end()

    def _commit(self) -> None:
        if self._payloads:
            self._tx._connection.flusher.refuse_reentry()
            self._tx._flush_now(self._tx._patiently(self._append, None))
        self._settle()
        if self._source.must_settle_acks:
            self._source.settle_position()


def transaction(rx: AckReceiver[T], tx: Sender[U]) -> Step[T, U]:
    """Receive and send in one step, for a `with` block.

    If the block ends well, what was sent with `step.send` becomes visible at once, as one batch, and what was received
    is acknowledged; together, also across a crash. If it raises, nothing is sent and what was received comes again;
    left by anything that is no `Exception`, Ctrl-C for one, that does not count as an attempt. Errors are those of the
    async `filechannel.transaction`.
    """
    check_arguments(rx, tx, AckReceiver, Sender, "filechannel.transaction")
    return Step(rx, tx)


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
        self._errands.do(self._removal(name))

    def join(self, name: str = "default", timeout: float | None = None) -> None:
        """Wait until a consumer has taken everything that was published when this was called.

        Whoever owns it, in any process. Raises `TimeoutError` if it has not in time, and `UnknownConsumerError` if it
        is not registered, or not any more.
        """
        until = _until(timeout)
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
        self._errands.do(self._purge)

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
        self._errands.do(self._configuration(schema, changes))


@overload
def open_channel(
    path: str | os.PathLike[str],
    type: type[T],
    *,
    codec: Codec[T] | CodecName | None = None,
    options: ChannelOptions | None = None,
    create: bool = True,
    readonly: bool = False,
) -> FileChannel[T]: ...


@overload
def open_channel(
    path: str | os.PathLike[str],
    type: TypeForm[T],
    *,
    codec: Codec[T] | CodecName | None = None,
    options: ChannelOptions | None = None,
    create: bool = True,
    readonly: bool = False,
) -> FileChannel[T]: ...


def open_channel(
    path: str | os.PathLike[str],
    type: type[T] | TypeForm[T],
    *,
    codec: Codec[T] | CodecName | None = None,
    options: ChannelOptions | None = None,
    create: bool = True,
    readonly: bool = False,
) -> FileChannel[T]:
    """Open the channel in a directory, and create it if it is not there. Use it in a `with` block, or close it.

    Arguments and errors are those of the async `filechannel.open_channel`.
    """
    recipe: Recipe[T] = Recipe(path, type, codec, options, create, readonly)
    return FileChannel(recipe, recipe.open_store())


def redrive(dead: FileChannel[DeadLetter], target: FileChannel[T], *, name: str = "redrive") -> int:
    """Send the messages of all dead letters that are there now to a channel, as they were; return how many.

    Each letter is acknowledged when its message was sent: see the async `filechannel.redrive`.
    """
    check_channels(FileChannel, "filechannel.blocking.FileChannel", dead, target)
    with dead.ack_receiver(name) as receiver, target.sender() as sender:
        letters = Letters(receiver)
        while (payload := letters.next()) is not None:
            sender.send_payload(payload)
            letters.sent()
        return letters.count


def _who(store: Store) -> str:
    """Say who is in the middle of sending."""
    holder = store.log.holder
    return "another process" if holder is None else f"process {holder.pid} on {holder.host}"


def _until(timeout: float | None) -> float | None:
    """Return when to give up, by the monotonic clock."""
    if timeout is None:
        return None
    checks.seconds_or_zero("timeout", timeout)
    return time.monotonic() + timeout
