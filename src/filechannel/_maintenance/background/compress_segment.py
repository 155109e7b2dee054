"""Compressing finished segments: each is written under a temporary name, flushed, and renamed.

The plain file is retired after that. So a process that dies at any step leaves the plain file, the compressed one, or
both. Readers try the compressed one first, which is complete if it exists. A reader that has the plain file mapped
continues to read it.

Nothing here keeps retention from removing a segment at the same time. Retention stores the oldest offset before it
removes anything, and the compressing process reads that after it renamed the file: one of the two removes it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, final

from ..._errors import Busy, CorruptRecordError, UnexpectedFileError
from ..._format import crc32c
from ..._format.layout import (
    BLOCK_SIZE,
    COMPRESSED,
    COMPRESSED_BLOCK,
    COMPRESSED_MAGIC,
    COMPRESSED_TABLE,
    SEGMENT_HEADER_SIZE,
)
from ..._offset import Offset
from ..._policies import Compression
from ..._storage.control.lock_file import lock_mode
from ..._storage.open_stores import STORES
from ..._storage.segments.compressed_segment import compressed_begin_of, compressed_path, table_crc
from ..._storage.segments.compression_codecs import NUMBERS, codec
from ..._storage.segments.plain_or_compressed import keep_one_encoding
from ..._storage.segments.segment import HALF_MADE, Header, check_name, valid_end
from ..._storage.segments.segment_index import index_path
from ..._storage.system.os_calls import Files
from ..._storage.writable_store import WritableStore

Throttle: TypeAlias = Callable[[], object]
"""Called after every block; may wait, and may raise to stop."""
_LOCK_WAIT_SECONDS = 10.0  # seconds to wait for another process that does maintenance
_CREATE_ATTEMPTS = 10  # to create a file that a sweep in another thread removes before it is locked
_SAMPLED_BLOCKS = 4  # blocks; enough to see that compression saves nothing
_WORTHWHILE_RATIO = 7 / 8  # of the size; a segment that saves less is not compressed


@final
@dataclass(frozen=True, slots=True)
class Candidate:
    """A finished segment that is on disk."""

    begin: Offset
    end: Offset
    next_sequence: int
    finished: int
    """When it was finished (ns since the epoch)."""
    following: Offset
    """Where the next segment begins."""


@final
@dataclass(frozen=True, slots=True)
class Prepared:
    """A compressed segment on disk, under a temporary name.

    The descriptor holds the lock that keeps other processes from writing the file.
    """

    candidate: Candidate
    path: Path
    descriptor: int
    header: Header
    size: int


@final
@dataclass(frozen=True, slots=True)
class CompressionReport:
    """The result of `compress`."""

    segments: int
    """How many segments were compressed."""
    bytes_before: int
    bytes_after: int


class SegmentCompressor:
    """Compresses the segments of one channel, one at a time."""

    def __init__(self, store: WritableStore, policy: Compression, *, block_size: int = BLOCK_SIZE) -> None:
        self._store = store
        self._files = store.files
        self._control = store.control
        self._segments = store.segments
        self._number = NUMBERS[policy.method]
        self._compress = codec(self._number).compressor(policy.level)
        self._block_size = block_size

    def candidates(self, first: Offset) -> Iterator[Candidate]:
        """Return the segments that can be compressed from an offset on, in order."""
        checkpoint = self._control.checkpoints.newest()
        flushed = 0 if checkpoint is None else checkpoint.offset
        for begin in self._segments.begins:
            following = self._segments.following(begin)
            if begin < max(first, self._control.oldest_offset) or not self._files.exists(self._segments.path(begin)):
                continue
            if following is None or following > flushed:
                return
            with suppress(CorruptRecordError):  # the next segment says where this one ends; it may be removed by now
                header = self._segments.header(following)
                yield Candidate(begin, header.previous_end, header.first_sequence, header.created, following)

    # Preparing

    def prepare(self, candidate: Candidate, throttle: Throttle = lambda: None) -> Prepared | None:
        """Write a compressed segment to disk under a temporary name; None if it saves too little, is damaged or gone.

        Raises `Busy` if another process compresses the segment. On an error, such as a full disk, nothing is left
        behind.
        """
        self._store.check_directory()
        # A process that compressed it before may have died.
        keep_one_encoding(self._files, self._segments, candidate.begin)
        plain = self._segments.path(candidate.begin)
        try:
            source = self._files.open(plain, writable=False)
        except FileNotFoundError:
            return None
        try:
            header = self._header(source, candidate)
            if header is None or not self._is_worth_it(source, candidate, throttle):
                return None
            self._flush_index(plain)
            return self._using_all(lambda: self._make(source, candidate, header, throttle))
        finally:
            self._files.close(source)

    def _using_all(self, make: Callable[[], Prepared | None]) -> Prepared | None:
        """Make a file on a full disk, too: compression frees space, so it may use the disk reserve.

        The free list is used first: the plain file of the previous segment may be in it, and occupy what its
        compression saved.
        """
        return self._control.reserve.using(lambda: self._store.reserve.using_free_files(make))

    def _header(self, source: int, candidate: Candidate, *, finished: bool = True) -> Header | None:
        """Return the header of a plain segment, if it matches the candidate; a *finished* segment has an end."""
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

    def _is_worth_it(self, source: int, candidate: Candidate, throttle: Throttle) -> bool:
        """Return whether compression saves enough, after a few sample blocks if there are many."""
        blocks = self._blocks(candidate)
        before = after = 0
        for position, size in blocks[:: -(-len(blocks) // _SAMPLED_BLOCKS)] if len(blocks) > _SAMPLED_BLOCKS else []:
            after += min(size, len(self._compress(self._files.read_at(source, size, position))))
            before += size
            throttle()
        return after <= before * _WORTHWHILE_RATIO

    def _flush_index(self, plain: Path) -> None:
        """Flush the index.

        Without it a seek by time has to read the whole segment. No process writes to it after this.
        """
        self._store.log.store_index_entries()
        try:
            descriptor = self._files.open(index_path(plain), writable=False)
        except OSError:
            return  # there is none, or it is not a regular file
        try:
            self._files.flush(descriptor)
        finally:
            self._files.close(descriptor)

    def _make(self, source: int, candidate: Candidate, header: Header, throttle: Throttle) -> Prepared | None:
        path, descriptor = self._begin(candidate)
        try:
            size = self._write(source, descriptor, candidate, header, throttle)
            if size <= (candidate.end - candidate.begin) * _WORTHWHILE_RATIO:
                self._files.flush(descriptor)
                return Prepared(candidate, path, descriptor, header, size)
        except BaseException:
            self._discard_draft(path, descriptor)
            raise
        self._discard_draft(path, descriptor)
        return None

    def _begin(self, candidate: Candidate) -> tuple[Path, int]:
        """Create an empty file and lock it, so that no other process writes to it. `Busy` if another one has it."""
        target = compressed_path(self._segments.path(candidate.begin))
        path = target.with_name(HALF_MADE + target.name)
        # Only users with write access may open it until it gets its name: a reader could keep it locked.
        mode = lock_mode(self._store.manifest.options.mode)
        for _ in range(_CREATE_ATTEMPTS):
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

    def _discard_draft(self, path: Path, descriptor: int) -> None:
        self._files.unlink(path)  # before the lock is released: until then no other process uses the name
        self._files.close(descriptor)

    def _write(self, source: int, target: int, candidate: Candidate, header: Header, throttle: Throttle) -> int:
        """Write the blocks, and the header and block table in front of them; return the size of the file."""
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
            throttle()
        extra = COMPRESSED.pack(candidate.next_sequence, self._number, self._block_size, len(blocks), 0)[:-4]
        head = header.pack(COMPRESSED_MAGIC, candidate.end) + extra + table_crc(extra, table).to_bytes(4, "little")
        self._files.write_at(target, head + table, 0)
        return position

    # For archives

    def copy(self, candidate: Candidate, target: int, *, finished: bool = True) -> bool:
        """Write the compressed segment to an open file, even if it saves nothing; False if the plain file is gone.

        The last segment of a sealed channel has no end in its header, and is not *finished*.
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
        """Give the compressed file its name, and retire the plain file; False if the segment was reclaimed."""
        begin = prepared.candidate.begin
        try:
            self._store.check_directory()
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
        if not self._control.reserve.is_complete:  # the compressed file may have used it
            self._control.reserve.allocate()
        return True

    def _is_unchanged(self, prepared: Prepared) -> bool:
        """Return whether the plain file is still the same segment.

        A process that recycles a file changes its header first. So if the header is unchanged, what was read before is
        valid.
        """
        try:
            source = self._files.open(self._segments.path(prepared.candidate.begin), writable=False)
        except FileNotFoundError:
            return False
        try:
            return self._header(source, prepared.candidate) == prepared.header
        finally:
            self._files.close(source)

    def discard(self, prepared: Prepared) -> None:
        """Remove a prepared file; the segment is not compressed."""
        self._discard_draft(prepared.path, prepared.descriptor)


