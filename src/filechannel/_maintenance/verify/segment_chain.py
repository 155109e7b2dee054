"""The ordered segments of a channel: which records each must contain, and what is missing in between."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import final

from ..._errors import UnexpectedFileError
from ..._format.layout import SEGMENT_PREVIOUS_END
from ..._offset import Offset
from ..._storage.segments.compressed_segment import stored_begins
from .directory_scan import DirectoryScan, End
from .findings import Finding
from .segment_check import Bounds, Head, holds_records, read_head

_NO_LIMIT = Offset(1 << 63)


@final
@dataclass(frozen=True, slots=True)
class Link:
    """A segment, and what its neighbours say about it."""

    head: Head
    bounds: Bounds


@final
@dataclass(frozen=True, slots=True)
class Chain:
    """All segments with readable records, in order."""

    end: End | None
    links: tuple[Link, ...]
    findings: tuple[Finding, ...]

    @property
    def size(self) -> int:
        """The maximum size of all records."""
        stops = (max(link.bounds.certain, link.head.begin) for link in self.links)
        return sum(stop - link.head.begin for link, stop in zip(self.links, stops, strict=True))


def segment_begins(scan: DirectoryScan) -> list[Offset]:
    """Return the begin of every segment, plain or compressed."""
    try:
        return stored_begins(scan.files, scan.segments)
    except UnexpectedFileError:  # a link in place of the directory, which is reported as such
        return []


def read_chain(scan: DirectoryScan) -> Chain:
    """Read the headers of all segments that contain records which are visible to readers."""
    if scan.files.other_directory(scan.segments) is not None:
        return Chain(None, (), ())  # which is reported as such
    end = scan.end()  # before the directory is read: what is created or published later is not checked
    oldest = Offset(0) if end is None else end.oldest
    limit = end.offset if end is not None and end.is_trusted else _NO_LIMIT
    begins = [begin for begin in segment_begins(scan) if oldest <= begin <= limit]
    found = [read_head(scan.files, scan.segments, begin) for begin in begins]
    heads = [head for head in found if head is not None]
    next_heads: list[Head | None] = [*heads[1:], None]
    newest = _newest_with_records(scan, heads, end)
    links = [
        Link(head, _bounds(head, following, end, is_followed=head.begin < newest))
        for head, following in zip(heads, next_heads, strict=False)
    ]
    return Chain(end, tuple(links), tuple(_missing(scan, heads, end)))


def _newest_with_records(scan: DirectoryScan, heads: list[Head], end: End | None) -> Offset:
    """Return where the last segment with intact records begins: those before it were written to their ends.

    After a power cut there may be gaps before it, too. They cannot be distinguished from damage, and a repair keeps the
    records after either of them.
    """
    if end is None or end.is_trusted:
        return Offset(0)  # the range with records is known
    for head in reversed(heads):
        if head.begin <= end.offset or holds_records(scan, head):
            return head.begin
    return Offset(0)


def _bounds(head: Head, following: Head | None, end: End | None, *, is_followed: bool) -> Bounds:
    """Return where the records of a segment end, according to its own header, the next header, or the tail."""
    if following is None:
        stop = head.end or _NO_LIMIT
        if end is not None and end.is_trusted:
            stop = min(stop, end.offset)
        sequence = end.sequence if end is not None and stop == end.offset else None
        return Bounds(stop, _certain(head, stop, end, is_last=True), None, sequence)
    previous_end = None if following.header is None else following.header.previous_end
    if previous_end is not None and not head.begin < previous_end <= following.begin:
        previous_end = None  # it does not refer to this segment
    stop = min(head.end or previous_end or following.begin, following.begin)
    is_next = following.header is not None and previous_end == stop == following.begin
    sequence = following.header.first_sequence if following.header is not None and is_next else None
    certain = _certain(head, stop, end, is_last=False)
    if is_followed and (head.end is not None or previous_end is not None):
        certain = stop
    return Bounds(stop, certain, previous_end or following.begin, sequence)


def _certain(head: Head, stop: Offset, end: End | None, *, is_last: bool) -> Offset:
    """Return up to where there must be records: compressed segments, and what a checkpoint covers, are on disk."""
    if head.is_compressed:
        return stop
    if end is None:
        return head.begin if is_last and head.end is None else stop
    return max(head.begin, min(stop, end.offset))


def _missing(scan: DirectoryScan, heads: list[Head], end: End | None) -> list[Finding]:
    """Report missing records between two segments, before the first or after the last."""
    found: list[Finding] = []
    if end is None:
        return found
    if heads and (first := heads[0]).header is not None and first.header.previous_end > end.oldest < first.begin:
        found.append(_gap(scan, first, end.oldest, first.header.previous_end))
    for head, following in pairwise(heads):
        if following.header is None or head.header is None:
            continue
        previous_end = following.header.previous_end
        own_end = previous_end if head.end is None else head.end
        if own_end < previous_end:
            found.append(_gap(scan, following, own_end, previous_end))
        elif own_end > previous_end:
            what = f"it begins after offset {previous_end}, but the segment before it ends at {own_end}"
            file, position = scan.relative(following.path), SEGMENT_PREVIOUS_END
            found.append(Finding(severity="error", kind="overlap", file=file, position=position, what=what))
    last = heads[-1].end if heads else end.oldest
    if last is not None and last < end.offset:
        what = f"the records from offset {last} to {end.offset}, the end of the log, are missing"
        file = scan.relative(heads[-1].path if heads else scan.segments)
        found.append(
            Finding(severity="error", kind="missing", file=file, what=what, offset=last, size=end.offset - last)
        )
    return found


def _gap(scan: DirectoryScan, following: Head, start: Offset, stop: Offset) -> Finding:
    what = f"the records from offset {start} to {stop}, before this segment, are missing"
    file = scan.relative(following.path)
    return Finding(severity="error", kind="missing", file=file, what=what, offset=start, size=stop - start)
