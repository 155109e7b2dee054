"""Going on elsewhere: far behind every offset that was ever used, so that none is used twice.

Whoever knows an offset from before (a consumer, an event id, a checkpoint of another system) must never find another
message there, whatever a power cut takes away in between. So each step is on disk before the next: the fresh segment,
whose name says which offsets are used; that the log ends where it ended; the removal of what lies behind that end; and
that the log goes on in the fresh segment. Dying between two of them leaves a log that is cut at the same end again.

After a failed flush there may be no room for the fresh segment, or no descriptor, or the process dies. So the first
step of all is in shared memory: `given up` is where the log is to go on, and while that lies behind its end, nobody
appends before the jump is made.
"""

from __future__ import annotations

from .._format.layout import OFFSET_JUMP
from .._offset import Offset
from .active import ActiveSegment
from .control import Checkpoint, Control, Tail
from .segment import Segment
from .segments import Segments
from .unflushed import Unflushed


class Jump:
    """Moves the log of one channel. The caller holds the writer word."""

    def __init__(self, control: Control, segments: Segments, active: ActiveSegment, unflushed: Unflushed) -> None:
        self._control = control
        self._segments = segments
        self._active = active
        self._unflushed = unflushed

    def go(self, beyond: int, end: Offset) -> None:
        """Go on behind an offset, in a log that ends at *end*: segments from there on are removed.

        A disk that refuses to flush is for the next flush to tell; `DiskFullError` if there is no room for a segment.
        """
        self._go_to(_far_behind(beyond), end)

    def leave(self) -> None:
        """Use no file any more that there is, and no offset: before the next one is used, the log goes on elsewhere.

        That is stored before anything else is changed, so that whoever comes after a death knows. What was appended
        and not shown is taken back.
        """
        tail = self._control.tail()
        used = max(tail.offset, self._control.reserved_end)
        self._control.given_up = max(self._control.given_up, _far_behind(used))
        if self._control.deferred:
            self._control.publish(tail, deferred=True)
        self._active.let_go()
        self._unflushed.clear()

    def make(self, segment: Segment | None) -> None:
        """Make the jump that is owed since `leave`; *segment* is the one that the log goes on in otherwise, if any.

        Raises as `go` does, and may be called again.
        """
        end = self._control.write_offset
        if segment is not None and segment.begin < end:
            segment.finish(end)
        elif segment is not None:
            end = segment.header.previous_end
        self._segments.remove_spares()  # a fresh file, not one that the disk may refuse as well
        self._go_to(self._control.given_up, end)
        self._active.announce_change()

    def _go_to(self, begin: Offset, end: Offset) -> None:
        sequence, is_in_doubt = self._control.tail().sequence, self._control.is_in_doubt
        stale = [other for other in self._segments.begins if other >= end]
        self._control.spending_reserve(lambda: self._active.begin(begin, sequence, end))
        self._settle(begin, end, sequence, stale)
        moved = Tail(begin, sequence, begin)
        self._control.publish(moved, deferred=True)
        if not is_in_doubt:
            self._control.durable_offset = begin  # before it is shown, or what was left out would seem to be in doubt
        self._control.publish(moved)
        self._control.reserved_end = begin

    def _settle(self, begin: Offset, end: Offset, sequence: int, stale: list[Offset]) -> None:
        try:
            self._segments.get(begin).flush()
            self._segments.flush_names()
            self._checkpoint(end, sequence)
        except OSError as error:
            self._unflushed.failed(error)
        for other in stale:
            self._segments.remove(other)
        try:
            self._segments.flush_names()
            self._checkpoint(begin, sequence)
        except OSError as error:
            self._unflushed.failed(error)

    def _checkpoint(self, offset: Offset, sequence: int) -> None:
        oldest, sealed = self._control.oldest_offset, self._control.sealed
        self._control.write_checkpoint(Checkpoint(offset, sequence, oldest, sealed))


def _far_behind(used: int) -> Offset:
    """Return an offset that lies at least half a jump behind one that may have been used."""
    return Offset(((used + OFFSET_JUMP // 2) // OFFSET_JUMP + 1) * OFFSET_JUMP)
