"""Resync: finds the next record after damage.

The search goes byte by byte, and every candidate costs a checksum over as many bytes as its header claims. So it is
bounded: no record crosses the offset of an index entry, runs of zeros are skipped quickly, and only a limited range is
searched at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from typing_extensions import Buffer

from ..._format import find_record
from ..._format.layout import LENGTH_MASK, RECORD_HEADER, RECORD_HEADER_SIZE
from ..._offset import Offset
from ..segments.segment_index import IndexEntry

UNWRITTEN = 4 << 20
"""Bytes without a record, after a possible end of the log, after which the search stops."""
_STEP = 256 * 1024
_LEADING_ZEROS = RECORD_HEADER_SIZE - 1  # a record may begin with zeros, but its checksum is never zero


class Readable(Protocol):
    """The records of a segment in either encoding."""

    @property
    def space_end(self) -> Offset:
        """The offset beyond which no record of the segment reaches."""
        ...

    def span(self, start: int, stop: int, /) -> tuple[Buffer, int]:
        """Return a buffer with the bytes between two offsets, and the position of the first one in it."""
        ...

    def read(self, offset: int, stop: int, /) -> tuple[int, bytes]:
        """Return (word, payload) of the record at an offset; `ValueError` with the reason if there is none."""
        ...


def claimed_end(segment: Readable, offset: int, stop: int) -> Offset | None:
    """Return where the record at an offset ends according to its header; None if that is beyond *stop*."""
    if offset + RECORD_HEADER_SIZE > stop:
        return None
    word, _ = RECORD_HEADER.unpack_from(*segment.span(offset, offset + RECORD_HEADER_SIZE))
    end = Offset(offset + RECORD_HEADER_SIZE + (word & LENGTH_MASK))
    return end if end <= stop else None


def end_of_damaged(segment: Readable, offset: int, stop: int) -> Offset | None:
    """Return where a damaged record claims to end, if a valid record or *stop* is there; else None."""
    end = claimed_end(segment, offset, stop)
    return end if end is not None and (end == stop or _is_record(segment, end, stop)) else None


def next_record(
    segment: Readable, start: int, stop: int, entries: Sequence[IndexEntry], farthest: int | None = None
) -> Offset | None:
    """Return the first offset from *start* on where a whole record validates below *stop*; None if there is none.

    A record of more than 256 KiB is found only if an index entry points to it. *farthest* limits how many bytes are
    searched from each index entry on, not counting zeros: after the end of the log, a recycled file is full of old
    data.
    """
    fences = [entry.offset for entry in entries if start < entry.offset < stop]
    for fence in (*fences, stop):
        found = _search(segment, start, fence, farthest)
        if found is not None:
            return found
        start = fence
    return None


def resume_after(
    segment: Readable, offset: int, stop: int, entries: Sequence[IndexEntry], farthest: int | None = None
) -> Offset | None:
    """Return where valid records resume after an invalid one at an offset; *stop* or None if there are none."""
    return end_of_damaged(segment, offset, stop) or next_record(segment, offset + 1, stop, entries, farthest)


def _search(segment: Readable, start: int, stop: int, farthest: int | None) -> Offset | None:
    if _is_record(segment, start, stop):
        return Offset(start)
    remaining = stop - start if farthest is None else farthest
    while (start := _after_zeros(segment, start, stop)) < stop and remaining > 0:
        remaining -= _STEP
        end = min(start + 2 * _STEP, stop)
        content, position = segment.span(start, end)
        found = find_record(content, position, position + end - start, start)
        if found >= 0:
            return Offset(start + found - position)
        start = stop if end == stop else start + _STEP
    return None


def _after_zeros(segment: Readable, start: int, stop: int) -> int:
    """Return an offset before which no record begins, because there are only zeros from *start* up to it."""
    at = start
    while at < stop:
        size = min(_STEP, stop - at)
        view, position = segment.span(at, at + size)
        content = bytes(memoryview(view)[position : position + size]).lstrip(b"\0")
        if content:
            return max(start, at + size - len(content) - _LEADING_ZEROS)
        at += size
    return stop


def _is_record(segment: Readable, offset: int, stop: int) -> bool:
    if not offset <= stop <= segment.space_end:
        return False
    try:
        segment.read(offset, stop)
    except ValueError:
        return False
    return True
