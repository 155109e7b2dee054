"""`BaseSender`: everything a sender does without waiting, for event loops and threads."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, Self, TypeVar, cast

from anyio import ClosedResourceError

from ..._format import SendCore, SendPath, Writer
from ..._offset import Offset
from ..._storage.durability.flusher import Flusher
from ..._storage.durability.group_commit import GroupCommit, Ticket
from ..._storage.writable_store import WritableStore
from ..._wakeup.send_queue import QueueEntry, SendQueue, send_queue_of
from ..status.statistics import SenderStatistics

T_contra = TypeVar("T_contra", contravariant=True)


class Closable(Protocol):
    """A sender, as its channel sees it."""

    def close(self) -> None:
        """Close it; calling this again has no effect."""
        ...

    def disconnect(self) -> None:
        """Open the channel again on the next use."""
        ...


class SenderOwner(Protocol):
    """A channel, as its senders see it: it closes them, and they copy it when they are cloned or pickled."""

    @property
    def path(self) -> Path:
        """The directory."""
        ...

    def copy(self) -> tuple[object, ...]:
        """Return the class and the arguments that create another channel object like this one, not opened yet."""
        ...

    @property
    def is_used(self) -> bool:
        """Whether there are senders that are not closed."""
        ...

    def close(self) -> None:
        """Close it."""
        ...

    def send_path(self) -> tuple[WritableStore, SendPath]:
        """Return the open store and the `SendPath` that appends messages to it."""
        ...

    def check_payload(self, payload: bytes, /) -> None:
        """Raise `CodecError` if these bytes are not a message of the channel."""
        ...

    def check_message(self, message: object, /) -> None:
        """Raise `CodecError` if this value is not a message of the channel."""
        ...

    def adopt_sender(self, sender: Closable, /) -> None:
        """Close this sender when the channel closes."""
        ...

    def forget_sender(self, sender: Closable, /) -> None:
        """Remove a sender that was closed."""
        ...


class _Connection(NamedTuple):
    """The parts of an open channel that a sender uses."""

    store: WritableStore
    path: SendPath
    flusher: Flusher
    group_commit: GroupCommit
    writer: Writer
    queue: SendQueue


class BaseSender(SendCore, Generic[T_contra]):
    """Sends messages to a channel. There can be any number of senders, in any thread and any process.

    Closing a sender does not end the stream, and sending without receivers is not an error. An unpickled sender opens
    the channel when it is first used, and closes it when the sender is closed.
    """

    _owns_channel = False
    """Whether only senders use the channel object: it is closed with the last of them."""
    _is_closing = False

    def __init__(self, owner: SenderOwner) -> None:
        self._owner = owner
        self._connect()
        owner.adopt_sender(self)

    def _connect(self) -> _Connection:
        store, path = self._owner.send_path()
        connection = _Connection(store, path, store.flusher, store.group_commit, store.log.writer, send_queue_of(store))
        self._connected: _Connection | None = connection
        # Looked up once, for the hot path. Closing replaces them.
        self._put: Callable[[object], int] = path.put
        self._put_all: Callable[[list[object]], int] = path.put_all
        self._attach(path)
        if self._is_closing:  # by another thread, at the same time
            self._refuse()
            raise ClosedResourceError
        return connection

    @property
    def _connection(self) -> _Connection:
        return self._connected or self._connect()

    @property
    def channel_id(self) -> str:
        """The id in the channel's manifest. It does not change if the directory is moved."""
        return self._connection.store.manifest.id

    @classmethod
    def unconnected(cls, owner: SenderOwner) -> Self:
        """Return a sender with a channel object of its own, which is opened when it is first used."""
        sender = cls.__new__(cls)
        sender._owner = owner
        sender._owns_channel = True
        sender.disconnect()
        owner.adopt_sender(sender)
        return sender

    def disconnect(self) -> None:
        """Open the channel again on the next use. For a forked child."""
        if self._is_closing:
            return
        self._detach()
        self._connected = None
        self._put, self._put_all = self._connect_and_put, self._connect_and_put_all

    def _connect_and_put(self, item: object) -> int:
        return self._connect().path.put(item)

    def _connect_and_put_all(self, items: list[object]) -> int:
        return self._connect().path.put_all(items)

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the channel. The unpickled sender opens it when it is first used."""
        self.check_open()
        return _unpickled, (type(self), *self._owner.copy())

    if TYPE_CHECKING:  # SendCore implements it

        def send_nowait(self, item: T_contra) -> Offset:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
            """Send one message and return its offset, without waiting. With `FSYNC`, it is flushed in the background.

            The channel's `flush()` waits for that. In an event loop thread, this raises `WouldBlock` if another process
            holds the writer lock and does not release it. Raises `ChannelFullError`, which is a `WouldBlock`, if there
            is no capacity.
            """
            ...

    def _send_nowait_slowly(self, item: object) -> Offset:
        offset = self._put(item)
        self._flush_later(offset)
        return Offset(offset)

    def _flush_later(self, offset: int) -> None:
        connection = self._connection
        if connection.writer.deferred:
            connection.group_commit.commit_later(Ticket(offset))

    def send_many_nowait(self, items: Iterable[T_contra]) -> Offset:
        """Send messages as one batch and return the offset of the first, without waiting."""
        batch = cast("list[object]", items if type(items) is list else list(items))
        offset = self._append(batch)
        if batch:
            self._flush_later(offset)
        return offset

    def check_message(self, message: T_contra) -> None:
        """Raise `CodecError` if the channel does not accept a message. Nothing is sent."""
        self._owner.check_message(message)

    def _check_payload(self, payload: bytes) -> None:
        self.check_open()
        self._owner.check_payload(payload)

    def append_encoded(self, payloads: list[bytes]) -> Offset:
        """Append messages that are already encoded as one batch, without waiting. The caller has checked them."""
        self.check_open()
        return Offset(self._connection.writer.append_all(payloads))

    def _append(self, batch: list[object]) -> Offset:
        # An empty batch is a no-op, even on a sealed channel.
        return Offset(self._put_all(batch)) if batch else self.write_offset

    # For `transaction`

    @property
    def is_connected(self) -> bool:
        """Whether the channel is open: an unpickled sender opens it when it is first used."""
        return self._connected is not None

    @property
    def open_store(self) -> WritableStore:
        """The store of the channel, which is opened if necessary."""
        return self._connection.store

    def encode_messages(self, items: list[T_contra]) -> list[bytes]:
        """Check and encode messages, without sending them. An error names the index of the invalid message."""
        connection = self._connection
        payloads = connection.path.encode_all(cast("list[object]", items), 0)
        connection.store.log.check_sizes(payloads)
        return payloads

    @property
    def write_offset(self) -> Offset:
        """The offset of the next message."""
        self.check_open()
        return self._connection.store.control.write_offset

    @property
    def path(self) -> Path:
        """The channel's directory."""
        return self._owner.path

    def statistics(self) -> SenderStatistics:
        """Return a snapshot of this sender."""
        self.check_open()
        control = self._connection.store.control
        tail = control.tail()
        return SenderStatistics(
            write_offset=tail.offset, durable_offset=control.durable_offset, next_sequence=tail.sequence
        )

    def clone(self) -> Self:
        """Return another sender of the same channel, which is closed separately."""
        self.check_open()
        return self.unconnected(self._owner) if self._owns_channel else type(self)(self._owner)

    @property
    def _is_closed(self) -> bool:
        return self._put is _closed

    def check_open(self) -> None:
        """Raise `ClosedResourceError` if this sender is closed."""
        if self._is_closed:
            raise ClosedResourceError

    def close(self) -> None:
        """Close this sender; other senders stay open. Messages that were sent stay sent.

        If a signal handler raises meanwhile, call it again to complete the close: each step may be repeated.
        """
        self._is_closing = True
        self._refuse()
        self._owner.forget_sender(self)
        if self._owns_channel and not self._owner.is_used:
            self._owner.close()

    def _refuse(self) -> None:
        self._put = self._put_all = _closed
        self._detach()
        if self._connected is not None:
            self._connected.queue.wake_all()

    def _queue_entry(self) -> QueueEntry:
        return QueueEntry(lambda: self._is_closed)

    def __enter__(self) -> Self:
        """Use the sender in a `with` block, which closes it."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the sender."""
        self.close()

    def __repr__(self) -> str:
        return f"<Sender {str(self._owner.path)!r}{' closed' if self._is_closed else ''}>"


def _unpickled(
    cls: type[BaseSender[T_contra]], make_owner: Callable[..., SenderOwner], arguments: tuple[object, ...]
) -> BaseSender[T_contra]:
    return cls.unconnected(make_owner(*arguments))


def _closed(_: object) -> int:
    raise ClosedResourceError
