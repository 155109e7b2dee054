"""The offset gap: after a recovery or a failed flush, the log resumes far after every offset that was ever used.

No offset is ever used twice. An offset that is stored elsewhere (in a consumer, an event id, a checkpoint of another
system) must never lead to another message, whatever a power cut destroys in between. So each step is on disk before
the next one:

1. the new segment, whose name records which offsets are used,
2. a checkpoint at the old end of the log,
3. the removal of the segments after that end,
4. a checkpoint at the start of the new segment, where the log resumes.

After a crash between two steps, recovery cuts the log at the same end again.

After a failed flush the new segment may be impossible to create: the disk is full, descriptors have run out, or the
process dies. So the very first step happens in shared memory: `Control.poisoned_before` is set to the offset at which
the log resumes. While that offset is beyond the end of the log, no process appends before the gap is made.
"""

from __future__ import annotations

from typing import final

from ..._format.layout import OFFSET_GAP
from ..._offset import Offset
from ..control.checkpoints import Checkpoint
from ..control.control_page import Control, Tail
from ..segments.catalog import Segments
from ..segments.dirty_segments import DirtySegments
from .active_segment import ActiveSegment
from .append_and_roll_back import Appender


@final
class OffsetGap:
    """Makes the offset gaps of one channel. The caller holds the writer lock."""

    def __init__(
        self, control: Control, segments: Segments, appender: Appender, active: ActiveSegment, dirty: DirtySegments
    ) -> None:
        self._control = control
        self._segments = segments
        self._appender = appender
        self._active = active
        self._dirty = dirty

    def resume_beyond(self, beyond: int, end: Offset) -> None:
        """Resume well past the offset *beyond* in a log that ends at *end*. Segments from *end* on are removed.

        If a flush fails in here, the next `flush` of the channel raises its error. `DiskFullError` if no segment can be
        created.
        """
        self._resume_at(_far_beyond(beyond), end)

    def poison_segments(self) -> None:
        """Poison all existing segments, and make an offset gap pending: no process appends before it is made.

        This is stored before anything else changes, so that it holds even if this process dies. Records that were
        appended and not published are rolled back.
        """
        tail = self._control.tail()
        used = max(tail.offset, self._control.reserved_end)
        self._control.poisoned_before = max(self._control.poisoned_before, _far_beyond(used))
        if self._control.deferred:
            self._control.publish(tail, deferred=True)
        self._active.leave()
        self._dirty.clear()

    def make_pending(self) -> None:
        """Resume in a new file if an offset gap is pending: no offset may be used before that.

        Raises as `resume_beyond` does, and may be called again.
        """
        if self._control.is_gap_pending:
            self._appender.all_or_nothing(self._make)

    def _make(self) -> None:
        end = self._control.write_offset
        segment = self._appender.reaching(end)  # that would be appended to without the gap
        if segment is not None and segment.begin < end:
            segment.finish(end)
        elif segment is not None:
            end = segment.header.previous_end
        else:
            end = self._end_of_records(end)
        self._segments.remove_free_files()  # a new file is needed: flushes of a recycled one might fail as well
        self._resume_at(self._control.poisoned_before, end)
        self._appender.start()

    def _end_of_records(self, offset: Offset) -> Offset:
        """Return where the records before an offset end.

        That is earlier if an interrupted gap has removed the empty segment that began at the offset.
        """
        begin = self._segments.covering(offset)
        if begin is None or begin < self._control.oldest_offset:
            return offset  # all records before it were reclaimed
        return min(offset, self._segments.get(begin).limit)

    def _resume_at(self, begin: Offset, end: Offset) -> None:
        sequence, is_durability_unknown = self._control.tail().sequence, self._control.is_durability_unknown
        stale = [other for other in self._segments.begins if other >= end]
        active = self._active.segment
        if active is not None and active.begin >= end:
            self._active.leave()  # it is removed below: the roll must not store an end in it
        self._control.reserve.using(lambda: self._appender.begin_segment(begin, sequence, end))
        self._make_durable(begin, end, sequence, stale)
        moved = Tail(begin, sequence, begin)
        self._control.publish(moved, deferred=True)
        if not is_durability_unknown:
            # Before the new tail is visible: otherwise the durability of the skipped offsets would seem unknown.
            self._control.durable_offset = begin
        self._control.publish(moved)
        self._control.reserved_end = begin

    def _make_durable(self, begin: Offset, end: Offset, sequence: int, stale: list[Offset]) -> None:
        try:
            self._segments.get(begin).flush()
            self._segments.names.flush()
            self._checkpoint(end, sequence)
        except OSError as error:
            self._dirty.failed(error)
        for other in stale:
            self._segments.remove(other)
        if stale:  # the new segment was announced with the roll
            self._appender.announce_change()
        try:
            self._segments.names.flush()
            self._checkpoint(begin, sequence)
        except OSError as error:
            self._dirty.failed(error)

    def _checkpoint(self, offset: Offset, sequence: int) -> None:
        oldest, sealed = self._control.oldest_offset, self._control.sealed
        self._control.checkpoints.write(Checkpoint(offset, sequence, oldest, sealed))


def _far_beyond(used: int) -> Offset:
    """Return an offset at least half a gap past one that may have been used."""
    return Offset(((used + OFFSET_GAP // 2) // OFFSET_GAP + 1) * OFFSET_GAP)
