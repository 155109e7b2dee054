"""Going on elsewhere: far behind every offset that was ever used, so that none is used twice.

Whoever knows an offset from before (a consumer, an event id, a checkpoint of another system) must never find another
message there, whatever a power cut takes away in between. So each step is on disk before the next: the fresh segment,
whose name says which offsets are used; that the log ends where it ended; the removal of what lies behind that end; and
that the log goes on in the fresh segment. Dying between two of them leaves a log that is cut at the same end again.
"""

from __future__ import annotations

from .._format.layout import OFFSET_JUMP
from .._offset import Offset
from .active import ActiveSegment
from .control import Checkpoint, Control, Tail
from .files import Files
from .segment import Segment
from .segments import Segments
from .unflushed import Unflushed


class Jump:
    """Moves the log of one channel. The caller holds the writer word."""

    def __init__(
        self, files: Files, control: Control, segments: Segments, active: ActiveSegment, unflushed: Unflushed
    ) -> None:
        self._files = files
        self._control = control
        self._segments = segments
        self._active = active
        self._unflushed = unflushed

    def go(self, beyond: int, end: Offset) -> None:
        """Go on behind an offset, in a log that ends at *end*: segments from there on are removed.

        A disk that refuses to flush is for the next flush to tell; `DiskFullError` if there is no room for a segment.
        """
        sequence = self._control.tail().sequence
        stale = [begin for begin in self._segments.begins if begin >= end]
        begin = Offset(((beyond + OFFSET_JUMP // 2) // OFFSET_JUMP + 1) * OFFSET_JUMP)
        self._active.check_place()
        self._active.begin(begin, sequence, end)
        self._settle(begin, end, sequence, stale)
        moved = Tail(begin, sequence, begin)
        self._control.publish(moved, deferred=True)
        self._control.publish(moved)
        self._control.reserved_end = begin

    def leave(self, segment: Segment | None, cause: OSError) -> None:
        """Go on in a fresh file: the active one, if there is any, cannot be flushed any more."""
        tail = self._control.tail()
        self._active.let_go()
        self._unflushed.clear()
        end = tail.offset
        if segment is not None and segment.begin < tail.offset:
            segment.finish(tail.offset)
        elif segment is not None:
            end = segment.header.previous_end
            self._unflushed.failed(cause)  # until there is another file
        self._segments.remove_spares()  # a fresh file, not one that the disk may refuse as well
        self.go(max(tail.offset, self._control.reserved_end), end)
        self._control.given_up = self._control.write_offset
        self._active.announce_change()
        self._unflushed.clear_failure(cause)

    def _settle(self, begin: Offset, end: Offset, sequence: int, stale: list[Offset]) -> None:
        try:
            self._segments.get(begin).flush()
            self._files.flush_directory(self._segments.directory)
            self._checkpoint(end, sequence)
        except OSError as error:
            self._unflushed.failed(error)
        for other in stale:
            self._segments.remove(other)
        try:
            self._files.flush_directory(self._segments.directory)
            self._checkpoint(begin, sequence)
        except OSError as error:
            self._unflushed.failed(error)

    def _checkpoint(self, offset: Offset, sequence: int) -> None:
        oldest, sealed = self._control.oldest_offset, self._control.sealed
        self._control.write_checkpoint(Checkpoint(offset, sequence, oldest, sealed))
