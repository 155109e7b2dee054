"""The ordered segments of a channel: which there are, and a bounded number of them mapped."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import RLock
from typing import TypeVar

from .._errors import CorruptRecordError, UnsupportedFormatError
from .._format.layout import COMPRESSED_MAGIC
from .._offset import Offset
from .background import do_all_at_once
from .compressed import OpenCompressed, StoredSegment, compressed_begin_of, compressed_path
from .files import Files
from .index import index_path
from .segment import Header, Segment, begin_of, read_header, segment_name

SEGMENTS = "segments"
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Usage:
    """How many segments there are of each form, and the disk space they take."""

    plain: int
    plain_bytes: int
    compressed: int
    compressed_bytes: int


class Segments:
    """Finds segments by offset. Looks at the directory again only when another process has changed it."""

    def __init__(
        self,
        files: Files,
        directory: Path,
        *,
        writable: bool,
        most_mapped: int,
        epoch: Callable[[], int] = lambda: 0,
    ) -> None:
        """*epoch* returns a number that changes after another process made or removed segments."""
        self._files = files
        self.directory = directory
        self._writable = writable
        self._most_mapped = most_mapped
        self._epoch = epoch
        self._known_epoch = 0
        self._lock = RLock()
        self._begins: list[Offset] = []
        self._mapped: OrderedDict[Offset, Segment] = OrderedDict()
        self._compressed = OpenCompressed(files, most_mapped)
        self._headers: dict[Offset, Header] = {}
        """Of segments that somebody had a look at on the way to another."""
        self.scan()

    def scan(self) -> None:
        """Learn the names from the directory; other files in it are left alone."""
        with self._lock:
            self._known_epoch = self._epoch()  # before the look: a change that comes later is seen the next time
            names = self._files.list(self.directory)
            found = {begin_of(name) for name in names} | {compressed_begin_of(name) for name in names}
            self._begins = sorted(begin for begin in found if begin is not None)
            self._headers.clear()
            for begin in [begin for begin, segment in self._mapped.items() if not segment.is_valid]:
                del self._mapped[begin]  # another file has its name, or none
            self._compressed.keep({compressed_path(self.path(begin)) for begin in self._begins})

    def knows_all(self) -> None:
        """Whatever changed was our own doing: no need to look at the directory."""
        self._known_epoch = self._epoch()

    def _known(self) -> list[Offset]:
        if self._epoch() != self._known_epoch:
            self.scan()
        return self._begins

    @property
    def begins(self) -> list[Offset]:
        """Where each segment begins, in order."""
        with self._lock:
            return list(self._known())

    @property
    def mapped(self) -> int:
        """How many segments are mapped through this object."""
        return len(self._mapped)

    def usage(self) -> Usage:
        """Return how many there are, and the disk space they take. One that is in both forms counts as compressed."""
        paths = [self.path(begin) for begin in self.begins]
        plain = [self._files.disk_space(path) for path in paths]
        compressed = [self._files.disk_space(compressed_path(path)) for path in paths]
        count = sum(space > 0 for space in compressed)
        return Usage(len(paths) - count, sum(plain), count, sum(compressed))

    def bytes_on_disk(self) -> int:
        """Return the disk space the segments take."""
        usage = self.usage()
        return usage.plain_bytes + usage.compressed_bytes

    def path(self, begin: int) -> Path:
        """Return the path of the plain segment that begins at an offset."""
        return self.directory / segment_name(begin)

    def covering(self, offset: int) -> Offset | None:
        """Return the begin of the last segment at or before an offset."""
        with self._lock:
            begins = self._known()
            place = bisect_right(begins, offset)
            return begins[place - 1] if place else None

    def following(self, begin: int) -> Offset | None:
        """Return the begin of the segment after the one that begins here."""
        with self._lock:
            begins = self._known()
            place = bisect_right(begins, begin)
            return begins[place] if place < len(begins) else None

    def get(self, begin: Offset) -> StoredSegment:
        """Return a segment, mapped or compressed; `CorruptRecordError` if no file is one any more."""
        with self._lock:
            if begin not in self._mapped:
                return self._open(begin, self._open_compressed, self._open_plain)
            self._mapped.move_to_end(begin)
            return self._mapped[begin]

    def header(self, begin: Offset) -> Header:
        """Return what a segment is, without mapping it; `CorruptRecordError` if the file is not one any more."""
        with self._lock:
            segment = self._mapped.get(begin)
            if segment is not None:
                return segment.header
            header = self._headers.get(begin)
            if header is None:
                compressed = partial(read_header, self._files, magic=COMPRESSED_MAGIC)
                header = self._headers[begin] = self._open(begin, compressed, partial(read_header, self._files))
            return header

    def _open_compressed(self, path: Path) -> StoredSegment:
        return self._compressed.get(path)

    def _open_plain(self, path: Path) -> StoredSegment:
        segment = Segment.open(self._files, path, writable=self._writable)
        self._keep(segment)
        return segment

    def _open(self, begin: Offset, compressed: Callable[[Path], R], plain: Callable[[Path], R]) -> R:
        """Read a segment in either form: the compressed one is whole if it is there, or else the plain one is.

        A third look, because it may have been compressed between the first and the second.
        """
        path = self.path(begin)
        problem: tuple[str, Exception] = path.name, FileNotFoundError("the file is missing")
        for read, at in ((compressed, compressed_path(path)), (plain, path), (compressed, compressed_path(path))):
            try:
                return read(at)
            except FileNotFoundError:
                pass
            except (ValueError, UnsupportedFormatError) as error:
                problem = at.name, error
        name, cause = problem
        if isinstance(cause, UnsupportedFormatError):
            raise cause
        raise CorruptRecordError(name, begin, str(cause)) from cause

    def forget(self, begin: Offset) -> None:
        """Open the segment anew the next time: another file has taken its name."""
        with self._lock:
            self._mapped.pop(begin, None)
            self._headers.pop(begin, None)
            self._compressed.forget(compressed_path(self.path(begin)))

    def add(self, segment: Segment) -> None:
        """Take in a segment that was just made, in place of what may have had its name."""
        with self._lock:
            self._mapped.pop(segment.begin, None)
            self._headers.pop(segment.begin, None)
            place = bisect_left(self._begins, segment.begin)
            if self._begins[place : place + 1] != [segment.begin]:
                insort(self._begins, segment.begin)
            self._keep(segment)

    def remove(self, begin: Offset) -> None:
        """Remove a segment, in either form, and its index from the directory. Maps that readers hold stay valid."""
        with self._lock:
            self.forget(begin)
            if begin in self._begins:  # another process may have done it
                self._begins.remove(begin)
        self._files.unlink(self.path(begin))
        self._files.unlink(compressed_path(self.path(begin)))
        self._files.unlink(index_path(self.path(begin)))

    def replace_plain(self, begin: Offset) -> None:
        """Remove the plain form of a segment that is there, on disk, in compressed form: read that from now on."""
        self.forget(begin)
        self._files.unlink(self.path(begin))

    def remove_before(self, oldest: Offset) -> None:
        """Remove every segment that begins before an offset, at which another one ends or begins."""
        do_all_at_once([partial(self.remove, begin) for begin in self.begins if begin < oldest])

    def _keep(self, segment: Segment) -> None:
        self._mapped[segment.begin] = segment
        # The newest is where the writer is: it stays. Whoever reads from another holds its map by itself.
        while len(self._mapped) > self._most_mapped:
            newest = self._begins[-1] if self._begins else None
            oldest = next(begin for begin in self._mapped if begin not in (segment.begin, newest))
            del self._mapped[oldest]

    def close(self) -> None:
        """Let go of every map; each goes when its last reader does."""
        with self._lock:
            self._mapped.clear()
            self._compressed.keep(set())
