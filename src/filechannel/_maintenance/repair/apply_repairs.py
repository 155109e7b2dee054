"""Making segments what they have to be, so that whoever is killed in between leaves nothing worse than it was.

New pieces are made whole under other names, are flushed, and get their names from the last to the first: until the old
file goes, a reader finds the same records in it, and whoever begins again finds what is left to be done. The old file
is in `quarantine/` before anything takes its name.
"""

from __future__ import annotations

from pathlib import Path
from typing import final

from .._format.layout import COMPRESSED_MAGIC, SEGMENT_HEADER_SIZE, SEGMENT_MAGIC
from .._storage.compressed import CompressedSegment
from .._storage.files import Files
from .._storage.index import Mark, index_path, pack_marks
from .._storage.quarantine import Quarantine
from .._storage.segment import HALF_MADE, Header, segment_name
from .own_copies import OwnCopies
from .pieces import Change, Piece
from .segment_check import Checked
from .stretches import PlainFile

_CHUNK = 4 << 20  # bytes that are copied at a time


@final
class Mender:
    """Changes the segments of one channel, which nobody has open."""

    def __init__(self, files: Files, channel: Path, segments: Path, mode: int, copies: OwnCopies) -> None:
        self._files = files
        self._copies = copies
        self._segments = segments
        self._mode = mode
        self._quarantine = Quarantine(files, channel, mode)

    def change(self, change: Change) -> None:
        """Make of a segment what it has to be."""
        if change.is_header_only:
            self._change_header(change)
        else:
            self._replace(change)
        self._files.flush_directory(self._segments)

    def _change_header(self, change: Change) -> None:
        head, piece = change.checked.head, change.pieces[0]
        magic = COMPRESSED_MAGIC if head.is_compressed else SEGMENT_MAGIC
        content = self._header(change, piece).pack(magic, piece.end or 0)
        self._quarantine.keep_content(f"{head.path.name}.header", head.content, _reason(change))
        self._copies.replace(head.path)  # it may be in a backup by hard links, which stays as it is
        descriptor = self._files.open(head.path)
        try:
            self._files.write_at(descriptor, content, 0)
            self._files.flush(descriptor)
        finally:
            self._files.close(descriptor)

    @staticmethod
    def _header(change: Change, piece: Piece) -> Header:
        old = change.checked.head.header
        created = None if old is None else old.created
        return Header.new(piece.begin, piece.first_sequence, piece.previous_end, created)

    def _replace(self, change: Change) -> None:
        head = change.checked.head
        first = self._segments / segment_name(head.begin)
        for piece in reversed(change.pieces):
            if piece.begin != head.begin:
                self._make(change, piece, self._segments / segment_name(piece.begin))
        stays = bool(change.pieces) and change.pieces[0].begin == head.begin
        if stays:
            if not head.is_compressed:
                self._quarantine.keep(head.path, _reason(change))
            self._make(change, change.pieces[0], first)
        if head.is_compressed or not stays:
            self._quarantine.take(head.path, _reason(change))
        plain_is_left = head.is_compressed and not stays and self._files.exists(first)
        if plain_is_left:  # the other form, of an interrupted compression: whoever looks again sees what it is worth
            return
        if not stays and self._files.exists(index_path(first)):
            self._quarantine.take(index_path(first), _reason(change))

    def _make(self, change: Change, piece: Piece, path: Path) -> None:
        """Write a piece under another name, with its index, and give it its own."""
        head, temporary = change.checked.head, path.with_name(HALF_MADE + path.name)
        header = self._header(change, piece).pack(SEGMENT_MAGIC, piece.stop)
        source = (
            CompressedSegment.open(self._files, head.path)
            if head.is_compressed
            else PlainFile(self._files, head.path, head.begin)
        )
        descriptor = self._files.create(temporary, self._mode)
        try:
            size = SEGMENT_HEADER_SIZE + piece.stop - piece.begin
            self._files.allocate(temporary, descriptor, 0, size)
            self._files.write_at(descriptor, header, 0)
            for start in range(piece.begin, piece.stop, _CHUNK):
                stop = min(start + _CHUNK, piece.stop)
                content, position = source.span(start, stop)
                records = bytes(memoryview(content)[position : position + stop - start])
                self._files.write_at(descriptor, records, SEGMENT_HEADER_SIZE + start - piece.begin)
            self._files.flush(descriptor)
        finally:
            self._files.close(descriptor)
        marks = [mark for mark in change.checked.marks if piece.begin <= mark.offset < piece.stop]
        if piece.begin != head.begin:
            self._write_index(path, marks)
        self._files.replace(temporary, path)

    def rewrite_index(self, checked: Checked, reason: str) -> None:
        """Leave only the entries of an index that are right."""
        if not self._files.exists(index_path(checked.head.path)):
            return  # it was put aside with its segment
        self._quarantine.keep(index_path(checked.head.path), reason)
        self._write_index(checked.head.path, checked.marks)

    def _write_index(self, segment: Path, marks: list[Mark]) -> None:
        self._files.write_atomically(index_path(segment), pack_marks(marks), self._mode)


def _reason(change: Change) -> str:
    """Return why a segment was replaced."""
    found = [finding.what for finding in change.checked.findings if finding.severity != "note"]
    return "; ".join(found) or "the segments around it are damaged, or missing"
