"""A compressed segment: the same records as in a plain one, in blocks that are decompressed one at a time.

The file is on disk before it gets its name, and never changes after that. So its header is trusted like a checkpoint:
the log was complete up to its end. A block that cannot be read counts as zeros, which are never a valid record; records
in the following blocks are found in the same way as after any damage.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import TypeAlias, final

from ..._format import crc32c, read_record
from ..._format.layout import (
    BLOCK_SIZE,
    COMPRESSED,
    COMPRESSED_BLOCK,
    COMPRESSED_EXTRA,
    COMPRESSED_MAGIC,
    COMPRESSED_TABLE,
    LARGEST_OFFSET,
    LENGTH_MASK,
    RECORD_CHECKED,
    RECORD_HEADER,
    RECORD_HEADER_SIZE,
    SEGMENT_HEADER_SIZE,
)
from ..._offset import Offset
from ..system.os_calls import Files
from .compression_codecs import Codec, codec
from .segment import (
    ANY_SIZE,
    COMPRESSED_SUFFIX,
    Header,
    Segment,
    SegmentLimits,
    Window,
    begin_of,
    check_name,
    open_segment,
    valid_end,
)

_MOST_RECENT = 8  # blocks
_TABLE_CHUNK = COMPRESSED_BLOCK.size << 12
_CHUNK = 4 << 20  # bytes that are copied at a time
_NEVER_ZERO = 0xFFFFFFFF  # stored as the checksum of a record instead of 0


def compressed_path(segment: Path) -> Path:
    """Return the path of the compressed file of a segment."""
    return segment.with_name(segment.name + COMPRESSED_SUFFIX)


def compressed_begin_of(name: str) -> Offset | None:
    """Return the offset in a compressed segment's file name; None if the name is not that of one."""
    return begin_of(name.removesuffix(COMPRESSED_SUFFIX)) if name.endswith(COMPRESSED_SUFFIX) else None


def stored_begins(files: Files, directory: Path) -> list[Offset]:
    """Return where each segment in a directory begins, plain or compressed, in order.

    The kernel returns a large directory in parts. A segment that is compressed during that may get its new name in a
    part that was read already, and lose the old one in a part that was not. A segment is compressed only once, so
    one of two listings has it.
    """
    names = {*files.list(directory), *files.list(directory)}
    found = {begin_of(name.removesuffix(COMPRESSED_SUFFIX)) for name in names}
    return sorted(begin for begin in found if begin is not None)


def table_crc(extra: bytes, table: bytes) -> int:
    """Return the checksum over the fields after the header, without the checksum itself, and the block table."""
    return crc32c(table, crc32c(extra))


def _read_table(files: Files, descriptor: int, size: int) -> bytes:
    """Return the block table, as far as the file has it; raise `ValueError` unless the blocks are contiguous.

    So no stored block is used for several blocks, and none is empty. The table is read and checked in parts: a file
    that is a hole may claim a table of gigabytes, and fails at the first part.
    """
    table, first = bytearray(), COMPRESSED_TABLE + size
    while len(table) < size:
        chunk = files.read_at(descriptor, min(size - len(table), _TABLE_CHUNK), COMPRESSED_TABLE + len(table))
        if not chunk or len(chunk) % COMPRESSED_BLOCK.size:
            break  # the file is truncated
        for position, length, _ in COMPRESSED_BLOCK.iter_unpack(chunk):
            if position != first or not length:
                raise ValueError("the blocks of the compressed segment are not adjacent")
            first += length
        table += chunk
    return bytes(table)


_recent: OrderedDict[tuple[int, int], bytes] = OrderedDict()
"""The blocks that were read last, by all threads: a reader may go back a little, or another one may follow closely."""
_serials = count()


