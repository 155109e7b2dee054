"""The records of one segment as verification sees them: runs, damage, and how the index compares.

Plain files are read, not mapped. So a block that the disk cannot read, or a file that is truncated during the check,
can be reported; with a map, the process would be killed by SIGBUS. Such bytes are read as zeros, and zeros are never a
record.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias, final

from typing_extensions import Buffer

from ..._format import read_record
from ..._format.layout import CONTROL_RECORD, PAGE, SEGMENT_HEADER_SIZE
from ..._offset import Offset
from ..._storage.reading.record_walk import Damage, Run, walk_records
from ..._storage.reading.resync import Readable, claimed_end
from ..._storage.segments.segment import ANY_SIZE, SegmentLimits
from ..._storage.segments.segment_index import IndexEntry
from ..._storage.system.os_calls import Files

_SMALL = 64 * 1024
_MOST_REFUSED = 20  # payloads of a segment that are reported one by one

CheckPayload: TypeAlias = Callable[[bytes], str | None]
"""Returns what is wrong with a payload; None if nothing is."""
Tick: TypeAlias = Callable[[int], object]
"""Called with how many more bytes were checked; may raise to stop."""


@final
class PlainFile:
    """The file of a plain segment; its header is not read."""

    def __init__(self, files: Files, path: Path, begin: Offset, limits: SegmentLimits = ANY_SIZE) -> None:
        """Raise what opening a file raises."""
        self._files = files
        self._descriptor: int | None = None
        self._descriptor = files.open(path, writable=False)
        self._begin = begin
        self.size: int = min(files.size(self._descriptor), limits.size)
        self.unreadable: list[int] = []
        """Positions of the pages that the disk could not read."""
        self._buffer = bytearray()  # reused: new pages cost more than the check itself

    @property
    def space_end(self) -> Offset:
        """No record reaches beyond this offset."""
        return Offset(self._begin + max(0, self.size - SEGMENT_HEADER_SIZE))

    @property
    def data_end(self) -> Offset:
        """After this offset the file has only a hole."""
        assert self._descriptor is not None
        return Offset(self._begin + max(0, self._files.data_end(self._descriptor) - SEGMENT_HEADER_SIZE))

    def read_at(self, position: int, size: int) -> bytes:
        """Return bytes of the file; zeros beyond its end or where the disk cannot read."""
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
        """Return a buffer that begins with the bytes between two offsets, valid until the next call, and 0."""
        assert self._descriptor is not None
        position, size = SEGMENT_HEADER_SIZE + start - self._begin, max(0, min(stop, self.space_end) - start)
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
        """Close the file."""
        if self._descriptor is not None:
            self._files.close(self._descriptor)
            self._descriptor = None

    def __del__(self) -> None:
        """Close the file if it is still open."""
        self.close()


@final
@dataclass(slots=True)
class RecordRun:
    """Intact records without a gap."""

    start: Offset
    stop: Offset
    messages: int = 0
    entries: list[tuple[IndexEntry, int]] = field(default_factory=list[tuple[IndexEntry, int]])
    """Index entries at which a record begins, and how many messages of the run precede each."""

    def first_sequence(self) -> int | None:
        """Return the sequence of the first message according to the index; None without an index entry in the run."""
        return next((entry.sequence - messages for entry, messages in self.entries), None)


@final
class SegmentRecords:
    """What the record walk finds between two offsets of one segment, compared with the index."""

    def __init__(
        self,
        segment: Readable,
        start: Offset,
        stop: Offset,
        entries: list[IndexEntry],
        *,
        certain: Offset | None = None,
        check: CheckPayload | None = None,
        tick: Tick = lambda _: None,
    ) -> None:
        """Walk the records. *certain* is that of `walk_records`."""
        self._entries = [entry for entry in reversed(entries) if start <= entry.offset < stop]  # the next one is last
        self.runs: list[RecordRun] = []
        self.damage: list[Damage] = []
        self.misplaced: int = 0
        """How many index entries there are at which no record begins, although the records there are intact."""
        self.refused: list[tuple[Offset, str]] = []
        """The first messages that do not pass the check."""
        self.refusals: int = 0
        for part in walk_records(segment, start, stop, entries, certain=certain):
            if isinstance(part, Damage):
                self.damage.append(part)
                self._take_entries_before(part.stop)
            else:
                self._add(part)
                if check is not None:
                    self._check_payloads(check, part)
            tick(part.stop - part.start)

    def _add(self, part: Run) -> None:
        if not self.runs or self.runs[-1].stop != part.start:
            self.runs.append(RecordRun(part.start, part.start))
        run = self.runs[-1]
        self._add_entry_at(run)
        self.misplaced += self._take_entries_before(part.stop)
        run.stop, run.messages = part.stop, run.messages + part.messages
        self._add_entry_at(run)  # even if the record there is damaged: the entry counts the messages before it

    def _add_entry_at(self, run: RecordRun) -> None:
        if self._entries and self._entries[-1].offset == run.stop:
            run.entries.append((self._entries.pop(), run.messages))

    def _take_entries_before(self, offset: Offset) -> int:
        before = len(self._entries)
        while self._entries and self._entries[-1].offset < offset:
            self._entries.pop()
        return before - len(self._entries)

    def _check_payloads(self, check: CheckPayload, run: Run) -> None:
        for offset, word, payload in run.records():
            problem = None if word & CONTROL_RECORD else check(payload)
            if problem is not None:
                self.refusals += 1
                if len(self.refused) < _MOST_REFUSED:
                    self.refused.append((offset, problem))