def sweep(store: WritableStore) -> None:
    """Remove the files of processes that died while compressing: they are not locked. A step of maintenance."""
    for name in store.files.list(store.segments.directory):
        if name.startswith(HALF_MADE) and compressed_begin_of(name.removeprefix(HALF_MADE)) is not None:
            _remove_if_abandoned(store.files, store.segments.directory / name)


def _lock(files: Files, descriptor: int) -> bool:
    """Lock an incomplete file, unless another process is writing it, which holds it exclusively.

    A user with read permission only could lock a file that was about to get its name when its writer died. That blocks
    nothing.
    """
    return files.lock(descriptor, 0) or files.locked_range(descriptor, 0, 1, shared=False) is None


def _remove_if_abandoned(files: Files, path: Path) -> None:
    try:
        descriptor = files.open(path)
    except FileNotFoundError:
        return
    except UnexpectedFileError:
        with suppress(OSError):  # it may be a directory
            files.unlink(path)  # the name belongs to this module; the target of a link is not removed
        return
    try:
        if _lock(files, descriptor) and files.leads_to(path, descriptor):
            # Before the lock is released: a process that opened it before finds that the path leads elsewhere.
            files.unlink(path)
    finally:
        files.close(descriptor)


def compress(
    path: str | os.PathLike[str],
    policy: Compression | None = None,
    *,
    block_size: int = BLOCK_SIZE,
    report_progress: Callable[[int, int], object] = lambda _done, _all: None,
) -> CompressionReport:
    """Compress every finished segment of a channel now, even a new one, and even if other processes have it open.

    *policy* defaults to that of the channel, or to zstd if the channel has none. Segments that another process is
    compressing are skipped. *report_progress* is called with the number of segments that are done, and the total.
    Raises `Busy` if another process does maintenance and does not finish in time.
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
            report_progress(done, len(candidates))
            try:
                prepared = compressor.prepare(candidate)
            except Busy:
                continue
            if prepared is not None and _finish_locked(store, compressor, prepared):
                count, before, after = count + 1, before + candidate.end - candidate.begin, after + prepared.size
        return CompressionReport(count, before, after)
    finally:
        STORES.close(store)


def _finish_locked(store: WritableStore, compressor: SegmentCompressor, prepared: Prepared) -> bool:
    """Finish a segment like a step of maintenance: with the maintenance lock, in one process at a time."""
    until = time.monotonic() + _LOCK_WAIT_SECONDS
    try:
        with store.maintenance_lock.held(lambda: time.monotonic() < until):
            return compressor.finish(prepared)
    except Busy:
        compressor.discard(prepared)
        raise
