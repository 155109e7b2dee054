"""The dirty segments: segments with records that may not be on disk, and whether file names have to be flushed.

A flush takes them: those that this process began, and those that other processes, alive or dead, have written to.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import final

from ..._errors import CorruptRecordError
from ..._offset import Offset
from ..control.control_page import Control, Tail
from ..system.mapped_files import Inode, OpenFile
from .catalog import Segments
from .segment import Segment

_MOST = 64  # segments that wait for a flush; each has a descriptor or two
_REMEMBERED = 64  # segments that are known to begin between two batches


@final
class DirtySegment:
    """A segment with records that may not be on disk. It is not kept mapped after it is finished."""

    def __init__(self, segment: Segment) -> None:
        self.begin = segment.begin
        self.path = segment.path
        self.id: int = segment.header.id
        self._name = segment.name
        self._file: OpenFile = segment.file.file
        self._inode: Inode = segment.file.inode
        self._segment: Segment | None = segment
        self._end: Offset | None = None

    @property
    def end(self) -> Offset | None:
        """The offset after the last record; None while the segment is active."""
        if self._segment is not None and (end := self._segment.end) is not None:
            self._end, self._segment = end, None
        return self._end

    def flush(self) -> None:
        """Wait until the records are on disk."""
        self._file.flush()

    def is_in(self, directory: OpenFile) -> bool:
        """Return whether the file still has its name there; if not, a later open does not find the records."""
        return directory.holds(self._name, self._file.descriptor, self._inode)


@dataclass(frozen=True, slots=True)
class Work:
    """The work of one flush."""

    segments: list[DirtySegment]
    names_changed: bool
    names: int
    """The value to pass to `names_were_flushed` after the names are flushed."""
    boundary: Tail | None
    """The end of the last complete batch at the time of the last roll; None if there was no roll."""


class DirtySegments:
    """Collects the work of the next flush of one channel. The caller holds the writer lock.

    Segments that another process started are looked up when a flush runs. A process that only receives never flushes,
    and would keep each of them forever.
    """

    def __init__(self, control: Control, segments: Segments) -> None:
        self._control = control
        self._catalog = segments
        self._segments: list[DirtySegment] = []
        self._flushed = Offset(0)
        self._boundary: Tail | None = None
        self._between_batches: deque[Offset] = deque(maxlen=_REMEMBERED)
        self._failure: OSError | None = None
        self._names = self._flushed_names = 0
        """How often names have changed, and how many of these changes are on disk."""

    def __len__(self) -> int:
        """Return how many segments there are."""
        return len(self._segments)

    @property
    def has_finished(self) -> bool:
        """Whether one of the segments is finished, or a segment that another process started was finished here."""
        return self._boundary is not None or any(segment.end is not None for segment in self._segments)

    def is_between_batches(self, begin: int) -> bool:
        """Return whether a segment is known to begin at the start of a batch: then the log may begin there, too.

        For that, nothing before the segment has to be on disk, because no remaining batch has records there.
        """
        return begin in self._between_batches

    # Collecting

    def change_names(self) -> None:
        """Record that a segment was given a name, or lost it."""
        self._names += 1

    def add(self, segment: Segment) -> None:
        """Add a segment that is written to from now on, or was."""
        self._segments = [other for other in self._segments if other.begin != segment.begin]
        self._segments.append(DirtySegment(segment))

    def add_inherited(self) -> None:
        """Add all segments after the checkpoint: earlier writers may have left them without a flush."""
        checkpoint = self._control.checkpoints.newest()
        flushed = 0 if checkpoint is None else checkpoint.offset
        for begin in self._catalog.begins:
            following = self._catalog.following(begin)
            if (following is None or following > flushed) and begin >= self._control.poisoned_before:
                with suppress(CorruptRecordError):  # the receiver that reads it reports it
                    if isinstance(segment := self._catalog.get(begin), Segment):  # a compressed segment is on disk
                        self.add(segment)
        self.change_names()

    def finished(self, begin: Offset, boundary: Tail) -> None:
        """Record that a segment was finished where another begins.

        *boundary* is the end of the last complete batch at that time. Segments below the oldest offset are removed
        without a flush, because they are not needed. If too many segments wait for a flush, the disk cannot keep up:
        then the sender flushes the first ones here, and waits for it. That takes small segments and a high load;
        otherwise another thread flushes them long before.
        """
        self._boundary, oldest = boundary, self._control.oldest_offset
        if boundary.offset == begin:
            self._between_batches.append(begin)
        self._segments = [segment for segment in self._segments if segment.end is None or segment.end > oldest]
        while len(self._segments) > _MOST and self._failure is None:
            try:
                self._segments[0].flush()
                del self._segments[0]
            except OSError as error:
                self.failed(error)

    def discard_beyond(self, offset: int) -> None:
        """Remove the segments that begin after an offset, because they are deleted."""
        self._segments = [segment for segment in self._segments if segment.begin <= offset]

    def reaches_before(self, offset: int) -> bool:
        """Return whether any segment begins before an offset."""
        return any(segment.begin < offset for segment in self._segments)

    def discard_before(self, oldest: int) -> None:
        """Remove the segments that begin before the oldest offset: they were reclaimed and need no flush."""
        self._segments = [segment for segment in self._segments if segment.begin >= oldest]

    def clear(self) -> None:
        """Remove everything that was collected, without a flush."""
        self._segments, self._boundary, self._failure = [], None, None

    # Flushing

    @property
    def failure(self) -> OSError | None:
        """The error of a flush that failed outside a `Flusher`; nothing can be flushed then."""
        return self._failure

    def failed(self, error: OSError) -> None:
        """Record that a flush outside a `Flusher` failed: the next flush raises it, and poisons the segments."""
        self._failure = error

    def take(self) -> Work:
        """Return the work of a flush. The caller does the work, or poisons the segments.

        The active segment stays dirty. Raises `OSError` if an earlier flush failed.
        """
        poisoned_before = self._control.poisoned_before
        flushed = max(self._control.durable_offset, poisoned_before, self._flushed)
        self._remove_flushed(flushed, poisoned_before)
        self._add_written_elsewhere(flushed)
        if self._failure is not None:
            raise self._failure
        work = Work(self._segments, self._names != self._flushed_names, self._names, self._boundary)
        self._segments, self._boundary = [segment for segment in self._segments if segment.end is None], None
        return work

    def _remove_flushed(self, flushed: Offset, poisoned_before: Offset) -> None:
        """Remove the segments that another process has flushed, deleted or rolled back, and poisoned ones.

        A segment with messages that the log has, but without a file, was deleted by another program. It stays here for
        the flush, which reports it.
        """
        begins = {begin for begin in self._catalog.begins if begin >= poisoned_before}
        stored = range(max(self._control.oldest_offset, poisoned_before), self._control.append_offset)
        self._segments = [
            segment
            for segment in self._segments
            if (segment.begin in begins or segment.begin in stored) and (segment.end is None or segment.end > flushed)
        ]

    def _add_written_elsewhere(self, flushed: Offset) -> None:
        """Add the segments after *flushed* that only other processes have written to.

        A segment that was active here, and empty, may have been replaced by a larger file of the same name: then that
        one is flushed, and not the file that was deleted. So the ids of unfinished segments are compared, too.
        """
        known = {segment.begin: segment for segment in self._segments}
        begin = self._catalog.covering(flushed)
        if begin is None:  # the segment has been removed since
            begin = self._catalog.first_from(0)
        while begin is not None:
            ours = known.get(begin)
            if ours is None or ours.end is None:
                with suppress(CorruptRecordError):  # the receiver that reads it reports it
                    segment = self._catalog.get(begin)
                    is_other = ours is None or ours.id != segment.header.id
                    if is_other and segment.limit > flushed and isinstance(segment, Segment):
                        self.add(segment)
                        self.change_names()
            begin = self._catalog.following(begin)

    def names_were_flushed(self, names: int) -> None:
        """Record that the names are on disk as they were when some work was taken."""
        self._flushed_names = max(self._flushed_names, names)

    def were_flushed(self, offset: Offset) -> None:
        """Record that the work is on disk up to an offset, so that no later flush searches there again.

        That holds even where earlier segments are poisoned, and the durable offset therefore stays behind.
        """
        self._flushed = max(self._flushed, offset)
