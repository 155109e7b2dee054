"""Finding the way behind damage: the next place where a record begins.

Searching byte by byte is bounded, since every candidate costs a checksum over as many bytes as it claims to have: marks
of the index are fences that no record crosses, zeros are passed quickly, and only so much is searched at a time.
"""

from __future__ import annotations

from typing import Protocol

from typing_extensions import Buffer

from .._format import find_record
from .._format.layout import LENGTH_MASK, RECORD_HEADER, RECORD_HEADER_SIZE
from .._offset import Offset
from .index import Mark

UNWRITTEN = 4 << 20
"""Bytes without a record, behind a place that may be the end of the log, after which no more are looked for."""
_STEP = 256 * 1024
_LEADING_ZEROS = RECORD_HEADER_SIZE - 1  # a record may begin with zeros, but its checksum is never zero


class Readable(Protocol):
    """The records of a segment in whichever form."""

    @property
    def room_end(self) -> Offset:
        """The offset that no record reaches beyond."""
        ...

    def span(self, start: int, stop: int, /) -> tuple[Buffer, int]:
        """Return something that has the bytes between two offsets, and the position in it of the first."""
        ...

    def read(self, offset: int, stop: int, /) -> tuple[int, bytes]:
        """Return (word, payload) of the record at an offset; `ValueError` says why there is none."""
        ...


def behind_damaged(segment: Readable, offset: int, stop: int) -> Offset | None:
    """Return where a damaged record claims to end, if another one begins there or nothing does; else None."""
    if offset + RECORD_HEADER_SIZE > stop:
        return None
    word, _ = RECORD_HEADER.unpack_from(*segment.span(offset, offset + RECORD_HEADER_SIZE))
    end = Offset(offset + RECORD_HEADER_SIZE + (word & LENGTH_MASK))
    return end if end == stop or _is_record(segment, end, stop) else None


def next_record(
    segment: Readable, start: int, stop: int, marks: list[Mark], farthest: int | None = None
) -> Offset | None:
    """Return the first offset from *start* on where a whole record validates below *stop*; None if there is none.

    A record of more than 256 KiB is found only if a mark points at it. *farthest* is how much to search from each mark
    on, zeros not counted: behind the end of the log a file is full of what it held before.
    """
    fences = [mark.offset for mark in marks if start < mark.offset < stop]
    for fence in (*fences, stop):
        found = _search(segment, start, fence, farthest)
        if found is not None:
            return found
        start = fence
    return None


def behind_gap(
    segment: Readable, offset: int, stop: int, marks: list[Mark], farthest: int | None = None
) -> Offset | None:
    """Return where records follow an invalid record at an offset; *stop* or None if there are none."""
    return behind_damaged(segment, offset, stop) or next_record(segment, offset + 1, stop, marks, farthest)


def _search(segment: Readable, start: int, stop: int, farthest: int | None) -> Offset | None:
    if _is_record(segment, start, stop):
        return Offset(start)
    left = stop - start if farthest is None else farthest
    while (start := _behind_zeros(segment, start, stop)) < stop and left > 0:
        left -= _STEP
        end = min(start + 2 * _STEP, stop)
        content, position = segment.span(start, end)
        found = find_record(content, position, position + end - start, start)
        if found >= 0:
            return Offset(start + found - position)
        start = stop if end == stop else start + _STEP
    return None


def _behind_zeros(segment: Readable, start: int, stop: int) -> int:
    """Return an offset before which no record begins, because nothing but zeros follow."""
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
    if not offset <= stop <= segment.room_end:
        return False
    try:
        segment.read(offset, stop)
    except ValueError:
        return False
    return True
