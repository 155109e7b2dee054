"""The segment that is written to: how it comes into being, its disk space, its index and the writer's window."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress

from .._errors import CorruptRecordError, DiskFullError
from .._format import Writer
from .._format.layout import INDEX_CHECKED, PAGE, RECORD_HEADER_SIZE, SEGMENT_HEADER_SIZE
from .._options import StoredOptions
from .control import Control, Tail
from .files import Files
from .index import ActiveIndex, Marks, latest_time, not_before
from .maps import MappedFile
from .pages_ahead import PagesAhead
from .preparation import SMALLEST, Preparation
from .room import Room
from .segment import Header, Segment, segment_name
from .segments import Segments
from .spares import Spare
from .unflushed import Unflushed

_STEP = 1 << 20  # of disk space; in memory it takes a third of a millisecond
_MOST_LATE = 64  # finished segments whose index waits to be written


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
        self._pages = PagesAhead(writer)
        self.on_ready: Callable[[], object] = lambda: None
        """Called, from any thread, when a file is ready to be the next segment; it calls `get_ready`."""
        self.on_gone_on: Callable[[], object] = lambda: None
        """Called by the append after one with which the writer has gone on to a segment by itself."""
        self._preparation = Preparation(segments, lambda: self.on_ready())  # noqa: PLW0108 - set later
        segments.on_let_go = writer.forget_next
        self._held = b""
        self.segment: Segment | None = None
        self._known_unit: int | None = None

    @property
    def _unit(self) -> int:
        """Disk space is reserved up to a multiple of this, or to the end of the file."""
        # Not a cached_property: before Python 3.12 that has one lock, which a forked child may inherit locked.
        if self._known_unit is None:
            self._known_unit = self._files.allocation_unit(self._segments.directory)
        return self._known_unit

    @property
    def mark_due(self) -> int:
        """When the index wants an entry (ns since the epoch)."""
        return self._index.due

    def begin(self, begin: int, sequence: int, previous_end: int, need: int = 0) -> None:
        """Make a segment that takes at least so many bytes, and write to it from now on."""
        self.check_place()
        header = Header.new(begin, sequence, previous_end, self._creation_time())
        segment = self._renew(header, need) or self._create(header, need)
        self._segments.add(segment)
        self._unflushed.change_names()
        self._unflushed.add(segment)
        self._bind(segment)

    def announce_change(self) -> None:
        """Let the other processes know that segments came or went, and know it ourselves."""
        self._segments.announce_change(self._writer.change)

    # Going on by itself

    def get_ready(self) -> None:
        """Let the writer go on to the next segment by itself, if a file waits. The caller has the log's mutex.

        Without the word, for which whoever sends would have to wait.
        """
        segment, ready = self.segment, self._segments.ready_spare()
        if segment is None or ready is None:
            return
        spare, file = ready
        if self._may_go_on:
            if not self._preparation.is_asked_for(segment):
                self._preparation.is_ready(segment)
                self._open_all(segment)
            self._hand_over(spare, file)
        if self._preparation.is_asked_for(segment):
            self._pages.begin(file.map)

    @property
    def _may_go_on(self) -> bool:
        return not (self._writer.deferred or self._room.has_limits)

    def _open_all(self, segment: Segment) -> None:
        """Nobody has to ask half-way: let the writer fill the segment."""
        allocated = min(self._control.allocated_end, segment.room_end)
        if self._writer.current and self._writer.pending <= allocated:
            with suppress(ValueError):  # it has gone on in this moment, and its window is another one's
                self._pages.advance(segment, self._writer.pending, allocated)
                self._writer.open_window(allocated, self._index.due)

    def _hand_over(self, spare: Spare, file: MappedFile) -> None:
        """Give the writer what it needs to go on by itself."""
        room = len(file.map) - SEGMENT_HEADER_SIZE
        window = room if len(file.map) < SMALLEST else room // 2
        directory = self._segments.open_directory()
        self._writer.prepare_next(
            file,
            file.map,
            Header.new(0, 0, 0).pack(),
            *spare.inode,
            os.fsencode(spare.path.name),
            os.fsencode(segment_name(0)),
            0,
            window,
            self.on_gone_on,
            self._files.watch_going_on,
            directory.descriptor,
        )

    def follow(self) -> Tail | None:
        """Know of the segment that the writer has gone on to, and return where it begins; None if it has not.

        The caller has the log's mutex. It may be done again, and until `note_gone_on` nothing else can be prepared.
        """
        gone_on = self._writer.gone_on
        if gone_on is None:
            return None
        file, content = gone_on
        assert isinstance(file, MappedFile)
        # As it was written: by now another process may have given it up, and the file may be another segment's.
        header = Header.unpack(content)
        segment = Segment(self._segments.path(header.begin), header, file)
        if self._segments.spares is not None:
            self._segments.spares.forget(file.inode)
        if segment.is_valid:
            segment = self._segments.add(segment)
        if self.segment is None or self.segment.begin != segment.begin:
            # The marks from there on are of the next one.
            self._leave_index(self._take_visible_marks(header.begin - 1), header.begin)
            self.segment = segment
        self._unflushed.change_names()
        self._unflushed.add(segment)
        return Tail(header.begin, header.first_sequence, header.begin)

    # Otherwise

    def _creation_time(self) -> int:
        """Return the present, or a time that nothing in the segments before is later than: the clock may go back."""
        now = time.time_ns()
        if self.segment is not None and self._writer.alone:
            marked = max(self._index.latest, self._latest_in_memory())
            return max(not_before(marked, now), self.segment.header.created)
        self.store_marks()
        for begin in self._segments.begins[-1:]:
            with suppress(CorruptRecordError):
                marked = max(latest_time(self._files, self._segments.path(begin)), self._latest_in_memory())
                return max(not_before(marked, now), self._segments.header(begin).created)
        return now

    def _latest_in_memory(self) -> int:
        self._held += self._writer.take_marks()
        return INDEX_CHECKED.unpack(self._held[-INDEX_CHECKED.size :])[2] if self._held else 0

    def _renew(self, header: Header, need: int) -> Segment | None:
        """Take a file that waits; None if there is none, or it is too small."""
        if _least(need) > self._options.segment_size or self._segments.covering(header.begin) == header.begin:
            return None  # in the latter case there is an empty one, which is replaced as a whole
        return self._renew_spare(header)

    def _renew_spare(self, header: Header) -> Segment | None:
        while (taken := self._segments.take_spare()) is not None:
            spare, file = taken
            try:
                if not spare.is_whole:  # nor may its beginning be: whoever made it may have died
                    file.file.allocate(spare.path, 0, min(self._unit, len(file.map)))
                segment = Segment.renew(self._files, spare.path, self._segments.path(header.begin), header, file)
            except FileNotFoundError:
                continue  # removed in this moment
            except DiskFullError:
                self._files.unlink(spare.path)  # which makes some room
                continue
            self._control.allocated_end = segment.room_end if spare.is_whole else header.begin
            return segment
        return None

    def _create(self, header: Header, need: int) -> Segment:
        """Make a file; on a full disk spare files make room, and in the end it is no larger than it has to be."""
        least = _least(need)
        size = max(self._options.segment_size, least)
        # Not one inside the handler of another: an error holds on to its file, and that to what it has of the disk.
        with suppress(DiskFullError):
            return self._create_with(header, size, max(_STEP, least))
        self._remove_spares()
        with suppress(DiskFullError):
            return self._create_with(header, size, least)
        return self._create_with(header, least, least)

    def _create_with(self, header: Header, size: int, need: int) -> Segment:
        allocate = _rounded(need, self._unit)
        path = self._segments.path(header.begin)
        segment = Segment.create(self._files, path, header, size, allocate, self._options.mode)
        self._control.allocated_end = min(header.begin + allocate - SEGMENT_HEADER_SIZE, segment.room_end)
        return segment

    def _remove_spares(self) -> None:
        self._preparation.close()  # which has the next one mapped
        self._segments.remove_spares()

    def resume(self, segment: Segment) -> None:
        """Go on in a segment that is there."""
        self._bind(segment)
        # What is stored may speak of a segment that is gone, and this one be a copy, with holes where there are zeros.
        self._control.allocated_end = segment.begin

    def take_up(self, segment: Segment) -> None:
        """Go on in a segment that another process writes to as well."""
        if segment is self.segment:
            self._store_active_marks()
            self._writer.bind(segment.map, segment.begin)
        else:
            self._bind(segment)

    def store_marks(self) -> None:
        """Bring the index up to date, but for what readers do not see: that may still be taken back, and waits."""
        self._index.store_late(lambda: self._control.oldest_offset)
        self._store_active_marks()

    def _store_active_marks(self) -> None:
        if self.segment is not None:
            visible: int = self._control.write_offset
            self._held += self._writer.take_marks()
            gone_on = self._writer.gone_on
            if gone_on is not None:  # in this moment, in another thread: what comes from there on is the next one's
                visible = min(visible, Header.unpack(gone_on[1]).begin - 1)
            marks = self._split_held(visible)
            found = Marks(self.segment.begin, self.segment.path, marks, visible)
            self._index.store_unless_gone(found, lambda: self._control.oldest_offset)

    def _take_visible_marks(self, visible: int) -> bytes:
        """Return the marks of what readers see; the others wait."""
        self._held += self._writer.take_marks()
        return self._split_held(visible)

    def _split_held(self, visible: int) -> bytes:
        marks = self._held
        stop, size = len(marks), INDEX_CHECKED.size
        while stop and INDEX_CHECKED.unpack_from(marks, stop - size)[0] > visible:
            stop -= size
        self._held = marks[stop:]
        return marks[:stop]

    def _bind(self, segment: Segment) -> None:
        self._leave_visible()
        self.segment = segment
        self._writer.bind(segment.map, segment.begin)

    def let_go(self) -> None:
        """Write to none, until another one is made or resumed. It holds even if the index cannot be stored."""
        try:
            self.store_marks()
            self._leave_visible()
        finally:
            self._writer.unbind()
            self._pages.close()
            self._preparation.close()
            self.segment = None

    def _leave_visible(self) -> None:
        """Leave the segment, and forget the marks of what was taken back in it."""
        visible = self._control.write_offset
        self._leave_index(self._take_visible_marks(visible) if self.segment is not None else b"", visible)
        self._held = b""

    def _leave_index(self, marks: bytes, visible: int) -> None:
        """Leave what the index of the segment still has to have to whoever flushes it."""
        if self.segment is not None and marks:
            self._index.late.append(Marks(self.segment.begin, self.segment.path, marks, visible))
        if len(self._index.late) > _MOST_LATE:
            self._index.store_late(lambda: self._control.oldest_offset)
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
        if self._index.is_due():
            self._store_active_marks()
            self._writer.mark_next()
        offset, allocated = self._writer.pending, self._control.allocated_end
        if not self._writer.deferred:  # a flush would write out pages that hold nothing yet
            self._pages.advance(self.segment, offset, allocated)
        window = max(end, self._preparation.advance(self.segment, offset))
        room_end, limit = self._room.limit_window(self.segment.begin, self.segment.header.first_sequence, end)
        self._writer.open_window(min(window, allocated, room_end), self._index.due)
        if limit is not None:
            self._writer.limit_window(*limit)

    def _end(self, length: int) -> int:
        return self._writer.pending + RECORD_HEADER_SIZE + length

    def _allocate(self, segment: Segment, end: int) -> None:
        """Reserve disk space step by step, so that small channels stay small; less if the disk is full."""
        allocated = self._control.allocated_end
        if end <= allocated:
            return
        target = self._reserved_end(segment, max(end, allocated + _STEP))
        try:
            segment.allocate(allocated, target)
        except DiskFullError:
            self._remove_spares()
            target = self._reserved_end(segment, end)
            segment.allocate(allocated, target)
        self._control.allocated_end = target

    def _reserved_end(self, segment: Segment, offset: int) -> int:
        """Return up to where disk space has to be reserved for what lies before an offset."""
        position = _rounded(segment.position(offset), self._unit)
        return min(segment.begin + position - SEGMENT_HEADER_SIZE, segment.room_end)


def _least(need: int) -> int:
    """Return how large a file has to be for so many bytes of records."""
    return _rounded(SEGMENT_HEADER_SIZE + need, PAGE)


def _rounded(size: int, unit: int) -> int:
    return -(-size // unit) * unit
