"""Finds a lost tail: messages before the end of the log whose segment is damaged, cut off or was not copied.

A checkpoint and the tail record both where the log ends and how many messages there were. So the end stays where it
was, no sequence is used twice, and the missing messages can be counted.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..._format import scan_records
from ..._format.layout import LENGTH_MASK, PAGE, RECORD_HEADER, RECORD_HEADER_SIZE
from ..._offset import Offset
from ..control.checkpoints import Checkpoint
from ..segments.catalog import Segments
from ..segments.compressed_segment import CompressedSegment, StoredSegment
from ..segments.segment import Segment


@dataclass(frozen=True, slots=True)
class Loss:
    """A range of offsets that no segment holds any more."""

    start: Offset
    stop: Offset
    messages: int
    exact: bool
    """Whether *messages* is exact; otherwise it is an upper bound."""

    def __str__(self) -> str:
        """Describe how many messages are missing, and where."""
        return f"{'' if self.exact else 'up to '}{self.messages}, at offsets {self.start} to {self.stop}"


def stored_end(segment: StoredSegment) -> Offset:
    """Return the offset beyond which a segment has no records, as far as its file can be trusted."""
    return segment.limit if segment.has_valid_end else segment.space_end


def reaches(segment: StoredSegment, end: int) -> bool:
    """Return whether a segment can hold records up to *end*; a compressed one must end exactly there.

    False also if a plain segment stores an end that is not valid.
    """
    if isinstance(segment, CompressedSegment):
        return end == segment.end
    return (segment.end is None or segment.has_valid_end) and end <= stored_end(segment)


def scan_stored(segment: Segment, start: Offset, stop: Offset) -> tuple[int, int, int, int]:
    """Scan records as `scan_records` does, in positions, but do not read a hole after the file's data.

    On a full tmpfs, reading a hole through a map kills the process. A record that ends in a hole, as in a sparse copy,
    is read completely.
    """
    first, last = segment.position(start), segment.position(stop)
    known = max(first, min(segment.position(segment.data_end), last))
    while True:
        found = scan_records(segment.map, first, known, start)
        reached = found[2]
        if known - reached < RECORD_HEADER_SIZE:
            needed = known + PAGE if known > reached else known
        else:
            word, _ = RECORD_HEADER.unpack_from(segment.map, reached)
            needed = reached + RECORD_HEADER_SIZE + (word & LENGTH_MASK)
        if not known < needed <= last:
            return found
        known = needed


def _complete_batches(segment: StoredSegment) -> tuple[Offset, int]:
    """Return where the last complete batch ends, and how many messages there are up to there."""
    if isinstance(segment, CompressedSegment):
        return segment.whole(segment.end)
    end, messages, _, _ = scan_stored(segment, segment.begin, stored_end(segment))
    return Offset(segment.begin + end - segment.position(segment.begin)), messages


def find_loss(segments: Segments, end: Checkpoint) -> Loss | None:
    """Return what is missing directly before the end of the log; None if nothing is.

    Requires that every segment can be opened.
    """
    begin = segments.covering(end.offset)
    if end.offset <= end.oldest or (begin is not None and end.offset <= stored_end(segments.get(begin))):
        return None
    if begin is None:
        return Loss(end.oldest, end.offset, end.sequence, exact=end.oldest == 0)
    segment = segments.get(begin)
    start, messages = _complete_batches(segment)
    missing = end.sequence - segment.header.first_sequence - messages
    return Loss(start, end.offset, max(missing, 0), exact=True)
