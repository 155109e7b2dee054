"""The sparse index of a segment: (offset, sequence, time) every 64 KiB or second, whichever comes first.

The writer remembers which records to mark, and when; they are written here when a second has gone by, or somebody wants
to look, and what is left when a segment is finished is written with its flush: if it is consumed before, never. Until
then, and after a crash, the index ends a little before the log, and after a power cut it may reach beyond it; readers
ignore what lies beyond. Losing an index loses nothing but speed.

Times never go back, though the clock may: who looks for a moment must find everything that was sent after it. While the
clock is behind, they stand still, a little later than anything that may have been sent before.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from .._errors import StorageError, UnexpectedFileError
from .._format import crc32c
from .._format.layout import INDEX_CHECKED, INDEX_ENTRY, INDEX_SECONDS
from .._offset import Offset
from .files import Files
from .segment import COMPRESSED_SUFFIX, begin_of

INDEX_SUFFIX = ".idx"
"""What the name of an index ends with."""
INDEX_LIMIT = 32 << 20
"""So many bytes of an index are read: a million entries, one a second for twelve days. A seek does without others."""
_PIECE = INDEX_ENTRY.size << 12
_INDEX_NS = int(INDEX_SECONDS * 1e9)


def index_path(segment: Path) -> Path:
    """Return the path of a segment's index, which is the same when it is compressed."""
    plain = segment.with_suffix("") if segment.suffix == COMPRESSED_SUFFIX else segment
    return plain.with_suffix(INDEX_SUFFIX)


def indexed_begin_of(name: str) -> Offset | None:
    """Return the offset in the file name of an index; None if it is some other file."""
    return begin_of(f"{name.removesuffix(INDEX_SUFFIX)}.seg") if name.endswith(INDEX_SUFFIX) else None


class Mark(NamedTuple):
    """A record boundary, how many messages lie before it, and when it was written (ns since the epoch)."""

    offset: Offset
    sequence: int
    time: int


class IndexWriter:
    """Appends marks to the index of the active segment."""

    def __init__(self, files: Files, segment: Path, mode: int, end: int) -> None:
        """Go on behind the marks that are there; those from *end* on speak of records that were taken back."""
        self._files = files
        self._descriptor = files.open(index_path(segment), create=True, mode=mode)
        self._is_behind = False
        try:
            self._forget_from(end)
        except BaseException:
            files.close(self._descriptor)
            raise

    def _forget_from(self, end: int) -> None:
        if self._files.size(self._descriptor) > INDEX_LIMIT:
            self._files.cut(self._descriptor, INDEX_LIMIT)  # it is never mapped
        for number, mark in enumerate(_stored_entries(self._files, self._descriptor)):
            if mark is not None and mark.offset >= end:
                self._files.write_at(self._descriptor, bytes(INDEX_ENTRY.size), number * INDEX_ENTRY.size)

    def add(self, marks: Sequence[tuple[int, int, int]]) -> int:
        """Append marks, at least one, and return the time that the last one says."""
        # Behind what other processes have added; two who do so at once may lose marks, which costs nothing but time.
        position = self._files.size(self._descriptor) // INDEX_ENTRY.size * INDEX_ENTRY.size
        last = self._files.read_at(self._descriptor, INDEX_ENTRY.size, position - INDEX_ENTRY.size) if position else b""
        ordered = self._in_order(marks, _latest(last))
        self._files.write_at(self._descriptor, b"".join(map(_entry, ordered)), position)
        return ordered[-1][2]

    def _in_order(self, marks: Sequence[tuple[int, int, int]], latest: int) -> list[tuple[int, int, int]]:
        """Return the marks, none of them before *latest* or another."""
        ordered = list[tuple[int, int, int]]()
        for offset, sequence, at in marks:
            was_behind, self._is_behind = self._is_behind, at < latest
            latest = not_before(latest, at) if not was_behind else max(latest, at)
            ordered.append((offset, sequence, latest))
        return ordered

    def close(self) -> None:
        """Let go of the file."""
        # Forgotten first: closed a second time, after Ctrl-C, the number may be another file's.
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            self._files.close(descriptor)


def not_before(latest: int, now: int) -> int:
    """Return a time for what comes after a mark, if the clock says *now*: later than what came before it may be."""
    return now if now >= latest else latest + _INDEX_NS  # so long may it be since the mark


class Marks(NamedTuple):
    """What a segment still has to have in its index."""

    begin: Offset
    segment: Path
    marks: bytes
    visible: int
    """What readers saw by then."""


