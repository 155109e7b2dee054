"""The segment that is written to: how it comes into being, its disk space, its index and the writer's window."""

from __future__ import annotations

from collections.abc import Callable

from .._errors import DiskFullError
from .._format import Writer
from .._format.layout import PAGE, RECORD_HEADER_SIZE, SEGMENT_HEADER_SIZE
from .._options import StoredOptions
from .control import Control
from .files import Files
from .index import ActiveIndex
from .pages_ahead import PagesAhead
from .room import Room
from .segment import Header, Segment
from .segments import Segments
from .unflushed import Unflushed

_ALLOCATION_STEP = 1 << 20  # in a RAM file system a mebibyte takes a third of a millisecond


class ActiveSegment:
    """Binds the writer to one segment at a time. The caller holds the writer word."""

    def __init__(
        self,
        files: Files,
        control: Control,
        segments: Segments,
        options: StoredOptions,
        writer: Writer,
        unflushed: Unflushed,
        room: Room,
    ) -> None:
        self._files = files
        self._control = control
        self._segments = segments
        self._options = options
        self._writer = writer
        self._unflushed = unflushed
        self._room = room
        self.check_place: Callable[[], object] = lambda: None
        """Called before a file is made; raises if the directory is not the channel's any more."""
        self._index = ActiveIndex(files, options.mode, lambda: self.check_place())  # noqa: PLW0108 - set later
        self._pages = PagesAhead()
        self._held: list[tuple[int, int, int]] = []
        self.segment: Segment | None = None

    @property
    def mark_due(self) -> int:
        """When the index wants an entry (ns since the epoch)."""
        return self._index.due

    def begin(self, begin: int, sequence: int, previous_end: int, need: int = 0) -> None:
        """Make a segment that takes at least so many bytes, and write to it from now on."""
        self.check_place()
        least = _whole_pages(SEGMENT_HEADER_SIZE + need)
        header = Header.new(begin, sequence, previous_end)
        try:
            segment = self._create(header, least, max(_ALLOCATION_STEP, least))
        except DiskFullError:
            segment = self._create(header, least, least)
        self._segments.add(segment)
        self._unflushed.names_changed = True
        self._bind(segment)

    def _create(self, header: Header, least: int, allocate: int) -> Segment:
        size = max(self._options.segment_size, least)
        path = self._segments.path(header.begin)
        segment = Segment.create(self._files, path, header, size, allocate, self._options.mode)
        self._control.allocated_end = min(header.begin + allocate - SEGMENT_HEADER_SIZE, segment.room_end)
        return segment

    def resume(self, segment: Segment, offset: int) -> None:
        """Go on in a segment that is there, at an offset."""
        self._bind(segment)
        self._control.allocated_end = offset  # what is stored may speak of a segment that is gone

    def take_up(self, segment: Segment) -> None:
        """Go on in a segment that another process writes to as well."""
        if segment is self.segment:
            self.store_marks()
            self._writer.bind(segment.map, segment.begin)
        else:
            self._bind(segment)

    def store_marks(self) -> None:
        """Bring the index up to date, but for what readers do not see: that may still be taken back, and waits."""
        if self.segment is None:
            return
        visible = self._control.write_offset
        marks = self._held + self._writer.take_marks()
        self._held = [mark for mark in marks if mark[0] > visible]
        if self.segment.begin >= self._control.oldest_offset:  # otherwise another process has removed it
            self._index.store(self.segment.path, marks[: len(marks) - len(self._held)], visible)

    def _bind(self, segment: Segment) -> None:
        self._close_index()
        self.segment = segment
        self._unflushed.add(segment)
        self._writer.bind(segment.map, segment.begin)

    def let_go(self) -> None:
        """Write to none, until another one is made or taken up."""
        self._close_index()
        self._writer.unbind()
        self._pages.close()
        self.segment = None

    def _close_index(self) -> None:
        self.store_marks()
        self._held = []
        self._index.close()

    def fits(self, length: int) -> bool:
        """Tell whether there is a segment that takes one more record of this length."""
        segment, writer = self.segment, self._writer
        if segment is None or self._end(length) > segment.room_end:
            return False
        first = segment.header.first_sequence
        return not self._room.is_enough(segment.begin, first, writer.pending, writer.pending_sequence)

    def open_window(self, length: int) -> None:
        """Let the writer write at least one more record of this length, which fits."""
        assert self.segment is not None
        end = self._end(length)
        self._allocate(self.segment, end)
        self.store_marks()
        if self._index.is_due():
            self._writer.mark_next()
        first = self.segment.header.first_sequence
        room_end, limit = self._room.limit_window(self.segment.begin, first, end)
        self._writer.open_window(min(self._control.allocated_end, room_end), self._index.due)
        if limit is not None:
            self._writer.limit_window(*limit)
        if not self._writer.deferred:  # a flush would write out pages that hold nothing yet
            self._pages.advance(self.segment, self._writer.pending, self._control.allocated_end)

    def _end(self, length: int) -> int:
        return self._writer.pending + RECORD_HEADER_SIZE + length

    def _allocate(self, segment: Segment, end: int) -> None:
        """Reserve disk space step by step, so that small channels stay small; less if the disk is full."""
        allocated = self._control.allocated_end
        if end <= allocated:
            return
        target = min(max(end, allocated + _ALLOCATION_STEP), segment.room_end)
        try:
            segment.allocate(allocated, target)
        except DiskFullError:
            target = min(segment.begin + _whole_pages(segment.position(end)) - SEGMENT_HEADER_SIZE, segment.room_end)
            segment.allocate(allocated, target)
        self._control.allocated_end = target


def _whole_pages(size: int) -> int:
    return -(-size // PAGE) * PAGE
