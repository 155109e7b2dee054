"""One segment file: a header of 64 bytes and records behind it, mapped."""

from __future__ import annotations

import mmap
import secrets
import time
from dataclasses import dataclass
from pathlib import Path

from .._errors import UnsupportedFormatError
from .._format import crc32c, load_u64, store_u64
from .._format.layout import (
    FORMAT_VERSION,
    PAGE,
    SEGMENT_CRC,
    SEGMENT_END,
    SEGMENT_END_CRC,
    SEGMENT_EXTENT,
    SEGMENT_HEADER,
    SEGMENT_HEADER_SIZE,
    SEGMENT_MAGIC,
)
from .._offset import Offset
from .files import Files

_SUFFIX = ".seg"
_DIGITS = 20


def segment_name(begin: int) -> str:
    """Return the file name of the segment that begins at an offset."""
    return f"{begin:0{_DIGITS}}{_SUFFIX}"


def begin_of(name: str) -> Offset | None:
    """Return the offset in a segment's file name; None if it is some other file."""
    digits = name.removesuffix(_SUFFIX)
    if name.endswith(_SUFFIX) and len(digits) == _DIGITS and digits.isascii() and digits.isdigit():
        return Offset(int(digits))
    return None


@dataclass(frozen=True, slots=True)
class Header:
    """The fields of a segment header that never change."""

    begin: Offset
    first_sequence: int
    previous_end: Offset
    id: int
    created: int

    @classmethod
    def new(cls, begin: int, first_sequence: int, previous_end: int) -> Header:
        """Describe a segment that is about to be made."""
        return cls(Offset(begin), first_sequence, Offset(previous_end), secrets.randbits(32) or 1, time.time_ns())

    def pack(self) -> bytes:
        """Return the 64 bytes of an active segment."""
        fields = SEGMENT_HEADER.pack(
            SEGMENT_MAGIC,
            FORMAT_VERSION,
            self.id,
            self.begin,
            0,
            self.first_sequence,
            self.previous_end,
            self.created,
            0,
            0,
        )
        return fields[:SEGMENT_CRC] + _header_crc(fields).to_bytes(4, "little") + fields[SEGMENT_END_CRC:]

    @classmethod
    def unpack(cls, content: bytes) -> Header:
        """Read a header; `ValueError` says what is wrong with it."""
        if len(content) < SEGMENT_HEADER_SIZE:
            raise ValueError("shorter than a segment header")
        magic, version, id_, begin, _, sequence, previous_end, created, crc, _ = SEGMENT_HEADER.unpack(content)
        if magic != SEGMENT_MAGIC:
            raise ValueError("no segment header")
        if crc != _header_crc(content):
            raise ValueError("checksum mismatch in the segment header")
        if version > FORMAT_VERSION:
            raise UnsupportedFormatError(version, FORMAT_VERSION)
        return cls(Offset(begin), sequence, Offset(previous_end), id_, created)


def _header_crc(content: bytes) -> int:
    return crc32c(content[SEGMENT_END + 8 : SEGMENT_CRC], crc32c(content[:SEGMENT_END]))


def _end_crc(begin: int, end: int) -> int:
    return crc32c(SEGMENT_EXTENT.pack(begin, end))


def read_header(files: Files, path: Path) -> Header:
    """Read the header of a segment's file; `ValueError` says why it is not one."""
    try:
        descriptor = files.open(path, writable=False)
        try:
            header = Header.unpack(files.read_at(descriptor, SEGMENT_HEADER_SIZE, 0))
        finally:
            files.close(descriptor)
    except IsADirectoryError as error:
        raise ValueError("it is a directory") from error
    _check_name(path, header)
    return header


def _check_name(path: Path, header: Header) -> None:
    if header.begin != begin_of(path.name):
        raise ValueError(f"the header is of the segment at {header.begin}")


