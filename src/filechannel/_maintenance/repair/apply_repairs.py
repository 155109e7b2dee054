"""Applying a repair to segments, so that a process killed at any step leaves nothing worse than before.

New segments are written completely under temporary names, flushed, and renamed from the last to the first. Until the
old file is moved, a reader finds the same records in it, and another repair finds the remaining steps. The old file
is in `quarantine/` before another file gets its name.
"""

from __future__ import annotations

from pathlib import Path
from typing import final

from ..._format.layout import COMPRESSED_MAGIC, SEGMENT_HEADER_SIZE, SEGMENT_MAGIC
from ..._storage.recovery.quarantine import Quarantine
from ..._storage.segments.compressed_segment import CompressedSegment
from ..._storage.segments.segment import HALF_MADE, Header, segment_name
from ..._storage.segments.segment_index import IndexEntry, index_path, pack_entries
from ..._storage.system.os_calls import Files
from ..verify.segment_check import Checked
from ..verify.walk_segment_records import PlainFile
from .hard_links import HardLinks
from .segment_split import Change, RepairedSegment

_CHUNK = 4 << 20  # bytes that are copied at a time


@final
class RepairApplier:
    """Changes the segments of one channel, which no process has open."""

    def __init__(self, files: Files, channel: Path, segments: Path, mode: int, copies: HardLinks) -> None:
        self._files = files
        self._copies = copies
        self._segments = segments
        self._mode = mode
        self._quarantine = Quarantine(files, channel, mode)

    def change(self, change: Change) -> None:
        """Apply the change of one segment."""
        if change.is_header_only:
            self._change_header(change)
        else:
            self._replace(change)
        self._files.flush_directory(self._segments)

    def _change_header(self, change: Change) -> None:
        head, repaired = change.checked.head, change.repaired_segments[0]
        magic = COMPRESSED_MAGIC if head.is_compressed else SEGMENT_MAGIC
        content = self._header(change, repaired).pack(magic, repaired.end or 0)
        self._quarantine.keep_content(f"{head.path.name}.header", head.content, _reason(change))
        self._copies.replace(head.path)  # it may be in a backup by hard links, which must not change
        descriptor = self._files.open(head.path)
        try:
            self._files.write_at(descriptor, content, 0)
            self._files.flush(descriptor)
        finally:
            self._files.close(descriptor)

    @staticmethod
    def _header(change: Change, repaired: RepairedSegment) -> Header:
        old = change.checked.head.header
        created = None if old is None else old.created
        return Header.new(repaired.begin, repaired.first_sequence, repaired.previous_end, created)

    def _replace(self, change: Change) -> None:
        head = change.checked.head
        first = self._segments / segment_name(head.begin)
        for repaired in reversed(change.repaired_segments):
            if repaired.begin != head.begin:
                self._make(change, repaired, self._segments / segment_name(repaired.begin))
        keeps_begin = bool(change.repaired_segments) and change.repaired_segments[0].begin == head.begin
        if keeps_begin:
            if not head.is_compressed:
                self._quarantine.keep(head.path, _reason(change))
            self._make(change, change.repaired_segments[0], first)
        if head.is_compressed or not keeps_begin:
            self._quarantine.move(head.path, _reason(change))
        plain_is_left = head.is_compressed and not keeps_begin and self._files.exists(first)
        if plain_is_left:  # the other encoding, of an interrupted compression: the next round checks it
            return
        if not keeps_begin and self._files.exists(index_path(first)):
            self._quarantine.move(index_path(first), _reason(change))

    def _make(self, change: Change, repaired: RepairedSegment, path: Path) -> None:
        """Write a segment under a temporary name, with its index, and rename it."""
        head, temporary = change.checked.head, path.with_name(HALF_MADE + path.name)
        header = self._header(change, repaired).pack(SEGMENT_MAGIC, repaired.stop)
        source = (
            CompressedSegment.open(self._files, head.path)
            if head.is_compressed
            else PlainFile(self._files, head.path, head.begin)
        )
        descriptor = self._files.create(temporary, self._mode)
        try:
            size = SEGMENT_HEADER_SIZE + repaired.stop - repaired.begin
            self._files.allocate(temporary, descriptor, 0, size)
            self._files.write_at(descriptor, header, 0)
            for start in range(repaired.begin, repaired.stop, _CHUNK):
                stop = min(start + _CHUNK, repaired.stop)
                content, position = source.span(start, stop)
                records = bytes(memoryview(content)[position : position + stop - start])
                self._files.write_at(descriptor, records, SEGMENT_HEADER_SIZE + start - repaired.begin)
            self._files.flush(descriptor)
        finally:
            self._files.close(descriptor)
        entries = [entry for entry in change.checked.entries if repaired.begin <= entry.offset < repaired.stop]
        if repaired.begin != head.begin:
            self._write_index(path, entries)
        self._files.replace(temporary, path)

    def rewrite_index(self, checked: Checked, reason: str) -> None:
        """Keep only the correct entries of an index."""
        if not self._files.exists(index_path(checked.head.path)):
            return  # it was quarantined with its segment
        self._quarantine.keep(index_path(checked.head.path), reason)
        self._write_index(checked.head.path, checked.entries)

    def _write_index(self, segment: Path, entries: list[IndexEntry]) -> None:
        self._files.write_atomically(index_path(segment), pack_entries(entries), self._mode)


def _reason(change: Change) -> str:
    """Return why a segment is replaced."""
    found = [finding.what for finding in change.checked.findings if finding.severity != "note"]
    return "; ".join(found) or "the segments around it are damaged, or missing"