class ActiveIndex:
    """Puts what the writer marked into the index of the active segment. What cannot be written is left out."""

    def __init__(self, files: Files, mode: int, check_place: Callable[[], object] = lambda: None) -> None:
        """*check_place* is called before a file is made, and raises if that would be in another channel."""
        self._files = files
        self._mode = mode
        self._check_place = check_place
        self._writer: IndexWriter | None = None
        self.late: list[Marks] = []
        """Of segments that are finished."""
        self.latest = 0
        """The time of the last mark that was stored of the active segment; 0 if there is none."""
        self.due = 0
        """When the next record wants a mark, if none came before (ns since the epoch)."""

    def is_due(self) -> bool:
        """Tell whether a second has gone by, and begin another."""
        now = time.time_ns()
        if now < self.due:
            return False
        self.due = now + _INDEX_NS
        return True

    def store(self, segment: Path, marks: bytes, visible: int) -> None:
        """Append marks to the index of a segment. Whatever it says beyond what is visible was left by a power cut."""
        if not marks:
            return
        with suppress(OSError, StorageError):  # without them a seek takes longer; the message is worth more
            if self._writer is None:
                self._check_place()
                self._writer = IndexWriter(self._files, segment, self._mode, visible)
            self.latest = self._writer.add(list(INDEX_CHECKED.iter_unpack(marks)))

    def store_unless_gone(self, marks: Marks, oldest: Callable[[], Offset]) -> None:
        """The same, unless the segment lies before the oldest offset: another process has removed it then."""
        if marks.begin >= oldest():
            self.store(marks.segment, marks.marks, marks.visible)
            if marks.begin < oldest():  # given up in this moment, perhaps before there was an index to remove
                with suppress(OSError):
                    self._files.unlink(index_path(marks.segment))

    def store_late(self, oldest: Callable[[], Offset]) -> None:
        """Write what finished segments still have to have, unless they lie before the oldest offset."""
        late, self.late = self.late, []
        for each in late:
            index = ActiveIndex(self._files, self._mode, self._check_place)
            index.store_unless_gone(each, oldest)
            index.close()

    def close(self) -> None:
        """Let go of the segment. The first record of another is marked in any case."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        self.latest = 0


def _entry(mark: tuple[int, int, int]) -> bytes:
    return INDEX_ENTRY.pack(*mark, crc32c(INDEX_CHECKED.pack(*mark)), 0)


def pack_marks(marks: Sequence[Mark]) -> bytes:
    """Return a whole index."""
    return b"".join(map(_entry, marks))


def latest_time(files: Files, segment: Path) -> int:
    """Return the time of the last mark of a segment (ns since the epoch); 0 if that cannot be known."""
    with suppress(OSError):
        descriptor = files.open(index_path(segment), writable=False)
        try:
            whole = files.size(descriptor) // INDEX_ENTRY.size * INDEX_ENTRY.size
            return _latest(files.read_at(descriptor, INDEX_ENTRY.size, whole - INDEX_ENTRY.size)) if whole else 0
        finally:
            files.close(descriptor)
    return 0


def _latest(content: bytes) -> int:
    return max((mark.time for mark in _entries(content) if mark is not None), default=0)


def read_marks(files: Files, segment: Path) -> list[Mark]:
    """Return the whole entries of a segment's index in order of offset; none if it has no index."""
    try:
        descriptor = files.open(index_path(segment), writable=False)
    except (FileNotFoundError, UnexpectedFileError):
        return []
    marks: dict[int, Mark] = {}
    try:
        for mark in _stored_entries(files, descriptor):
            if mark is not None:
                marks.setdefault(mark.offset, mark)
    finally:
        files.close(descriptor)
    return sorted(marks.values(), key=lambda mark: mark.offset)


def _stored_entries(files: Files, descriptor: int) -> Iterator[Mark | None]:
    """Return each entry of an open index, None where it is not whole; read in pieces, for it may be a hole."""
    for position in range(0, INDEX_LIMIT, _PIECE):
        content = files.read_at(descriptor, _PIECE, position)
        yield from _entries(content)
        if len(content) < _PIECE:
            return


def _entries(content: bytes) -> list[Mark | None]:
    """Return each entry, None where it is not whole."""
    found: list[Mark | None] = []
    for position in range(0, len(content) - INDEX_ENTRY.size + 1, INDEX_ENTRY.size):
        offset, sequence, time_, crc, _ = INDEX_ENTRY.unpack_from(content, position)
        whole = crc == crc32c(content[position : position + INDEX_CHECKED.size])
        found.append(Mark(Offset(offset), sequence, time_) if whole else None)
    return found


def last_mark_at_or_before(marks: list[Mark], offset: int) -> Mark | None:
    """Return the nearest mark from which an offset can be reached by walking forward."""
    place = bisect_right(marks, offset, key=lambda mark: mark.offset)
    return marks[place - 1] if place else None
