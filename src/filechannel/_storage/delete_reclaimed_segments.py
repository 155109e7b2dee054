"""Removing the oldest segments, in an order that lets the next process finish the work after a crash at any step.

The order is: first the stored positions are flushed, so that after a power cut none of them lies before deleted data.
Second, the decision moves the oldest offset, for all processes at the same moment. Third, the checkpoint is written, so
that after a power cut recovery does not expect the deleted files. Then the files are deleted, and last the epoch
changes, which makes other processes list the directory again. A process that dies after the decision leaves files that
begin before the oldest offset. The next process that does maintenance removes them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import final

from .._errors import Busy, CorruptRecordError, FileChannelError, StorageError
from .._format import scan_records
from .._offset import Offset
from .._runtime.may_sleep import briefly
from .consumers.cursors import Cursors
from .consumers.low_watermark import LowWatermark
from .control.control_page import Control
from .control.maintenance_lock import MaintenanceLock
from .durability.flusher import Flusher
from .log.log import Log
from .producers.producer_positions import Producers
from .reading.lookup import LogLookup
from .segments.catalog import Segments
from .segments.segment_index import last_entry_at_or_before
from .store_events import StoreEvents

_MOST_STALE = 32  # segments that may wait to be removed
_logger = logging.getLogger("filechannel")


@final
class Reclaim:
    """Removes segments that are not needed any more. For the holder of the maintenance lock.

    Raises `Busy` if another process, which may have been stopped, holds a lock too long. The rest is done by a later
    run.
    """

    def __init__(
        self,
        control: Control,
        segments: Segments,
        lookup: LogLookup,
        low_watermark: LowWatermark,
        maintenance_lock: MaintenanceLock,
        log: Log,
        cursors: Cursors,
        producers: Producers,
        flusher: Flusher,
        events: StoreEvents,
    ) -> None:
        self._control = control
        self._segments = segments
        self._lookup = lookup
        self._low_watermark = low_watermark
        self._maintenance_lock = maintenance_lock
        self._log = log
        self._cursors = cursors
        self._producers = producers
        self._flusher = flusher
        self._events = events
        events.oldest_dropped.attach(self._delete_dropped)

    def up_to(self, wanted: Offset, is_free: Callable[[Offset], bool], *, patiently: bool) -> bool:
        """Remove everything before a segment, or at the end of the log all of it; False if it is still needed.

        *is_free* checks once more that no consumer needs it; a consumer that is positioned after that check is not
        missed. *patiently*: leave it to the writers to flush finished segments, and remove less than *wanted* before
        they have.
        """
        oldest = self._removable(wanted, patiently)
        self._cursors.flush_all_positions()
        noted = self._low_watermark.note()
        if not is_free(oldest):
            return False
        with self._log.writing(briefly()):
            if not self._is_boundary(oldest):
                return False
            self._producers.release_before(oldest)
            if not self._low_watermark.decide(oldest, noted):
                return False
        self._events.position_moved()
        self.finish()
        return True

    def _delete_dropped(self) -> None:
        """Request maintenance to delete dropped segments; delete them now if many are left, because it is too slow."""
        self._events.maintenance_due()
        if len(self._stale()) <= _MOST_STALE:
            return
        try:
            self._maintenance_lock.run_locked(self.finish)
        except Busy:
            pass  # another thread or process is doing maintenance
        except (FileChannelError, OSError) as error:
            self._maintenance_lock.count_error()
            _logger.error("%s: dropped segments could not be deleted: %s", self._segments.directory, error)

    def _stale(self) -> list[Offset]:
        oldest = self._control.oldest_offset
        return [begin for begin in self._segments.begins if begin < oldest]

    def _removable(self, wanted: Offset, patiently: bool) -> Offset:
        """Return where the log may begin according to the next checkpoint.

        That is between two batches, so that a batch whose first records were deleted does not lose the others in a
        power cut; or before the last checkpoint, because what that covers is on disk.
        """
        found = self._flushed_boundary(wanted)
        if found > self._control.oldest_offset:
            return found
        if patiently:
            raise Busy
        _tolerating(self._flusher.flush, lambda: self._flushed_boundary(wanted) > self._control.oldest_offset)
        return self._flushed_boundary(wanted)

    def _flushed_boundary(self, wanted: Offset) -> Offset:
        """Return an offset up to *wanted* at which the log may begin without another flush."""
        if wanted == self._control.write_offset or self._log.dirty.is_between_batches(wanted):
            return wanted
        if self._ends_batch(wanted):
            return wanted
        checkpoint = self._control.checkpoints.newest()
        limit = wanted if checkpoint is None else min(wanted, checkpoint.offset)
        return self._segments.covering(limit) or Offset(0)

    def _ends_batch(self, end: Offset) -> bool:
        """Return whether the records before the start of a segment are complete batches."""
        begin = self._segments.covering(end - 1)
        if begin is None:
            return False
        try:
            segment = self._segments.get(begin)
            stop = self._segments.end_of(begin, end)
            if stop > segment.limit:
                return False  # a segment in between is missing
            entry = last_entry_at_or_before(self._lookup.entries(segment), stop - 1)
        except CorruptRecordError:
            return False
        start = begin if entry is None else entry.offset
        content, first = segment.span(start, stop)
        last = first + stop - start
        return scan_records(content, first, last, start)[0] == last

    def _is_boundary(self, offset: Offset) -> bool:
        """Return whether a segment begins at the offset. If the active segment ends there, finish it."""
        if offset == self._log.writer.pending == self._control.write_offset:
            self._log.appender.finish_segment()
            return True
        return offset in self._segments.begins

    def finish(self) -> None:
        """Finish a reclaim that was decided by this process or by one that died."""
        self._log.catch_up()
        if self._low_watermark.is_decided:
            with self._log.writing(briefly()):
                self._low_watermark.carry_out()
        oldest, stale = self._control.oldest_offset, self._stale()
        if not stale:
            return
        self._checkpoint_oldest(oldest)
        size = sum(self._segments.end_of(begin, oldest) - begin for begin in stale)
        self._segments.remove_before(oldest)
        self._maintenance_lock.count_reclaimed(len(stale), size)
        with self._log.writing(briefly()):
            self._log.appender.announce_change()
        self._log.prepare_next_segment()

    def _checkpoint_oldest(self, oldest: Offset) -> None:
        """Write a checkpoint with the oldest offset of the log."""
        checkpoint = self._control.checkpoints.newest()
        if checkpoint is None or checkpoint.oldest < oldest:
            # Dropped in the middle of a batch: the rest of the batch must be on disk.
            if self._flushed_boundary(oldest) < oldest:
                _tolerating(self._flusher.flush_if_needed, lambda: self._flushed_boundary(oldest) == oldest)
            self._flusher.forget_before(self._lookup.earliest())


def overtake(producers: Producers, low_watermark: LowWatermark, oldest: Offset) -> None:
    """Make a segment the oldest one even if consumers have not read what lies before it: a full channel drops it.

    For senders: the caller holds the writer lock. The holder of the maintenance lock deletes the files later.
    """
    producers.release_before(oldest)
    low_watermark.overrule(oldest)


def _tolerating(flush: Callable[[], object], is_enough: Callable[[], bool]) -> None:
    """Flush. After a failed flush every later one raises; ignore that if the checkpoint was written nevertheless."""
    try:
        flush()
    except StorageError:
        if not is_enough():
            raise
