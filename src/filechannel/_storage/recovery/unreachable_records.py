"""Intact records behind the end that recovery finds: what an open for writing would put aside.

After a power cut, what was not flushed has no order: the first invalid record behind the checkpoint ends the log, and
valid records that follow it go to `quarantine/`. Most often, however, the cause is not a power cut but damage in
stored data, of a copy whose checkpoint is old: a flipped bit, a file that was not copied. The two cannot be
distinguished, so recovery does the same for both. A reader that comes before that is warned: a read-only open shows
the records behind the damage as it shows those behind any other, and a repair keeps them.

An incomplete batch at the end of the log is not such a case: nothing is damaged between it and the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from .._errors import CorruptRecordError
from .._format import Columns, scan_records
from .._offset import Offset
from .damage import UNWRITTEN, behind_gap, next_record
from .files import Files
from .index import Mark, read_marks
from .segment import Segment
from .segments import Segments
from .walk import Cut, extent, is_seal


@final
@dataclass(frozen=True, slots=True)
class Unreachable:
    """Intact records behind damage, at which recovery ends the log."""

    offset: Offset
    """Where the damage begins."""
    messages: int
    segments: int
    """How many segments hold them."""
    end: Cut
    """Where the log ends if the damage does not end it."""

    def __str__(self) -> str:
        """Say how many messages, where, and until when."""
        return describe_unreachable(self.messages, self.segments, self.offset)


def describe_unreachable(messages: int, segments: int, offset: int) -> str:
    """Say how many messages are not readable, where, and until when."""
    what = f"{messages:,} message{'s' * (messages != 1)} in {segments:,} segment{'s' * (segments != 1)}"
    verb = "is" if messages == 1 else "are"
    return f"{what} behind the damage at offset {offset} {verb} not readable until repaired"


def find_unreachable(files: Files, segments: Segments, cut: Cut) -> Unreachable | None:
    """Return what lies behind the end that recovery finds, beyond damage; None if nothing does."""
    first = segments.covering(cut.reached)
    search = _Search(files, segments, cut)
    for begin in segments.begins:
        if first is None or begin >= first:
            search.look_into(begin)
    return search.result()


@final
class _Search:
    """Counts the records behind one end."""

    def __init__(self, files: Files, segments: Segments, cut: Cut) -> None:
        self._files = files
        self._segments = segments
        self._start = cut.reached
        self._end = cut
        self._sequence = cut.sequence
        self._messages = 0
        self._holding: set[Offset] = set()

    def result(self) -> Unreachable | None:
        if not self._holding:
            return None
        return Unreachable(self._start, self._messages, len(self._holding), self._end)

    def look_into(self, begin: Offset) -> None:
        """Count the records of one segment; one whose header is damaged is left to a repair."""
        try:
            segment = self._segments.get(begin)
        except CorruptRecordError:
            return
        if not isinstance(segment, Segment):  # what is compressed lies before the end, whatever a checkpoint says
            return
        stop = Offset(min(extent(self._segments, segment), segment.data_end))
        start = max(begin, self._start)
        if start >= stop:
            return
        marks = read_marks(self._files, segment.path)
        found: Offset | None
        if begin > self._start:
            self._sequence = segment.header.first_sequence
            found = next_record(segment, begin, stop, marks, UNWRITTEN)
        else:
            found = behind_gap(segment, start, stop, marks, UNWRITTEN)
        while found is not None and found < stop:
            if found != begin:
                self._pass(found, marks)
            at = self._take(segment, found, stop)
            found = behind_gap(segment, at, stop, marks, UNWRITTEN) if at < stop else None

    def _pass(self, found: Offset, marks: list[Mark]) -> None:
        """Count what was lost before a record: one message at least, unless a mark says how many."""
        known = [mark.sequence for mark in marks if mark.offset == found]
        self._sequence = known[0] if known else self._sequence + 1

    def _take(self, segment: Segment, start: Offset, stop: Offset) -> Offset:
        """Count the records that follow each other from an offset on, and return where they end."""
        self._holding.add(segment.begin)
        first, last = segment.position(start), segment.position(stop)
        batch_end, messages, reached, closing = scan_records(segment.map, first, last, start)
        if batch_end > first:
            sealed = is_seal(segment, closing, batch_end)
            end = Offset(start + batch_end - first)
            self._end = Cut(end, self._sequence + messages, sealed, end)
        if batch_end < reached:
            rest = Columns(None)
            messages += rest.take(segment.map, batch_end, reached, start + batch_end - first, reached - batch_end)[1]
        self._messages += messages
        self._sequence += messages
        return Offset(start + reached - first)
