"""Durability: what is on disk, and how senders share the wait for it.

The order of every flush: dirty segments, the names in `segments/` if they changed, positions, then the checkpoint. A
commit under `FSYNC` needs only the first two: recovery finds what lies behind the checkpoint by its checksums. A
checkpoint always lies between two batches, and never beyond what readers see: what they do not see may be taken back.

A failed flush is final. The kernel reports it once and forgets; the next call would lie. So the file is never flushed
again, the log ends at what readers saw and goes on in a fresh file, and everybody whose message was not on disk is
told: under `FSYNC` each sender that waited, and the next `flush`; otherwise every later `flush`, in any process, since
readers have seen what the disk may not have. That ends when it is not stored any more, or with the boot: whoever
recovers then finds out what the disk has. Only what the kernel says about data is such a failure, so nothing that is
flushed has to be opened for it.
"""

from __future__ import annotations

import errno
import logging
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import Protocol, final

from .._errors import Busy, ClosedResourceError, FileChannelError, StorageError, storage_error
from .._format import Guard, Mutex
from .._format.layout import FLUSH_LOCK, FLUSHES, FLUSHING_SEGMENTS
from .._offset import Offset
from .background import NoThreadError, background_threads, do_all_at_once, start_thread
from .control import Checkpoint, Control, Tail
from .cursors import Cursors
from .delay import Delay
from .index import Mark
from .log import Log
from .processes import Processes
from .producers import Producers
from .segments import Segments
from .shared_lock import SharedLock
from .unflushed import Work

_logger = logging.getLogger("filechannel")
_ROUNDS = 16  # then other channels have their turn
_PATIENCE = 0.2  # seconds
LAZINESS = 1.0
"""Seconds that a finished segment may wait for its flush. One that is consumed by then is never written out, and its
pages stay as they are, ready to be written to again."""
_MANY = 8  # finished segments that are flushed at once: nobody consumes them as fast as they come
_REMEMBERED = 1024  # failures; who appended before the oldest of them has long been told


class Sleeper(Protocol):
    """Whoever waits for a commit."""

    def wake(self) -> None:
        """Let it go on. Called from another thread."""
        ...


@final
class Ticket:
    """One append that wants to be on disk: where it is, who waits for it, and in the end what went wrong."""

    __slots__ = ("error", "offset", "sleeper")

    def __init__(self, offset: int, sleeper: Sleeper | None = None) -> None:
        self.offset: int = offset
        self.sleeper: Sleeper | None = sleeper
        self.error: StorageError | None = None


