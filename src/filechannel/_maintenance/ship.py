"""Shipping: copying finished segments to an archive, where they are read without the channel.

A segment is shipped compressed. That file contains the segment's end, the sequence of the next message and a checksum
for each block, so it can be checked by itself. A process that dies in between leaves at most a file with a temporary
name.
"""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import final

from .._errors import Busy, CorruptRecordError
from .._offset import LogPosition, Offset
from .._policies import Compression
from .._storage.archive.archive import archived, archived_path, open_archived
from .._storage.archive.remote_files import TEMPORARY, RemoteFiles
from .._storage.consumers.attempts import Attempts
from .._storage.manifest import MANIFEST, Manifest
from .._storage.segments.compressed_segment import CompressedSegment, compressed_path
from .._storage.segments.segment_index import index_path, pack_entries, read_entries
from .._storage.segments.segment_names import SEGMENTS
from .._storage.system.os_calls import Files
from .._storage.writable_store import WritableStore
from .background.compress_segment import Candidate, SegmentCompressor
from .background.plan_reclaim import reclaim

_logger = logging.getLogger("filechannel")


@final
@dataclass(frozen=True, slots=True)
class Shipped:
    """The result of `ship`."""

    segments: int
    """How many segments were copied."""
    bytes: int
    """The total size of their files."""
    present: int
    """How many were in the archive already, and are complete."""
    end: Offset
    """Where the archive ends now: later messages are in the channel only."""
    gaps: int
    """How often messages are missing between two segments: they were removed before they were shipped."""


def ship_segments(
    store: WritableStore,
    archive: RemoteFiles,
    path: Path,
    *,
    consumer: str | None = None,
    verify: bool = False,
    report_progress: Callable[[int, int], object] = lambda _done, _all: None,
) -> Shipped:
    """Copy the finished segments to an archive that does not have them yet; the channel is open for writing.

    With the name of a *consumer*, nothing is removed from the channel before it is shipped. *verify* reads everything
    in the archive, and copies damaged segments again; `CorruptRecordError` if the channel does not have one any more.
    *report_progress* is called with the number of segments that are done, and the total.
    """
    shipper = _Shipper(store, archive, path)
    shipper.prepare()
    shipping_consumer = None if consumer is None else _ShippingConsumer(store, consumer, shipper)
    try:
        store.flusher.flush_the_rest()
        return shipper.run(verify, _nothing if shipping_consumer is None else shipping_consumer.passed, report_progress)
    finally:
        if shipping_consumer is not None:
            shipping_consumer.close()


@final
class _ShippingConsumer:
    """The consumer that keeps segments from being reclaimed before they are shipped."""

    def __init__(self, store: WritableStore, name: str, shipper: _Shipper) -> None:
        self._store = store
        self._cursor = store.cursors.open(name)
        attempts = Attempts(store.control, name)
        try:
            while self._cursor.position is None or not store.low_watermark.retain_from(self._cursor.position.offset):
                attempts.count()
                self._store_position(shipper.first())
        except BaseException:
            store.cursors.close(self._cursor)
            raise

    def _store_position(self, log_position: LogPosition) -> None:
        self._cursor.store(log_position.offset, log_position.sequence, time.time_ns())

    def passed(self, candidate: Candidate) -> None:
        """Move the consumer past a shipped segment, which need not be kept any more."""
        position = self._cursor.position
        if position is None or position.offset < candidate.end:
            self._store_position(LogPosition(candidate.end, candidate.next_sequence))

    def close(self) -> None:
        """Close the consumer, and reclaim: possibly no other process opens the channel."""
        self._store.cursors.close(self._cursor)
        with suppress(Busy):
            self._store.maintenance_lock.run_locked(lambda: reclaim(self._store))


def _nothing(_: Candidate) -> None:
    pass