class Segment:
    """An open, mapped segment. The map lives as long as anybody holds a view of it."""

    def __init__(self, files: Files, path: Path, header: Header, descriptor: int, map_: mmap.mmap) -> None:
        self._files = files
        self.path = path
        self.header = header
        self.begin: Offset = header.begin
        self.map = map_
        self.room_end: Offset = Offset(header.begin + len(map_) - SEGMENT_HEADER_SIZE)
        """The offset that the file's size sets as a limit."""
        self._descriptor = descriptor

    @classmethod
    def create(cls, files: Files, path: Path, header: Header, size: int, allocate: int, mode: int) -> Segment:
        """Make the file under another name, whole, and only then give it its own.

        If there is a segment of that name already, it is replaced by one that is on disk: after a power cut there is
        either of them.
        """
        temporary = path.with_name(f"new-{path.name}")
        files.unlink(temporary)
        descriptor = files.open(temporary, create=True, mode=mode)
        try:
            files.grow(descriptor, size)
            files.allocate(path, descriptor, 0, min(size, allocate))
            files.write_at(descriptor, header.pack(), 0)
            map_ = files.map(descriptor, size)
            if files.exists(path):
                files.flush(descriptor)
            files.replace(temporary, path)
        except BaseException:
            files.close(descriptor)
            files.unlink(temporary)
            raise
        return cls(files, path, header, descriptor, map_)

    @classmethod
    def open(cls, files: Files, path: Path, *, writable: bool = True) -> Segment:
        """Map an existing segment; `ValueError` says why it is not one."""
        try:
            descriptor = files.open(path, writable=writable)
        except IsADirectoryError as error:
            raise ValueError("it is a directory") from error
        try:
            header = Header.unpack(files.read_at(descriptor, SEGMENT_HEADER_SIZE, 0))
            _check_name(path, header)
            map_ = files.map(descriptor, files.size(descriptor), writable=writable)
        except BaseException:
            files.close(descriptor)
            raise
        return cls(files, path, header, descriptor, map_)

    @property
    def end(self) -> Offset | None:
        """The offset behind the last record, or None while the segment is active."""
        return Offset(load_u64(self.map, SEGMENT_END)) or None

    @property
    def limit(self) -> Offset:
        """The offset that no record of this segment reaches beyond, as far as the file itself can tell."""
        end = self.end
        return self.room_end if end is None else min(end, self.room_end)

    @property
    def has_valid_end(self) -> bool:
        """Whether `end` is set and its checksum agrees."""
        end = self.end
        stored = int.from_bytes(self.map[SEGMENT_END_CRC:SEGMENT_HEADER_SIZE], "little")
        return end is not None and self.begin < end <= self.room_end and stored == _end_crc(self.begin, end)

    def finish(self, end: int) -> None:
        """Store where the records end; nothing is written behind it any more."""
        self.map[SEGMENT_END_CRC:SEGMENT_HEADER_SIZE] = _end_crc(self.begin, end).to_bytes(4, "little")
        store_u64(self.map, SEGMENT_END, end)

    def reopen(self) -> None:
        """Undo `finish`: nothing beyond was ever published."""
        store_u64(self.map, SEGMENT_END, 0)

    def invalidate(self) -> None:
        """Make the header unreadable, so that whoever still has the file mapped finds out and looks again."""
        self.map[: len(SEGMENT_MAGIC)] = bytes(len(SEGMENT_MAGIC))

    @property
    def is_valid(self) -> bool:
        """Whether the file still is the segment it was opened as."""
        try:
            return Header.unpack(self.map[:SEGMENT_HEADER_SIZE]) == self.header
        except ValueError:
            return False

    @property
    def data_end(self) -> Offset:
        """Behind this offset the file has only a hole."""
        return Offset(max(0, self._files.data_end(self._descriptor) - SEGMENT_HEADER_SIZE) + self.begin)

    def position(self, offset: int) -> int:
        """Return where in the file an offset lies."""
        return SEGMENT_HEADER_SIZE + offset - self.begin

    def wipe(self, start: int, stop: int) -> None:
        """Zero the bytes between two offsets, as far as the file goes. Leaves alone what is zero: it may be a hole."""
        first, last = self.position(start), min(self.position(stop), len(self.map))
        for position in range(first, last, PAGE):
            zeros = bytes(min(PAGE, last - position))
            if self.map[position : position + len(zeros)] != zeros:
                self.map[position : position + len(zeros)] = zeros

    def allocate(self, start: int, stop: int) -> None:
        """Reserve disk space between two offsets."""
        position = self.position(start)
        self._files.allocate(self.path, self._descriptor, position, self.position(stop) - position)

    def flush(self) -> None:
        """Wait until the records are on disk."""
        self._files.flush(self._descriptor)

    def __del__(self) -> None:
        """Let go of the file with the last one who uses it: a reader, the writer or a flush. The map does likewise."""
        self._files.close(self._descriptor)
