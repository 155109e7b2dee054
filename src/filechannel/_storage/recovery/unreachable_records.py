"""Finds intact records after the end that recovery finds: those that an open for writing would quarantine.

After a power cut, data that was not flushed may have reached the disk in any order. So the first invalid record after
the checkpoint ends the log, and valid records that follow it are moved to `quarantine/`. Most often, however, the cause
is not a power cut but damage in stored data, for example in a copy whose checkpoint is old: a flipped bit, a file that
was not copied. The two cannot be distinguished, so recovery does the same for both. A process that opens the channel
read-only before that gets a warning. It can read the records after the damage, as after any other damage, and a repair
keeps them.

An incomplete batch at the end of the log is not such a case: nothing is damaged between it and the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from ..._errors import CorruptRecordError
from ..._format import scan_records
from ..._offset import Offset
from ..reading.record_walk import Damage, walk_records
from ..segments.catalog import Segments
from ..segments.segment import Segment
from ..segments.segment_index import IndexEntry, read_entries
from ..system.os_calls import Files
from .find_end import Cut, extent, is_seal


@final
@dataclass(frozen=True, slots=True)
class Unreachable:
    """Intact records after damage at which recovery ends the log."""

    offset: Offset
    """Where the damage begins."""
    messages: int
    segments: int
    """How many segments hold them."""
    end: Cut
    """Where the log ends if it is read past the damage."""

    def __str__(self) -> str:
        """Describe how many messages are not readable, and where the damage is."""
        return describe_unreachable(self.messages, self.segments, self.offset)


def describe_unreachable(messages: int, segments: int, offset: int) -> str:
    """Describe how many messages are not readable until a repair, and where the damage is."""
    what = f"{messages:,} message{'s' * (messages != 1)} in {segments:,} segment{'s' * (segments != 1)}"
    verb = "is" if messages == 1 else "are"
    return f"{what} after the damage at offset {offset} {verb} not readable until repaired"


def find_unreachable(files: Files, segments: Segments, cut: Cut) -> Unreachable | None:
    """Return the intact records after the end that recovery finds and the damage there; None if there are none."""
    first = segments.covering(cut.reached)
    search = _Search(files, segments, cut)
    for begin in segments.begins:
        if first is None or begin >= first:
            search.count_in(begin)
    return search.result()


@final
class _Search:
    """Counts the records after one end of the log."""

    def __init__(self, files: Files, segments: Segments, cut: Cut) -> None:
        self._files = files
        self._segments = segments
        self._start = cut.reached
        self._end = cut
        self._sequence = cut.sequence
        self._messages = 0
        self._found_in: set[Offset] = set()

    def result(self) -> Unreachable | None:
        if not self._found_in:
            return None
        return Unreachable(self._start, self._messages, len(self._found_in), self._end)

    def count_in(self, begin: Offset) -> None:
        """Count the records of one segment; a segment with a damaged header is left to a repair."""
        try:
            segment = self._segments.get(begin)
        except CorruptRecordError:
            return
        if not isinstance(segment, Segment):  # a compressed segment lies before the end, even if a checkpoint is older
            return
        stop = Offset(min(extent(self._segments, segment), segment.data_end))
        start = max(begin, self._start)
        if start >= stop:
            return
        entries = read_entries(self._files, segment.path)
        if begin > self._start:
            self._sequence = segment.header.first_sequence
        resumed, reached, messages = start, start, 0
        for part in walk_records(segment, start, stop, entries, certain=start):
            if isinstance(part, Damage):
                self._count(segment, resumed, reached, messages)
                self._skip_lost(part.stop, entries)
                resumed = reached = part.stop
                messages = 0
            else:
                reached, messages = part.stop, messages + part.messages
        self._count(segment, resumed, reached, messages)

    def _skip_lost(self, resumed: Offset, entries: list[IndexEntry]) -> None:
        """Update the sequence for messages lost before a record: one, unless an index entry gives the exact value."""
        known = [entry.sequence for entry in entries if entry.offset == resumed]
        self._sequence = known[0] if known else self._sequence + 1

    def _count(self, segment: Segment, start: Offset, stop: Offset, messages: int) -> None:
        """Count the contiguous records between two offsets, and find where the last complete batch in them ends."""
        if start == stop:
            return
        self._found_in.add(segment.begin)
        first = segment.position(start)
        batch_end, complete, _, closing = scan_records(segment.map, first, segment.position(stop), start)
        if batch_end > first:
            sealed = is_seal(segment, closing, batch_end)
            end = Offset(start + batch_end - first)
            self._end = Cut(end, self._sequence + complete, sealed, end)
        self._messages += messages
        self._sequence += messages
