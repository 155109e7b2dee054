"""Copying finished segments to an archive, where they are read without the channel.

A segment travels in its compressed form, which has its end, the number of the message behind it and a checksum for each
block: what is there can be judged by itself. Whoever dies on the way leaves a file under another name at most.
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
from .._offset import Offset
from .._policies import Compression
from .._storage.archive import archived, archived_path, open_archived
from .._storage.compressed import CompressedSegment, compressed_path
from .._storage.files import Files
from .._storage.index import Mark, index_path
from .._storage.manifest import MANIFEST, Manifest
from .._storage.remote import TEMPORARY, RemoteFiles
from .._storage.segments import SEGMENTS
from .._storage.store import Store
from .compression import Candidate, SegmentCompressor
from .retention import reclaim

_CHUNK = 4 << 20  # bytes that are copied at a time
_logger = logging.getLogger("filechannel")


@final
@dataclass(frozen=True, slots=True)
class Shipped:
    """What `ship` did."""

    segments: int
    """How many were copied."""
    bytes: int
    """How large their files are."""
    present: int
    """How many were there already, and are whole."""
    end: Offset
    """Where the archive ends now: what was sent later is in the channel only."""
    gaps: int
    """How many times messages are missing between two segments: they were removed before they were shipped."""


def ship_segments(
    store: Store,
    archive: RemoteFiles,
    path: Path,
    *,
    consumer: str | None = None,
    verify: bool = False,
    tell: Callable[[int, int], object] = lambda _done, _all: None,
) -> Shipped:
    """Copy what is finished to an archive that has not got it; the channel is open for writing.

    Under the name of a *consumer*, nothing is removed from the channel before it was shipped. *verify* reads
    everything that is there, and copies what is damaged again; `CorruptRecordError` if the channel has not got it.
    *tell* is called with how many segments are done, of how many.
    """
    shipper = _Shipper(store, archive, path)
    shipper.prepare()
    holder = None if consumer is None else _Holder(store, consumer, shipper)
    try:
        store.flusher.flush_the_rest()
        return shipper.run(verify, _nothing if holder is None else holder.passed, tell)
    finally:
        if holder is not None:
            holder.close()


@final
class _Holder:
    """The consumer that keeps what was not shipped yet."""

    def __init__(self, store: Store, name: str, shipper: _Shipper) -> None:
        self._store = store
        self._cursor = store.cursors.open(name)
        try:
            while self._cursor.position is None or not store.registry.settle(self._cursor.position.offset):
                self._stand(shipper.first())
        except BaseException:
            store.cursors.close(self._cursor)
            raise

    def _stand(self, place: Mark) -> None:
        self._cursor.store(place.offset, place.sequence, time.time_ns())

    def passed(self, candidate: Candidate) -> None:
        """What was shipped need not be kept."""
        position = self._cursor.position
        if position is None or position.offset < candidate.end:
            self._stand(Mark(candidate.end, candidate.next_sequence, 0))

    def close(self) -> None:
        """Let others do what is to be done, or do it: perhaps nobody else ever has the channel open."""
        self._store.cursors.close(self._cursor)
        with suppress(Busy):
            self._store.upkeep.in_turn(lambda: reclaim(self._store))


def _nothing(_: Candidate) -> None:
    pass


@final
class _Shipper:
    """Copies the segments of one channel to one archive."""

    def __init__(self, store: Store, archive: RemoteFiles, path: Path) -> None:
        self._store = store
        self._archive = archive
        self._path = path
        chosen = store.manifest.options.compression
        self._compressor = SegmentCompressor(store, Compression() if chosen.method == "none" else chosen)

    def prepare(self) -> None:
        """Let the archive say what it is an archive of; `ValueError` if that is another channel."""
        own = self._store.manifest
        try:
            other = Manifest.read(self._archive, self._path)
        except FileNotFoundError:
            other = None
        if other is not None and other.id != own.id:
            raise ValueError(
                f"archive={self._archive.describe(self._path)!r}: there is the archive of another channel "
                f"({other.id}, and {self._store.path} is {own.id}); choose another place"
            )
        if other != own:
            with tempfile.TemporaryDirectory(prefix="filechannel-") as directory:
                self._copy_file(self._store.path / MANIFEST, Path(directory) / MANIFEST)
                self._archive.put(Path(directory) / MANIFEST, self._path / MANIFEST)

    def first(self) -> Mark:
        """Return the oldest place that has to be kept: behind what was shipped, or all there is."""
        begins = archived(self._archive, self._path)
        earliest = self._store.places.earliest()
        if begins and self._is_there(begins[-1], verify=False):
            last = open_archived(self._archive, self._path, begins[-1])
            if last.end >= earliest.offset:
                return Mark(last.end, last.next_sequence, 0)
        return earliest

    def run(self, verify: bool, passed: Callable[[Candidate], None], tell: Callable[[int, int], object]) -> Shipped:
        """Copy all that can be, oldest first."""
        there = archived(self._archive, self._path)
        segments = size = present = gaps = 0
        candidates = list(self._candidates())
        for number, candidate in enumerate(candidates):
            tell(number, len(candidates))
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
        """Return what can be shipped, in order: what is finished and on disk, and of a channel that is sealed all."""
        store, checkpoint = self._store, self._store.control.checkpoint()
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
                    if begin < store.control.oldest_offset:  # both were removed in this moment
                        continue
                    raise
                yield Candidate(begin, header.previous_end, header.first_sequence, header.created, following)

    def _is_there(self, begin: Offset, *, verify: bool) -> bool:
        """Tell whether the archive has a segment, whole as far as its size and table tell; *verify* reads all of it."""
        try:
            segment = open_archived(self._archive, self._path, begin, self._store.segments.limits)
            if verify:
                segment.check()
        except (CorruptRecordError, FileNotFoundError, ValueError):
            return False
        return segment.is_whole

    def _verify_others(self, there: list[Offset]) -> None:
        """Look at what the channel has not got any more."""
        for begin in set(there) - set(self._store.segments.begins):
            if not self._is_there(begin, verify=True):
                name = archived_path(self._path, begin).name
                raise CorruptRecordError(name, begin, f"damaged in {self._archive.describe(self._path)}")

    def _ship(self, candidate: Candidate) -> int:
        """Copy a segment and its index; return the size, or 0 if the channel has removed it meanwhile."""
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
            # First: whoever finds the segment finds its index. It may be removed in this moment.
            with suppress(FileNotFoundError):
                self._copy_file(index_path(plain), index_path(local))
                self._archive.put(index_path(local), index_path(target))
            self._archive.put(local, target)
            return local.stat().st_size

    def _copy(self, candidate: Candidate, local: Path) -> bool:
        """Have a segment in a file of our own; False if it is gone."""
        plain = self._store.segments.path(candidate.begin)
        finished = self._store.segments.following(candidate.begin) is not None
        for _ in range(2):  # it may be compressed in this moment
            with suppress(FileNotFoundError):
                self._copy_file(compressed_path(plain), local)
                return True
            with local.open("wb") as file:
                if self._compressor.copy(candidate, file.fileno(), finished=finished):
                    return True
        if candidate.begin < self._store.control.oldest_offset:
            return False
        reason = "it cannot be read, and was not shipped"
        raise CorruptRecordError(plain.name, candidate.begin, reason, path=self._store.path)

    def _copy_file(self, path: Path, local: Path) -> None:
        """Copy a file of the channel, and not what a link in its place leads to."""
        source, position = self._store.files.open(path, writable=False), 0
        try:
            with local.open("wb") as file:
                while chunk := self._store.files.read_at(source, _CHUNK, position):
                    file.write(chunk)
                    position += len(chunk)
        finally:
            self._store.files.close(source)

    def _follows_a_gap(self, begin: Offset, there: list[Offset]) -> bool:
        """Tell whether something is missing in the archive before a segment that was just copied."""
        before = [other for other in there if other < begin]
        if not before:
            return False
        end = open_archived(self._archive, self._path, before[-1]).end
        previous = open_archived(self._archive, self._path, begin).header.previous_end
        if previous > end:
            _logger.warning(
                "%s: offsets %d to %d were removed before they were shipped; a consumer's name keeps them until then",
                self._store.path,
                end,
                previous,
            )
        return previous > end

    def _sweep(self, there: list[Offset]) -> None:
        """Remove what others have left on the way to a file that is there."""
        paths = [archived_path(self._path, begin) for begin in there]
        known = {path.name for path in paths} | {index_path(path).name for path in paths}
        for name in self._archive.list(self._path / SEGMENTS):
            if name.startswith(TEMPORARY) and name.removeprefix(TEMPORARY).rpartition("-")[0] in known:
                with suppress(OSError):
                    self._archive.unlink(self._path / SEGMENTS / name)
