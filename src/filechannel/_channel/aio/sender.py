"""`Sender` for event loops: `BaseSender`, with methods that wait."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Generic, TypeVar, final

from anyio import sleep
from anyio.abc import ObjectSendStream

from ..._errors import Busy, CapacityReachedError, StorageError
from ..._format import own_send
from ..._offset import Offset
from ..._storage.capacity.backlog import Batch
from ..._storage.durability.group_commit import Ticket
from ..._wakeup.event_loops import (
    make_waiter,
    notice_cancellation,
    run_in_thread,
    run_through_cancellation,
    wait_through_cancellation,
)
from ..base.sender import BaseSender
from .cooperative_yield import begin_slice, yield_if_due

T_contra = TypeVar("T_contra", contravariant=True)

OffsetT = TypeVar("OffsetT", bound=int)

_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.0002, 0.02  # seconds
_SLICE = 1024  # items encoded between two checks of the clock


@final
@own_send
class Sender(BaseSender[T_contra], ObjectSendStream[T_contra], Generic[T_contra]):
    """Sends messages to a channel. There can be any number of senders, in any thread and any process.

    Closing a sender does not end the stream, and sending without receivers is not an error. An unpickled sender opens
    the channel when it is first used, and closes it when the sender is closed.
    """

    if TYPE_CHECKING:  # SendCore implements it

        async def send(self, item: T_contra) -> None:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
            """Send one message. On return, receivers can get it; it is on disk only with `Durability.FSYNC`.

            If this is cancelled, nothing was sent: once the message is in the channel, a cancellation is deferred. If
            the channel is full, this waits for capacity or raises `ChannelFullError`, depending on `Capacity.on_full`.
            Raises `MessageTypeError` or `CodecError` for a value that is not a message of the channel,
            `MessageTooLargeError`, `ChannelSealedError`, `DiskFullError`, and `StorageError` if the disk failed.
            """
            ...

    async def _send_slowly(self, item: object) -> None:
        await self._before_append()
        await self._until_visible(await self._append_or_wait(lambda: self._put(item)))

    async def send_many(self, items: Iterable[T_contra]) -> Offset:
        """Send messages as one batch and return the offset of the first. If cancelled, none of them was sent.

        The batch becomes visible as a whole, and after a crash it is there as a whole or not at all. An invalid item
        raises an error that names its index, and nothing of the batch is sent.
        """
        batch: list[object] = list(items)
        await self._before_append()
        if not batch:
            return self._append(batch)
        if len(batch) <= _SLICE:
            offset = await self._append_or_wait(lambda: self._append(batch))
        else:
            payloads: list[bytes] = []
            for first in range(0, len(batch), _SLICE):
                payloads += self._connection.path.encode_all(batch[first : first + _SLICE], first)
                await yield_if_due()
            self.check_open()
            offset = await self._append_or_wait(lambda: Offset(self._connection.writer.append_all(payloads)))
        await self._until_visible(offset)
        return offset

    async def send_payload(self, payload: bytes) -> None:
        """Send a message that is already encoded. Raise `CodecError` if it does not decode; otherwise like `send`."""
        self._check_payload(payload)
        await self.append_with(lambda: self.append_encoded([payload]))

    async def append_with(self, append: Callable[[], int]) -> None:
        """Call a function that appends to the channel, and wait as `send` does. For transactions and Spark."""
        await self._before_append()
        await self._until_visible(await self._append_or_wait(append))

    async def _before_append(self) -> None:
        """Yield to the event loop if it is time, and let a pending cancellation be raised before the append."""
        self.check_open()
        if self._connected is None:  # unpickled, or in a forked child: opening blocks
            await run_in_thread(self._connect)
        if self._connection.writer.deferred:
            # The wait for a flush is shielded: this is where a loop of sends can be cancelled.
            await notice_cancellation()
        else:
            await yield_if_due()

    async def _append_or_wait(self, append: Callable[[], OffsetT]) -> OffsetT:
        """Append. Wait while another process holds the writer lock, even if that process is stopped."""
        if self._connection.queue.is_needed():
            return await self._in_queue(append)
        pause = _SHORTEST_PAUSE
        while True:
            try:
                return append()
            except CapacityReachedError:
                return await self._in_queue(append)
            except Busy:
                await sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
            self.check_open()

    async def _in_queue(self, append: Callable[[], OffsetT]) -> OffsetT:
        """Wait in the send queue, and append when this sender is first and there is capacity."""
        queue = self._connection.queue
        entry = self._queue_entry()
        try:
            with queue.joined(entry):
                while True:
                    await queue.wait(entry, _LONGEST_PAUSE)
                    begin_slice()
                    self.check_open()
                    try:
                        with queue.serving():
                            return append()
                    except CapacityReachedError as full:
                        entry.batch = Batch(full.size, full.messages)
                    except Busy:
                        await sleep(_SHORTEST_PAUSE)
        finally:
            queue.serve_next(entry)

    async def _until_visible(self, offset: int) -> None:
        """With FSYNC, wait until what was appended is on disk and visible. Cancellation is deferred: it is appended."""
        if not self._connection.writer.deferred:
            return
        waiter = make_waiter()
        ticket = Ticket(offset, waiter)
        self._connection.group_commit.commit_later(ticket)
        await wait_through_cancellation(waiter)
        begin_slice()
        if ticket.error is not None:
            raise StorageError(ticket.error.reason) from ticket.error

    async def aclose(self) -> None:
        """Close this sender; other senders stay open."""
        if self._owns_channel:  # closes the channel too, which may take a flush
            await run_through_cancellation(self.close)
        else:
            self.close()
