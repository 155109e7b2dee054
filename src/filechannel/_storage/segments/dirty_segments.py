"""What the disk may not have yet: segments that were written to, and whether their names are new."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from .._offset import Offset
from .control import Tail
from .maps import Inode, OpenFile
from .segment import Segment

_MOST = 64  # segments that wait for a flush; each has a descriptor or two


@final
class Dirty:
    """A segment with records that the disk may not have. It is not kept mapped once it takes no more of them."""

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
        """The offset behind the last record; None while it is active."""
        if self._segment is not None and (end := self._segment.end) is not None:
            self._end, self._segment = end, None
        return self._end

    def flush(self) -> None:
        """Wait until the records are on disk."""
        self._file.flush()

    def check_flushed(self, end: Offset) -> None:
        """Raise `OSError` if the file system has shut down meanwhile, as far as the active segment can tell."""
        if self._segment is not None:
            self._segment.check_flushed(end)

    def is_in(self, directory: OpenFile) -> bool:
        """Return whether the file has its name there: otherwise no later open finds what is on disk."""
        return directory.holds(self._name, self._file.descriptor, self._inode)


@dataclass(frozen=True, slots=True)
class Work:
    """What one flush has to do."""

    segments: list[Dirty]
    names_changed: bool
    names: int
    """What to tell `names_were_flushed` when they are."""
    boundary: Tail | None
    """The end of the last whole batch when the last finished segment was finished; None if none was."""


class Unflushed:
    """Collects what a flush has to do, as far as this process began it. The caller holds the writer word.

    Segments that another process began are found when it comes to a flush: one that only receives never flushes, and
    would hold on to each of them for good.
    """

    def __init__(self) -> None:
        self._segments: list[Dirty] = []
        self._boundary: Tail | None = None
        self._failure: OSError | None = None
        self._names = self._flushed_names = 0
        """How often the names have changed, and which of these changes are on disk."""

    @property
    def names_changed(self) -> bool:
        """Whether the disk may not have all names. It stays so until `names_were_flushed`, whatever is interrupted."""
        return self._names != self._flushed_names

    def change_names(self) -> None:
        """A segment was given a name, or lost it."""
        self._names += 1

    def names_were_flushed(self, names: int) -> None:
        """The disk has the names as they were when some work was taken."""
        self._flushed_names = max(self._flushed_names, names)

    def __len__(self) -> int:
        """Return how many segments there are."""
        return len(self._segments)

    @property
    def has_finished(self) -> bool:
        """Whether any of them takes no more records, or one was finished that others had begun."""
        return self._boundary is not None or any(segment.end is not None for segment in self._segments)

    def knows(self, begin: int) -> bool:
        """Tell whether the segment that begins here is collected already."""
        return any(segment.begin == begin for segment in self._segments)

    def add(self, segment: Segment) -> None:
        """Remember a segment that is written to from now on, or was."""
        self.discard(segment.begin)
        self._segments.append(Dirty(segment))

    def discard(self, begin: int) -> None:
        """Forget a segment that is gone, or need not be flushed."""
        self._segments = [other for other in self._segments if other.begin != begin]

    def discard_beyond(self, offset: int) -> None:
        """Segments that begin behind an offset are gone."""
        self._segments = [segment for segment in self._segments if segment.begin <= offset]

    def reaches_before(self, offset: int) -> bool:
        """Tell whether any segment begins before an offset."""
        return any(segment.begin < offset for segment in self._segments)

    def discard_before(self, oldest: int) -> None:
        """Segments that begin before the oldest offset were given up: nobody needs them."""
        self._segments = [segment for segment in self._segments if segment.begin >= oldest]

    def keep(self, begins: set[Offset], stored: range, durable: Offset) -> None:
        """Forget what another process has flushed, removed or discarded.

        *stored* are the offsets of messages that the log has: a segment among them that is not in *begins* was removed
        by another program, and stays here for the flush, which reports it.
        """
        self._segments = [
            segment
            for segment in self._segments
            if (segment.begin in begins or segment.begin in stored) and (segment.end is None or segment.end > durable)
        ]

    def finished(self, boundary: Tail, oldest: Offset) -> None:
        """A segment was finished when the last whole batch ended here. Nobody needs what lies below the oldest offset.

        If too many wait already, the disk does not keep up: then whoever sends waits for it here. That takes small
        segments and a flood; otherwise another thread has flushed them long before.
        """
        self._boundary = boundary
        self._segments = [segment for segment in self._segments if segment.end is None or segment.end > oldest]
        while len(self._segments) > _MOST and self._failure is None:
            try:
                self._segments[0].flush()
                del self._segments[0]
            except OSError as error:
                self.failed(error)

    @property
    def failure(self) -> OSError | None:
        """What the disk said when it refused a flush outside of a `Flusher`."""
        return self._failure

    def failed(self, error: OSError) -> None:
        """The disk refused a flush outside of a `Flusher`: the next one has to give up."""
        self._failure = error

    def clear(self) -> None:
        """Nothing of what was collected will ever be flushed."""
        self._segments, self._boundary, self._failure = [], None, None

    def take(self, active: Segment | None) -> Work:
        """Return what there is to do, and begin anew with the active segment. Raises what `failed` was told."""
        if self._failure is not None:
            raise self._failure
        work = Work(self._segments, self.names_changed, self._names, self._boundary)
        self._segments, self._boundary = [] if active is None else [Dirty(active)], None
        return work
