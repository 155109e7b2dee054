"""One compressed segment: the same records in blocks, of which a reader has one at a time.

The file never changes once it has its name, and it is on disk before it gets it. So its header is believed as a
checkpoint is: the log was whole up to its end. A block that cannot be read counts as zeros, which are never a record;
what lies in the other blocks is found as it is behind any damage.
"""

from __future__ import annotations

from collections import OrderedDict
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import TypeAlias, final

from .._format import crc32c, read_record
from .._format.layout import (
    BLOCK_SIZE,
    COMPRESSED,
    COMPRESSED_BLOCK,
    COMPRESSED_EXTRA,
    COMPRESSED_MAGIC,
    COMPRESSED_TABLE,
    LENGTH_MASK,
    RECORD_CHECKED,
    RECORD_HEADER,
    RECORD_HEADER_SIZE,
    SEGMENT_HEADER_SIZE,
)
from .._offset import Offset
from .codecs import Codec, codec
from .files import Files
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
_TABLE_PIECE = COMPRESSED_BLOCK.size << 12
_NEVER_ZERO = 0xFFFFFFFF  # what the checksum of a record is instead of 0


def compressed_path(segment: Path) -> Path:
    """Return the path of a segment when it is compressed."""
    return segment.with_name(segment.name + COMPRESSED_SUFFIX)


def compressed_begin_of(name: str) -> Offset | None:
    """Return the offset in a compressed segment's file name; None if it is some other file."""
    return begin_of(name.removesuffix(COMPRESSED_SUFFIX)) if name.endswith(COMPRESSED_SUFFIX) else None


def stored_begins(files: Files, directory: Path) -> list[Offset]:
    """Return where each segment in a directory begins, in whichever form, in order.

    The kernel hands out a large directory in pieces. A segment that is compressed meanwhile may get its new name in a
    piece that was read already, and lose the old one in a piece that was not. Nobody compresses it twice, so one of two
    looks sees it.
    """
    names = {*files.list(directory), *files.list(directory)}
    found = {begin_of(name.removesuffix(COMPRESSED_SUFFIX)) for name in names}
    return sorted(begin for begin in found if begin is not None)


def table_crc(extra: bytes, table: bytes) -> int:
    """Return the checksum of the fields behind the header, which are given without it, and the table."""
    return crc32c(table, crc32c(extra))


def _read_table(files: Files, descriptor: int, size: int) -> bytes:
    """Return the table, or what there is of it; `ValueError` unless the blocks lie one behind the other.

    None of them is stored for several, and none is empty. It is read and checked in pieces: a file that is a hole may
    claim a table of gigabytes, and fails at the first piece.
    """
    table, first = bytearray(), COMPRESSED_TABLE + size
    while len(table) < size:
        piece = files.read_at(descriptor, min(size - len(table), _TABLE_PIECE), COMPRESSED_TABLE + len(table))
        if not piece or len(piece) % COMPRESSED_BLOCK.size:
            break  # cut off
        for position, length, _ in COMPRESSED_BLOCK.iter_unpack(piece):
            if position != first or not length:
                raise ValueError("the blocks of the compressed segment do not lie one behind the other")
            first += length
        table += piece
    return bytes(table)


_recent: OrderedDict[tuple[int, int], bytes] = OrderedDict()
"""The blocks that were read last by anybody in this process: one reader steps back, another is close behind."""
_serials = count()