@final
class CompressedSegment:
    """An open compressed segment, with the same methods for reading as a plain one."""

    def __init__(
        self,
        files: Files,
        path: Path,
        header: Header,
        end: Offset,
        extra: tuple[int, int, int, int],
        table: bytes,
        descriptor: int,
        limits: SegmentLimits,
    ) -> None:
        """*extra* has the fields after the header, without their checksum."""
        self._files = files
        self.path = path
        self.header = header
        self.begin: Offset = header.begin
        self.end: Offset = end
        self.next_sequence: int
        self.method: int
        self._block_size: int
        self.blocks: int
        self.next_sequence, self.method, self._block_size, self.blocks = extra
        self._codec: Codec = codec(self.method)
        self._table = table
        self._limits = limits
        self._descriptor = descriptor
        self._serial = next(_serials)

    @classmethod
    def open(cls, files: Files, path: Path, limits: SegmentLimits = ANY_SIZE) -> CompressedSegment:
        """Open a compressed segment; raise `ValueError` if the file is not one."""
        descriptor = open_segment(files, path, writable=False)
        try:
            head = files.read_at(descriptor, COMPRESSED_TABLE, 0)
            header = Header.unpack(head[:SEGMENT_HEADER_SIZE], COMPRESSED_MAGIC)
            check_name(path, header)
            end = valid_end(header, head[:SEGMENT_HEADER_SIZE])
            if end is None or len(head) < COMPRESSED_TABLE:
                raise ValueError("no end in the header of a compressed segment")
            if SEGMENT_HEADER_SIZE + end - header.begin > limits.size:
                raise ValueError(f"it claims {end - header.begin:,} bytes of records, more than a segment may have")
            sequence, method, block_size, blocks, crc = COMPRESSED.unpack_from(head, COMPRESSED_EXTRA)
            if sequence > LARGEST_OFFSET:
                raise ValueError(f"the next sequence, {sequence}, is larger than a sequence may be")
            size = blocks * COMPRESSED_BLOCK.size
            if not 0 < block_size <= BLOCK_SIZE or blocks != -((header.begin - end) // block_size):
                raise ValueError("the compressed segment has the wrong number of blocks for its records")
            table = _read_table(files, descriptor, size)
            if len(table) != size or crc != table_crc(head[COMPRESSED_EXTRA:-4], table):
                raise ValueError("checksum mismatch in the table of the compressed segment")
            codec(method)  # a process without the library gets this error, instead of a report of damage
            return cls(files, path, header, end, (sequence, method, block_size, blocks), table, descriptor, limits)
        except BaseException:
            files.close(descriptor)
            raise

    @property
    def limit(self) -> Offset:
        """The offset that no record extends beyond."""
        return self.end

    @property
    def space_end(self) -> Offset:
        """The same as `end`: nothing can be appended."""
        return self.end

    @property
    def has_valid_end(self) -> bool:
        """Always True: the end was checked when the file was opened."""
        return True

    @property
    def is_valid(self) -> bool:
        """Always True: the file never changes."""
        return True

    @property
    def is_removed(self) -> bool:
        """Whether the file was deleted, so that it takes disk space only because it is still in use."""
        return not self._files.links(self._descriptor)

    # Blocks

    def _number(self, offset: int) -> int:
        return (offset - self.begin) // self._block_size

    def _first(self, number: int) -> int:
        return self.begin + number * self._block_size

    def _size(self, number: int) -> int:
        return min(self._block_size, self.end - self._first(number))

    def load(self, number: int) -> bytes:
        """Return the decompressed bytes of a block; raise `ValueError` or `OSError` if they cannot be read."""
        position, length, crc = COMPRESSED_BLOCK.unpack_from(self._table, number * COMPRESSED_BLOCK.size)
        size = self._size(number)
        if not 0 < length <= size or position + length > self._files.size(self._descriptor):
            raise ValueError(f"block {number} is truncated")
        stored = self._files.read_at(self._descriptor, length, position)
        if len(stored) != length or crc32c(stored) != crc:
            raise ValueError(f"block {number} does not match its checksum")
        return stored if length == size else self._codec.decompress(stored, size)

    def _block(self, number: int) -> bytes:
        key = self._serial, number
        block = _recent.get(key)
        if block is None:
            try:
                block = self.load(number)
            except (ValueError, OSError):
                return bytes(self._size(number))
            _recent[key] = block
            with suppress(KeyError):  # another thread has removed it
                while len(_recent) > _MOST_RECENT:
                    _recent.popitem(last=False)
        return block

    @property
    def _stored_size(self) -> int:
        """The size of the file, according to its table."""
        last: tuple[int, int, int] = COMPRESSED_BLOCK.unpack_from(
            self._table, (self.blocks - 1) * COMPRESSED_BLOCK.size
        )
        return last[0] + last[1]

    @property
    def is_whole(self) -> bool:
        """Whether the file is as long as its table says. A truncated copy is not."""
        return self._files.size(self._descriptor) == self._stored_size

    def stored(self) -> Iterator[bytes]:
        """Return the bytes of the file, in chunks, as far as its table says; `ValueError` if they cannot be right.

        A hole after them is never read, and no block is longer than its records.
        """
        size = self._stored_size
        if size > COMPRESSED_TABLE + len(self._table) + self.end - self.begin:
            raise ValueError("the blocks of the compressed segment are longer than its records")
        if size > self._files.size(self._descriptor):
            raise ValueError("the compressed segment is truncated")
        for position in range(0, size, _CHUNK):
            yield self._files.read_at(self._descriptor, min(_CHUNK, size - position), position)

    def check(self) -> None:
        """Read all blocks; raise `ValueError` or `OSError` if one cannot be read."""
        for number in range(self.blocks):
            self.load(number)

    # Reading, with the same methods as a plain segment

    def window(self, offset: int) -> Window:
        """Return the window of a reader at an offset: the rest of its block, and the other blocks of its record."""
        last = self._last_number(offset)
        end = self._first(last) + self._size(last)
        content = bytearray(SEGMENT_HEADER_SIZE + end - offset)
        self._copy(content, SEGMENT_HEADER_SIZE, offset, end)
        return Window(content, Offset(offset), Offset(end))

    def span(self, start: int, stop: int) -> tuple[bytearray, int]:
        """Return a buffer with the bytes between two offsets, and the position of the first of them in it."""
        content = bytearray(max(0, min(stop, self.end) - start))
        self._copy(content, 0, start, start + len(content))
        return content, 0

    def read(self, offset: int, stop: int) -> tuple[int, bytes]:
        """Return (word, payload) of the record at an offset; raise `ValueError` if there is no valid record."""
        end = self._record_end(offset)
        content, position = self.span(offset, min(end, stop))
        return read_record(content, position, len(content), offset)

    def whole(self, _stop: int) -> tuple[Offset, int]:
        """Return where the last complete batch ends, and the number of messages: those of the whole segment."""
        return self.end, self.next_sequence - self.header.first_sequence

    def explain(self, offset: int, reason: str) -> str:
        """Return a better reason for damage at an offset, if one is known."""
        try:
            for number in range(self._number(offset), self._last_number(offset) + 1):
                self.load(number)
        except (ValueError, OSError) as error:
            return str(error)
        return reason

    def _last_number(self, offset: int) -> int:
        """Return the number of the block in which the record at an offset ends, if there is a record."""
        return self._number(max(self._record_end(offset), offset + 1) - 1)

    def _record_end(self, offset: int) -> int:
        """Return where the record at an offset claims to end; the offset itself if that is not in this segment."""
        if offset + RECORD_HEADER_SIZE > self.end:
            return offset
        header, _ = self.span(offset, offset + RECORD_HEADER_SIZE)
        word, crc = RECORD_HEADER.unpack(header)
        end = offset + RECORD_HEADER_SIZE + (word & LENGTH_MASK)
        if end > self.end or word & LENGTH_MASK > self._limits.payload:
            return offset
        # A large record is checked before memory is allocated for it: a few bytes may decompress to a block of any
        # content.
        is_small = end - offset <= _MOST_RECENT * self._block_size
        return end if is_small or self._crc(word, offset, end) == crc else offset

    def _crc(self, word: int, offset: int, end: int) -> int:
        """Return the checksum that the record at an offset must have, with one block in memory at a time."""
        crc, at = 0, offset + RECORD_HEADER_SIZE
        while at < end:
            number = self._number(at)
            skipped = at - self._first(number)
            block = memoryview(self._block(number))[skipped : skipped + end - at]
            crc, at = crc32c(block, crc), at + len(block)
        return crc32c(RECORD_CHECKED.pack(word, offset), crc) or _NEVER_ZERO

    def _copy(self, target: bytearray, position: int, start: int, stop: int) -> None:
        while start < stop:
            number = self._number(start)
            skipped = start - self._first(number)
            block = memoryview(self._block(number))[skipped : skipped + stop - start]
            target[position : position + len(block)] = block
            position, start = position + len(block), start + len(block)

    def flush(self) -> None:
        """Wait until the file is on disk: in a copy of the directory it may not be."""
        self._files.flush(self._descriptor)

    def close(self) -> None:
        """Close the file now, even if this object is still referenced. May be called more than once."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            self._files.close(descriptor)

    def __del__(self) -> None:
        """Close the file with the last reference."""
        self.close()


StoredSegment: TypeAlias = Segment | CompressedSegment
"""A segment in either encoding."""


@final
class OpenCompressed:
    """The open compressed segments, a bounded number; a reader of another one keeps it open by its own reference."""

    def __init__(self, files: Files, most: int, limits: SegmentLimits) -> None:
        self._files = files
        self._most = most
        self._limits = limits
        self._open: OrderedDict[Path, CompressedSegment] = OrderedDict()

    def get(self, path: Path) -> CompressedSegment:
        """Return an open compressed segment; raise `ValueError` if the file is not one."""
        segment = self._open.get(path)
        if segment is None:
            segment = self._open[path] = CompressedSegment.open(self._files, path, self._limits)
            if len(self._open) > self._most:
                self._open.popitem(last=False)
        self._open.move_to_end(path)
        return segment

    def forget(self, path: Path) -> None:
        """Open the file again the next time."""
        self._open.pop(path, None)

    def close(self) -> None:
        """Close every file, even one that is being read."""
        while self._open:
            _, segment = self._open.popitem()
            segment.close()

    def keep(self, begins: set[Offset]) -> None:
        """Drop all segments except those that begin at one of these offsets."""
        for path in [path for path, segment in self._open.items() if segment.begin not in begins]:
            del self._open[path]
