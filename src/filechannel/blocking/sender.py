"""`Sender` for threads."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Generic, TypeVar, cast, final

from .._channel.base.sender import BaseSender
from .._errors import Busy, CapacityReachedError, FileChannelError
from .._offset import Offset
from .._storage.capacity.backlog import Batch
from .._wakeup.sleep_deadline import no_longer_than
from .deadline import busy_writer, deadline

T_contra = TypeVar("T_contra", contravariant=True)
R = TypeVar("R")

_LONGEST_PAUSE = 0.02  # seconds between two checks for capacity if no process can wake this one
_PAUSE = 0.001  # seconds; only for a thread that runs an event loop, and should not use this class


@final
class Sender(BaseSender[T_contra], Generic[T_contra]):
    """Sends messages to a channel. There can be any number of senders, in any thread and any process."""

    if TYPE_CHECKING:

        def send(self, item: T_contra, timeout: float | None = None) -> None:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
            """Send one message. On return, receivers can get it; it is on disk only with `Durability.FSYNC`.

            Raises `TimeoutError`, and sends nothing, if the channel stays full, or another process holds the writer
            lock, for *timeout* seconds. A message that is in the channel is not rolled back: from then on this waits
            for the flush, however long it takes. Other errors are those of the async `send`.
            """
            ...

    else:
        send = BaseSender._send_here

    def _send_here_slowly(self, item: object, timeout: float | None) -> None:
        self._connection.flusher.refuse_reentry()
        offset = self._append_or_wait(lambda: self._put(item), timeout)
        self._flush_now(offset)

    def send_many(self, items: Iterable[T_contra], timeout: float | None = None) -> Offset:
        """Send messages as one batch and return the offset of the first; on an error, none of them is sent."""
        batch = cast("list[object]", list(items))
        self._connection.flusher.refuse_reentry()
        offset = self._append_or_wait(lambda: self._append(batch), timeout)
        if batch:
            self._flush_now(offset)
        return offset

    def send_payload(self, payload: bytes, timeout: float | None = None) -> None:
        """Send a message that is already encoded. Raise `CodecError` if it does not decode; otherwise like `send`."""
        self._check_payload(payload)
        self.append_with(lambda: self.append_encoded([payload]), timeout)

    def append_with(self, append: Callable[[], int], timeout: float | None = None) -> None:
        """Call a function that appends to the channel, and wait as `send` does. For `transaction`."""
        self._connection.flusher.refuse_reentry()
        self._flush_now(self._append_or_wait(append, timeout))

    def _append_or_wait(self, append: Callable[[], R], timeout: float | None) -> R:
        """Append. Wait at most *timeout* seconds while another process holds the writer lock, or is stopped with it."""
        until = deadline(timeout)
        while True:
            try:
                with no_longer_than(until):
                    return append()
            except CapacityReachedError:
                return self._in_queue(append, until)
            except Busy:
                if until is not None and time.monotonic() >= until:
                    store = self._connection.store
                    raise TimeoutError(
                        f"{store.path}: {busy_writer(store)} held the writer lock for too long; nothing was sent"
                    ) from None
            time.sleep(_PAUSE)

    def _in_queue(self, append: Callable[[], R], until: float | None) -> R:
        """Wait in the send queue, and append when this sender is first and there is capacity."""
        queue = self._connection.queue
        entry = self._queue_entry()
        try:
            with queue.joined(entry):
                while queue.sleep(entry, until, _LONGEST_PAUSE):
                    self.check_open()
                    try:
                        with queue.serving(), no_longer_than(until):
                            return append()
                    except CapacityReachedError as full:
                        entry.batch = Batch(full.size, full.messages)
                    except Busy:
                        time.sleep(_PAUSE)
                raise TimeoutError(f"{self._owner.path} was still full at the timeout; nothing was sent")
        finally:
            queue.serve_next(entry)

    def _flush_now(self, offset: int) -> None:
        connection = self._connection
        if not connection.writer.deferred:
            return
        try:
            connection.group_commit.commit_for(offset)
        except FileChannelError:
            raise
        except BaseException:
            self._flush_later(offset)  # Ctrl-C: the message is in the channel, and must become visible
            raise
