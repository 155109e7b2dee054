"""Compressing finished segments: each is made under another name and is on disk before it gets its own.

Only then the plain form goes. So whoever dies at any step leaves the plain form, the compressed one, or both; and
readers try the compressed one first, which is whole if it is there. Whoever has the plain file mapped reads on.

Nothing here keeps retention from removing a segment at the same time. It stores what is the oldest before it removes
anything, and who compresses looks at that after the file got its name: one of the two removes it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, final

from .._errors import Busy, CorruptRecordError, UnexpectedFileError
from .._format import crc32c
from .._format.layout import (
    BLOCK_SIZE,
    COMPRESSED,
    COMPRESSED_BLOCK,
    COMPRESSED_MAGIC,
    COMPRESSED_TABLE,
    SEGMENT_HEADER_SIZE,
)
from .._offset import Offset
from .._policies import Compression
from .._storage.codecs import NUMBERS, codec
from .._storage.compressed import compressed_begin_of, compressed_path, table_crc
from .._storage.files import Files
from .._storage.forms import keep_one_form
from .._storage.index import index_path
from .._storage.lock_file import lock_mode
from .._storage.segment import HALF_MADE, Header, check_name, valid_end
from .._storage.store import Store
from .._storage.stores import STORES

GiveWay: TypeAlias = Callable[[], object]
"""Called after every block; may wait, and may raise to end it."""
_PATIENCE = 10.0  # seconds to wait for another process that maintains the channel
_TRIES = 10  # to create a file that a sweep in another thread removes before it is locked
_SAMPLES = 4  # blocks; enough to see that there is nothing to be had
_WORTH = 7 / 8  # of the size; what saves less stays as it is


@final
@dataclass(frozen=True, slots=True)
class Candidate:
    """A finished segment that is on disk."""

    begin: Offset
    end: Offset
    next_sequence: int
    finished: int
    """When (ns since the epoch)."""
    following: Offset
    """Where the next one begins."""


@final
@dataclass(frozen=True, slots=True)
class Prepared:
    """A compressed segment that is on disk, under another name. The descriptor has the lock that keeps others off."""

    candidate: Candidate
    path: Path
    descriptor: int
    header: Header
    size: int


@final
@dataclass(frozen=True, slots=True)
class CompressionReport:
    """What `compress` did."""

    segments: int
    """How many were compressed."""
    bytes_before: int
    bytes_after: int


class SegmentCompressor:
    """Compresses the segments of one channel, one at a time."""

    def __init__(self, store: Store, policy: Compression, *, block_size: int = BLOCK_SIZE) -> None:
        self._store = store
        self._files = store.files
        self._control = store.control
        self._segments = store.segments
        self._number = NUMBERS[policy.method]
        self._compress = codec(self._number).compressor(policy.level)
        self._block_size = block_size

    def candidates(self, first: Offset) -> Iterator[Candidate]:
        """Return what can be compressed from an offset on, in order."""
        checkpoint = self._control.checkpoint()
        flushed = 0 if checkpoint is None else checkpoint.offset
        for begin in self._segments.begins:
            following = self._segments.following(begin)
            if begin < max(first, self._control.oldest_offset) or not self._files.exists(self._segments.path(begin)):
                continue
            if following is None or following > flushed:
                return
            with suppress(CorruptRecordError):  # the next one says where this one ends; it may be gone by now
                header = self._segments.header(following)
                yield Candidate(begin, header.previous_end, header.first_sequence, header.created, following)

    # Preparing

    def prepare(self, candidate: Candidate, give_way: GiveWay = lambda: None) -> Prepared | None:
        """Bring a compressed segment to disk under another name; None if it is not worth it, damaged or gone.

        `Busy` if another process is at it. On an error, such as a full disk, nothing is left behind.
        """
        self._store.check_place()
        keep_one_form(self._files, self._segments, candidate.begin)  # whoever was at it before may have died
        plain = self._segments.path(candidate.begin)
        try:
            source = self._files.open(plain, writable=False)
        except FileNotFoundError:
            return None
        try:
            header = self._header(source, candidate)
            if header is None or not self._is_worth_it(source, candidate, give_way):
                return None
            self._flush_index(plain)
            return self._spending_all(lambda: self._make(source, candidate, header, give_way))
        finally:
            self._files.close(source)

    def _spending_all(self, make: Callable[[], Prepared | None]) -> Prepared | None:
        """Make a file on a full disk, too: compressing is what frees space, so it may use what is reserved.

        Spare files first: the plain file of the segment before may be one, and hold what compressing that has saved.
        """
        return self._control.spending_reserve(lambda: self._store.spending_spares(make))

    def _header(self, source: int, candidate: Candidate, *, finished: bool = True) -> Header | None:
        """Return the header of a plain segment, if it is what everybody says it is; a *finished* one has an end."""
        content = self._files.read_at(source, SEGMENT_HEADER_SIZE, 0)
        try:
            header = Header.unpack(content)
            check_name(self._segments.path(candidate.begin), header)
        except ValueError:
            return None
        is_all_there = self._files.size(source) >= SEGMENT_HEADER_SIZE + candidate.end - candidate.begin
        ends_there = not finished or valid_end(header, content) == candidate.end
        return header if ends_there and is_all_there else None

    def _blocks(self, candidate: Candidate) -> list[tuple[int, int]]:
        """Return position and size of each block in the plain file."""
        stop = SEGMENT_HEADER_SIZE + candidate.end - candidate.begin
        starts = range(SEGMENT_HEADER_SIZE, stop, self._block_size)
        return [(start, min(self._block_size, stop - start)) for start in starts]

    def _is_worth_it(self, source: int, candidate: Candidate, give_way: GiveWay) -> bool:
        """Try a few blocks before all of them, if there are many."""
        blocks = self._blocks(candidate)
        before = after = 0
        for position, size in blocks[:: -(-len(blocks) // _SAMPLES)] if len(blocks) > _SAMPLES else []:
            after += min(size, len(self._compress(self._files.read_at(source, size, position))))
            before += size
            give_way()
        return after <= before * _WORTH

    def _flush_index(self, plain: Path) -> None:
        """Without it a seek by time has to read it all; after this nobody writes to it any more."""
        self._store.places.before_look()
        try:
            descriptor = self._files.open(index_path(plain), writable=False)
        except OSError:
            return  # there is none, or it is none
        try:
            self._files.flush(descriptor)
        finally:
            self._files.close(descriptor)

    def _make(self, source: int, candidate: Candidate, header: Header, give_way: GiveWay) -> Prepared | None:
        path, descriptor = self._begin(candidate)
        try:
            size = self._write(source, descriptor, candidate, header, give_way)
            if size <= (candidate.end - candidate.begin) * _WORTH:
                self._files.flush(descriptor)
                return Prepared(candidate, path, descriptor, header, size)
        except BaseException:
            self._give_up(path, descriptor)
            raise
        self._give_up(path, descriptor)
        return None

    def _begin(self, candidate: Candidate) -> tuple[Path, int]:
        """Create an empty file and lock it, so that no other process writes to it. `Busy` if another one has it."""
        target = compressed_path(self._segments.path(candidate.begin))
        path = target.with_name(HALF_MADE + target.name)
        # Only users with write access may open it until it gets its name: a reader could keep it locked.
        mode = lock_mode(self._store.manifest.options.mode)
        for _ in range(_TRIES):
            try:
                descriptor = self._files.create(path, mode, replace=False)
            except FileExistsError:
                _remove_if_abandoned(self._files, path)
                continue
            if _lock(self._files, descriptor) and self._files.leads_to(path, descriptor):
                return path, descriptor
            # A `sweep` in another thread or process found the file before it was locked, and took it for abandoned.
            self._files.close(descriptor)
        raise Busy

    def _give_up(self, path: Path, descriptor: int) -> None:
        self._files.unlink(path)  # before the lock goes: the name is nobody else's until then
        self._files.close(descriptor)

    def _write(self, source: int, target: int, candidate: Candidate, header: Header, give_way: GiveWay) -> int:
        """Write blocks, and in front of them what they are; return the size of the file."""
        blocks, table = self._blocks(candidate), b""
        position = COMPRESSED_TABLE + len(blocks) * COMPRESSED_BLOCK.size
        for start, size in blocks:
            raw = self._files.read_at(source, size, start)
            block = self._compress(raw)
            if len(block) >= len(raw):
                block = raw
            self._files.write_at(target, block, position)
            table += COMPRESSED_BLOCK.pack(position, len(block), crc32c(block))
            position += len(block)
            give_way()
        extra = COMPRESSED.pack(candidate.next_sequence, self._number, self._block_size, len(blocks), 0)[:-4]
        head = header.pack(COMPRESSED_MAGIC, candidate.end) + extra + table_crc(extra, table).to_bytes(4, "little")
        self._files.write_at(target, head + table, 0)
        return position

    # Elsewhere

    def copy(self, candidate: Candidate, target: int, *, finished: bool = True) -> bool:
        """Write the compressed form to an open file, whether it saves anything or not; False if the plain one is gone.

        The last one of a channel that is sealed has no end in its header, and is not *finished*.
        """
        plain = self._segments.path(candidate.begin)
        try:
            source = self._files.open(plain, writable=False)
        except FileNotFoundError:
            return False
        try:
            header = self._header(source, candidate, finished=finished)
            if header is None:
                return False
            self._write(source, target, candidate, header, lambda: None)
            return self._header(source, candidate, finished=finished) == header
        finally:
            self._files.close(source)

    # Finishing

    def finish(self, prepared: Prepared) -> bool:
        """Give it its name, and let the plain form go; False if it came too late."""
        begin = prepared.candidate.begin
        try:
            self._store.check_place()
            if begin < self._control.oldest_offset or not self._is_unchanged(prepared):
                self._files.unlink(prepared.path)
                return False
            self._files.set_mode(prepared.descriptor, self._store.manifest.options.mode)
            self._files.replace(prepared.path, compressed_path(self._segments.path(begin)))
            self._files.flush_directory(self._segments.directory)
        except BaseException:
            self._files.unlink(prepared.path)
            raise
        finally:
            self._files.close(prepared.descriptor)
        if begin < self._control.oldest_offset:
            self._segments.remove(begin)
            return False
        self._segments.replace_plain(begin)
        if not self._control.has_reserve:  # which the compressed file may have used
            self._control.keep_reserve()
        return True

    def _is_unchanged(self, prepared: Prepared) -> bool:
        """Whoever uses a file for something else changes its header first: what was read before is what it was."""
        try:
            source = self._files.open(self._segments.path(prepared.candidate.begin), writable=False)
        except FileNotFoundError:
            return False
        try:
            return self._header(source, prepared.candidate) == prepared.header
        finally:
            self._files.close(source)

    def discard(self, prepared: Prepared) -> None:
        """Leave it as it is after all."""
        self._give_up(prepared.path, prepared.descriptor)


def sweep(store: Store) -> None:
    """Remove what somebody left who died while it compressed: nobody has the lock on it. A step of maintenance."""
    for name in store.files.list(store.segments.directory):
        if name.startswith(HALF_MADE) and compressed_begin_of(name.removeprefix(HALF_MADE)) is not None:
            _remove_if_abandoned(store.files, store.segments.directory / name)


def _lock(files: Files, descriptor: int) -> bool:
    """Lock a file that is being made, unless another process makes it: it holds the file exclusively.

    A user who may only read could lock one that was to get its name when its maker died; that holds nothing up.
    """
    return files.lock(descriptor, 0) or files.locked_range(descriptor, 0, 1, shared=False) is None


def _remove_if_abandoned(files: Files, path: Path) -> None:
    try:
        descriptor = files.open(path)
    except FileNotFoundError:
        return
    except UnexpectedFileError:
        with suppress(OSError):  # it may be a directory
            files.unlink(path)  # the name is ours; what a link leads to stays
        return
    try:
        if _lock(files, descriptor) and files.leads_to(path, descriptor):
            files.unlink(path)  # before the lock goes: who opened it meanwhile finds that it leads elsewhere
    finally:
        files.close(descriptor)


def compress(
    path: str | os.PathLike[str],
    policy: Compression | None = None,
    *,
    block_size: int = BLOCK_SIZE,
    tell: Callable[[int, int], object] = lambda _done, _all: None,
) -> CompressionReport:
    """Compress every finished segment of a channel now, whoever has it open, however old they are.

    *policy* is that of the channel unless it is given, and zstd if the channel has none. What another process is
    compressing in this moment is left to it. *tell* is called with how many segments are done, of how many. `Busy` if
    somebody else maintains the channel and does not come to an end.
    """
    store = STORES.open(Path(path), check=lambda _: None, new=None, readonly=False, max_mapped_segments=2)
    try:
        chosen = policy or store.manifest.options.compression
        store.flusher.flush_the_rest()
        compressor = SegmentCompressor(
            store, Compression() if chosen.method == "none" else chosen, block_size=block_size
        )
        count = before = after = 0
        candidates = list(compressor.candidates(Offset(0)))
        for done, candidate in enumerate(candidates):
            tell(done, len(candidates))
            try:
                prepared = compressor.prepare(candidate)
            except Busy:
                continue
            if prepared is not None and _finish_in_turn(store, compressor, prepared):
                count, before, after = count + 1, before + candidate.end - candidate.begin, after + prepared.size
        return CompressionReport(count, before, after)
    finally:
        STORES.close(store)


def _finish_in_turn(store: Store, compressor: SegmentCompressor, prepared: Prepared) -> bool:
    """Finish a segment as a step of maintenance does: one at a time, of all processes."""
    until = time.monotonic() + _PATIENCE
    try:
        with store.upkeep.turn(lambda: time.monotonic() < until):
            return compressor.finish(prepared)
    except Busy:
        compressor.discard(prepared)
        raise
