"""The flusher: flushes the files of a channel.

The order of every flush: dirty segments, the names in `segments/` if they changed, positions, then the checkpoint. A
commit under `FSYNC` needs only the first two, because recovery finds the records after the checkpoint by their
checksums. A checkpoint always lies between two batches, and never beyond the write offset: records that receivers do
not see yet may be rolled back.

"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from ..._errors import Busy, ClosedResourceError, StorageError, storage_error
from ..._format import Guard, Mutex
from ..._format.layout import FLUSH_LOCK, FLUSHES, FLUSHING_SEGMENTS
from ..._offset import LogPosition, Offset
from ..._runtime.may_sleep import always, briefly
from ..._runtime.scheduler import FLUSH_LANE, TimedCall
from ..._runtime.threads import NoThreadError, background_threads, do_in_parallel
from ..consumers.cursors import Cursors
from ..control.checkpoints import Checkpoint
from ..control.control_page import Control, Tail
from ..control.live_processes import Processes
from ..control.shared_lock import SharedLock
from ..log.log import Log
from ..producers.producer_positions import Producers
from ..segments.catalog import Segments
from ..segments.dirty_segments import Work
from ..store_events import StoreEvents
from .failed_flush import FailedFlushes
from .interval_flush import IntervalFlush

_logger = logging.getLogger("filechannel")
FINISHED_FLUSH_DELAY_SECONDS = 1.0
"""How long a finished segment may wait for its flush. A segment that is consumed by then is never written out, and
its pages stay in memory, ready for the recycled file."""
_MANY = 8  # dirty segments from which on there is no delay: receivers do not consume them as fast as they are sent


class Flusher:
    """Flushes the files of one channel. Every method that flushes blocks; do not call it on an event loop thread."""

    def __init__(
        self,
        control: Control,
        segments: Segments,
        log: Log,
        cursors: Cursors,
        producers: Producers,
        processes: Processes,
        events: StoreEvents,
    ) -> None:
        self._control = control
        self._segments = segments
        self._path = segments.directory.parent
        self._log = log
        self._cursors = cursors
        self._producers = producers
        self._lock = SharedLock(control.map, FLUSH_LOCK, processes, flushes=FLUSHES)
        self.failures: FailedFlushes = FailedFlushes(control, log, self._path)
        self._closed = False
        self._finished_flush = TimedCall(FLUSH_LANE, self._begin_flush_of_finished)
        self._interval_flush = IntervalFlush(self)
        events.segment_finished.attach(self.flush_finished_later)
        events.flush_needed.attach(self.commit)

    # Everything

    def flush(self) -> None:
        """Flush everything sent so far, and the cursors; `StorageError` if that is not possible.

        Raises the same if the durability of stored messages is unknown after an earlier failed flush.
        """
        self.refuse_reentry()
        with self._lock.held():
            self.flush_with_lock()

    def flush_with_lock(self) -> None:
        """Flush as `flush` does, for a caller that already holds the flush lock with `held`."""
        try:
            self.flush_the_rest_with_lock()
        finally:
            self.failures.report()

    def flush_the_rest(self) -> None:
        """Flush everything that can be flushed: as `flush`, but an earlier failed flush does not make it raise."""
        self.refuse_reentry()
        with self._lock.held():
            self.flush_the_rest_with_lock()

    def flush_the_rest_with_lock(self) -> None:
        """Flush as `flush_the_rest` does, for a caller that already holds the flush lock with `held`."""
        try:
            checkpoint = self._flush_data()
            self._cursors.flush()
            self._producers.flush()
            self._write_checkpoint(checkpoint)
        except OSError as error:
            raise storage_error("consumers or checkpoint could not be flushed", error) from error

    def refuse_reentry(self) -> None:
        """Raise `RuntimeError` if this thread is flushing already: a signal handler or a finalizer interrupted it."""
        self._lock.refuse_reentry("nothing was flushed")

    def flush_if_needed(self) -> None:
        """Flush unless everything is on disk already. `Busy` if another process holds the flush lock for too long."""
        if self._control.durable_offset < self._control.write_offset:
            with self._lock.held(briefly()):  # the previous holder may have flushed everything
                if self._control.durable_offset < self._control.write_offset:
                    self.flush_with_lock()

    def flush_every(self, seconds: float | None) -> None:
        """Flush at an interval from now on; with None, only when a caller asks for it."""
        if seconds is None:
            self._interval_flush.stop()
        else:
            self._interval_flush.start(seconds)

    def flush_finished_later(self) -> None:
        """Flush finished segments soon, in another thread."""
        if not self._log.dirty.has_finished:
            return
        if self._log.writer.deferred or not FINISHED_FLUSH_DELAY_SECONDS or len(self._log.dirty) >= _MANY:
            self._begin_flush_of_finished()
        else:
            try:
                self._finished_flush.request(FINISHED_FLUSH_DELAY_SECONDS)
            except NoThreadError as error:  # the next request tries again
                _logger.error("the flush thread could not be started: %s", error)

    def _begin_flush_of_finished(self) -> None:
        if self._closed:
            return
        with suppress(NoThreadError):  # the interpreter is shutting down; the next process to open the channel flushes
            background_threads().do(self.flush_finished)

    def flush_finished(self) -> None:
        """Flush finished segments. A failure is logged, and the next `flush` raises it.

        If another process is flushing, the segments are left to the next flush. Index entries that are not stored yet
        are stored here, too, so that senders need not do it.
        """
        self._log.store_index_entries()
        with suppress(Busy, ClosedResourceError), self._lock.held(briefly()):
            if self._closed or not self._log.dirty.has_finished:
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
                if not self.failures.is_last(error):  # otherwise it is logged already, and `flush` raises it
                    _logger.error("finished segments could not be flushed: %s", error)

    def _safe_checkpoint(self, boundary: Tail) -> Checkpoint:
        """Return a checkpoint: under FSYNC all published records; otherwise up to where the segment was finished."""
        tail = self._control.tail() if self._log.writer.deferred else boundary
        return Checkpoint(tail.offset, tail.sequence, self._control.oldest_offset)

    def forget_before(self, oldest: LogPosition) -> None:
        """Store on disk that the log begins at *oldest*; segments before it may then be deleted.

        Nothing else is flushed. `Busy` if another process holds the flush lock for too long.
        """
        with self._lock.held(briefly()):
            last = self._control.checkpoints.newest()
            if last is None or last.oldest < oldest.offset:
                self._write_checkpoint(Checkpoint(oldest.offset, oldest.sequence, oldest.offset))

    def _write_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Store a checkpoint. If the last one has a higher offset, only its oldest offset is updated.

        A log cannot begin after the offset up to which it is known to be complete. If senders have dropped more than
        that by now, the dropped files stay until a checkpoint reaches far enough.
        """
        last = self._control.checkpoints.newest()
        if last is not None and last.offset >= checkpoint.offset:
            checkpoint = replace(last, oldest=checkpoint.oldest)
        if last is not None and checkpoint.oldest > checkpoint.offset:
            checkpoint = replace(checkpoint, oldest=last.oldest)
        if checkpoint.offset == self._control.write_offset:
            checkpoint = replace(checkpoint, sealed=self._control.sealed)
        self._control.checkpoints.write(checkpoint)

    def held(self) -> Guard:
        """Hold the flush lock in a `with` statement: no other thread or process flushes."""
        return self._lock.held()

    @property
    def mutex(self) -> Mutex:
        """Excludes the other threads of this process from flushing."""
        return self._lock.mutex

    @property
    def is_closed(self) -> bool:
        """Whether this flusher is closed, and flushes nothing any more."""
        return self._closed

    def close(self) -> None:
        """Stop flushing for good. The caller holds the mutex."""
        self._closed = True
        self._finished_flush.cancel()
        self._interval_flush.stop()

    # Committing

    def commit(self, upto: int | None = None, may_sleep: Callable[[], bool] | None = None) -> None:
        """Flush and publish all appended records. One commit serves all senders that appended before it.

        With *upto*: there is nothing to do if the record there is published already, because another thread or process
        has flushed it. `Busy` if another thread or process holds the flush lock and this thread may not sleep.
        """
        self.refuse_reentry()
        with self._lock.held(may_sleep or always):
            if upto is None or self._control.write_offset <= upto:
                self._flush_data()

    def commit_with_lock(self) -> None:
        """Flush and publish all appended records, for a caller that already holds the flush lock with `held`."""
        self._flush_data()

    # The data

    def _flush_data(self) -> Checkpoint:
        with self._log.writing():
            deferred = self._log.writer.deferred  # read under the lock: another process may have changed it before
            tail = self._control.tail(deferred=deferred)
            sealed = self._control.sealed
            work = self._take()
        self._do(work)
        if deferred:
            self._control.publish(tail)
            self._log.writer.wake_receivers()
        self._advance_durable(tail.offset)
        return Checkpoint(tail.offset, tail.sequence, self._control.oldest_offset, sealed)

    def _advance_durable(self, offset: Offset) -> None:
        self._log.dirty.were_flushed(offset)
        if not self._control.is_durability_unknown:
            self._control.durable_offset = max(offset, self._control.durable_offset)

    def _take(self) -> Work:
        with self._log.writing():
            try:
                return self._log.dirty.take()
            except OSError as error:
                if self._log.writer.deferred or error is self._log.dirty.failure:
                    raise self.failures.handle(error) from error
                raise storage_error("nothing could be flushed", error) from error  # no flush was tried

    def _do(self, work: Work) -> None:
        try:
            self._control.running_flushes.begin(FLUSHING_SEGMENTS)
            try:
                do_in_parallel([segment.flush for segment in work.segments])
            finally:
                self._lock.check_storable()
                self._control.running_flushes.end(FLUSHING_SEGMENTS)
            if work.names_changed:
                self._segments.names.flush()
                self._control.file.check_running()  # only a read detects a shutdown, and a directory cannot be read
                self._log.dirty.names_were_flushed(work.names)
            self._check_names(work)
            self._segments.names.check_directory(self._control)
        except OSError as error:
            raise self.failures.handle(error) from error

    def _check_names(self, work: Work) -> None:
        """Raise `FileNotFoundError` if another program has deleted or replaced the name of a flushed segment.

        A segment that this package has removed or renamed was reclaimed, poisoned, rolled back or compressed. The
        control page or the directory recorded that before the file changed, so they are checked after the file. The
        page comes last, because a compressed segment may be reclaimed in between.
        """
        directory = self._segments.names.open_directory()
        for segment in [each for each in work.segments if not each.is_in(directory)]:
            begin, control = segment.begin, self._control
            if self._segments.has_other_encoding(begin, segment.id):
                continue
            oldest = max(control.oldest_offset, control.poisoned_before)
            if oldest <= begin < control.append_offset:
                what = "deleted or replaced while the channel was open, and its messages are lost"
                raise FileNotFoundError(errno.ENOENT, what, str(segment.path))
