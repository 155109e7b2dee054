"""Checking one segment: its header, every record, and the entries of its index."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

from ..._errors import UnexpectedFileError
from ..._format.layout import COMPRESSED_MAGIC, INDEX_ENTRY, PAGE, SEGMENT_END, SEGMENT_HEADER_SIZE, SEGMENT_MAGIC
from ..._offset import Offset
from ..._storage.reading.resync import UNWRITTEN, next_record
from ..._storage.segments.compressed_segment import CompressedSegment, compressed_path
from ..._storage.segments.segment import COMPRESSED_SUFFIX, Header, check_name, segment_name, valid_end
from ..._storage.segments.segment_index import INDEX_LIMIT, IndexEntry, index_path, read_entries, read_entry
from ..._storage.system.os_calls import Files
from .directory_scan import DirectoryScan
from .findings import Finding, Severity
from .walk_segment_records import CheckPayload, PlainFile, RecordRun, SegmentRecords, Tick


@final
@dataclass(frozen=True, slots=True)
class Head:
    """The first bytes of a segment's file, and their content."""

    path: Path
    begin: Offset
    content: bytes
    header: Header | None
    end: Offset | None
    """Where its records end; None while it is active, or if that is damaged."""
    problem: str | None
    """Why there is no header."""

    @property
    def is_compressed(self) -> bool:
        """Whether the segment is compressed."""
        return self.path.name.endswith(COMPRESSED_SUFFIX)

    @property
    def claims_end(self) -> bool:
        """Whether its header contains an end, valid or not."""
        return any(self.content[SEGMENT_END : SEGMENT_END + 8])


def read_head(files: Files, directory: Path, begin: Offset) -> Head | None:
    """Read the head of a segment: of the compressed file, else of the plain one; None if neither exists."""
    plain = directory / segment_name(begin)
    for path, magic in ((compressed_path(plain), COMPRESSED_MAGIC), (plain, SEGMENT_MAGIC)):
        try:
            descriptor = files.open(path, writable=False)
        except FileNotFoundError:
            continue
        except UnexpectedFileError as error:
            return Head(path, begin, b"", None, None, f"it is {error.found}")
        try:
            return _parse(path, begin, files.read_at(descriptor, SEGMENT_HEADER_SIZE, 0), magic)
        finally:
            files.close(descriptor)
    return None


def _parse(path: Path, begin: Offset, content: bytes, magic: bytes) -> Head:
    try:
        header = Header.unpack(content, magic)
        check_name(path, header)
    except ValueError as error:
        return Head(path, begin, content, None, None, str(error))
    return Head(path, begin, content, header, valid_end(header, content), None)


def holds_records(scan: DirectoryScan, head: Head) -> bool:
    """Return whether a segment has an intact record. A compressed segment has."""
    if head.is_compressed:
        return head.header is not None
    try:
        file = PlainFile(scan.files, head.path, head.begin, scan.limits)
    except (FileNotFoundError, UnexpectedFileError):
        return False
    try:
        stop = min(head.end or file.space_end, file.space_end, file.data_end)
        return next_record(file, head.begin, stop, read_index(scan.files, head.path)[0], UNWRITTEN) is not None
    finally:
        file.close()


@final
@dataclass(frozen=True, slots=True)
class Bounds:
    """Where the records of a segment must end."""

    stop: Offset
    certain: Offset
    """Up to here there must be records; beyond, as after a power cut, there may be."""
    previous_end: Offset | None = None
    """The value in the header of the next segment."""
    sequence: int | None = None
    """The sequence of the message at the stop, if that is known."""


@final
@dataclass(slots=True)
class Checked:
    """The result of checking one segment."""

    head: Head
    bounds: Bounds
    runs: list[RecordRun] = field(default_factory=list[RecordRun])
    findings: list[Finding] = field(default_factory=list[Finding])
    entries: list[IndexEntry] = field(default_factory=list[IndexEntry])
    """The correct entries of its index."""
    bad_entries: int = 0
    """How many entries are wrong."""
    lost: int = 0
    """How many messages are missing in it, as far as that is known."""

    @property
    def end(self) -> Offset:
        """Where the last intact record ends."""
        return self.runs[-1].stop if self.runs else self.head.begin

    @property
    def messages(self) -> int:
        """How many intact messages there are."""
        return sum(run.messages for run in self.runs)

    @property
    def is_whole(self) -> bool:
        """Whether its records are contiguous from the beginning to where they must end."""
        is_one = len(self.runs) == 1 and self.runs[0].start == self.head.begin
        return is_one and self.end >= min(self.bounds.certain, self.bounds.stop)


