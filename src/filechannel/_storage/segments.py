"""The ordered segments of a channel: which there are, and a bounded number of them mapped."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import RLock
from typing import TypeVar

from .._errors import CorruptRecordError
from .._offset import Offset
from .background import do_all_at_once
from .files import Files
from .index import index_path
from .segment import Header, Segment, begin_of, read_header, segment_name

SEGMENTS = "segments"
R = TypeVar("R")


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
        self._headers: dict[Offset, Header] = {}
        """Of segments that somebody had a look at on the way to another."""
        self.scan()

    def scan(self) -> None:
        """Learn the names from the directory; other files in it are left alone."""
        with self._lock:
            self._known_epoch = self._epoch()  # before the look: a change that comes later is seen the next time
            names = map(begin_of, self._files.list(self.directory))
            self._begins = sorted(begin for begin in names if begin is not None)
            self._headers.clear()
            for begin in [begin for begin, segment in self._mapped.items() if not segment.is_valid]:
                del self._mapped[begin]  # another file has its name, or none

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

    def bytes_on_disk(self) -> int:
        """Return the disk space the segments take."""
        return sum(self._files.disk_space(self.path(begin)) for begin in self.begins)

    def path(self, begin: int) -> Path:
        """Return the path of the segment that begins at an offset."""
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

    def get(self, begin: Offset) -> Segment:
        """Return a segment, mapped; `CorruptRecordError` if the file is not one any more."""
        with self._lock:
            segment = self._mapped.get(begin)
            if segment is None:
                segment = self._open(begin, partial(Segment.open, self._files, writable=self._writable))
                self._keep(segment)
            self._mapped.move_to_end(begin)
            return segment

    def header(self, begin: Offset) -> Header:
        """Return what a segment is, without mapping it; `CorruptRecordError` if the file is not one any more."""
        with self._lock:
            segment = self._mapped.get(begin)
            if segment is not None:
                return segment.header
            header = self._headers.get(begin)
            if header is None:
                header = self._headers[begin] = self._open(begin, partial(read_header, self._files))
            return header

    def end_of(self, begin: Offset, log_end: Offset) -> Offset:
        """Return where the records of a segment end, without mapping it; the newest one ends where the log does."""
        following = self.following(begin)
        if following is None:
            return log_end
        try:
            return self.header(following).previous_end
        except CorruptRecordError:
            return following

    def _open(self, begin: Offset, read: Callable[[Path], R]) -> R:
        path = self.path(begin)
        try:
            return read(path)
        except FileNotFoundError as error:
            raise CorruptRecordError(path.name, begin, "the file is missing") from error
        except ValueError as error:
            raise CorruptRecordError(path.name, begin, str(error)) from error

    def forget(self, begin: Offset) -> None:
        """Open the segment anew the next time: another file has taken its name."""
        with self._lock:
            self._mapped.pop(begin, None)
            self._headers.pop(begin, None)

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
        """Remove a segment and its index from the directory. Maps that readers hold stay valid."""
        with self._lock:
            self._mapped.pop(begin, None)
            self._headers.pop(begin, None)
            if begin in self._begins:  # another process may have done it
                self._begins.remove(begin)
        self._files.unlink(index_path(self.path(begin)))  # first: without its segment nobody would look for it
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
