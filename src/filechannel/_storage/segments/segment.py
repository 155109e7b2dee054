"""One plain segment file: its name, its 64-byte header, and the mapped records that follow."""

from __future__ import annotations

import mmap
import secrets
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from typing_extensions import Buffer

from ..._errors import StorageError, UnexpectedFileError, UnsupportedFormatError
from ..._format import crc32c, load_u64, read_record, scan_records, store_u64
from ..._format.layout import (
    FORMAT_VERSION,
    LARGEST_OFFSET,
    MAX_PAYLOAD,
    PAGE,
    SEGMENT_CRC,
    SEGMENT_END,
    SEGMENT_END_CRC,
    SEGMENT_EXTENT,
    SEGMENT_HEADER,
    SEGMENT_HEADER_SIZE,
    SEGMENT_MAGIC,
)
from ..._offset import Offset
from ..._options import StoredOptions
from ..system.mapped_files import Inode, MappedFile, OpenFile, check_storable
from ..system.os_calls import Files

COMPRESSED_SUFFIX = ".z"
"""The suffix that a compressed segment's file name has in addition."""
HALF_MADE = "new-"
"""The prefix of the temporary name of a segment file that is not complete yet."""
_SUFFIX = ".seg"
_DIGITS = 20


def segment_name(begin: int) -> str:
    """Return the file name of the segment that begins at an offset."""
    return f"{begin:0{_DIGITS}}{_SUFFIX}"


def begin_of(name: str) -> Offset | None:
    """Return the offset in a segment's file name; None if it is not one, or the offset is too large."""
    digits = name.removesuffix(_SUFFIX)
    if name.endswith(_SUFFIX) and len(digits) == _DIGITS and digits.isascii() and digits.isdigit():
        begin = int(digits)
        return Offset(begin) if begin <= LARGEST_OFFSET else None
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
    def new(cls, begin: int, first_sequence: int, previous_end: int, created: int | None = None) -> Header:
        """Describe a new segment; *created* defaults to the current time."""
        created = time.time_ns() if created is None else created
        return cls(Offset(begin), first_sequence, Offset(previous_end), secrets.randbits(32) or 1, created)

    def pack(self, magic: bytes = SEGMENT_MAGIC, end: int = 0) -> bytes:
        """Return the 64 bytes of the header, of an active segment or, with *end*, of a finished one."""
        fields = SEGMENT_HEADER.pack(
            magic,
            FORMAT_VERSION,
            self.id,
            self.begin,
            end,
            self.first_sequence,
            self.previous_end,
            self.created,
            0,
            _end_crc(self.begin, end) if end else 0,
        )
        return fields[:SEGMENT_CRC] + _header_crc(fields).to_bytes(4, "little") + fields[SEGMENT_END_CRC:]

    @classmethod
    def unpack(cls, content: bytes, magic: bytes = SEGMENT_MAGIC) -> Header:
        """Read a header; raise `ValueError` if it is not valid."""
        if len(content) < SEGMENT_HEADER_SIZE:
            raise ValueError("shorter than a segment header")
        found, version, id_, begin, _, sequence, previous_end, created, crc, _ = SEGMENT_HEADER.unpack(content)
        if found != magic:
            raise ValueError("no segment header")
        if crc != _header_crc(content):
            raise ValueError("checksum mismatch in the segment header")
        if version > FORMAT_VERSION:
            raise UnsupportedFormatError(version, FORMAT_VERSION)
        if (largest := max(begin, sequence, previous_end)) > LARGEST_OFFSET:
            raise ValueError(f"{largest} in the segment header is larger than an offset or a sequence may be")
        return cls(Offset(begin), sequence, Offset(previous_end), id_, created)


def _header_crc(content: bytes) -> int:
    return crc32c(content[SEGMENT_END + 8 : SEGMENT_CRC], crc32c(content[:SEGMENT_END]))


def _end_crc(begin: int, end: int) -> int:
    return crc32c(SEGMENT_EXTENT.pack(begin, end))


def valid_end(header: Header, content: bytes) -> Offset | None:
    """Return the end in a header's 64 bytes if its checksum matches; None while the segment is active."""
    end, crc = int.from_bytes(content[SEGMENT_END : SEGMENT_END + 8], "little"), content[SEGMENT_END_CRC:]
    is_valid = header.begin < end <= LARGEST_OFFSET and int.from_bytes(crc, "little") == _end_crc(header.begin, end)
    return Offset(end) if is_valid else None


def _most_bytes(header: Header) -> int:
    """Return how many bytes of records a segment may have: a message takes more than a byte."""
    return LARGEST_OFFSET - max(header.begin, header.first_sequence)


