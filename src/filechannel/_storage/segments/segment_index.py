"""The segment index: an entry (offset, sequence, time) every 64 KiB or every second, whichever comes first.

The writer notes which records get an index entry, and when. The entries are written to the index file after a second,
or when a reader needs them. The entries that are left when a segment is finished are written with its flush, or never,
if the segment is consumed before. Until then, and after a process crash, the index ends a little before the log. After
a power cut it may extend beyond the log; readers ignore that part. A lost index costs only speed.

Times never decrease, even if the clock is set back: a lookup by time must find everything that was sent after that
time. While the clock is behind, the times stay the same, a little later than anything that may have been sent before.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ..._errors import StorageError, UnexpectedFileError
from ..._format import crc32c
from ..._format.layout import INDEX_CHECKED, INDEX_ENTRY, INDEX_SECONDS, LARGEST_OFFSET, LARGEST_TIME
from ..._offset import LogPosition, Offset
from ..system.os_calls import Files
from .segment import COMPRESSED_SUFFIX, begin_of

INDEX_SUFFIX = ".idx"
"""The suffix of an index file's name."""
INDEX_LIMIT = 32 << 20
"""How many bytes of an index are read: a million entries, one a second for twelve days. A seek can do without more."""
_CHUNK = INDEX_ENTRY.size << 12
_INDEX_NS = int(INDEX_SECONDS * 1e9)


def index_path(segment: Path) -> Path:
    """Return the path of a segment's index, which is the same for both encodings."""
    plain = segment.with_suffix("") if segment.suffix == COMPRESSED_SUFFIX else segment
    return plain.with_suffix(INDEX_SUFFIX)


def indexed_begin_of(name: str) -> Offset | None:
    """Return the offset in the file name of an index; None if the name is not that of one."""
    return begin_of(f"{name.removesuffix(INDEX_SUFFIX)}.seg") if name.endswith(INDEX_SUFFIX) else None


class IndexEntry(NamedTuple):
    """The log position of a record, and the time (ns since the epoch) before which it was not written."""

    offset: Offset
    sequence: int
    time: int

    @property
    def log_position(self) -> LogPosition:
        """Where the record begins."""
        return LogPosition(self.offset, self.sequence)


class IndexWriter:
    """Appends entries to the index of the active segment."""

    def __init__(self, files: Files, segment: Path, mode: int, end: int) -> None:
        """Continue after the existing entries; those from *end* on belong to records that were rolled back."""
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
            self._files.cut(self._descriptor, INDEX_LIMIT)  # the file is never mapped
        for number, entry in enumerate(_stored_entries(self._files, self._descriptor)):
            if entry is not None and entry.offset >= end:
                self._files.write_at(self._descriptor, bytes(INDEX_ENTRY.size), number * INDEX_ENTRY.size)

    def add(self, entries: Sequence[tuple[int, int, int]]) -> int:
        """Append entries, at least one, and return the time of the last one."""
        # Appended to what other processes have written. Two processes that append at once may lose entries, which costs
        # only time.
        position = self._files.size(self._descriptor) // INDEX_ENTRY.size * INDEX_ENTRY.size
        last = self._files.read_at(self._descriptor, INDEX_ENTRY.size, position - INDEX_ENTRY.size) if position else b""
        ordered = self._in_order(entries, _latest(last))
        self._files.write_at(self._descriptor, b"".join(map(_pack_entry, ordered)), position)
        return ordered[-1][2]

    def _in_order(self, entries: Sequence[tuple[int, int, int]], latest: int) -> list[tuple[int, int, int]]:
        """Return the entries with times that are not before *latest* or an earlier entry."""
        ordered = list[tuple[int, int, int]]()
        for offset, sequence, at in entries:
            was_behind, self._is_behind = self._is_behind, at < latest
            latest = not_before(latest, at) if not was_behind else max(latest, at)
            ordered.append((offset, sequence, latest))
        return ordered

    def close(self) -> None:
        """Close the file."""
        # Cleared first: if close is called a second time, after Ctrl-C, the number may be that of another file.
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            self._files.close(descriptor)


def not_before(latest: int, now: int) -> int:
    """Return a time for what follows an entry, if the clock says *now*: later than anything sent before it."""
    return now if now >= latest else min(latest + _INDEX_NS, LARGEST_TIME)  # the entry may be that old


class PendingEntries(NamedTuple):
    """Entries that still have to be written to the index of a segment."""

    begin: Offset
    segment: Path
    entries: bytes
    visible: int
    """The offset up to which readers saw the log at that time."""


