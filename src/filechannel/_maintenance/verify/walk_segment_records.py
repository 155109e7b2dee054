"""Walking over all records of a segment: which of them are whole, and where the index agrees.

Plain files are read and not mapped. A block that the disk cannot give, or a file that somebody cuts off meanwhile, is
something to be told then; through a map it would be a signal. Whoever looks for records finds zeros there, and zeros
are never one.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias, final

from typing_extensions import Buffer

from .._format import Columns, read_record, scan_records
from .._format.layout import (
    CONTROL_RECORD,
    LENGTH_MASK,
    PAGE,
    RECORD_HEADER,
    RECORD_HEADER_SIZE,
    SEGMENT_HEADER_SIZE,
)
from .._offset import Offset
from .._storage.damage import UNWRITTEN, Readable, behind_gap
from .._storage.files import Files
from .._storage.index import Mark
from .._storage.segment import ANY_SIZE, SegmentLimits

_CHUNK = 1 << 20  # bytes that are read at a time
_SMALL = 64 * 1024
_MOST_REFUSED = 20  # payloads of a segment that are told one by one

CheckPayload: TypeAlias = Callable[[bytes], str | None]
"""Says what is wrong with a payload; None if nothing is."""
Tick: TypeAlias = Callable[[int], object]
"""Told how many bytes more were looked at; may raise to end it."""


@final
class PlainFile:
    """The file of a plain segment, whatever its header says."""

    def __init__(self, files: Files, path: Path, begin: Offset, limits: SegmentLimits = ANY_SIZE) -> None:
        """Raise what opening a file raises."""
        self._files = files
        self._descriptor: int | None = None
        self._descriptor = files.open(path, writable=False)
        self._begin = begin
        self.size: int = min(files.size(self._descriptor), limits.size)
        self.unreadable: list[int] = []
        """Positions of the pages that the disk did not give."""
        self._buffer = bytearray()  # used again: fresh pages cost more than what is done with them

    @property
    def room_end(self) -> Offset:
        """The offset that no record reaches beyond."""
        return Offset(self._begin + max(0, self.size - SEGMENT_HEADER_SIZE))

    @property
    def data_end(self) -> Offset:
        """Behind this offset the file has only a hole."""
        assert self._descriptor is not None
        return Offset(self._begin + max(0, self._files.data_end(self._descriptor) - SEGMENT_HEADER_SIZE))

    def read_at(self, position: int, size: int) -> bytes:
        """Return bytes of the file; zeros where it ends early or the disk refuses."""
        assert self._descriptor is not None
        try:
            content = self._files.read_at(self._descriptor, size, position)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            if size <= PAGE:
                self.unreadable.append(position)
                return bytes(size)
            return b"".join(
                self.read_at(at, min(PAGE, position + size - at)) for at in range(position, position + size, PAGE)
            )
        return content if len(content) == size else content + bytes(size - len(content))

    def span(self, start: int, stop: int) -> tuple[Buffer, int]:
        """Return something that begins with the bytes between two offsets, until the next call, and 0."""
        assert self._descriptor is not None
        position, size = SEGMENT_HEADER_SIZE + start - self._begin, max(0, min(stop, self.room_end) - start)
        if size <= _SMALL:
            return self.read_at(position, size), 0
        if len(self._buffer) < size:
            self._buffer = bytearray(size)
        view = memoryview(self._buffer)[:size]
        try:
            filled = self._files.read_into(self._descriptor, view, position)
        except OSError:
            return self.read_at(position, size), 0
        if filled < size:
            view[filled:] = bytes(size - filled)
        return self._buffer, 0

    def read(self, offset: int, stop: int) -> tuple[int, bytes]:
        """Return (word, payload) of the record at an offset; `ValueError` says why there is none."""
        end = claimed_end(self, offset, stop)
        if end is None:
            raise ValueError("record reaches beyond the end")
        content, _ = self.span(offset, end)
        return read_record(content, 0, end - offset, offset)

    def close(self) -> None:
        """Let go of the file."""
        if self._descriptor is not None:
            self._files.close(self._descriptor)
            self._descriptor = None

    def __del__(self) -> None:
        """Let go of the file, if nobody has."""
        self.close()


def claimed_end(segment: Readable, offset: int, stop: int) -> Offset | None:
    """Return where the record at an offset says that it ends, if that is not beyond *stop*."""
    if offset + RECORD_HEADER_SIZE > stop:
        return None
    content, position = segment.span(offset, offset + RECORD_HEADER_SIZE)
    word, _ = RECORD_HEADER.unpack_from(content, position)
    end = Offset(offset + RECORD_HEADER_SIZE + (word & LENGTH_MASK))
    return end if end <= stop else None


@final
@dataclass(slots=True)
class Stretch:
    """Whole records, one behind the other."""

    start: Offset
    stop: Offset
    messages: int = 0
    marks: list[tuple[Mark, int]] = field(default_factory=list[tuple[Mark, int]])
    """Marks of the index at which a record begins, and how many messages lie between the start and there."""

    def first_sequence(self) -> int | None:
        """Return the number of its first message by the index; None if that has no mark here."""
        return next((mark.sequence - messages for mark, messages in self.marks), None)


@final
class Walk:
    """Walks over the records between two offsets of one segment, past damage."""

    def __init__(
        self,
        segment: Readable,
        start: Offset,
        stop: Offset,
        marks: list[Mark],
        *,
        certain: Offset | None = None,
        check: CheckPayload | None = None,
        tick: Tick = lambda _: None,
    ) -> None:
        """At *certain* and beyond, more records may or may not exist: a gap that no record follows ends the segment."""
        self._segment = segment
        self._at = start
        self._stop = stop
        self._marks = [mark for mark in marks if start <= mark.offset < stop]
        self._certain = stop if certain is None else certain
        self._check = check
        self._tick = tick
        self.stretches: list[Stretch] = []
        self.gaps: list[tuple[Offset, Offset, str]] = []
        """Where no record can be read: from, to, and why."""
        self.misplaced: list[Mark] = []
        """Marks at which no record begins, although the records there are whole."""
        self.refused: list[tuple[Offset, str]] = []
        """Messages that do not pass the check, the first ones."""
        self.refusals: int = 0
        self._run()

    def _run(self) -> None:
        while self._at < self._stop:
            stretch = Stretch(self._at, self._at)
            while self._at < self._stop and self._take(stretch):
                pass
            if stretch.stop > stretch.start:
                self.stretches.append(stretch)
            if self._at < self._stop:
                found = self._behind_gap()
                if self._at >= self._certain and found == self._stop:
                    return
                self._pass_damage(found)

    def _take(self, stretch: Stretch) -> bool:
        """Add the records of one chunk to a stretch; False where there is none."""
        end = min(Offset(self._at + _CHUNK), self._stop)
        if (claimed := claimed_end(self._segment, self._at, self._stop)) is not None:
            end = max(end, claimed)
        content, position = self._segment.span(self._at, end)
        first = self._at
        while self._at < end:
            fence = self._fence(stretch, end)
            if not self._scan(stretch, content, position - first, fence):
                if fence == end or not self._scan(stretch, content, position - first, end, one=True):
                    break
                self._forget_marks_before(self._at)
        self._tick(self._at - first)
        return self._at > first

    def _fence(self, stretch: Stretch, end: Offset) -> Offset:
        """Note the mark that is here, if there is one, and return where the next one is."""
        while self._marks and self._marks[0].offset <= self._at:
            stretch.marks.append((self._marks.pop(0), stretch.messages))
        return min(self._marks[0].offset, end) if self._marks else end

    def _forget_marks_before(self, offset: Offset) -> None:
        while self._marks and self._marks[0].offset < offset:
            self.misplaced.append(self._marks.pop(0))

    def _scan(self, stretch: Stretch, content: Buffer, shift: int, stop: Offset, *, one: bool = False) -> bool:
        """Take whole records up to an offset, or one of them; False if there is none."""
        first, last = self._at + shift, stop + shift
        if one:
            if last - first < RECORD_HEADER_SIZE:
                return False
            word, _ = RECORD_HEADER.unpack_from(content, first)
            last = min(last, first + RECORD_HEADER_SIZE + (word & LENGTH_MASK))
        batch_end, messages, reached, _ = scan_records(content, first, last, self._at)
        if reached == first:
            return False
        if batch_end < reached:  # the rest of a batch is counted apart
            columns = Columns(None)
            _, rest = columns.take(content, batch_end, reached, self._at + batch_end - first, reached - batch_end)
            messages += rest
        if self._check is not None:
            self._check_payloads(self._check, content, first, reached)
        self._at = stretch.stop = Offset(self._at + reached - first)
        stretch.messages += messages
        return True

    def _check_payloads(self, check: CheckPayload, content: Buffer, position: int, stop: int) -> None:
        offset = int(self._at) - position
        while position < stop:
            word, payload = read_record(content, position, stop, offset + position)
            problem = None if word & CONTROL_RECORD else check(payload)
            if problem is not None:
                self.refusals += 1
                if len(self.refused) < _MOST_REFUSED:
                    self.refused.append((Offset(offset + position), problem))
            position += RECORD_HEADER_SIZE + len(payload)

    def _behind_gap(self) -> Offset:
        """Return where records follow what is none here, or the stop."""
        farthest = UNWRITTEN if self._at >= self._certain else None
        found = behind_gap(self._segment, self._at, self._stop, self._marks, farthest)
        return self._stop if found is None else found

    def _pass_damage(self, found: Offset) -> None:
        start = self._at
        try:
            self._segment.read(start, self._stop)
            reason = "no record"
        except ValueError as error:
            reason = str(error)
        self._at = found
        self._marks = [mark for mark in self._marks if mark.offset >= self._at]
        self.gaps.append((start, self._at, reason))
        self._tick(self._at - start)