def check_offsets_left(path: Path, header: Header, size: int) -> None:
    """Raise `StorageError` if a segment of this size could get beyond the largest offset or sequence."""
    if size - SEGMENT_HEADER_SIZE > _most_bytes(header):
        raise StorageError(
            f"{path.parent.parent} has used up its offsets: nothing more can be sent; open it with readonly=True to "
            "receive what is stored, and send to a new channel"
        )


def create_segment_file(
    files: Files, path: Path, target: Path, header: Header, size: int, allocate: int, mode: int
) -> MappedFile:
    """Create the file of a segment under a temporary name, complete with its header, to be renamed to *target*.

    If a segment of that name exists, the new file is flushed: after a power cut, one of the two is there.
    `StorageError` if an offset or a sequence in it could pass the largest one.
    """
    check_offsets_left(target, header, size)
    descriptor = files.create(path, mode)
    file = OpenFile(files, descriptor)
    try:
        files.grow(descriptor, size)
        files.allocate(target, descriptor, 0, min(size, allocate))
        files.write_at(descriptor, header.pack(), 0)
        mapped = MappedFile(file, files.map(descriptor, size))
        if files.exists(target):
            file.flush()
    except BaseException:
        files.unlink(path)
        raise
    return mapped


def read_header(files: Files, path: Path, magic: bytes = SEGMENT_MAGIC) -> Header:
    """Read the header of a segment's file; raise `ValueError` if the file is not that segment."""
    descriptor = open_segment(files, path, writable=False)
    try:
        header = Header.unpack(files.read_at(descriptor, SEGMENT_HEADER_SIZE, 0), magic)
    finally:
        files.close(descriptor)
    check_name(path, header)
    return header


def open_segment(files: Files, path: Path, *, writable: bool) -> int:
    """Return a descriptor of a segment's file; raise `ValueError` if it is not a regular file."""
    try:
        return files.open(path, writable=writable)
    except UnexpectedFileError as error:
        if files.is_file(path):  # it is refused because it has a name outside the channel
            raise
        raise ValueError(f"it is {error.found}") from error


def check_name(path: Path, header: Header) -> None:
    """Raise `ValueError` if a file has the name of another segment."""
    if header.begin != begin_of(path.name.removesuffix(COMPRESSED_SUFFIX)):
        raise ValueError(f"the header is of the segment at {header.begin}")


