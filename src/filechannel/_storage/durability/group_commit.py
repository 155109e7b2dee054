"""Group commit: under `FSYNC`, one flush serves all senders that wait for one (PostgreSQL).

A sender queues a ticket with the offset of its record. One background thread at a time serves the queue: it takes all
tickets, has the flusher commit, stores in each ticket the error if its record is lost, and wakes the senders. Tickets
that are queued meanwhile share the next commit.

A sender that waits must get a result, whatever happens to the flush, the thread or the channel.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import final

from ..._errors import Busy, ClosedResourceError, FileChannelError, StorageError
from ..._runtime.may_sleep import briefly
from ..._runtime.thread_wakeup import Sleeper
from ..._runtime.threads import NoThreadError, background_threads, start_thread
from ..control.control_page import Control
from ..segments.catalog import Segments
from ..store_events import StoreEvents
from .flusher import Flusher

_ROUNDS = 16  # commits in a row before a thread serves other channels


@final
class Ticket:
    """One append that waits for a commit: its offset, its waiter and, after the commit, its error if it failed."""

    __slots__ = ("error", "offset", "sleeper")

    def __init__(self, offset: int, sleeper: Sleeper | None = None) -> None:
        self.offset: int = offset
        self.sleeper: Sleeper | None = sleeper
        self.error: StorageError | None = None


@final
class GroupCommit:
    """Commits for the senders of one channel that wait, in background threads."""

    def __init__(self, control: Control, segments: Segments, flusher: Flusher, events: StoreEvents) -> None:
        self._control = control
        self._segments = segments
        self._flusher = flusher
        self._queue: SimpleQueue[Ticket] = SimpleQueue()
        self.wake_together: Callable[[list[Sleeper]], object] = _wake_one_by_one
        """Wakes many waiters at once; the code that knows the event loops installs a faster way."""
        self._ended = object()
        """Replaced by a new object each time a thread stops serving the queue."""
        self._requested: object = None
        """The value of `_ended` when a thread was last requested. While they are equal, a thread serves the queue."""
        events.append_refused.attach(self._publish_appended)

    def commit_later(self, ticket: Ticket) -> None:
        """Wake the waiter from another thread when its records are on disk and published, or lost.

        If a signal handler raises in here, the ticket may or may not be in the queue; later tickets are served as
        usual.
        """
        self._queue.put(ticket)
        ended = self._ended  # read after the put: a thread that stops later checks the queue again and finds the ticket
        if self._requested is not ended:
            self._start_serving()
            self._requested = ended

    def _publish_appended(self) -> None:
        """Have the records flushed that take up the capacity.

        If the process that appended them died, no other process would flush them, and no receiver could consume them.
        """
        tail = self._control.tail(deferred=self._control.deferred)
        if tail.offset > self._control.write_offset:
            self.commit_later(Ticket(tail.offset - 1))

    def _start_serving(self) -> None:
        try:
            background_threads().do(self._serve)
        except NoThreadError:  # no thread can be started, for example because the interpreter is shutting down
            self._serve()

    def _serve(self) -> None:
        """Commit for the waiters. The background threads are few, so none of them waits long for another process."""
        for _ in range(_ROUNDS):
            waiting = self._take_waiting()
            if not waiting:
                self._stop_serving()
                return
            if not self._commit_for(waiting, briefly()):
                self._serve_in_own_thread(waiting)
                return
        self._start_serving()

    def _stop_serving(self) -> None:
        self._ended = object()
        if not self._queue.empty():  # a ticket was queued before `_ended` changed, so no other thread was requested
            self._start_serving()

    def _serve_in_own_thread(self, waiting: list[Ticket]) -> None:
        try:
            start_thread(lambda: self._serve_until_empty(waiting), "filechannel-commit")
        except NoThreadError:  # no more threads can be started
            self._serve_until_empty(waiting)

    def _serve_until_empty(self, waiting: list[Ticket]) -> None:
        """Commit for the waiters in a dedicated thread: another process has the flush lock, and may be stopped."""
        while waiting:
            self._commit_for(waiting)
            waiting = self._take_waiting()
        self._stop_serving()

    def _take_waiting(self) -> list[Ticket]:
        waiting: list[Ticket] = []
        with suppress(Empty):
            while True:
                waiting.append(self._queue.get_nowait())
        return waiting

    def _commit_for(self, waiting: list[Ticket], may_sleep: Callable[[], bool] | None = None) -> bool:
        """Commit, and pass the result to the waiters. Return False, with nothing done, if the lock stays taken."""
        error: StorageError | None = None
        try:
            self._flusher.commit(max(ticket.offset for ticket in waiting), may_sleep)
        except Busy:
            return False
        except StorageError as failure:
            error = failure
        except BaseException as failure:
            error = StorageError(f"flushing failed: {failure}")
            error.__cause__ = failure
        try:
            visible = self._control.write_offset
            for ticket in waiting:
                loss = self._loss_of(ticket.offset)
                ticket.error = loss if loss is not None or ticket.offset < visible else error
        except ClosedResourceError as failure:
            # Another thread has just closed the channel. The waiters must be woken nevertheless.
            for ticket in waiting:
                ticket.error = StorageError(
                    f"the channel was closed before a flush had confirmed what is on disk: {failure!r}"
                )
        self.wake_together([ticket.sleeper for ticket in waiting if ticket.sleeper is not None])
        return True

    def _loss_of(self, offset: int) -> StorageError | None:
        """Return why the record at an offset will never be published; None if it is published, or will be."""
        if not self._control.failed_flushes:
            return None
        known = self._flusher.failures.known_loss(offset)
        try:
            if known is None and _is_lost(self._control, self._segments, offset):
                return self._flusher.failures.failed_elsewhere()
            return known
        except (FileChannelError, OSError) as error:  # the sender waits for a result, and must get one
            return StorageError(f"a flush failed in another process, and it is not known what is lost: {error}")

    def commit_for(self, offset: int) -> None:
        """Block until the record at an offset is on disk and published; `StorageError` if it is lost."""
        self._flusher.commit(offset)
        loss = self._loss_of(offset)
        if loss is not None:
            raise StorageError(loss.reason) from loss


def _is_lost(control: Control, segments: Segments, offset: int) -> bool:
    """Return whether a record that was appended at an offset was rolled back since: no segment holds it."""
    try:
        if control.poisoned_before > offset >= control.write_offset:
            is_missing = True
        else:
            begin = segments.covering(offset)
            is_missing = begin is None or offset >= segments.get(begin).limit
    except FileChannelError:
        if offset >= control.oldest_offset:
            raise
        return False
    return is_missing and offset >= control.oldest_offset  # else it was stored, and has been reclaimed


def _wake_one_by_one(sleepers: list[Sleeper]) -> None:
    for sleeper in sleepers:
        sleeper.wake()