class Flusher:
    """Brings one channel's files to disk. Every method that flushes blocks, and belongs off the event loop."""

    def __init__(
        self,
        control: Control,
        segments: Segments,
        log: Log,
        cursors: Cursors,
        producers: Producers,
        processes: Processes,
    ) -> None:
        self._control = control
        self._segments = segments
        self._log = log
        self._cursors = cursors
        self._producers = producers
        self._lock = SharedLock(control.map, FLUSH_LOCK, processes, flushes=FLUSHES)
        self._queue: SimpleQueue[Ticket] = SimpleQueue()
        self.wake_together: Callable[[list[Sleeper]], object] = _wake_one_by_one
        """How to wake many at once; who knows of event loops knows a better way."""
        self._ended = object()
        """Another object each time that a thread ends to serve the queue."""
        self._asked: object = None
        """What `_ended` was when a thread was last asked to serve it: as long as it still is, that thread does."""
        self._untold: StorageError | None = None
        self._told = control.failed_flushes
        self._lost: deque[tuple[range, StorageError]] = deque(maxlen=_REMEMBERED)
        self._closed = False
        self._lazily = Delay(self._begin_flush_of_finished, LAZINESS)

    # Everything

    def flush(self, *, settled: bool = False) -> None:
        """Bring everything sent so far to disk, cursors included; `StorageError` if that is not possible.

        Nor if a flush before this one has left some of it in doubt. *settled*: the caller is in that block.
        """
        if not settled:
            self.refuse_reentry()
        with self._lock.held():
            try:
                self._flush_all()
            finally:
                self._tell_loss()

    def flush_the_rest(self, *, settled: bool = False) -> None:
        """The same for whoever needs on disk what can be: what a flush before this one left in doubt is not told."""
        if not settled:
            self.refuse_reentry()
        with self._lock.held():
            self._flush_all()

    def _flush_all(self) -> None:
        try:
            checkpoint = self._flush_data()
            self._cursors.flush()
            self._producers.flush()
            self._write_checkpoint(checkpoint)
        except OSError as error:
            raise storage_error("consumers or checkpoint could not be flushed", error) from error

    def _tell_loss(self) -> None:
        failed = self._control.failed_flushes
        if not self._control.is_in_doubt and failed == self._told:
            return
        error = self._untold or _failed_elsewhere()
        self._told = failed
        if not self._control.is_in_doubt:
            self._untold = None
        raise StorageError(error.reason) from error

    def refuse_reentry(self) -> None:
        """Raise `RuntimeError` if the thread is flushing: a signal handler or a finalizer came in between."""
        self._lock.refuse_reentry("nothing was flushed")

    def flush_if_needed(self) -> None:
        """Flush unless everything is on disk already. `Busy` if another process is flushing, and stays there."""
        if self._control.durable_offset < self._control.write_offset:
            with self._lock.held(briefly()):  # whoever had it may have flushed meanwhile
                if self._control.durable_offset < self._control.write_offset:
                    self.flush(settled=True)

    def flush_finished_later(self) -> None:
        """Bring finished segments to disk in another thread, soon."""
        if not self._log.has_finished:
            return
        if self._log.writer.deferred or not LAZINESS or self._log.unflushed_segments >= _MANY:
            self._begin_flush_of_finished()
        else:
            self._lazily.begin()

    def _begin_flush_of_finished(self) -> None:
        with suppress(NoThreadError):  # the interpreter is shutting down: the next open does it
            background_threads().do(self.flush_finished)

    def flush_finished(self) -> None:
        """Bring finished segments to disk; a failure is logged, and told by the next `flush`.

        If another process is flushing, that is left to whoever flushes next. What their index still has to have is
        written here too, and not by whoever sends.
        """
        self._log.store_marks()
        with suppress(Busy, ClosedResourceError), self._lock.held(briefly()):
            if self._closed or not self._log.has_finished:
                return
            try:
                work = self._take()
                work = replace(work, segments=[segment for segment in work.segments if segment.end])
                self._do(work)
                if work.boundary is not None:
                    checkpoint = self._safe_checkpoint(work.boundary)
                    self._advance_durable(checkpoint.offset)
                    self._write_checkpoint(checkpoint)
            except OSError as error:
                _logger.error("a checkpoint could not be flushed: %s", error)
            except StorageError as error:
                if error is not self._untold:  # otherwise logged, and remembered
                    _logger.error("finished segments could not be flushed: %s", error)

    def _safe_checkpoint(self, boundary: Tail) -> Checkpoint:
        """Under FSYNC all that readers see is on disk; otherwise what was whole when the segment was finished."""
        tail = self._control.tail() if self._log.writer.deferred else boundary
        return Checkpoint(tail.offset, tail.sequence, self._control.oldest_offset)

    def forget_before(self, oldest: Mark) -> None:
        """Bring to disk that nothing is stored before a place: what lies there may be removed then.

        Nothing else is flushed. `Busy` if another process is flushing, and stays there.
        """
        with self._lock.held(briefly()):
            last = self._control.checkpoint()
            if last is None or last.oldest < oldest.offset:
                self._write_checkpoint(Checkpoint(oldest.offset, oldest.sequence, oldest.offset))

    def _write_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Store a checkpoint, unless the last one goes further: then only what is the oldest changes in that.

        A log cannot begin behind where it is known to be whole. If senders have dropped more than that meanwhile, the
        files of it are there until a checkpoint says so that goes far enough.
        """
        last = self._control.checkpoint()
        if last is not None and last.offset >= checkpoint.offset:
            checkpoint = replace(last, oldest=checkpoint.oldest)
        if last is not None and checkpoint.oldest > checkpoint.offset:
            checkpoint = replace(checkpoint, oldest=last.oldest)
        if checkpoint.offset == self._control.write_offset:
            checkpoint = replace(checkpoint, sealed=self._control.sealed)
        self._control.write_checkpoint(checkpoint)

    def held(self) -> Guard:
        """Keep every thread and process from flushing, in a `with` statement."""
        return self._lock.held()

    @property
    def mutex(self) -> Mutex:
        """Keeps the other threads of this process from flushing."""
        return self._lock.mutex

    @property
    def is_closed(self) -> bool:
        """Whether it flushes nothing any more."""
        return self._closed

    def close(self) -> None:
        """Flush nothing any more. The caller holds the mutex."""
        self._closed = True
        self._lazily.end()

    # Group commit

    def commit_later(self, ticket: Ticket) -> None:
        """Wake who waits, from another thread, when what was appended is on disk and visible, or lost.

        An exception raised by a signal handler in here leaves the ticket in the queue, or not, and the next one is
        served as ever.
        """
        self._queue.put(ticket)
        ended = self._ended  # behind the above: a thread that ends after this looks once more, and finds it
        if self._asked is not ended:
            self._begin_work()
            self._asked = ended

    def _begin_work(self) -> None:
        try:
            background_threads().do(self._work)
        except NoThreadError:  # there is no thread to be had, as when the interpreter is shutting down
            self._work()

    def _work(self) -> None:
        """Commit for those who wait. The threads for that are few, and none of them waits for another process."""
        for _ in range(_ROUNDS):
            waiting = self._take_waiting()
            if not waiting:
                self._end_work()
                return
            if not self._commit_for(waiting, briefly()):
                self._begin_to_wait(waiting)
                return
        self._begin_work()

    def _end_work(self) -> None:
        self._ended = object()
        if not self._queue.empty():  # it came before the line above, and no other thread was asked
            self._begin_work()

    def _begin_to_wait(self, waiting: list[Ticket]) -> None:
        try:
            start_thread(lambda: self._work_patiently(waiting), "filechannel-commit")
        except NoThreadError:  # there are no more threads to be had
            self._work_patiently(waiting)

    def _work_patiently(self, waiting: list[Ticket]) -> None:
        """The same in a thread of our own, because another process keeps us waiting, and may have been stopped."""
        while waiting:
            self._commit_for(waiting, _always)
            waiting = self._take_waiting()
        self._end_work()

    def _take_waiting(self) -> list[Ticket]:
        waiting: list[Ticket] = []
        with suppress(Empty):
            while True:
                waiting.append(self._queue.get_nowait())
        return waiting

    def _commit_for(self, waiting: list[Ticket], may_sleep: Callable[[], bool]) -> bool:
        """Commit, and tell those who wait what came of it; False, and nothing done, if it may not wait and has to."""
        error: StorageError | None = None
        try:
            self.commit(max(ticket.offset for ticket in waiting), may_sleep)
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
            # The channel was closed in this moment. Those that wait get an answer all the same.
            for ticket in waiting:
                ticket.error = StorageError(f"the channel was closed before it was known what is on disk: {failure!r}")
        self.wake_together([ticket.sleeper for ticket in waiting if ticket.sleeper is not None])
        return True

    def _loss_of(self, offset: int) -> StorageError | None:
        """Return why what was appended at an offset will never be seen; None if it is, or is still to come."""
        if not self._control.failed_flushes:
            return None
        known = next((error for lost, error in self._lost if offset in lost), None)
        try:
            return known or (_failed_elsewhere() if self._log.has_lost(offset) else None)
        except (FileChannelError, OSError) as error:  # somebody waits for an answer, whatever it is
            return StorageError(f"a flush failed in another process, and what is lost cannot be told: {error}")

    def commit_for(self, offset: int) -> None:
        """Wait here until what was appended at an offset is on disk and visible; `StorageError` if it is lost."""
        self.commit(offset)
        loss = self._loss_of(offset)
        if loss is not None:
            raise StorageError(loss.reason) from loss

    def commit(self, upto: int | None = None, may_sleep: Callable[[], bool] | None = None) -> None:
        """Flush what was appended and show it to readers. One commit serves everybody who appended before it.

        With *upto*: nothing to do if readers see what was appended there already. Another process has flushed it.
        `Busy` if somebody else is flushing, and stays there, and the thread may not sleep.
        """
        self.refuse_reentry()
        with self._lock.held(may_sleep or _always):
            if upto is None or self._control.write_offset <= upto:
                self._flush_data()

    def commit_settled(self) -> None:
        """The same for a caller in a `settled` block."""
        self._flush_data()

    # The data

    def _flush_data(self) -> Checkpoint:
        with self._log.writing():
            deferred = self._log.writer.deferred  # not before: another process may have changed it
            tail = self._control.tail(deferred=deferred)
            sealed = self._control.sealed
            work = self._take()
        self._do(work, tail.offset)
        if deferred:
            self._control.publish(tail)
            self._log.writer.tell_waiters()
        self._advance_durable(tail.offset)
        return Checkpoint(tail.offset, tail.sequence, self._control.oldest_offset, sealed)

    def _advance_durable(self, offset: Offset) -> None:
        self._log.was_flushed(offset)
        if not self._control.is_in_doubt:
            self._control.durable_offset = max(offset, self._control.durable_offset)

    def _take(self) -> Work:
        with self._log.writing():
            try:
                return self._log.take_unflushed()
            except OSError as error:
                if self._log.writer.deferred or error is self._log.refused_flush:
                    raise self._give_up(error) from error
                raise storage_error("nothing could be flushed", error) from error  # the disk was not asked

    def _do(self, work: Work, end: Offset | None = None) -> None:
        try:
            self._control.begin_flush(FLUSHING_SEGMENTS)
            try:
                do_all_at_once([segment.flush for segment in work.segments])
                if end is not None:
                    for segment in work.segments:
                        segment.check_flushed(end)
            finally:
                self._lock.check_storable()
                self._control.end_flush(FLUSHING_SEGMENTS)
            if work.names_changed:
                self._segments.flush_names()
                self._log.names_were_flushed(work.names)
            self._check_names(work)
            self._segments.check_place(self._control)  # `OSError` if the file system has shut down since the flush
        except OSError as error:
            raise self._give_up(error) from error

    def _check_names(self, work: Work) -> None:
        """Raise `FileNotFoundError` if a segment was flushed whose name another program has deleted or given away.

        A segment that this package has removed or renamed was reclaimed, poisoned, rolled back or compressed: the
        control page or the directory said so before, so they are asked afterwards. The page comes last: what was
        compressed may be reclaimed in between.
        """
        directory = self._segments.open_directory()
        for segment in [each for each in work.segments if not each.is_in(directory)]:
            begin, control = segment.begin, self._control
            if self._segments.has_other_form(begin, segment.id):
                continue
            oldest = max(control.oldest_offset, control.given_up)
            if oldest <= begin < control.append_offset:
                what = "deleted or replaced while the channel was open, what it held is lost"
                raise FileNotFoundError(errno.ENOENT, what, str(segment.path))

    def _give_up(self, cause: OSError) -> StorageError:
        """End the log at what readers saw and go on in a fresh file."""
        with self._log.writing():
            tail = self._control.tail()
            where = "" if isinstance(cause, FileNotFoundError) else "the kernel's log (dmesg) may say why, and "
            error = StorageError(
                f"a flush failed, messages around offset {tail.offset} may not be on disk: {cause}; "
                f"{where}'filechannel verify' shows what is damaged or missing"
            )
            error.__cause__ = cause
            self._untold = error
            self._control.count_failed_flush()
            if self._log.writer.deferred:
                appended = self._control.tail(deferred=True)
                self._lost.append((range(tail.offset, appended.offset), error))
                if not self._control.is_in_doubt:
                    self._control.durable_offset = tail.offset  # readers see nothing else
            _logger.error("%s", error)
            self._log.abandon_active()
        return error


def briefly() -> Callable[[], bool]:
    """Return what tells whether there is still time: enough for the flush of another process, not to wait for one."""
    until = time.monotonic() + _PATIENCE
    return lambda: time.monotonic() < until


def _always() -> bool:
    return True


def _failed_elsewhere() -> StorageError:
    return StorageError("a flush failed in another process, whose log says why: messages may not be on disk")


def _wake_one_by_one(sleepers: list[Sleeper]) -> None:
    for sleeper in sleepers:
        sleeper.wake()
