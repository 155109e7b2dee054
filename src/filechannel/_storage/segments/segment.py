"""One segment file: a header of 64 bytes and records behind it, mapped."""

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

from .._errors import UnexpectedFileError, UnsupportedFormatError
from .._format import crc32c, load_u64, read_record, scan_records, store_u64
from .._format.layout import (
    FORMAT_VERSION,
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
from .._offset import Offset
from .._options import StoredOptions
from .files import Files
from .maps import Inode, MappedFile, OpenFile, check_storable

COMPRESSED_SUFFIX = ".z"
"""What the name of a compressed segment has besides."""
HALF_MADE = "new-"
"""What the name of a segment begins with that is being made."""
_SUFFIX = ".seg"
_DIGITS = 20
_LARGEST_BEGIN = 1 << 63
"""No log gets there; a file with such a name was made by someone else, and offsets behind it would not fit a word."""


def segment_name(begin: int) -> str:
    """Return the file name of the segment that begins at an offset."""
    return f"{begin:0{_DIGITS}}{_SUFFIX}"


def begin_of(name: str) -> Offset | None:
    """Return the offset in a segment's file name; None if it is some other file."""
    digits = name.removesuffix(_SUFFIX)
    if name.endswith(_SUFFIX) and len(digits) == _DIGITS and digits.isascii() and digits.isdigit():
        begin = int(digits)
        return Offset(begin) if begin < _LARGEST_BEGIN else None
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
        """Describe a segment that is about to be made, now if nothing else is said."""
        created = time.time_ns() if created is None else created
        return cls(Offset(begin), first_sequence, Offset(previous_end), secrets.randbits(32) or 1, created)

    def pack(self, magic: bytes = SEGMENT_MAGIC, end: int = 0) -> bytes:
        """Return the 64 bytes of an active segment, or of one that ends at an offset."""
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
        """Read a header; `ValueError` says what is wrong with it."""
        if len(content) < SEGMENT_HEADER_SIZE:
            raise ValueError("shorter than a segment header")
        found, version, id_, begin, _, sequence, previous_end, created, crc, _ = SEGMENT_HEADER.unpack(content)
        if found != magic:
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


def valid_end(header: Header, content: bytes) -> Offset | None:
    """Return the end in a header's 64 bytes if its checksum agrees; None while the segment is active."""
    end, crc = int.from_bytes(content[SEGMENT_END : SEGMENT_END + 8], "little"), content[SEGMENT_END_CRC:]
    is_valid = end > header.begin and int.from_bytes(crc, "little") == _end_crc(header.begin, end)
    return Offset(end) if is_valid else None


def read_header(files: Files, path: Path, magic: bytes = SEGMENT_MAGIC) -> Header:
    """Read the header of a segment's file; `ValueError` says why it is not one."""
    descriptor = open_segment(files, path, writable=False)
    try:
        header = Header.unpack(files.read_at(descriptor, SEGMENT_HEADER_SIZE, 0), magic)
    finally:
        files.close(descriptor)
    check_name(path, header)
    return header


def open_segment(files: Files, path: Path, *, writable: bool) -> int:
    """Return a descriptor of a segment's file; `ValueError` if it cannot be one."""
    try:
        return files.open(path, writable=writable)
    except UnexpectedFileError as error:
        if files.is_file(path):  # one that has a name outside of the channel
            raise
        raise ValueError(f"it is {error.found}") from error


def check_name(path: Path, header: Header) -> None:
    """Raise `ValueError` if a file has the name of another segment."""
    if header.begin != begin_of(path.name.removesuffix(COMPRESSED_SUFFIX)):
        raise ValueError(f"the header is of the segment at {header.begin}")


@dataclass(frozen=True, slots=True)
class SegmentLimits:
    """What a segment may have by the options of its channel. What a file has beyond that is never looked at."""

    size: int
    """Bytes of a plain file; of a compressed one when it is decompressed."""
    payload: int
    """Bytes of the payload of one record."""

    @classmethod
    def of(cls, options: StoredOptions) -> SegmentLimits:
        """Return those of a channel: a message that needs more than an ordinary segment has one of its own."""
        payload = max(options.max_message_size, PAGE)  # control records count as well
        return cls(max(options.segment_size, -(-(SEGMENT_HEADER_SIZE + 8 + payload) // PAGE) * PAGE), payload)


ANY_SIZE = SegmentLimits(sys.maxsize, MAX_PAYLOAD)
"""Where the options are not known."""


class Window(NamedTuple):
    """What a native reader reads from: 64 bytes that it looks for an end in, and records from an offset on."""

    content: Buffer
    begin: Offset
    end: Offset


class Segment:
    """An open, mapped segment. The map lives as long as anybody holds a view of it."""

    def __init__(self, path: Path, header: Header, file: MappedFile) -> None:
        self.path = path
        self.name: bytes = path.name.encode()
        """Its name in the directory."""
        self.header = header
        self.begin: Offset = header.begin
        self.file = file
        self.map: mmap.mmap = file.map
        self.room_end: Offset = Offset(header.begin + len(file.map) - SEGMENT_HEADER_SIZE)
        """The offset that the file's size sets as a limit."""

    @classmethod
    def create(cls, files: Files, path: Path, header: Header, size: int, allocate: int, mode: int) -> Segment:
        """Make the file under another name, whole, and only then give it its own.

        If there is a segment of that name already, it is replaced by one that is on disk: after a power cut there is
        either of them.
        """
        temporary = path.with_name(HALF_MADE + path.name)
        descriptor = files.create(temporary, mode)
        file = OpenFile(files, descriptor)
        try:
            files.grow(descriptor, size)
            files.allocate(path, descriptor, 0, min(size, allocate))
            files.write_at(descriptor, header.pack(), 0)
            mapped = MappedFile(file, files.map(descriptor, size))
            if files.exists(path):
                file.flush()
            files.replace(temporary, path)
        except BaseException:
            files.unlink(temporary)
            raise
        return cls(path, header, mapped)

    @classmethod
    def renew(cls, files: Files, spare: Path, path: Path, header: Header, file: MappedFile) -> Segment:
        """Give a spare file a header and the name of a segment, which no other file has.

        The header comes first: whoever finds the name finds a segment. Whoever knows the file from before finds
        another header than the one it knows. What lies behind it does not validate at the offsets it has now.
        """
        check_storable(file.map, 0, SEGMENT_HEADER_SIZE, spare)
        file.map[:SEGMENT_HEADER_SIZE] = header.pack()
        files.replace(spare, path)
        return cls(path, header, file)

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
        """Map an existing segment, unless its file is *known* as mapped; `ValueError` says why it is not one.

        One that is finished is never written to: if it has a name outside of the channel, as in a backup, it is mapped
        to be read.
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
        """The offset behind the last record, or None while the segment is active."""
        return Offset(load_u64(self.map, SEGMENT_END)) or None

    @property
    def limit(self) -> Offset:
        """The offset that no record of this segment reaches beyond, as far as the file itself can tell."""
        end = self.end
        return self.room_end if end is None else max(self.begin, min(end, self.room_end))

    @property
    def has_valid_end(self) -> bool:
        """Whether `end` is set and its checksum agrees."""
        end = self.end
        stored = int.from_bytes(self.map[SEGMENT_END_CRC:SEGMENT_HEADER_SIZE], "little")
        return end is not None and self.begin < end <= self.room_end and stored == _end_crc(self.begin, end)

    def finish(self, end: int) -> None:
        """Store where the records end; nothing is written behind it any more."""
        check_storable(self.map, 0, SEGMENT_HEADER_SIZE, self.path)
        self.map[SEGMENT_END_CRC:SEGMENT_HEADER_SIZE] = _end_crc(self.begin, end).to_bytes(4, "little")
        store_u64(self.map, SEGMENT_END, end)

    def reopen(self) -> None:
        """Undo `finish`: nothing beyond was ever published."""
        if self.end is not None:  # a store may need disk space, which is reserved only when there is more to write
            check_storable(self.map, 0, SEGMENT_HEADER_SIZE, self.path)
            store_u64(self.map, SEGMENT_END, 0)

    def invalidate(self) -> None:
        """Make the header unreadable, so that whoever still has the file mapped finds out and looks again."""
        check_storable(self.map, 0, SEGMENT_HEADER_SIZE, self.path)
        self.map[: len(SEGMENT_MAGIC)] = bytes(len(SEGMENT_MAGIC))

    @property
    def is_valid(self) -> bool:
        """Whether the file still is the segment it was opened as."""
        try:
            return Header.unpack(self.map[:SEGMENT_HEADER_SIZE]) == self.header
        except ValueError:
            return False

    @property
    def is_removed(self) -> bool:
        """Whether the file has no name any more, and takes its disk space only because somebody uses it."""
        return not self.file.file.links

    @property
    def data_end(self) -> Offset:
        """Behind this offset the file has only a hole."""
        return Offset(max(0, self.file.file.data_end - SEGMENT_HEADER_SIZE) + self.begin)

    def position(self, offset: int) -> int:
        """Return where in the file an offset lies."""
        return SEGMENT_HEADER_SIZE + offset - self.begin

    # Reading, as in a compressed segment

    def window(self, _offset: int) -> Window:
        """Return what a reader at an offset reads from: all there is."""
        return Window(self.map, self.begin, self.room_end)

    def span(self, start: int, _stop: int) -> tuple[Buffer, int]:
        """Return something that has the bytes between two offsets, and the position in it of the first."""
        return self.map, self.position(start)

    def read(self, offset: int, stop: int) -> tuple[int, bytes]:
        """Return (word, payload) of the record at an offset; `ValueError` says why there is none."""
        return read_record(self.map, self.position(offset), self.position(stop), offset)

    def whole(self, stop: int) -> tuple[Offset, int]:
        """Return where the last whole batch before an offset ends, and how many messages there are up to there."""
        first = self.position(self.begin)
        end, messages, _, _ = scan_records(self.map, first, self.position(stop), self.begin)
        return Offset(self.begin + end - first), messages

    def explain(self, _offset: int, reason: str) -> str:
        """Say more about damage at an offset, if more is known."""
        return reason

    # Changing

    def wipe(self, start: int, stop: int) -> None:
        """Zero the bytes between two offsets, as far as the file goes. Leaves alone what is zero: it may be a hole."""
        first, last = self.position(start), min(self.position(stop), len(self.map))
        for position in range(first, last, PAGE):
            zeros = bytes(min(PAGE, last - position))
            if self.map[position : position + len(zeros)] != zeros:
                check_storable(self.map, position, len(zeros), self.path)
                self.map[position : position + len(zeros)] = zeros

    def allocate(self, start: int, stop: int) -> None:
        """Reserve disk space between two offsets."""
        position = self.position(start)
        self.file.file.allocate(self.path, position, self.position(stop) - position)

    def check_flushed(self, end: Offset) -> None:
        """Raise `OSError` if the file system has shut down while the log was flushed up to *end*, if that lies here.

        ext4 may report success then: a flush that has begun before does not see that the blocks were not entered as
        written. To make the flushed page writable again fails on a file system that has shut down.
        """
        position = SEGMENT_HEADER_SIZE + end - 1 - self.begin
        if SEGMENT_HEADER_SIZE <= position < len(self.map):
            check_storable(self.map, position, 1, self.path)

    def flush(self) -> None:
        """Wait until the records are on disk."""
        self.file.file.flush()
