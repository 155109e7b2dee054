"""The ordered segments of a channel: which there are, and a bounded number of them mapped."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from .._errors import CorruptRecordError, UnexpectedFileError, UnsupportedFormatError
from .._format import Mutex
from .._format.layout import COMPRESSED_MAGIC, RECORD_HEADER_SIZE, SEGMENT_HEADER_SIZE
from .._offset import Offset
from .background import do_all_at_once
from .compressed import OpenCompressed, StoredSegment, compressed_path, stored_begins
from .control import CONTROL, Control, replaced
from .files import Files
from .index import index_path
from .maps import MappedFile, Maps, OpenFile
from .segment import ANY_SIZE, Header, Segment, SegmentLimits, read_header, segment_name
from .spares import Spare, Spares, spare_names

SEGMENTS = "segments"
_CONTROL_ABOVE, _SEGMENTS_ABOVE = f"../{CONTROL}".encode(), f"../{SEGMENTS}".encode()
_CLOSE = 3  # segments to the one that is written to
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Usage:
    """How many segments there are of each form, and the disk space they take."""

    plain: int
    plain_bytes: int
    compressed: int
    compressed_bytes: int
    spare: int
    spare_bytes: int

    @property
    def bytes(self) -> int:
        """All of the disk space."""
        return self.plain_bytes + self.compressed_bytes + self.spare_bytes


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
        limits: SegmentLimits = ANY_SIZE,
    ) -> None:
        """*epoch* returns a number that changes after another process made or removed segments."""
        self._files = files
        self.directory = directory
        self._writable = writable
        self.limits: SegmentLimits = limits
        self._epoch = epoch
        self._known_epoch: int | None = None
        self._lock = Mutex()
        self._begins: list[Offset] = []
        self._mapped: dict[Offset, Segment] = {}
        self._maps = Maps(most_mapped, self._is_newest, self._let_go)
        self.on_dropped: Callable[[Segment], object] = lambda _: None
        """Called when a segment is not to be mapped any more, because others are used: readers have to let go of it."""
        self.on_let_go: Callable[[MappedFile], object] = lambda _: None
        """Called when a file, a segment's or a spare, is not to be mapped any more."""
        self.spares: Spares | None = None
        """Where the files of consumed segments go; None: they are removed."""
        self.names: OpenFile | None = None
        """The directory, where it is kept open so that names can be flushed when descriptors have run out."""
        self._closed = False
        self._compressed = OpenCompressed(files, most_mapped, limits)
        self._headers: dict[Offset, Header] = {}
        """Of segments that somebody had a look at on the way to another."""
        self.scan()

    def scan(self) -> None:
        """Learn the names from the directory; other files in it are left alone."""
        with self._lock.held():
            epoch = self._epoch()  # before the look: a change that comes later is seen the next time
            self._known_epoch = None  # whatever interrupts this: then the next one looks again
            self._begins = stored_begins(self._files, self.directory)
            self._headers.clear()
            known = set(self._begins)
            gone = [each for each in self._mapped.values() if each.begin not in known or not each.is_valid]
            for segment in gone:  # another file has its name, or none
                self._mapped.pop(segment.begin, None)
            self.drop_removed()
            self._compressed.keep(known)
            self._known_epoch = epoch

    def open_directory(self) -> OpenFile:
        """Return the directory: as it is kept open, or opened for as long as it is used."""
        return self.names or OpenFile(self._files, self._files.open_directory(self.directory))

    def check_place(self, control: Control) -> None:
        """Raise `StorageError` if the control file or the directory itself is not in the channel's directory any more.

        Where the channel was moved to does not matter: its directory is the one above.
        """
        directory = self.open_directory()
        control.check_name(directory, _CONTROL_ABOVE)
        if not directory.holds(_SEGMENTS_ABOVE, directory.descriptor, directory.inode):
            raise replaced(SEGMENTS)

    def flush_names(self) -> None:
        """Wait until all that came and went in the directory is on disk."""
        if self.names is not None:
            self.names.flush_names()
        else:
            self._files.flush_directory(self.directory)

    def announce_change(self, announce: Callable[[], object]) -> None:
        """Count up the epoch for a change of our own, which the list has already. The caller holds the writer lock.

        The list stays current only if it was: segments of another process may be missing in it, if that process made
        them since the last scan, or the scan was interrupted by an exception that a signal handler raised.
        """
        with self._lock.held():
            is_current = self._epoch() == self._known_epoch
            announce()
            if is_current:
                self._known_epoch = self._epoch()

    def _known(self) -> list[Offset]:
        if self._epoch() != self._known_epoch:
            self.scan()
        return self._begins

    @property
    def begins(self) -> list[Offset]:
        """Where each segment begins, in order."""
        with self._lock.held():
            return list(self._known())

    @property
    def mapped(self) -> int:
        """How many files are mapped through this object: segments, and spares that were segments or are to be."""
        return len(self._maps)

    def usage(self) -> Usage:
        """Return how many there are, and the disk space they take. One that is in both forms counts as compressed."""
        paths = [self.path(begin) for begin in self.begins]
        plain = [self._files.disk_space(path) for path in paths]
        compressed = [self._files.disk_space(compressed_path(path)) for path in paths]
        count = sum(space > 0 for space in compressed)
        spare = [self._files.disk_space(self.directory / name) for name in spare_names(self._files, self.directory)]
        return Usage(len(paths) - count, sum(plain), count, sum(compressed), len(spare), sum(spare))

    def bytes_on_disk(self) -> int:
        """Return the disk space the segments take, and the spare files."""
        return self.usage().bytes

    def path(self, begin: int) -> Path:
        """Return the path of the plain segment that begins at an offset."""
        return self.directory / segment_name(begin)

    def covering(self, offset: int) -> Offset | None:
        """Return the begin of the last segment at or before an offset."""
        with self._lock.held():
            begins = self._known()
            place = bisect_right(begins, offset)
            return begins[place - 1] if place else None

    def following(self, begin: int) -> Offset | None:
        """Return the begin of the segment after the one that begins here."""
        with self._lock.held():
            begins = self._known()
            place = bisect_right(begins, begin)
            return begins[place] if place < len(begins) else None

    def first_from(self, offset: int) -> Offset | None:
        """Return the begin of the first segment at or behind an offset.

        In one look: who asks `covering` and then `following` misses a segment that came to begin here in between.
        """
        with self._lock.held():
            begins = self._known()
            place = bisect_left(begins, offset)
            return begins[place] if place < len(begins) else None

    def get(self, begin: Offset) -> StoredSegment:
        """Return a segment, mapped or compressed; `CorruptRecordError` if no file is one any more."""
        with self._lock.held():
            segment = self._mapped.get(begin)
            if segment is None:
                return self._open(begin, self._open_compressed, self._open_plain)
            self.keep(segment)
            return segment

    def keep(self, segment: Segment) -> None:
        """Keep a segment that is used now; the one that was not used for longest goes."""
        with self._lock.held():
            self._mapped[segment.begin] = segment
            self._maps.keep(segment.file)

    def keeps(self, segment: Segment) -> bool:
        """Tell whether a segment is kept mapped; if not, whoever has it holds it for itself."""
        return self._mapped.get(segment.begin) is segment

    def drop_reused(self) -> bool:
        """Let go of segments whose file is something else by now; tell whether there were any."""
        with self._lock.held():
            reused = [segment for segment in self._mapped.values() if not segment.is_valid]
            for segment in reused:
                self.forget(segment.begin)
            return bool(reused)

    def cool(self, segment: Segment) -> None:
        """A reader has left a segment behind: if it is old, its pages need not be in memory. The map stays.

        One that is close to the writer is left alone: its file may soon be written again, and its pages with it.
        """
        with self._lock.held():
            is_old = bisect_right(self._begins, segment.begin) + _CLOSE < len(self._begins)
        if is_old:
            self._files.forget_pages(segment.map)

    def header(self, begin: Offset) -> Header:
        """Return what a segment is, without mapping it; `CorruptRecordError` if the file is not one any more."""
        with self._lock.held():
            segment = self._mapped.get(begin)
            if segment is not None:
                return segment.header
            header = self._headers.get(begin)
            if header is None:
                compressed = partial(read_header, self._files, magic=COMPRESSED_MAGIC)
                header = self._headers[begin] = self._open(begin, compressed, partial(read_header, self._files))
            return header

    def has_other_form(self, begin: Offset, id_: int) -> bool:
        """Return whether a segment was compressed, or replaced by another one that begins at the same offset."""
        path = self.path(begin)
        if self._files.exists(compressed_path(path)):
            return True
        try:
            return read_header(self._files, path).id != id_
        except (FileNotFoundError, ValueError):
            return False

    def end_of(self, begin: Offset, log_end: Offset) -> Offset:
        """Return where the records of a segment end, without mapping it; the newest one ends where the log does."""
        following = self.following(begin)
        if following is None:
            return log_end
        try:
            return self.header(following).previous_end
        except CorruptRecordError:
            return following

    def is_blank(self, begin: Offset, offset: int) -> bool:
        """Return whether a plain file has no record header at an offset but zeros, without mapping it."""
        try:
            content = self._files.read_part(self.path(begin), RECORD_HEADER_SIZE, SEGMENT_HEADER_SIZE + offset - begin)
        except (FileNotFoundError, UnexpectedFileError):
            return False
        return not any(content)

    def _open_compressed(self, path: Path) -> StoredSegment:
        return self._compressed.get(path)

    def _open_plain(self, path: Path) -> StoredSegment:
        segment = Segment.open(self._files, path, writable=self._writable, known=self._maps.get, limits=self.limits)
        self.keep(segment)
        return segment

    def _open(self, begin: Offset, compressed: Callable[[Path], R], plain: Callable[[Path], R]) -> R:
        """Read a segment in either form: the compressed one is whole if it is there, or else the plain one is.

        Two looks at each: it may have been compressed after the first, and an empty segment may have been replaced by
        a larger one. Whoever finds no header in a file finds its name given to another by then.
        """
        path = self.path(begin)
        problem: tuple[str, Exception] = path.name, FileNotFoundError("the file is missing")
        for read, at in ((compressed, compressed_path(path)), (plain, path)) * 2:
            try:
                return read(at)
            except FileNotFoundError:
                pass
            except (ValueError, UnsupportedFormatError) as error:
                problem = at.name, error
        name, cause = problem
        if isinstance(cause, UnsupportedFormatError):
            raise cause
        raise CorruptRecordError(name, begin, str(cause), path=self.directory.parent) from cause

    def forget(self, begin: Offset) -> None:
        """Open the segment anew the next time: another file has taken its name."""
        with self._lock.held():
            self._mapped.pop(begin, None)
            self._headers.pop(begin, None)
            self._compressed.forget(compressed_path(self.path(begin)))

    def add(self, segment: Segment) -> Segment:
        """Take in a segment that was just made, in place of what may have had its name.

        Returns what it is known as, which is another object if a reader has found it already.
        """
        with self._lock.held():
            known = self._mapped.get(segment.begin)
            if known is not None and known.file is segment.file and known.header == segment.header:
                segment = known
            # Its file may have been another segment, which somebody else has given up or compressed.
            for other in [each for each in self._mapped.values() if each.file is segment.file]:
                self.forget(other.begin)
            self._mapped.pop(segment.begin, None)
            self._headers.pop(segment.begin, None)
            place = bisect_left(self._begins, segment.begin)
            if self._begins[place : place + 1] != [segment.begin]:
                insort(self._begins, segment.begin)
            self.keep(segment)
            return segment

    # Removing

    def remove(self, begin: Offset) -> None:
        """Remove a segment, in either form, and its index from the directory. Maps that readers hold stay valid.

        The file is not used again: what is in it may be of offsets that are yet to be used, or the disk refused it.
        """
        file = self._forget_name(begin)
        self._remove_other_files(begin)
        self._files.unlink(self.path(begin))
        self._drop_gone(file)

    def _remove_other_files(self, begin: Offset) -> None:
        """Before the plain file: without any form of the segment nobody would look for its index."""
        self._files.unlink(index_path(self.path(begin)))
        self._files.unlink(compressed_path(self.path(begin)))

    def remove_before(self, oldest: Offset) -> None:
        """Give up every segment that begins before an offset, at which another one ends or begins.

        That offset is the oldest already, in shared memory and in a checkpoint on disk: a reader that is overtaken
        looks there, and so does recovery. The files are used again, as far as there is use for them; if no segment is
        left, nobody writes, and no file waits for it.
        """
        begins = self.begins
        is_idle = not begins or begins[-1] < oldest
        newest_first = [begin for begin in reversed(begins) if begin < oldest]
        wanted = 0 if is_idle or self.spares is None else self.spares.most
        again, gone = newest_first[:wanted], newest_first[wanted:]
        do_all_at_once(
            [*(partial(self._give_up, begin) for begin in again), *(partial(self.remove, begin) for begin in gone)]
        )
        if self.spares is not None:
            self.spares.sweep(oldest)
            if is_idle:
                self.remove_spares()

    def _give_up(self, begin: Offset) -> None:
        file = self._forget_name(begin)
        self._remove_other_files(begin)
        self._use_again(begin, file)

    def replace_plain(self, begin: Offset) -> None:
        """Give up the plain file of a segment that is there, on disk, in compressed form: read that from now on."""
        with self._lock.held():
            segment = self._mapped.get(begin)
            self.forget(begin)
        self._use_again(begin, None if segment is None else segment.file)

    def _use_again(self, begin: Offset, file: MappedFile | None) -> None:
        """Let a plain file wait to become another segment, or remove it."""
        if self.spares is None:
            self._files.unlink(self.path(begin))
        else:
            self.spares.recycle(self.path(begin), begin)
        self._drop_gone(file)

    def _forget_name(self, begin: Offset) -> MappedFile | None:
        """Return the file if it is mapped."""
        with self._lock.held():
            segment = self._mapped.get(begin)
            self.forget(begin)
            if begin in self._begins:  # another process may have done it
                self._begins.remove(begin)
            return None if segment is None else segment.file

    def drop_removed(self) -> None:
        """Let go of files that have no name any more, whoever removed them."""
        with self._lock.held():
            for file in self._maps.files():
                self._drop_gone(file)

    def _drop_gone(self, file: MappedFile | None) -> None:
        """Keep the map of a file that waits to be used again, and none that would only keep its disk space.

        Readers that stand there decide for themselves; see `LogReader.leave_removed`.
        """
        if file is not None and not file.file.links:
            with self._lock.held():
                for segment in [each for each in self._mapped.values() if each.file is file]:
                    self.forget(segment.begin)
                self._maps.drop(file)

    # Spare files

    def remove_spares(self) -> None:
        """Remove all files that wait, for the room they take."""
        if self.spares is not None:
            self.spares.remove_all()
            self.drop_removed()

    def take_spare(self) -> tuple[Spare, MappedFile] | None:
        """Return a spare file and its map; None if there is none. The caller holds the writer word."""
        while self.spares is not None and (spare := self.spares.take()) is not None:
            try:
                return spare, self._map_spare(spare)
            except OSError:
                self._files.unlink(spare.path)
        return None

    def ready_spare(self) -> tuple[Spare, MappedFile] | None:
        """Return the spare file that is taken next, if it has its disk space and is mapped."""
        spare = None if self.spares is None else self.spares.next
        file = self._maps.get(spare.inode) if spare is not None and spare.is_whole else None
        return None if spare is None or file is None else (spare, file)

    def prepare_spare(self, active: Segment) -> MappedFile | None:
        """See to it that a spare file waits to follow a segment, with its disk space and mapped.

        Not on a sender's thread.
        """
        spare = None if self.spares is None else self.spares.prepare(active.path.name)
        return None if spare is None else self._map_spare(spare)

    def _map_spare(self, spare: Spare) -> MappedFile:
        with self._lock.held():
            file = self._maps.get(spare.inode)
        if file is None:
            opened = OpenFile(self._files, self._files.open(spare.path))
            file = MappedFile(opened, opened.map(writable=True, most=self.limits.size))
        with self._lock.held():
            if not self._closed:
                self._maps.keep(file)
        return file

    # Maps

    def _is_newest(self, file: MappedFile) -> bool:
        """Tell whether the writer is there: that one stays."""
        newest = self._mapped.get(self._begins[-1]) if self._begins else None
        return newest is not None and newest.file is file

    def _let_go(self, file: MappedFile) -> None:
        self.on_let_go(file)
        for segment in [segment for segment in self._mapped.values() if segment.file is file]:
            del self._mapped[segment.begin]
            self.on_dropped(segment)

    def close(self) -> None:
        """Unmap and close every file. No thread reads or writes here any more."""
        with self._lock.held():
            self._closed = True
            if self.names is not None:
                self.names.close()
            for segment in self._mapped.values():
                segment.file.close()
            self._mapped.clear()
            self._maps.close()
            self._compressed.close()