@dataclass(frozen=True, slots=True)
class SegmentLimits:
    """The largest sizes that the channel's options allow in a segment. Bytes of a file beyond them are never read."""

    size: int
    """Bytes of a plain file, or of a compressed one after decompression."""
    payload: int
    """Bytes of the payload of one record."""

    @classmethod
    def of(cls, options: StoredOptions) -> SegmentLimits:
        """Return the limits of a channel: a message that does not fit an ordinary segment gets a segment of its own."""
        payload = max(options.max_message_size, PAGE)  # control records have payloads, too
        return cls(max(options.segment_size, -(-(SEGMENT_HEADER_SIZE + 8 + payload) // PAGE) * PAGE), payload)


ANY_SIZE = SegmentLimits(sys.maxsize, MAX_PAYLOAD)
"""The limits to use where the options are not known."""


class Window(NamedTuple):
    """The bytes that a native reader reads: a 64-byte header, which may have an end, and records from an offset on."""

    content: Buffer
    begin: Offset
    end: Offset


class Segment:
    """An open, mapped segment. The map lives as long as an object holds a view of it."""

    def __init__(self, path: Path, header: Header, file: MappedFile) -> None:
        self.path = path
        self.name: bytes = path.name.encode()
        """The file's name in the directory."""
        self.header = header
        self.begin: Offset = header.begin
        self.file = file
        self.map: mmap.mmap = file.map
        space = min(len(file.map) - SEGMENT_HEADER_SIZE, _most_bytes(header))
        self.space_end: Offset = Offset(header.begin + space)
        """The largest end offset that the file's size allows, within the largest offset and sequence."""

    @classmethod
    def open(
        cls,
        files: Files,
        path: Path,
        *,
        writable: bool = True,
        known: Callable[[Inode], MappedFile | None] = lambda _: None,
        limits: SegmentLimits = ANY_SIZE,
    ) -> Segment:
        """Map an existing segment, or reuse its map if its file is *known*; raise `ValueError` if it is not a segment.

        A finished segment is never written to. So if it has a name outside the channel, for example in a backup, it is
        mapped read-only instead of being refused.
        """
        try:
            file = OpenFile(files, open_segment(files, path, writable=writable))
        except UnexpectedFileError:
            file, writable = OpenFile(files, open_segment(files, path, writable=False)), False
            content = file.read(SEGMENT_HEADER_SIZE)
            if valid_end(Header.unpack(content), content) is None:
                raise
        header = Header.unpack(file.read(SEGMENT_HEADER_SIZE))
        check_name(path, header)
        mapped = known(file.inode) or MappedFile(file, file.map(writable=writable, most=limits.size))
        return cls(path, header, mapped)

    @property
    def end(self) -> Offset | None:
        """The offset after the last record, or None while the segment is active."""
        return Offset(load_u64(self.map, SEGMENT_END)) or None

    @property
    def limit(self) -> Offset:
        """The offset that no record of this segment extends beyond, according to the file."""
        end = self.end
        return self.space_end if end is None else max(self.begin, min(end, self.space_end))

    @property
    def has_valid_end(self) -> bool:
        """Whether `end` is set and its checksum matches."""
        end = self.end
        stored = int.from_bytes(self.map[SEGMENT_END_CRC:SEGMENT_HEADER_SIZE], "little")
        return end is not None and self.begin < end <= self.space_end and stored == _end_crc(self.begin, end)

    def finish(self, end: int) -> None:
        """Store where the records end. No record is appended to the segment after that."""
        check_storable(self.map, 0, SEGMENT_HEADER_SIZE, self.path)
        self.map[SEGMENT_END_CRC:SEGMENT_HEADER_SIZE] = _end_crc(self.begin, end).to_bytes(4, "little")
        store_u64(self.map, SEGMENT_END, end)

    def reopen(self) -> None:
        """Undo `finish`. Nothing beyond the end was ever published."""
        if self.end is not None:  # else no store: it may need disk space, which is reserved only for appending
            check_storable(self.map, 0, SEGMENT_HEADER_SIZE, self.path)
            store_u64(self.map, SEGMENT_END, 0)

    def invalidate(self) -> None:
        """Clear the magic number, so that processes that have the file mapped notice, and open the segment again."""
        check_storable(self.map, 0, SEGMENT_HEADER_SIZE, self.path)
        self.map[: len(SEGMENT_MAGIC)] = bytes(len(SEGMENT_MAGIC))

    @property
    def is_valid(self) -> bool:
        """Whether the file is still the segment that it was opened as."""
        try:
            return Header.unpack(self.map[:SEGMENT_HEADER_SIZE]) == self.header
        except ValueError:
            return False

    @property
    def is_removed(self) -> bool:
        """Whether the file was deleted, so that it takes disk space only because it is still in use."""
        return not self.file.file.links

    @property
    def data_end(self) -> Offset:
        """The offset after which the file has only a hole."""
        return Offset(max(0, self.file.file.data_end - SEGMENT_HEADER_SIZE) + self.begin)

    def position(self, offset: int) -> int:
        """Return the position of an offset in the file."""
        return SEGMENT_HEADER_SIZE + offset - self.begin

    # Reading, with the same methods as a compressed segment

    def window(self, _offset: int) -> Window:
        """Return the window of a reader at an offset: the whole segment."""
        return Window(self.map, self.begin, self.space_end)

    def span(self, start: int, _stop: int) -> tuple[Buffer, int]:
        """Return a buffer with the bytes between two offsets, and the position of the first of them in it."""
        return self.map, self.position(start)

    def read(self, offset: int, stop: int) -> tuple[int, bytes]:
        """Return (word, payload) of the record at an offset; raise `ValueError` if there is no valid record."""
        return read_record(self.map, self.position(offset), self.position(stop), offset)

    def whole(self, stop: int) -> tuple[Offset, int]:
        """Return where the last complete batch before an offset ends, and the number of messages up to there."""
        first = self.position(self.begin)
        end, messages, _, _ = scan_records(self.map, first, self.position(stop), self.begin)
        return Offset(self.begin + end - first), messages

    def explain(self, _offset: int, reason: str) -> str:
        """Return a better reason for damage at an offset, if one is known."""
        return reason

    # Changing

    def wipe(self, start: int, stop: int) -> None:
        """Zero the bytes between two offsets, up to the file's end. Zero pages are not written: they may be holes."""
        first, last = self.position(start), min(self.position(stop), len(self.map))
        for position in range(first, last, PAGE):
            zeros = bytes(min(PAGE, last - position))
            if self.map[position : position + len(zeros)] != zeros:
                check_storable(self.map, position, len(zeros), self.path)
                self.map[position : position + len(zeros)] = zeros

    def allocate(self, start: int, stop: int) -> None:
        """Allocate disk space between two offsets."""
        position = self.position(start)
        self.file.file.allocate(self.path, position, self.position(stop) - position)

    def flush(self) -> None:
        """Wait until the records are on disk."""
        self.file.file.flush()
