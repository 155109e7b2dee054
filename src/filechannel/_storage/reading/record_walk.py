"""The record walk: the records of one segment in order, with the damage between them.

All code that reads a segment past damage uses this walk: recovery to find and keep what lies after the end of the log,
verification to check every byte. The records come in runs instead of one by one, so that the core checks them, and not
a loop in Python. Code that only wants to get from one record boundary to another skips records instead: see `lookup`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from typing_extensions import Buffer

from ..._format import read_record, skip_records
from ..._format.layout import RECORD_HEADER_SIZE
from ..._offset import Offset
from ..segments.segment_index import IndexEntry
from .resync import UNWRITTEN, Readable, claimed_end, resume_after

_CHUNK = 1 << 20  # bytes that are read at a time


class Run(NamedTuple):
    """Valid records without a gap, in a buffer that may change when the walk continues."""

    start: Offset
    stop: Offset
    messages: int
    content: Buffer
    position: int
    """Where the first record is in the buffer."""

    def records(self) -> Iterator[tuple[Offset, int, bytes]]:
        """Yield offset, word and payload of each record."""
        position, stop = self.position, self.position + self.stop - self.start
        while position < stop:
            offset = Offset(self.start + position - self.position)
            word, payload = read_record(self.content, position, stop, offset)
            yield offset, word, payload
            position += RECORD_HEADER_SIZE + len(payload)


class Damage(NamedTuple):
    """A range in which no record is valid."""

    start: Offset
    stop: Offset
    reason: str


def walk_records(
    segment: Readable, start: Offset, stop: Offset, entries: Sequence[IndexEntry], *, certain: Offset | None = None
) -> Iterator[Run | Damage]:
    """Yield the valid records between two offsets, and the damage between them.

    *entries* are those of the index, in order. They help to find records after damage. A run ends where an entry says
    that a record begins, so that an entry inside a run is wrong. From *certain* on, records may or may not exist:
    damage that no record follows is not damage then, but the end.
    """
    at, certain = start, stop if certain is None else certain
    while at < stop:
        for run in _runs(segment, at, stop, entries):
            at = run.stop
            yield run
        if at < stop:
            farthest = UNWRITTEN if at >= certain else None
            found = resume_after(segment, at, stop, entries, farthest) or stop
            if at >= certain and found == stop:
                return
            yield Damage(at, found, _reason(segment, at, stop))
            at = found


def _runs(segment: Readable, at: Offset, stop: Offset, entries: Sequence[IndexEntry]) -> Iterator[Run]:
    """Yield the valid records from an offset on, up to the first one that is not."""
    following = bisect_right(entries, at, key=lambda entry: entry.offset)
    while at < stop:
        end = max(min(Offset(at + _CHUNK), stop), claimed_end(segment, at, stop) or at)
        content, position = segment.span(at, end)
        first, shift = at, position - at
        while at < end:
            while following < len(entries) and entries[following].offset <= at:
                following += 1
            fence = min(entries[following].offset, end) if following < len(entries) else end
            reached, messages = skip_records(content, at + shift, fence + shift, at, fence - at)
            if reached == at + shift and fence < end:  # perhaps a record that reaches beyond the entry
                fence = claimed_end(segment, at, end) or at
                reached, messages = skip_records(content, at + shift, fence + shift, at, fence - at)
            if reached == at + shift:
                break
            run = Run(at, Offset(reached - shift), messages, content, at + shift)
            at = run.stop
            yield run
        if at == first:
            return


def _reason(segment: Readable, offset: Offset, stop: Offset) -> str:
    """Return why there is no record at an offset."""
    try:
        segment.read(offset, stop)
    except ValueError as error:
        return str(error)
    return "no record"