@final
class SegmentCheck:
    """Checks segments of one channel, in any number of threads."""

    def __init__(self, scan: DirectoryScan, check: CheckPayload | None = None, tick: Tick = lambda _: None) -> None:
        self._scan = scan
        self._files = scan.files
        self._check = check
        self._tick = tick

    def check(self, head: Head, bounds: Bounds) -> Checked:
        """Read and check the whole segment."""
        checked = Checked(head, bounds)
        entries, bad = read_index(self._files, head.path)
        if head.is_compressed:
            self._check_compressed(checked, entries)
        else:
            self._check_plain(checked, entries)
        self._check_numbers(checked)
        self._check_index(checked, bad)
        return checked

    # Records

    def _check_plain(self, checked: Checked, entries: list[IndexEntry]) -> None:
        head, bounds = checked.head, checked.bounds
        if head.header is None:
            _add(self._scan, checked, "error", "header", f"not a segment: {head.problem}", position=0)
            if not head.content:
                return
        try:
            file = PlainFile(self._files, head.path, head.begin, self._scan.limits)
        except FileNotFoundError:
            return  # it was compressed or reclaimed; the next check finds that
        try:
            stop = min(bounds.stop, file.space_end)
            if bounds.stop > bounds.certain:
                stop = min(stop, max(bounds.certain, file.data_end))
            self._walk(checked, file, stop, entries)
            if bounds.certain > file.space_end:
                what = f"the file is truncated: {bounds.certain - file.space_end} bytes of records are missing"
                _add(self._scan, checked, "error", "cut", what, position=file.size, offset=file.space_end)
            for position in file.unreadable:
                _add(self._scan, checked, "error", "disk", "the disk cannot read it", position=position, size=PAGE)
        finally:
            file.close()
        self._check_end(checked)

    def _check_end(self, checked: Checked) -> None:
        head = checked.head
        if head.header is None or head.end is not None:
            return
        if head.claims_end:
            what = "the end in the header does not match its checksum"
        elif checked.bounds.previous_end is not None:
            what = "the header has no end, although another segment follows"
        else:
            return
        _add(self._scan, checked, "warning", "end", what, position=SEGMENT_END)

    def _check_compressed(self, checked: Checked, entries: list[IndexEntry]) -> None:
        try:
            segment = CompressedSegment.open(self._files, checked.head.path, self._scan.limits)
        except FileNotFoundError:
            return
        except ValueError as error:
            what = f"not a compressed segment: {error}"
            _add(self._scan, checked, "error", "header", what, position=0)
            return
        self._walk(checked, segment, min(checked.bounds.stop, segment.end), entries)

    def _walk(
        self, checked: Checked, segment: PlainFile | CompressedSegment, stop: Offset, entries: list[IndexEntry]
    ) -> None:
        found = SegmentRecords(
            segment,
            checked.head.begin,
            stop,
            entries,
            certain=checked.bounds.certain,
            check=self._check,
            tick=self._tick,
        )
        checked.runs = found.runs
        checked.bad_entries = found.misplaced
        for start, end, reason in found.damage:
            cause = segment.explain(start, reason) if isinstance(segment, CompressedSegment) else reason
            what = f"{end - start} bytes that are not a complete record: {cause}"
            _add(self._scan, checked, "error", "record", what, offset=start, size=end - start)
        for offset, reason in found.refused:
            _add(self._scan, checked, "error", "payload", f"does not match the schema: {reason}", offset=offset)
        if found.refusals > len(found.refused):
            what = f"{found.refusals - len(found.refused)} more messages do not match the schema"
            _add(self._scan, checked, "error", "payload", what)

    # Sequences and index

    def _check_numbers(self, checked: Checked) -> None:
        """Compare how many messages there are with how many there should be."""
        header, expected = checked.head.header, checked.bounds.sequence
        if header is None or expected is None:
            return
        missing = expected - header.first_sequence - checked.messages
        if checked.is_whole and missing:
            what = f"{checked.messages} messages, where {expected - header.first_sequence} should be"
            _add(self._scan, checked, "error", "numbers", what, offset=checked.head.begin)
        checked.lost = max(0, missing)

    def _check_index(self, checked: Checked, bad: list[int]) -> None:
        header, path = checked.head.header, index_path(checked.head.path)
        for run in checked.runs:
            first = header.first_sequence if header is not None and run.start == checked.head.begin else None
            right = [entry for entry, before in run.entries if entry.sequence - before == _first(run, first)]
            checked.entries += right
            checked.bad_entries += len(run.entries) - len(right)
        checked.bad_entries += len(bad)
        if checked.bad_entries:
            what = f"{checked.bad_entries} entries of the index are wrong; seeking takes longer, and nothing is lost"
            position = bad[0] if bad else None
            _add(self._scan, checked, "warning", "index", what, path=path, position=position)


def _first(run: RecordRun, known: int | None) -> int:
    """Return the sequence of the first message: the known one, or the one that most index entries imply."""
    if known is not None:
        return known
    said = Counter(entry.sequence - before for entry, before in run.entries)
    return said.most_common(1)[0][0]


def read_index(files: Files, segment: Path) -> tuple[list[IndexEntry], list[int]]:
    """Return the valid entries of a segment's index, and the positions of the others.

    Zeros are an entry that was rolled back, and bytes that are shorter than an entry are one that was being written.
    """
    try:
        content = files.read(index_path(segment), INDEX_LIMIT)
    except (FileNotFoundError, UnexpectedFileError):
        return [], []
    bad: list[int] = []
    for position in range(0, len(content) - INDEX_ENTRY.size + 1, INDEX_ENTRY.size):
        entry = content[position : position + INDEX_ENTRY.size]
        if any(entry) and read_entry(entry) is None:
            bad.append(position)
    return read_entries(files, segment), bad


def _add(
    scan: DirectoryScan,
    checked: Checked,
    severity: Severity,
    kind: str,
    what: str,
    *,
    offset: int | None = None,
    position: int | None = None,
    size: int | None = None,
    path: Path | None = None,
) -> None:
    if position is None and offset is not None and not checked.head.is_compressed:
        position = SEGMENT_HEADER_SIZE + offset - checked.head.begin
    file = scan.relative(path or checked.head.path)
    checked.findings.append(
        Finding(severity=severity, kind=kind, file=file, what=what, offset=offset, position=position, size=size)
    )