@final
class _Shipper:
    """Copies the segments of one channel to one archive."""

    def __init__(self, store: WritableStore, archive: RemoteFiles, path: Path) -> None:
        self._store = store
        self._archive = archive
        self._path = path
        chosen = store.manifest.options.compression
        self._compressor = SegmentCompressor(store, Compression() if chosen.method == "none" else chosen)

    def prepare(self) -> None:
        """Write the manifest to the archive; `ValueError` if it is the archive of another channel."""
        own = self._store.manifest
        try:
            other = Manifest.read(self._archive, self._path)
        except FileNotFoundError:
            other = None
        if other is not None and other.id != own.id:
            raise ValueError(
                f"archive={self._archive.describe(self._path)!r}: this is the archive of another channel "
                f"({other.id}, while {self._store.path} is {own.id}); choose another archive"
            )
        if other != own:
            with tempfile.TemporaryDirectory(prefix="filechannel-") as directory:
                text = Manifest.read_text(self._store.files, self._store.path)
                Manifest.parse(text, self._store.path)  # it may have been replaced by an invalid file
                (Path(directory) / MANIFEST).write_bytes(text)
                self._archive.put(Path(directory) / MANIFEST, self._path / MANIFEST)

    def first(self) -> LogPosition:
        """Return from which log position on messages must be kept: the end of the archive, or the oldest message."""
        begins = archived(self._archive, self._path)
        earliest = self._store.lookup.earliest()
        if begins and self._is_there(begins[-1], verify=False):
            last = open_archived(self._archive, self._path, begins[-1])
            if last.end >= earliest.offset:
                return LogPosition(last.end, last.next_sequence)
        return earliest

    def run(
        self, verify: bool, passed: Callable[[Candidate], None], report_progress: Callable[[int, int], object]
    ) -> Shipped:
        """Copy every segment that can be copied, the oldest first."""
        there = archived(self._archive, self._path)
        segments = size = present = gaps = 0
        candidates = list(self._candidates())
        for number, candidate in enumerate(candidates):
            report_progress(number, len(candidates))
            if self._is_there(candidate.begin, verify=verify):
                present += 1
            elif copied := self._ship(candidate):
                segments, size = segments + 1, size + copied
                gaps += self._follows_a_gap(candidate.begin, there)
                there = sorted({*there, candidate.begin})
            else:
                continue
            passed(candidate)
        if verify:
            self._verify_others(there)
        self._sweep(there)
        end = open_archived(self._archive, self._path, there[-1]).end if there else Offset(0)
        return Shipped(segments, size, present, end, gaps)

    def _candidates(self) -> Iterator[Candidate]:
        """Return what can be shipped, in order: finished segments on disk; of a sealed channel, all segments."""
        store, checkpoint = self._store, self._store.control.checkpoints.newest()
        flushed = 0 if checkpoint is None else checkpoint.offset
        for begin in store.segments.begins:
            if begin < store.control.oldest_offset:
                continue
            following = store.segments.following(begin)
            if following is None:
                tail = store.control.tail()
                if store.control.sealed and begin < tail.offset:
                    yield Candidate(begin, tail.offset, tail.sequence, 0, tail.offset)
            elif following <= flushed:
                try:
                    header = store.segments.header(following)
                except CorruptRecordError:
                    if begin < store.control.oldest_offset:  # both were removed at this moment
                        continue
                    raise
                yield Candidate(begin, header.previous_end, header.first_sequence, header.created, following)

    def _is_there(self, begin: Offset, *, verify: bool) -> bool:
        """Return whether the archive has a segment with the right size and table; *verify* reads all of it."""
        try:
            segment = open_archived(self._archive, self._path, begin, self._store.segments.limits)
            if verify:
                segment.check()
        except (CorruptRecordError, FileNotFoundError, ValueError):
            return False
        return segment.is_whole

    def _verify_others(self, there: list[Offset]) -> None:
        """Check the archived segments that the channel does not have any more."""
        for begin in set(there) - set(self._store.segments.begins):
            if not self._is_there(begin, verify=True):
                name = archived_path(self._path, begin).name
                raise CorruptRecordError(name, begin, f"damaged in {self._archive.describe(self._path)}")

    def _ship(self, candidate: Candidate) -> int:
        """Copy a segment and its index; return the size, or 0 if the segment was reclaimed first."""
        plain = self._store.segments.path(candidate.begin)
        target = archived_path(self._path, candidate.begin)
        with tempfile.TemporaryDirectory(prefix="filechannel-") as directory:
            local = Path(directory) / target.name
            if not self._copy(candidate, local):
                return 0
            segment = CompressedSegment.open(Files(), local, self._store.segments.limits)
            if (segment.end, segment.next_sequence) != (candidate.end, candidate.next_sequence):
                reason = "it does not end where the next one begins"
                raise CorruptRecordError(plain.name, candidate.begin, reason, path=self._store.path)
            # The index first: a reader that finds the segment also finds its index.
            if self._copy_index(candidate, index_path(local)):
                self._archive.put(index_path(local), index_path(target))
            self._archive.put(local, target)
            return local.stat().st_size

    def _copy(self, candidate: Candidate, local: Path) -> bool:
        """Copy a compressed segment to a local file; False if the segment was reclaimed."""
        plain = self._store.segments.path(candidate.begin)
        finished = self._store.segments.following(candidate.begin) is not None
        for _ in range(2):  # it may be compressed at this moment
            with suppress(FileNotFoundError):
                self._copy_compressed(candidate.begin, local)
                return True
            with local.open("wb") as file:
                if self._compressor.copy(candidate, file.fileno(), finished=finished):
                    return True
        if candidate.begin < self._store.control.oldest_offset:
            return False
        reason = "it cannot be read, and was not shipped"
        raise CorruptRecordError(plain.name, candidate.begin, reason, path=self._store.path)

    def _copy_compressed(self, begin: Offset, local: Path) -> None:
        """Copy a compressed segment. Raise `CorruptRecordError`, with nothing copied, if it is damaged."""
        path = compressed_path(self._store.segments.path(begin))
        try:
            source = CompressedSegment.open(self._store.files, path, self._store.segments.limits)
            with local.open("wb") as file:
                file.writelines(source.stored())
        except ValueError as error:
            raise CorruptRecordError(path.name, begin, str(error), path=self._store.path) from error

    def _copy_index(self, candidate: Candidate, local: Path) -> bool:
        """Write the valid entries of an index, without the hole after them; False if there are none."""
        stored = read_entries(self._store.files, self._store.segments.path(candidate.begin))
        entries = [entry for entry in stored if candidate.begin <= entry.offset < candidate.end]
        local.write_bytes(pack_entries(entries))
        return bool(entries)

    def _follows_a_gap(self, begin: Offset, there: list[Offset]) -> bool:
        """Return whether messages are missing in the archive before a segment that was just copied."""
        before = [other for other in there if other < begin]
        if not before:
            return False
        end = open_archived(self._archive, self._path, before[-1]).end
        previous = open_archived(self._archive, self._path, begin).header.previous_end
        if previous > end:
            _logger.warning(
                "%s: offsets %d to %d were deleted before they were shipped; with a consumer name they are kept",
                self._store.path,
                end,
                previous,
            )
        return previous > end

    def _sweep(self, there: list[Offset]) -> None:
        """Remove temporary files that other processes left, if the final file exists."""
        paths = [archived_path(self._path, begin) for begin in there]
        known = {path.name for path in paths} | {index_path(path).name for path in paths}
        for name in self._archive.list(self._path / SEGMENTS):
            if name.startswith(TEMPORARY) and name.removeprefix(TEMPORARY).rpartition("-")[0] in known:
                with suppress(OSError):
                    self._archive.unlink(self._path / SEGMENTS / name)
