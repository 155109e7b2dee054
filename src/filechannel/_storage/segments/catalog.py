"""The segment catalog: the ordered set of segments of a channel, a bounded number of them mapped."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

from ..._errors import CorruptRecordError, UnexpectedFileError, UnsupportedFormatError
from ..._format import Mutex
from ..._format.layout import COMPRESSED_MAGIC, RECORD_HEADER_SIZE, SEGMENT_HEADER_SIZE
from ..._offset import Offset
from ..._runtime.threads import do_in_parallel
from ..system.mapped_files import MappedFile, Maps, OpenFile
from ..system.os_calls import Files
from .compressed_segment import OpenCompressed, StoredSegment, compressed_path, stored_begins
from .free_list import FreeFile, FreeList, free_file_names
from .segment import ANY_SIZE, Header, Segment, SegmentLimits, read_header, segment_name
from .segment_index import index_path
from .segment_names import SegmentNames

_CLOSE = 3  # how many of the newest segments count as close to the active one
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Usage:
    """The number of segments of each encoding and of files in the free list, and the disk space they take."""

    plain: int
    plain_bytes: int
    compressed: int
    compressed_bytes: int
    spare: int
    spare_bytes: int

    @property
    def bytes(self) -> int:
        """The total disk space."""
        return self.plain_bytes + self.compressed_bytes + self.spare_bytes


class MapUser(Protocol):
    """Uses files that a catalog has mapped."""

    def release_map(self, file: MappedFile, segments: list[Segment], /) -> None:
        """Stop using a file that will be unmapped, and its segments: too many files are mapped, or it was deleted.

        The list is empty if the file was deleted: readers decide themselves when to release that.
        """
        ...


class Segments:
    """Finds segments by offset. Lists the directory again only after another process has changed it."""

    def __init__(
        self,
        files: Files,
        directory: Path,
        *,
        writable: bool,
        most_mapped: int,
        epoch: Callable[[], int] = lambda: 0,
        limits: SegmentLimits = ANY_SIZE,
        free_list: FreeList | None = None,
    ) -> None:
        """*epoch* returns a number that changes after another process has created or removed segments.

        *free_list* takes the files of reclaimed segments; without one they are deleted.
        """
        self._files = files
        self.directory = directory
        self.names: SegmentNames = SegmentNames(files, directory)
        self._writable = writable
        self.limits: SegmentLimits = limits
        self._epoch = epoch
        self._known_epoch: int | None = None
        self._lock = Mutex()
        self._begins: list[Offset] = []
        self._mapped: dict[Offset, Segment] = {}
        self._maps = Maps(most_mapped, self._is_newest, self._release_map)
        self._users: list[MapUser] = []
        self.free_list = free_list
        self._closed = False
        self._compressed = OpenCompressed(files, most_mapped, limits)
        self._headers: dict[Offset, Header] = {}
        """Headers of segments that were read without mapping the segment."""
        self.scan()

    def scan(self) -> None:
        """Read the segment names from the directory. Other files in it are ignored."""
        with self._lock.held():
            epoch = self._epoch()  # before the listing: a later change is seen by the next scan
            self._known_epoch = None  # if this scan is interrupted, the next caller scans again
            self._begins = stored_begins(self._files, self.directory)
            self._headers.clear()
            known = set(self._begins)
            gone = [each for each in self._mapped.values() if each.begin not in known or not each.is_valid]
            for segment in gone:  # the name belongs to another file, or was deleted
                self._mapped.pop(segment.begin, None)
            self.drop_removed()
            self._compressed.keep(known)
            self._known_epoch = epoch

    def add_user(self, user: MapUser) -> None:
        """Have *user* release each file that will be unmapped."""
        self._users.append(user)

    def announce_change(self, announce: Callable[[], object]) -> None:
        """Increment the epoch for our own change, which the list has already. The caller holds the writer lock.

        The list stays current only if it was current before. Segments of another process may be missing in it, if that
        process created them after the last scan, or if an exception that a signal handler raised interrupted the scan.
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
        """The begin of each segment, in order."""
        with self._lock.held():
            return list(self._known())

    @property
    def mapped(self) -> int:
        """The number of files that are mapped through this object: segments, and files of the free list."""
        return len(self._maps)

    def usage(self) -> Usage:
        """Return the numbers of files and their disk space. A segment with both encodings counts as compressed."""
        paths = [self.path(begin) for begin in self.begins]
        plain = [self._files.disk_space(path) for path in paths]
        compressed = [self._files.disk_space(compressed_path(path)) for path in paths]
        count = sum(space > 0 for space in compressed)
        spare = [self._files.disk_space(self.directory / name) for name in free_file_names(self._files, self.directory)]
        return Usage(len(paths) - count, sum(plain), count, sum(compressed), len(spare), sum(spare))

    def bytes_on_disk(self) -> int:
        """Return the disk space of the segments and the free list."""
        return self.usage().bytes

    def path(self, begin: int) -> Path:
        """Return the path of the plain segment that begins at an offset."""
        return self.directory / segment_name(begin)

    def covering(self, offset: int) -> Offset | None:
        """Return the begin of the last segment at or before an offset."""
        with self._lock.held():
            begins = self._known()
            index = bisect_right(begins, offset)
            return begins[index - 1] if index else None

    def following(self, begin: int) -> Offset | None:
        """Return the begin of the next segment after the one that begins here."""
        with self._lock.held():
            begins = self._known()
            index = bisect_right(begins, begin)
            return begins[index] if index < len(begins) else None

    def first_from(self, offset: int) -> Offset | None:
        """Return the begin of the first segment at or after an offset.

        This is one lookup: calling `covering` and then `following` misses a segment that is created at this offset in
        between.
        """
        with self._lock.held():
            begins = self._known()
            index = bisect_left(begins, offset)
            return begins[index] if index < len(begins) else None

    def get(self, begin: Offset) -> StoredSegment:
        """Return a segment, mapped or compressed; raise `CorruptRecordError` if no file is a valid segment any more."""
        with self._lock.held():
            segment = self._mapped.get(begin)
            if segment is None:
                return self._open(begin, self._open_compressed, self._open_plain)
            self.keep(segment)
            return segment

    def keep(self, segment: Segment) -> None:
        """Keep a segment mapped that is in use now; the least recently used one is unmapped if there are too many."""
        with self._lock.held():
            self._mapped[segment.begin] = segment
            self._maps.keep(segment.file)

    def keeps(self, segment: Segment) -> bool:
        """Return whether a segment is kept mapped here; if not, only its users keep it mapped."""
        return self._mapped.get(segment.begin) is segment

    def drop_reused(self) -> bool:
        """Forget segments whose file is not that segment any more; return whether there were any."""
        with self._lock.held():
            reused = [segment for segment in self._mapped.values() if not segment.is_valid]
            for segment in reused:
                self.forget(segment.begin)
            return bool(reused)

    def drop_from_page_cache(self, segment: Segment) -> None:
        """Drop the pages of a segment that a reader has left, if the segment is old. The map stays.

        A segment close to the active one is skipped: its file may soon be recycled, and its pages are needed then.
        """
        with self._lock.held():
            is_old = bisect_right(self._begins, segment.begin) + _CLOSE < len(self._begins)
        if is_old:
            self._files.forget_pages(segment.map)

    def header(self, begin: Offset) -> Header:
        """Return the header of a segment without mapping it; raise `CorruptRecordError` if it is not valid any more."""
        with self._lock.held():
            segment = self._mapped.get(begin)
            if segment is not None:
                return segment.header
            header = self._headers.get(begin)
            if header is None:
                compressed = partial(read_header, self._files, magic=COMPRESSED_MAGIC)
                header = self._headers[begin] = self._open(begin, compressed, partial(read_header, self._files))
            return header

    def has_other_encoding(self, begin: Offset, id_: int) -> bool:
        """Return whether a segment was compressed, or replaced by another one that begins at the same offset."""
        path = self.path(begin)
        if self._files.exists(compressed_path(path)):
            return True
        try:
            return read_header(self._files, path).id != id_
        except (FileNotFoundError, ValueError):
            return False

    def end_of(self, begin: Offset, log_end: Offset) -> Offset:
        """Return where the records of a segment end, without mapping it; the newest one ends where the log ends."""
        following = self.following(begin)
        if following is None:
            return log_end
        try:
            return self.header(following).previous_end
        except CorruptRecordError:
            return following

    def is_blank(self, begin: Offset, offset: int) -> bool:
        """Return whether a plain file has zeros instead of a record header at an offset, without mapping it."""
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
        """Read a segment in either encoding: the compressed file is complete if it exists, otherwise the plain one is.

        Each file is tried twice. The segment may have been compressed after the first try, and an empty segment may
        have been replaced by a larger one. If the header of a file is not valid because the file was recycled, the
        second try finds another file under the name.
        """
        path = self.path(begin)
        name, cause = path.name, None
        try:
            for read, at in ((compressed, compressed_path(path)), (plain, path)) * 2:
                try:
                    return read(at)
                except FileNotFoundError:
                    pass
                except (ValueError, UnsupportedFormatError) as error:
                    name, cause = at.name, error
            if isinstance(cause, UnsupportedFormatError):
                raise cause
            problem = str(cause or "the file is missing")
            raise CorruptRecordError(name, begin, problem, path=self.directory.parent) from cause
        finally:
            del cause  # its traceback refers to this frame: the cycle would keep frame and maps alive

    def forget(self, begin: Offset) -> None:
        """Drop what is known of a segment, because another file has its name: the next `get` opens it again."""
        with self._lock.held():
            self._mapped.pop(begin, None)
            self._headers.pop(begin, None)
            self._compressed.forget(compressed_path(self.path(begin)))

    def add(self, segment: Segment) -> Segment:
        """Add a segment that was just created, in place of a segment that had its name.

        Returns the object to use for it, which is another one if a reader has opened the segment already.
        """
        with self._lock.held():
            known = self._mapped.get(segment.begin)
            if known is not None and known.file is segment.file and known.header == segment.header:
                segment = known
            # The file may have been another segment, which another process has retired or compressed.
            for other in [each for each in self._mapped.values() if each.file is segment.file]:
                self.forget(other.begin)
            self._mapped.pop(segment.begin, None)
            self._headers.pop(segment.begin, None)
            index = bisect_left(self._begins, segment.begin)
            if self._begins[index : index + 1] != [segment.begin]:
                insort(self._begins, segment.begin)
            self.keep(segment)
            return segment

    # Removing

    def remove(self, begin: Offset) -> None:
        """Delete a segment, in both encodings, and its index. Maps that readers hold stay valid.

        The file is not recycled: it may hold records at offsets that are yet to be used, or its flush may have failed.
        """
        file = self._forget_name(begin)
        self._remove_other_files(begin)
        self._files.unlink(self.path(begin))
        self._forget_name(begin)  # a scan of another thread may have listed the file before it was deleted
        self._drop_gone(file)

    def _remove_other_files(self, begin: Offset) -> None:
        """Delete the other files first: without a segment file, no process would look for the index any more."""
        self._files.unlink(index_path(self.path(begin)))
        self._files.unlink(compressed_path(self.path(begin)))

    def remove_before(self, oldest: Offset) -> None:
        """Retire every segment that begins before an offset, which must be the begin or the end of a segment.

        The caller has already stored that offset as the oldest one, in shared memory and in a checkpoint on disk:
        overtaken readers look there, and so does recovery. The files are recycled as far as the free list takes them.
        If no segment is left, the channel is idle: no process appends, and the free list is emptied as well.
        """
        begins = self.begins
        is_idle = not begins or begins[-1] < oldest
        newest_first = [begin for begin in reversed(begins) if begin < oldest]
        wanted = 0 if is_idle or self.free_list is None else self.free_list.most
        again, gone = newest_first[:wanted], newest_first[wanted:]
        do_in_parallel(
            [*(partial(self._retire, begin) for begin in again), *(partial(self.remove, begin) for begin in gone)]
        )
        if self.free_list is not None:
            self.free_list.sweep(oldest)
            if is_idle:
                self.remove_free_files()

    def _retire(self, begin: Offset) -> None:
        file = self._forget_name(begin)
        self._remove_other_files(begin)
        self._recycle(begin, file)
        self._forget_name(begin)  # as in `remove`

    def replace_plain(self, begin: Offset) -> None:
        """Retire the plain file of a segment whose compressed file is on disk. Readers use that one from now on."""
        with self._lock.held():
            segment = self._mapped.get(begin)
            self.forget(begin)
        self._recycle(begin, None if segment is None else segment.file)

    def _recycle(self, begin: Offset, file: MappedFile | None) -> None:
        """Move a plain file to the free list, or delete it."""
        if self.free_list is None:
            self._files.unlink(self.path(begin))
        else:
            self.free_list.recycle(self.path(begin), begin)
        self._drop_gone(file)

    def _forget_name(self, begin: Offset) -> MappedFile | None:
        """Remove a segment from the list; return its file if it is mapped."""
        with self._lock.held():
            segment = self._mapped.get(begin)
            self.forget(begin)
            if begin in self._begins:  # another process may have removed it
                self._begins.remove(begin)
            return None if segment is None else segment.file

    def drop_removed(self) -> None:
        """Unmap files that were deleted, by this or another process."""
        with self._lock.held():
            for file in self._maps.files():
                self._drop_gone(file)

    def _drop_gone(self, file: MappedFile | None) -> None:
        """Unmap a file if it was deleted: the map would keep its disk space. A file in the free list stays mapped.

        Readers that use the file decide when they release it; see `LogReader.release_removed`.
        """
        if file is not None and not file.file.links:
            with self._lock.held():
                for segment in [each for each in self._mapped.values() if each.file is file]:
                    self.forget(segment.begin)
                self._maps.drop(file)

    # Free files

    def remove_free_files(self) -> None:
        """Delete all files of the free list, to free their disk space."""
        if self.free_list is not None:
            self.free_list.remove_all()
            self.drop_removed()

    def take_free_file(self) -> tuple[FreeFile, MappedFile] | None:
        """Return a file of the free list and its map; None if there is none. The caller holds the writer lock."""
        while self.free_list is not None and (free_file := self.free_list.take()) is not None:
            try:
                return free_file, self._map_free_file(free_file)
            except OSError:
                self._files.unlink(free_file.path)
        return None

    def next_free_file(self) -> tuple[FreeFile, MappedFile] | None:
        """Return the file of the free list that is taken next, if its disk space is allocated and it is mapped."""
        free_file = None if self.free_list is None else self.free_list.next
        file = self._maps.get(free_file.inode) if free_file is not None and free_file.is_whole else None
        return None if free_file is None or file is None else (free_file, file)

    def prepare_free_file(self, active: Segment) -> MappedFile | None:
        """Ensure that the free list has a file for the next roll, allocated and mapped.

        Does file system work, so it must not be called on a sender's thread.
        """
        free_file = None if self.free_list is None else self.free_list.prepare(active.path.name)
        return None if free_file is None else self._map_free_file(free_file)

    def _map_free_file(self, free_file: FreeFile) -> MappedFile:
        with self._lock.held():
            file = self._maps.get(free_file.inode)
        if file is None:
            opened = OpenFile(self._files, self._files.open(free_file.path))
            file = MappedFile(opened, opened.map(writable=True, most=self.limits.size))
        with self._lock.held():
            if not self._closed:
                self._maps.keep(file)
        return file

    # Maps

    def _is_newest(self, file: MappedFile) -> bool:
        """Return whether this is the file of the newest segment, the active one, which always stays mapped."""
        newest = self._mapped.get(self._begins[-1]) if self._begins else None
        return newest is not None and newest.file is file

    def _release_map(self, file: MappedFile) -> None:
        segments = [segment for segment in self._mapped.values() if segment.file is file]
        for segment in segments:
            del self._mapped[segment.begin]
        for user in self._users:
            user.release_map(file, segments)

    def close(self) -> None:
        """Unmap and close every file. No other thread may read or write through this object any more."""
        with self._lock.held():
            self._closed = True
            self.names.close()
            for segment in self._mapped.values():
                segment.file.close()
            self._mapped.clear()
            self._maps.close()
            self._compressed.close()
