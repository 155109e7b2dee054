"""Sending from an event loop: what `AnySender` does, and waiting."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Generic, TypeVar, final

from anyio import sleep
from anyio.abc import ObjectSendStream

from .._errors import Busy, NoRoomYetError, StorageError
from .._format import own_send
from .._offset import Offset
from .._storage.backlog import Batch
from .._storage.flush import Ticket
from .._wakeup.loops import (
    make_waiter,
    notice_cancellation,
    run_in_thread,
    run_through_cancellation,
    wait_through_cancellation,
)
from .any_sender import AnySender
from .turns import begin_turn, give_way_if_due

T_contra = TypeVar("T_contra", contravariant=True)

OffsetT = TypeVar("OffsetT", bound=int)

_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.0002, 0.02  # seconds
_SLICE = 1024  # items encoded between two looks at the clock


@final
@own_send
class Sender(AnySender[T_contra], ObjectSendStream[T_contra], Generic[T_contra]):
    """Puts messages into a channel. Any number of senders, in any thread and any process.

    Closing a sender ends no stream, and sending without receivers is no error. A sender that was pickled opens the
    channel when it is first used, and closes it when it is closed.
    """

    if TYPE_CHECKING:  # SendCore has it

        async def send(self, item: T_contra) -> None:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
            """Send one message. On return every receiver can get it; it is on disk only under `Durability.FSYNC`.

            If cancelled, nothing was sent: once the message is in the channel, a cancellation waits. A full channel
            lets it wait for room, or raises `ChannelFullError`, as its capacity says. Raises `MessageTypeError` or
            `CodecError` for a value that does not fit, `MessageTooLargeError`, `ChannelSealedError`, `DiskFullError`,
            and `StorageError` if the disk failed.
            """
            ...

    async def _send_slowly(self, item: object) -> None:
        await self._before_append()
        await self._until_visible(await self._patiently(lambda: self._put(item)))

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
            offset = await self._patiently(lambda: self._append(batch))
        else:
            payloads: list[bytes] = []
            for first in range(0, len(batch), _SLICE):
                payloads += self._connection.path.encode_all(batch[first : first + _SLICE], first)
                await give_way_if_due()
            self._check_open()
            offset = await self._patiently(lambda: Offset(self._connection.writer.append_all(payloads)))
        await self._until_visible(offset)
        return offset

    async def send_payload(self, payload: bytes) -> None:
        """Send a message that is encoded already, as it is; `CodecError` if it does not decode, else as `send`."""
        self._check_payload(payload)
        await self._before_append()
        await self._until_visible(await self._patiently(lambda: self._append_payload(payload)))

    async def _send_encoded(self, payloads: list[bytes]) -> None:
        """Send messages that are encoded already as one batch. The caller answers for it that they are messages."""
        await self._before_append()
        offset = await self._patiently(lambda: Offset(self._connection.writer.append_all(payloads)))
        await self._until_visible(offset)

    async def _before_append(self) -> None:
        """Give way if it is time, and let a cancellation be noticed while nothing has happened yet."""
        self._check_open()
        if self._connected is None:  # it was unpickled, or forked: opening blocks
            await run_in_thread(self._connect)
        if self._connection.writer.deferred:
            # The wait for a flush is shielded: here is where a loop of sends can be cancelled.
            await notice_cancellation()
        else:
            await give_way_if_due()

    async def _patiently(self, append: Callable[[], OffsetT]) -> OffsetT:
        """Append, waiting for another process that is in the middle of it, or was stopped there."""
        if self._connection.line.is_needed():
            return await self._in_line(append)
        pause = _SHORTEST_PAUSE
        while True:
            try:
                return append()
            except NoRoomYetError:
                return await self._in_line(append)
            except Busy:
                await sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
            self._check_open()

    async def _in_line(self, append: Callable[[], OffsetT]) -> OffsetT:
        """Append when there is room and it is our turn."""
        line = self._connection.line
        place = self._place_in_line()
        try:
            with line.standing(place):
                while True:
                    await line.wait(place, _LONGEST_PAUSE)
                    begin_turn()
                    self._check_open()
                    try:
                        with line.serving():
                            return append()
                    except NoRoomYetError as full:
                        place.batch = Batch(full.size, full.messages)
                    except Busy:
                        await sleep(_SHORTEST_PAUSE)
        finally:
            line.let_next_try(place)

    async def _until_visible(self, offset: int) -> None:
        """Under FSYNC: wait until what was appended is on disk and shown. It has happened: cancelling is too late."""
        if not self._connection.writer.deferred:
            return
        waiter = make_waiter()
        ticket = Ticket(offset, waiter)
        self._connection.flusher.commit_later(ticket)
        await wait_through_cancellation(waiter)
        begin_turn()
        if ticket.error is not None:
            raise StorageError(ticket.error.reason) from ticket.error

    async def aclose(self) -> None:
        """Close this sender; others go on."""
        if self._is_lone:  # the channel goes too, which may take a flush
            await run_through_cancellation(self.close)
        else:
            self.close()
