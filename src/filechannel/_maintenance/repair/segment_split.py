"""Planning how to split damaged segments: the same records, without the damaged bytes.

A record is valid at its own offset only, so records cannot be moved together. But offsets may be left out between two
segments, and the header of each says where the one before it ended. So a segment is split where it is damaged: one
segment ends before the damage and the next begins after it. No reader, of any version, finds anything unusual.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from ..._offset import Offset
from ..verify.directory_scan import End
from ..verify.segment_check import Checked
from ..verify.walk_segment_records import RecordRun


@final
@dataclass(frozen=True, slots=True)
class RepairedSegment:
    """A segment as it should be."""

    begin: Offset
    end: Offset | None
    """None for the active segment."""
    stop: Offset
    """Where its records end now."""
    first_sequence: int
    previous_end: Offset


@final
@dataclass(frozen=True, slots=True)
class Change:
    """The segments that replace one segment. They may equal it; then no change is needed."""

    checked: Checked
    repaired_segments: tuple[RepairedSegment, ...]
    """Empty if it contains no record."""

    @property
    def is_needed(self) -> bool:
        """Whether the segment is different from what it should be."""
        if len(self.repaired_segments) != 1:
            return True
        head, repaired = self.checked.head, self.repaired_segments[0]
        header = head.header
        return header is None or (header.begin, head.end, header.first_sequence, header.previous_end) != (
            repaired.begin,
            repaired.end,
            repaired.first_sequence,
            repaired.previous_end,
        )

    @property
    def is_header_only(self) -> bool:
        """Whether its records can stay in place."""
        head, repaired_segments = self.checked.head, self.repaired_segments
        if len(repaired_segments) != 1 or repaired_segments[0].begin != head.begin:
            return False
        return not head.is_compressed or (head.header is not None and head.end == repaired_segments[0].end)


def plan_split(checked: list[Checked], end: End | None) -> list[Change]:
    """Return the change of every segment, in order."""
    changes: list[Change] = []
    reached: Offset | None = None
    sequence = 0
    for each, is_last in zip(checked, [False] * (len(checked) - 1) + [True], strict=False):
        repaired_segments: list[RepairedSegment] = []
        if not each.runs and _is_empty_and_right(each):
            each.runs.append(RecordRun(each.head.begin, each.head.begin))
        firsts = _first_sequences(each, reached, sequence)
        for run, first in zip(each.runs, firsts, strict=True):
            previous_end = _previous_end(each, run, reached, end)
            stays_open = is_last and run is each.runs[-1] and len(each.runs) == 1 and _may_grow(each, end)
            repaired_end = None if stays_open else run.stop
            repaired_segments.append(RepairedSegment(run.start, repaired_end, run.stop, first, previous_end))
            reached, sequence = run.stop, first + run.messages
        changes.append(Change(each, tuple(repaired_segments)))
    return changes


def _is_empty_and_right(checked: Checked) -> bool:
    """Return whether it contains no records because none were written yet."""
    return checked.head.header is not None and checked.bounds.certain <= checked.head.begin


def _may_grow(checked: Checked, end: End | None) -> bool:
    """Return whether the last segment may be appended to: it has no end, and is complete up to the end of the log."""
    head = checked.head
    if head.is_compressed or head.end is not None or head.claims_end:
        return False
    return end is None or not end.is_trusted or checked.end == end.offset


def _previous_end(checked: Checked, run: RecordRun, reached: Offset | None, end: End | None) -> Offset:
    if reached is not None:
        return reached
    oldest = checked.head.begin if end is None else min(end.oldest, run.start)
    header = checked.head.header
    return oldest if header is None or run.start != header.begin else min(header.previous_end, oldest)


def _first_sequences(checked: Checked, reached: Offset | None, sequence: int) -> list[int]:
    """Return the sequence of the first message of each run of records.

    It is taken from the header, from the index, or counted back from what is known after it; else at least one message
    is missing.
    """
    runs, header = checked.runs, checked.head.header
    known = [run.first_sequence() for run in runs]
    if runs and runs[0].start == checked.head.begin and header is not None:
        known[0] = header.first_sequence
    elif runs and runs[0].start == reached:
        known[0] = sequence
    if runs and known[-1] is None and checked.bounds.sequence is not None and checked.end == checked.bounds.stop:
        known[-1] = checked.bounds.sequence - runs[-1].messages
    found: list[int] = []
    for run, first in zip(runs, known, strict=True):
        found.append(sequence + (run.start != reached and reached is not None) if first is None else first)
        reached, sequence = run.stop, found[-1] + run.messages
    return found