class ActiveIndex:
    """Writes the entries that the writer noted to the index of the active segment, as far as possible."""

    def __init__(self, files: Files, mode: int, check_directory: Callable[[], object]) -> None:
        """*check_directory* is called before a file is created; it raises if the directory is not the channel's."""
        self._files = files
        self._mode = mode
        self._check_directory = check_directory
        self._writer: IndexWriter | None = None
        self.late: list[PendingEntries] = []
        """Entries of finished segments."""
        self.latest = 0
        """The time of the last stored entry of the active segment; 0 if there is none."""
        self.due = 0
        """When the next record gets an index entry, if no record got one before (ns since the epoch)."""

    def is_due(self) -> bool:
        """Return whether an entry is due because a second has passed; if so, start the next second."""
        now = time.time_ns()
        if now < self.due:
            return False
        self.due = now + _INDEX_NS
        return True

    def store(self, segment: Path, entries: bytes, visible: int) -> None:
        """Append entries to the index of a segment. Existing entries beyond *visible* were left by a power cut.

        They are removed when the index is opened. Entries that cannot be written are dropped.
        """
        if not entries:
            return
        with suppress(OSError, StorageError):  # without them a seek takes longer; sending the message is more important
            if self._writer is None:
                self._check_directory()
                self._writer = IndexWriter(self._files, segment, self._mode, visible)
            self.latest = self._writer.add(list(INDEX_CHECKED.iter_unpack(entries)))

    def store_unless_gone(self, pending: PendingEntries, oldest: Callable[[], Offset]) -> None:
        """Like `store`, unless the segment lies before the oldest offset: then another process has deleted it."""
        if pending.begin >= oldest():
            self.store(pending.segment, pending.entries, pending.visible)
            if pending.begin < oldest():  # just reclaimed, perhaps before there was an index to delete
                with suppress(OSError):
                    self._files.unlink(index_path(pending.segment))

    def store_late(self, oldest: Callable[[], Offset]) -> None:
        """Write the remaining entries of finished segments, unless they lie before the oldest offset."""
        late, self.late = self.late, []
        for each in late:
            index = ActiveIndex(self._files, self._mode, self._check_directory)
            index.store_unless_gone(each, oldest)
            index.close()

    def close(self) -> None:
        """Close the index file. The first record of the next segment always gets an entry."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        self.latest = 0


def _pack_entry(entry: tuple[int, int, int]) -> bytes:
    return INDEX_ENTRY.pack(*entry, crc32c(INDEX_CHECKED.pack(*entry)), 0)


def pack_entries(entries: Sequence[IndexEntry]) -> bytes:
    """Return the content of a whole index file."""
    return b"".join(map(_pack_entry, entries))


def latest_time(files: Files, segment: Path) -> int:
    """Return the time of the last index entry of a segment (ns since the epoch); 0 if it is unknown."""
    with suppress(OSError):
        descriptor = files.open(index_path(segment), writable=False)
        try:
            whole = files.size(descriptor) // INDEX_ENTRY.size * INDEX_ENTRY.size
            return _latest(files.read_at(descriptor, INDEX_ENTRY.size, whole - INDEX_ENTRY.size)) if whole else 0
        finally:
            files.close(descriptor)
    return 0


def _latest(content: bytes) -> int:
    return max((entry.time for entry in _entries(content) if entry is not None), default=0)


def read_entries(files: Files, segment: Path) -> list[IndexEntry]:
    """Return the valid entries of a segment's index in order of offset; none if it has no index."""
    try:
        descriptor = files.open(index_path(segment), writable=False)
    except (FileNotFoundError, UnexpectedFileError):
        return []
    entries: dict[int, IndexEntry] = {}
    try:
        for entry in _stored_entries(files, descriptor):
            if entry is not None:
                entries.setdefault(entry.offset, entry)
    finally:
        files.close(descriptor)
    return sorted(entries.values(), key=lambda entry: entry.offset)


def _stored_entries(files: Files, descriptor: int) -> Iterator[IndexEntry | None]:
    """Yield each entry of an open index, None where it is not valid. Reads in parts, because the file may be a hole."""
    for position in range(0, INDEX_LIMIT, _CHUNK):
        content = files.read_at(descriptor, _CHUNK, position)
        yield from _entries(content)
        if len(content) < _CHUNK:
            return


def _entries(content: bytes) -> list[IndexEntry | None]:
    """Return each entry, None where it is not valid."""
    size = INDEX_ENTRY.size
    return [read_entry(content[position : position + size]) for position in range(0, len(content) - size + 1, size)]


def read_entry(content: bytes) -> IndexEntry | None:
    """Return an entry; None if its checksum is wrong or a field is out of range."""
    offset, sequence, time_, crc, _ = INDEX_ENTRY.unpack(content)
    is_possible = max(offset, sequence) <= LARGEST_OFFSET and time_ <= LARGEST_TIME
    is_whole = is_possible and crc == crc32c(content[: INDEX_CHECKED.size])
    return IndexEntry(Offset(offset), sequence, time_) if is_whole else None


def last_entry_at_or_before(entries: list[IndexEntry], offset: int) -> IndexEntry | None:
    """Return the last index entry at or before an offset, from which the offset can be reached by walking forward."""
    following = bisect_right(entries, offset, key=lambda entry: entry.offset)
    return entries[following - 1] if following else None
