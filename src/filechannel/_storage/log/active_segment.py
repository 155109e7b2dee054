"""The active segment: the one that the writer is bound to, its disk space, its index and the window of the writer.

The *window* is the range of offsets that the writer may fill without calling Python. At its end it calls `Log.append`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import final

from ..._errors import CorruptRecordError, DiskFullError
from ..._format import Writer
from ..._format.layout import INDEX_CHECKED, RECORD_HEADER_SIZE, SEGMENT_HEADER_SIZE
from ..._options import StoredOptions
from ..capacity.reserve_or_drop_oldest import CapacityLimit
from ..control.control_page import Control
from ..segments.catalog import Segments
from ..segments.segment import Header, Segment
from ..segments.segment_index import ActiveIndex, PendingEntries, latest_time, not_before
from ..system.os_calls import Files
from .page_prefault import PagePrefault
from .prepare_next import NextSegment

ALLOCATION_STEP = 1 << 20
"""Bytes of disk space to allocate at a time; on tmpfs that takes a third of a millisecond."""
_MOST_LATE = 64  # finished segments whose index entries are not stored yet


@final
class ActiveSegment:
    """The segment that the writer is bound to. Unless stated otherwise, the caller holds the writer lock."""

    def __init__(
        self,
        files: Files,
        control: Control,
        segments: Segments,
        options: StoredOptions,
        writer: Writer,
        capacity: CapacityLimit,
        next_segment: NextSegment,
        check_directory: Callable[[], object],
    ) -> None:
        """*check_directory* raises if no file may be created, because the directory is not the channel's any more."""
        self._files = files
        self._control = control
        self._segments = segments
        self._writer = writer
        self._capacity = capacity
        self._next_segment = next_segment
        self.check_directory = check_directory
        self._index = ActiveIndex(files, options.mode, check_directory)
        self._prefault = PagePrefault(writer)
        self._pending_entries = b""
        self.segment: Segment | None = None
        self._known_unit: int | None = None

    @property
    def allocation_unit(self) -> int:
        """Disk space is allocated up to a multiple of this, or to the end of the file."""
        # Not a cached_property: before Python 3.12 it has a lock, which a forked child may inherit in locked state.
        if self._known_unit is None:
            self._known_unit = self._files.allocation_unit(self._segments.directory)
        return self._known_unit

    @property
    def index_due(self) -> int:
        """When the next index entry is due (ns since the epoch)."""
        return self._index.due

    # Binding the writer

    def resume(self, segment: Segment) -> None:
        """Continue to append to an existing segment."""
        self._bind(segment)
        # The stored value may refer to a segment that no longer exists. And this file may be a sparse copy, with holes
        # in place of zeros.
        self._control.allocated_end = segment.begin

    def bind_segment(self, segment: Segment) -> None:
        """Append to a segment that other processes append to as well."""
        if segment is self.segment:
            self._store_active_entries()
            self._writer.bind(segment.map, segment.begin)
        else:
            self._bind(segment)

    def adopt(self, segment: Segment) -> None:
        """Follow the writer to the segment that it has rolled to. The call may be repeated.

        The caller holds the log's mutex, and perhaps not the writer lock.
        """
        if self.segment is not None and self.segment.header == segment.header:
            return
        if self.segment is None:
            self._pending_entries = b""
        else:
            # Index entries from its begin on belong to the new segment, entries of uncommitted records to none.
            visible = min(self._control.write_offset, segment.begin)
            self._queue_index_entries(self._take_index_entries(min(visible, segment.begin - 1)), visible)
            self._drop_index_entries(segment.begin - 1)
        self.segment = segment

    def _bind(self, segment: Segment) -> None:
        self._leave_visible()
        self.segment = segment
        self._writer.bind(segment.map, segment.begin)

    def leave(self) -> None:
        """Store the index entries and release the active segment, until another one is created or resumed.

        The segment is released even if storing the index raises. To close a log, the caller holds only its mutex.
        """
        try:
            self.store_index_entries()
            self._leave_visible()
        finally:
            self.release()

    def release(self) -> None:
        """Release the segment and the prepared one, without storing anything.

        To close a log, the caller holds only its mutex.
        """
        self._writer.unbind()
        self._prefault.close()
        self._next_segment.close()
        self._index.close()
        self.segment = None

    # Preparing the next segment

    def prepare_next_segment(self) -> None:
        """Enable the fast roll if the free list has a prepared file. The caller holds the log's mutex.

        The writer lock is not needed: senders would have to wait for it.
        """
        segment, prepared = self.segment, self._segments.next_free_file()
        if segment is None or prepared is None:
            return
        if not (self._writer.deferred or self._capacity.has_limits):
            if not self._next_segment.is_requested(segment):
                self._next_segment.mark_ready(segment)
                self._open_all(segment)
            self._next_segment.hand_over(*prepared)
        if self._next_segment.is_requested(segment):
            self._prefault.begin(prepared[1].map)

    def _open_all(self, segment: Segment) -> None:
        """Let the writer fill the whole segment: it need not stop in the middle to request the next one."""
        allocated = min(self._control.allocated_end, segment.space_end)
        if self._writer.current and self._writer.pending <= allocated:
            with suppress(ValueError):  # the writer has just rolled, and its window is in another segment
                self._prefault.advance(segment, self._writer.pending, allocated)
                self._writer.open_window(allocated, self._index.due)

    def remove_free_files(self) -> None:
        """Delete the free list, and with it the prepared file, to free disk space."""
        self._next_segment.close()  # it has the next file mapped
        self._segments.remove_free_files()

    # The index

    def creation_time(self) -> int:
        """Return the current time or, if the clock was set back, a time no earlier than any in previous segments."""
        now = time.time_ns()
        if self.segment is not None and self._writer.alone:
            marked = max(self._index.latest, self._take_latest_time())
            return max(not_before(marked, now), self.segment.header.created)
        self.store_index_entries()
        begins = self._segments.begins
        if begins:
            begin = begins[-1]
            with suppress(CorruptRecordError):
                marked = max(latest_time(self._files, self._segments.path(begin)), self._take_latest_time())
                return max(not_before(marked, now), self._segments.header(begin).created)
        return now

    def _take_latest_time(self) -> int:
        """Take the index entries of the writer; return the time of the last one in memory, or 0 if there is none."""
        self._pending_entries += self._writer.take_index_entries()
        return INDEX_CHECKED.unpack(self._pending_entries[-INDEX_CHECKED.size :])[2] if self._pending_entries else 0

    def store_index_entries(self) -> None:
        """Store the index entries of published records. Entries of other records are kept: those may be rolled back.

        The caller holds the log's mutex, and perhaps not the writer lock.
        """
        self._index.store_late(lambda: self._control.oldest_offset)
        self._store_active_entries()

    def _store_active_entries(self) -> None:
        if self.segment is not None:
            visible: int = self._control.write_offset
            self._pending_entries += self._writer.take_index_entries()
            pending_roll = self._writer.pending_roll
            # If another thread has just done a fast roll, later index entries belong to the next segment.
            if pending_roll is not None:
                visible = min(visible, Header.unpack(pending_roll[1]).begin - 1)
            entries = self._split_pending(visible)
            found = PendingEntries(self.segment.begin, self.segment.path, entries, visible)
            self._index.store_unless_gone(found, lambda: self._control.oldest_offset)

    def _take_index_entries(self, last: int) -> bytes:
        """Return the index entries up to an offset, and keep the other ones."""
        self._pending_entries += self._writer.take_index_entries()
        return self._split_pending(last)

    def _drop_index_entries(self, last: int) -> None:
        """Delete the index entries up to an offset, and keep the other ones."""
        self._take_index_entries(last)

    def _split_pending(self, last: int) -> bytes:
        entries = self._pending_entries
        stop, size = len(entries), INDEX_CHECKED.size
        while stop and INDEX_CHECKED.unpack_from(entries, stop - size)[0] > last:
            stop -= size
        self._pending_entries = entries[stop:]
        return entries[:stop]

    def _leave_visible(self) -> None:
        """Queue the index entries of visible records, and forget those of records that were rolled back."""
        visible = self._control.write_offset
        self._queue_index_entries(self._take_index_entries(visible) if self.segment is not None else b"", visible)
        self._pending_entries = b""

    def _queue_index_entries(self, entries: bytes, visible: int) -> None:
        """Queue the index entries that are not stored yet for the thread that flushes the segment."""
        if self.segment is not None and entries:
            self._index.late.append(PendingEntries(self.segment.begin, self.segment.path, entries, visible))
        if len(self._index.late) > _MOST_LATE:
            self._index.store_late(lambda: self._control.oldest_offset)
        self._index.close()

    # The window

    def fits(self, length: int) -> bool:
        """Return whether there is an active segment with space for one more record of this length."""
        segment, writer = self.segment, self._writer
        if segment is None or self._end(length) > segment.space_end:
            return False
        first = segment.header.first_sequence
        return not self._capacity.is_segment_full(segment.begin, first, writer.pending, writer.pending_sequence)

    def open_window(self, length: int) -> None:
        """Open a window for at least one more record of this length. The caller has checked that it `fits`."""
        assert self.segment is not None
        end = self._end(length)
        self._allocate(self.segment, end)
        if self._index.is_due():
            self._store_active_entries()
            self._writer.index_next()
        offset, allocated = self._writer.pending, self._control.allocated_end
        if not self._writer.deferred:  # under FSYNC a flush would write out pages that hold no records yet
            self._prefault.advance(self.segment, offset, allocated)
        window = max(end, self._next_segment.advance(self.segment, offset))
        space_end, limit = self._capacity.limit_window(self.segment.begin, self.segment.header.first_sequence, end)
        self._writer.open_window(min(window, allocated, space_end), self._index.due)
        if limit is not None:
            self._writer.limit_window(*limit)

    def _end(self, length: int) -> int:
        return self._writer.pending + RECORD_HEADER_SIZE + length

    def _allocate(self, segment: Segment, end: int) -> None:
        """Allocate disk space in steps, so that small channels stay small; only what is needed if the disk is full."""
        allocated = self._control.allocated_end
        if end <= allocated:
            return
        target = self._allocation_end(segment, max(end, allocated + ALLOCATION_STEP))
        try:
            segment.allocate(allocated, target)
        except DiskFullError:
            self.remove_free_files()
            target = self._allocation_end(segment, end)
            segment.allocate(allocated, target)
        self._control.allocated_end = target

    def _allocation_end(self, segment: Segment, offset: int) -> int:
        """Return the offset up to which disk space must be allocated for records before an offset."""
        position = rounded(segment.position(offset), self.allocation_unit)
        return min(segment.begin + position - SEGMENT_HEADER_SIZE, segment.space_end)


def rounded(size: int, unit: int) -> int:
    """Return a size rounded up to a multiple of a unit."""
    return -(-size // unit) * unit