@final
class CompressedSegment:
    """An open compressed segment, read as a plain one is."""

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
        """*extra* has what follows the header, but for its checksum."""
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
        """Open a compressed segment; `ValueError` says why it is not one."""
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
            size = blocks * COMPRESSED_BLOCK.size
            if not 0 < block_size <= BLOCK_SIZE or blocks != -((header.begin - end) // block_size):
                raise ValueError("the blocks of the compressed segment are not as many as its records need")
            table = _read_table(files, descriptor, size)
            if len(table) != size or crc != table_crc(head[COMPRESSED_EXTRA:-4], table):
                raise ValueError("checksum mismatch in the table of the compressed segment")
            codec(method)  # whoever cannot read it should not think that it is damaged
            return cls(files, path, header, end, (sequence, method, block_size, blocks), table, descriptor, limits)
        except BaseException:
            files.close(descriptor)
            raise

    @property
    def limit(self) -> Offset:
        """The offset that no record reaches beyond."""
        return self.end

    @property
    def room_end(self) -> Offset:
        """The same: there is no room for more."""
        return self.end

    @property
    def has_valid_end(self) -> bool:
        """Whether the end can be believed: it was checked when the file was opened."""
        return True

    @property
    def is_valid(self) -> bool:
        """Whether the file still is what it was opened as: nobody ever changes it."""
        return True

    @property
    def is_removed(self) -> bool:
        """Whether the file has no name any more, and takes its disk space only because somebody uses it."""
        return not self._files.links(self._descriptor)

    # Blocks

    def _number(self, offset: int) -> int:
        return (offset - self.begin) // self._block_size

    def _first(self, number: int) -> int:
        return self.begin + number * self._block_size

    def _size(self, number: int) -> int:
        return min(self._block_size, self.end - self._first(number))

    def load(self, number: int) -> bytes:
        """Return the raw bytes of a block; `ValueError` or `OSError` says why they cannot be had."""
        position, length, crc = COMPRESSED_BLOCK.unpack_from(self._table, number * COMPRESSED_BLOCK.size)
        size = self._size(number)
        if not 0 < length <= size or position + length > self._files.size(self._descriptor):
            raise ValueError(f"block {number} is cut off")
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
            with suppress(KeyError):  # another thread has done it
                while len(_recent) > _MOST_RECENT:
                    _recent.popitem(last=False)
        return block

    @property
    def is_whole(self) -> bool:
        """Whether the file is as long as its table says, which tells a copy that was cut off."""
        last: tuple[int, int, int] = COMPRESSED_BLOCK.unpack_from(
            self._table, (self.blocks - 1) * COMPRESSED_BLOCK.size
        )
        return self._files.size(self._descriptor) == last[0] + last[1]

    def check(self) -> None:
        """Read all of it; `ValueError` or `OSError` says what is wrong."""
        for number in range(self.blocks):
            self.load(number)

    # Reading, as in a plain segment

    def window(self, offset: int) -> Window:
        """Return what a reader at an offset reads from: the rest of its block, and as many as its record needs."""
        last = self._last_number(offset)
        end = self._first(last) + self._size(last)
        content = bytearray(SEGMENT_HEADER_SIZE + end - offset)
        self._copy(content, SEGMENT_HEADER_SIZE, offset, end)
        return Window(content, Offset(offset), Offset(end))

    def span(self, start: int, stop: int) -> tuple[bytearray, int]:
        """Return something that has the bytes between two offsets, and the position in it of the first."""
        content = bytearray(max(0, min(stop, self.end) - start))
        self._copy(content, 0, start, start + len(content))
        return content, 0

    def read(self, offset: int, stop: int) -> tuple[int, bytes]:
        """Return (word, payload) of the record at an offset; `ValueError` says why there is none."""
        end = self._record_end(offset)
        content, position = self.span(offset, min(end, stop))
        return read_record(content, position, len(content), offset)

    def whole(self, _stop: int) -> tuple[Offset, int]:
        """Return where the last whole batch ends, and how many messages there are: all."""
        return self.end, self.next_sequence - self.header.first_sequence

    def explain(self, offset: int, reason: str) -> str:
        """Say more about damage at an offset, if more is known."""
        try:
            for number in range(self._number(offset), self._last_number(offset) + 1):
                self.load(number)
        except (ValueError, OSError) as error:
            return str(error)
        return reason

    def _last_number(self, offset: int) -> int:
        """Return the block in which the record at an offset ends, if it is one."""
        return self._number(max(self._record_end(offset), offset + 1) - 1)

    def _record_end(self, offset: int) -> int:
        """Return where the record at an offset claims to end; the offset itself if that is nowhere in here."""
        if offset + RECORD_HEADER_SIZE > self.end:
            return offset
        header, _ = self.span(offset, offset + RECORD_HEADER_SIZE)
        word, crc = RECORD_HEADER.unpack(header)
        end = offset + RECORD_HEADER_SIZE + (word & LENGTH_MASK)
        if end > self.end or word & LENGTH_MASK > self._limits.payload:
            return offset
        # Before so much memory is asked for: a few bytes may decompress to a block of any content.
        is_small = end - offset <= _MOST_RECENT * self._block_size
        return end if is_small or self._crc(word, offset, end) == crc else offset

    def _crc(self, word: int, offset: int, end: int) -> int:
        """Return the checksum that the record at an offset has to have, one block in memory at a time."""
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
        """Wait until it is on disk: a copy of the directory may not be."""
        self._files.flush(self._descriptor)

    def close(self) -> None:
        """Close the file now, even if this object is still referred to. Closing twice is closing once."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            self._files.close(descriptor)

    def __del__(self) -> None:
        """Let go of the file with the last one who uses it."""
        self.close()


StoredSegment: TypeAlias = Segment | CompressedSegment
"""A segment in either form."""


@final
class OpenCompressed:
    """The compressed segments that are open, a bounded number; whoever reads from another holds it by itself."""

    def __init__(self, files: Files, most: int, limits: SegmentLimits) -> None:
        self._files = files
        self._most = most
        self._limits = limits
        self._open: OrderedDict[Path, CompressedSegment] = OrderedDict()

    def get(self, path: Path) -> CompressedSegment:
        """Return a compressed segment, opened; `ValueError` says why it is not one."""
        segment = self._open.get(path)
        if segment is None:
            segment = self._open[path] = CompressedSegment.open(self._files, path, self._limits)
            if len(self._open) > self._most:
                self._open.popitem(last=False)
        self._open.move_to_end(path)
        return segment

    def forget(self, path: Path) -> None:
        """Open it anew the next time."""
        self._open.pop(path, None)

    def close(self) -> None:
        """Close every file, even one that is being read."""
        while self._open:
            _, segment = self._open.popitem()
            segment.close()

    def keep(self, begins: set[Offset]) -> None:
        """Let go of all but those that begin here."""
        for path in [path for path, segment in self._open.items() if segment.begin not in begins]:
            del self._open[path]
