"""Sending: `send_nowait` and `send_many_nowait` do it, the async methods add waiting."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar, cast, final

from anyio import ClosedResourceError
from anyio.abc import ObjectSendStream

from .._errors import StorageError
from .._format import SendCore, SendPath, own_send
from .._offset import Offset
from .._storage.flush import Ticket
from .._storage.store import Store
from .._wakeup.loops import make_waiter, notice_cancellation, wait_through_cancellation, wake_together
from .statistics import SenderStatistics
from .turns import begin_turn, give_way_if_due

T_contra = TypeVar("T_contra", contravariant=True)

_SLICE = 1024  # items encoded between two looks at the clock


class Closable(Protocol):
    """Something that can be closed at once."""

    def close(self) -> None:
        """Close it; closing twice is closing once."""
        ...


class SenderOwner(Protocol):
    """What a sender needs of its channel: to be closed with it, and to be cloned."""

    def adopt_sender(self, sender: Closable, /) -> None:
        """Close this sender too when the channel closes."""
        ...

    def forget_sender(self, sender: Closable, /) -> None:
        """It was closed."""
        ...


@final
@own_send
class Sender(SendCore, ObjectSendStream[T_contra], Generic[T_contra]):
    """Puts messages into a channel. Any number of senders, in any thread.

    Closing a sender ends no stream, and sending without receivers is no error.
    """

    def __init__(self, owner: SenderOwner, store: Store, path: SendPath) -> None:
        self._owner = owner
        self._store = store
        self._send_path = path
        self._flusher = store.flusher
        self._flusher.wake_together = wake_together
        self._writer = store.log.writer
        # Looked up once: these are the hot path. Closing replaces them.
        self._put: Callable[[object], int] = path.put
        self._put_all: Callable[[list[object]], int] = path.put_all
        self._attach(path)
        owner.adopt_sender(self)

    if TYPE_CHECKING:  # SendCore has them

        async def send(self, item: T_contra) -> None:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
            """Send one message. On return every receiver can get it; it is on disk only under `Durability.FSYNC`.

            If cancelled, nothing was sent: once the message is in the channel, a cancellation waits. Raises
            `MessageTypeError` or `CodecError` for a value that does not fit, `MessageTooLargeError`,
            `ChannelSealedError`, `DiskFullError`, and `StorageError` if the disk failed.
            """
            ...

        def send_nowait(self, item: T_contra) -> Offset:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
            """Send one message and return its offset, without waiting: under `FSYNC` it is on its way to the disk.

            `await channel.flush()` waits for that.
            """
            ...

    async def _send_slowly(self, item: object) -> None:
        await self._before_append()
        await self._until_visible(self._put(item))

    def _send_nowait_slowly(self, item: object) -> Offset:
        offset = self._put(item)
        if self._writer.deferred:
            self._flusher.commit_later(Ticket(offset))
        return Offset(offset)

    async def send_many(self, items: Iterable[T_contra]) -> Offset:
        """Send messages as one batch and return the offset of the first. None of them if cancelled.

        The batch becomes visible at once and is kept or lost as a whole. A bad item raises an error that names its
        index, and nothing of the batch is sent.
        """
        batch: list[object] = list(items)
        await self._before_append()
        if not batch:
            return self._append(batch)
        if len(batch) <= _SLICE:
            offset = self._append(batch)
        else:
            payloads: list[bytes] = []
            for first in range(0, len(batch), _SLICE):
                payloads += self._send_path.encode_all(batch[first : first + _SLICE], first)
                await give_way_if_due()
            self._check_open()
            offset = Offset(self._writer.append_all(payloads))
        await self._until_visible(offset)
        return offset

    def send_many_nowait(self, items: Iterable[T_contra]) -> Offset:
        """Send messages as one batch and return the offset of the first, without waiting."""
        batch = cast("list[object]", items if type(items) is list else list(items))
        offset = self._append(batch)
        if batch and self._writer.deferred:
            self._flusher.commit_later(Ticket(offset))
        return offset

    def _append(self, batch: list[object]) -> Offset:
        # An empty batch is a no-op, even on a channel that is sealed.
        return Offset(self._put_all(batch)) if batch else self.write_offset

    async def _before_append(self) -> None:
        """Give way if it is time, and let a cancellation be noticed while nothing has happened yet."""
        if self._writer.deferred:  # the wait for a flush is shielded: here is where a loop of sends can be cancelled
            await notice_cancellation()
        else:
            await give_way_if_due()

    async def _until_visible(self, offset: int) -> None:
        """Under FSYNC: wait until what was appended is on disk and shown. It has happened: cancelling is too late."""
        if not self._writer.deferred:
            return
        waiter = make_waiter()
        ticket = Ticket(offset, waiter)
        self._flusher.commit_later(ticket)
        await wait_through_cancellation(waiter)
        begin_turn()
        if ticket.error is not None:
            raise StorageError(ticket.error.reason) from ticket.error

    @property
    def write_offset(self) -> Offset:
        """Where the next message will begin."""
        self._check_open()
        return self._store.control.write_offset

    def statistics(self) -> SenderStatistics:
        """Return a snapshot of this sender."""
        self._check_open()
        control = self._store.control
        tail = control.tail()
        return SenderStatistics(
            write_offset=tail.offset, durable_offset=control.durable_offset, next_sequence=tail.sequence
        )

    def clone(self) -> Sender[T_contra]:
        """Return another sender of the same channel, to be closed by itself."""
        self._check_open()
        return Sender(self._owner, self._store, self._send_path)

    def _check_open(self) -> None:
        if self._put is _closed:
            raise ClosedResourceError

    def close(self) -> None:
        """Close this sender; others go on. What was sent stays sent."""
        if self._put is _closed:
            return
        self._put = self._put_all = _closed
        self._detach()
        self._owner.forget_sender(self)

    async def aclose(self) -> None:
        """Close this sender; others go on."""
        self.close()

    def __enter__(self) -> Sender[T_contra]:
        """Use the sender in a `with` block, which closes it."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the sender."""
        self.close()

    def __repr__(self) -> str:
        return f"<Sender {str(self._store.path)!r}{' closed' if self._put is _closed else ''}>"


def _closed(_: object) -> int:
    raise ClosedResourceError
