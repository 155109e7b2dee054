"""What every sender does without waiting, whether it waits in an event loop or in a thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, Self, TypeVar, cast

from anyio import ClosedResourceError

from .._format import SendCore, SendPath, Writer
from .._offset import Offset
from .._storage.flush import Flusher, Ticket
from .._storage.store import Store
from .._wakeup.line import Line, Place, line_of
from .._wakeup.loops import wake_together
from .statistics import SenderStatistics

T_contra = TypeVar("T_contra", contravariant=True)


class Closable(Protocol):
    """A sender, as far as its channel is concerned."""

    def close(self) -> None:
        """Close it; closing twice is closing once."""
        ...

    def disconnect(self) -> None:
        """Open the channel anew when it is used again."""
        ...


class SenderOwner(Protocol):
    """What a sender needs of its channel: to be closed with it, to be cloned, and to be made again elsewhere."""

    @property
    def path(self) -> Path:
        """The directory."""
        ...

    def copy(self) -> tuple[object, ...]:
        """Return what makes another channel object like this one, which is not open yet, and its arguments."""
        ...

    @property
    def is_used(self) -> bool:
        """Whether there are senders that have not been closed."""
        ...

    def close(self) -> None:
        """Close it."""
        ...

    def send_path(self) -> tuple[Store, SendPath]:
        """Return the open store and the way from a message into it."""
        ...

    def check_payload(self, payload: bytes, /) -> None:
        """Raise `CodecError` if these bytes are no message of the channel."""
        ...

    def adopt_sender(self, sender: Closable, /) -> None:
        """Close this sender too when the channel closes."""
        ...

    def forget_sender(self, sender: Closable, /) -> None:
        """It was closed."""
        ...


class _Connection(NamedTuple):
    """What a sender uses of an open channel."""

    store: Store
    path: SendPath
    flusher: Flusher
    writer: Writer
    line: Line


class AnySender(SendCore, Generic[T_contra]):
    """Puts messages into a channel. Any number of senders, in any thread and any process.

    Closing a sender ends no stream, and sending without receivers is no error. A sender that was pickled opens the
    channel when it is first used, and closes it when it is closed.
    """

    _is_lone = False
    """Whether the channel object belongs to senders only: it is closed with the last of them."""
    _is_closing = False

    def __init__(self, owner: SenderOwner) -> None:
        self._owner = owner
        self._connect()
        owner.adopt_sender(self)

    def _connect(self) -> _Connection:
        store, path = self._owner.send_path()
        store.flusher.wake_together = wake_together
        connection = _Connection(store, path, store.flusher, store.log.writer, line_of(store))
        self._connected: _Connection | None = connection
        # Looked up once: these are the hot path. Closing replaces them.
        self._put: Callable[[object], int] = path.put
        self._put_all: Callable[[list[object]], int] = path.put_all
        self._attach(path)
        if self._is_closing:  # by another thread, in this moment
            self._refuse()
            raise ClosedResourceError
        return connection

    @property
    def _connection(self) -> _Connection:
        return self._connected or self._connect()

    @property
    def channel_id(self) -> str:
        """The id in the manifest of the channel, wherever its directory is moved to."""
        return self._connection.store.manifest.id

    @classmethod
    def unconnected(cls, owner: SenderOwner) -> Self:
        """Return a sender that has the channel for itself, and opens it when it is first used."""
        sender = cls.__new__(cls)
        sender._owner = owner
        sender._is_lone = True
        sender.disconnect()
        owner.adopt_sender(sender)
        return sender

    def disconnect(self) -> None:
        """Open the channel anew when it is used again. For a forked child."""
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
        """Pickle as the channel; what comes out opens it when it is first used."""
        self._check_open()
        return _unpickled, (type(self), *self._owner.copy())

    if TYPE_CHECKING:  # SendCore has it

        def send_nowait(self, item: T_contra) -> Offset:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
            """Send one message and return its offset, without waiting: under `FSYNC` it is on its way to the disk.

            The channel's `flush()` waits for that. On an event loop's thread: `WouldBlock` if another process is in the
            middle of sending, and stays there. `ChannelFullError`, which is a `WouldBlock`, if there is no room.
            """
            ...

    def _send_nowait_slowly(self, item: object) -> Offset:
        offset = self._put(item)
        self._flush_later(offset)
        return Offset(offset)

    def _flush_later(self, offset: int) -> None:
        connection = self._connection
        if connection.writer.deferred:
            connection.flusher.commit_later(Ticket(offset))

    def send_many_nowait(self, items: Iterable[T_contra]) -> Offset:
        """Send messages as one batch and return the offset of the first, without waiting."""
        batch = cast("list[object]", items if type(items) is list else list(items))
        offset = self._append(batch)
        if batch:
            self._flush_later(offset)
        return offset

    def _check_payload(self, payload: bytes) -> None:
        self._check_open()
        self._owner.check_payload(payload)

    def _append_payload(self, payload: bytes) -> Offset:
        self._check_open()
        return Offset(self._connection.writer.append_all([payload]))

    def _append(self, batch: list[object]) -> Offset:
        # An empty batch is a no-op, even on a channel that is sealed.
        return Offset(self._put_all(batch)) if batch else self.write_offset

    @property
    def write_offset(self) -> Offset:
        """Where the next message will begin."""
        self._check_open()
        return self._connection.store.control.write_offset

    @property
    def path(self) -> Path:
        """The channel's directory."""
        return self._owner.path

    def statistics(self) -> SenderStatistics:
        """Return a snapshot of this sender."""
        self._check_open()
        control = self._connection.store.control
        tail = control.tail()
        return SenderStatistics(
            write_offset=tail.offset, durable_offset=control.durable_offset, next_sequence=tail.sequence
        )

    def clone(self) -> Self:
        """Return another sender of the same channel, to be closed by itself."""
        self._check_open()
        return self.unconnected(self._owner) if self._is_lone else type(self)(self._owner)

    @property
    def _is_closed(self) -> bool:
        return self._put is _closed

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedResourceError

    def close(self) -> None:
        """Close this sender; other senders stay open. What was sent stays sent.

        If a signal handler raises meanwhile, closing it again completes it: each step may be repeated.
        """
        self._is_closing = True
        self._refuse()
        self._owner.forget_sender(self)
        if self._is_lone and not self._owner.is_used:
            self._owner.close()

    def _refuse(self) -> None:
        self._put = self._put_all = _closed
        self._detach()
        if self._connected is not None:
            self._connected.line.wake_all()

    def _place_in_line(self) -> Place:
        return Place(lambda: self._is_closed)

    def __enter__(self) -> Self:
        """Use the sender in a `with` block, which closes it."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the sender."""
        self.close()

    def __repr__(self) -> str:
        return f"<Sender {str(self._owner.path)!r}{' closed' if self._is_closed else ''}>"


def _unpickled(
    cls: type[AnySender[T_contra]], make_owner: Callable[..., SenderOwner], arguments: tuple[object, ...]
) -> AnySender[T_contra]:
    return cls.unconnected(make_owner(*arguments))


def _closed(_: object) -> int:
    raise ClosedResourceError
