"""The appender: writes batches at the end of the log, rolls, and rolls back, for the holder of the writer lock.

It writes the records of a batch after the tail, rolls to the next segment when the active one is full, and publishes
the batch. If that fails, it rolls the batch back. Nothing after the tail is visible to receivers. So a batch appears
with the store of the tail, as a whole, and everything else can be undone: by this process after an error, or by the
next lock holder if this process dies. `roll_back` is the one procedure for both.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import final

from ..._errors import DiskFullError, StorageError, storage_error
from ..._format import Writer
from ..._format.layout import BATCH_CONTINUES, CONTROL_RECORD, PAGE, RECORD_HEADER_SIZE, SEGMENT_HEADER_SIZE
from ..._offset import Offset
from ..._options import StoredOptions
from ..control.control_page import Control, Tail
from ..control.shared_lock import SharedLock
from ..segments.catalog import Segments
from ..segments.dirty_segments import DirtySegments
from ..segments.segment import HALF_MADE, Header, Segment, check_offsets_left, create_segment_file
from ..system.mapped_files import MappedFile, check_storable
from ..system.os_calls import Files
from .active_segment import ALLOCATION_STEP, ActiveSegment, rounded
from .batch_parts import HeaderRecord, Part, length_at


@final
class Appender:
    """Appends to the active segment of one channel. Unless stated otherwise, the caller holds the writer lock."""

    def __init__(
        self,
        files: Files,
        path: Path,
        control: Control,
        segments: Segments,
        options: StoredOptions,
        writer: Writer,
        lock: SharedLock,
        active: ActiveSegment,
        dirty: DirtySegments,
    ) -> None:
        self._files = files
        self._path = path
        self._control = control
        self._segments = segments
        self._options = options
        self._writer = writer
        self._lock = lock
        self._active = active
        self._dirty = dirty
        self._forked = False
        self.must_notify_finished: bool = False
        """Whether a segment was finished since `segment_finished` was last raised."""

    def start(self) -> None:
        """Continue at the tail, after the lock was acquired or the tail was moved."""
        try:
            self._writer.start()
        except ValueError:
            self._control.tail(deferred=self._writer.deferred)  # raises an error that names the damage
            raise

    def abandon(self) -> None:
        """Stop writing, in a child that was forked while its thread was appending: all state belongs to the parent.

        Needs no lock.
        """
        self._forked = True
        self._writer.unbind()

    def check_not_forked(self) -> None:
        """Raise `StorageError` in a child that was forked while its thread was appending."""
        if self._forked:
            raise StorageError(f"{self._path}: nothing was sent, because this process was forked during the send")

    def announce_change(self) -> None:
        """Notify the other processes that the set of segments, or the options, changed.

        Called after the change and before anything is published: a reader that sees new records must rescan the
        segments first.
        """
        self._segments.announce_change(self._writer.change)

    def close_window(self) -> None:
        """Make the next append reserve capacity again, whatever is reserved now."""
        if self._active.segment is not None:
            self._active.bind_segment(self._active.segment)

    # Batches

    def append(self, parts: Iterable[Part], flags: int, header_record: HeaderRecord | None = None) -> Offset:
        """Write the parts of a batch, with these flags in each record header, and publish it; return its offset."""
        start = Offset(self._writer.pending)

        def write_and_publish() -> None:
            if header_record is not None:
                self._write([header_record.make(start)], CONTROL_RECORD | BATCH_CONTINUES)
            last: Part = []
            for part in parts:
                if len(part):
                    # One part late: only the last record of the batch is written without BATCH_CONTINUES.
                    self._write(last, flags | BATCH_CONTINUES)
                    last = part
            self._write(last, flags)
            self.check_not_forked()
            self._writer.publish()

        self.all_or_nothing(write_and_publish)
        return start

    def all_or_nothing(self, work: Callable[[], object]) -> None:
        """Call *work*; if it fails, roll back the records that it has not published.

        This is not a context manager: a signal handler may raise an exception on joining or leaving one, and the
        generator would be closed by the garbage collector. That would roll back without the writer lock, and destroy
        what another process has written by then.
        """
        try:
            work()
        except OSError as error:
            self.roll_back_or_leave()
            raise self._nothing_sent(error) from error
        except BaseException:
            self.roll_back_or_leave()
            raise

    def _nothing_sent(self, error: OSError) -> StorageError:
        return storage_error(f"{self._path} cannot be written to, nothing was sent", error)

    def _write(self, part: Part, flags: int) -> None:
        """Write a part of a batch into as many segments as it needs. The records stay uncommitted."""
        if isinstance(part, list):
            index = 0
            if time.time_ns() >= self._active.index_due and part:
                self._make_space(len(part[0]))
            while (index := self._writer.write(part, index, flags)) < len(part):
                self._make_space(len(part[index]))
        else:
            self._copy(part.content, flags)

    def _copy(self, content: bytes, flags: int) -> None:
        if time.time_ns() >= self._active.index_due:
            self._make_space(length_at(content, 0))
        position = 0
        try:
            while (position := self._writer.copy(content, position, len(content), position, flags)) < len(content):
                self._make_space(length_at(content, position))
        except ValueError as error:
            raise StorageError(f"{self._path}: nothing was sent, because a record of it is damaged: {error}") from error

    def _make_space(self, length: int) -> None:
        """Open a window for at least one more record of this length."""
        self.check_not_forked()
        if self._active.segment is None:
            self.roll_back()  # an error may have interrupted the last rollback
        if not self._active.fits(length):
            self.roll(RECORD_HEADER_SIZE + length)
        self._active.open_window(length)

    # The roll: `_format/append/roll.py` describes its steps, and why they come in that order

    def roll(self, need: int) -> None:
        """Finish the active segment at the current offset, and begin one with space for at least *need* bytes."""
        begin, sequence, finished = Offset(self._writer.pending), self._writer.pending_sequence, self._active.segment
        if finished is None or finished.begin < begin:
            self.begin_segment(begin, sequence, begin, need)
        else:
            # The segment is empty and still too small: a larger file takes its name.
            self.begin_segment(begin, sequence, finished.header.previous_end, need)
            # After a power cut the name must not refer to the old file again, which is invalidated now.
            self._segments.names.flush()
            finished.invalidate()
            self.announce_change()

    def begin_segment(self, begin: int, sequence: int, previous_end: int, need: int = 0) -> None:
        """Prepare a segment with space for at least *need* bytes of records, and roll to it.

        The active segment, if there is one and it is not empty, ends at *begin*. If this raises, the caller rolls back.
        """
        self._active.check_directory()
        header = Header.new(begin, sequence, previous_end, self._active.creation_time())
        if not self._roll_to_free_file(header, need):
            self._roll_to_new_file(header, need)
        self.update_after_roll()

    def _roll_to_free_file(self, header: Header, need: int) -> bool:
        """Roll to a file of the free list; return False if there is none or its size is not sufficient."""
        if _least(need) > self._options.segment_size or self._segments.covering(header.begin) == header.begin:
            return False  # in the latter case there is an empty segment, and a larger file replaces it
        while (taken := self._segments.take_free_file()) is not None:
            free, file = taken
            size = len(file.map)
            check_offsets_left(free.path, header, size)
            try:
                if not free.is_whole:  # not even its start may be allocated: the process that made it may have died
                    file.file.allocate(free.path, 0, min(self._active.allocation_unit, size))
                self._roll_to(header, file, free.path, size - SEGMENT_HEADER_SIZE if free.is_whole else 0)
                return True
            except FileNotFoundError:
                continue  # another process has just removed it
            except DiskFullError:
                self._files.unlink(free.path)  # frees some disk space
        return False

    def _roll_to_new_file(self, header: Header, need: int) -> None:
        """Roll to a new file. On a full disk, delete the free list and, if that is not enough, use the least size."""
        least = _least(need)
        size = max(self._options.segment_size, least)
        # The attempts are not nested in exception handlers: an exception keeps its frames alive, and with them the
        # file of the failed attempt and its disk space.
        with suppress(DiskFullError):
            return self._create_and_roll(header, size, max(ALLOCATION_STEP, least))
        self._active.remove_free_files()
        with suppress(DiskFullError):
            return self._create_and_roll(header, size, least)
        return self._create_and_roll(header, least, least)

    def _create_and_roll(self, header: Header, size: int, need: int) -> None:
        allocate = min(rounded(need, self._active.allocation_unit), size)
        target = self._segments.path(header.begin)
        temporary = target.with_name(HALF_MADE + target.name)
        file = create_segment_file(self._files, temporary, target, header, size, allocate, self._options.mode)
        try:
            self._roll_to(header, file, temporary, allocate - SEGMENT_HEADER_SIZE)
        except BaseException:
            if not self._forked:
                self._files.unlink(temporary)
            raise

    def _roll_to(self, header: Header, file: MappedFile, source: Path, allocated: int) -> None:
        """Take the step that a fast roll takes, with a file that is called *source* until then."""
        target, finished = self._segments.path(header.begin), self._active.segment
        if finished is not None:
            check_storable(finished.map, 0, SEGMENT_HEADER_SIZE, finished.path)
        check_storable(file.map, 0, SEGMENT_HEADER_SIZE, source)

        def rename() -> None:
            self.check_not_forked()  # the name belongs to the parent
            self._files.replace(source, target)
            self.check_not_forked()

        self._segments.announce_change(lambda: self._writer.roll(file, file.map, header.pack(), allocated, rename))

    def update_after_roll(self) -> None:
        """Update the in-process state after a roll of the writer, if there was one: a fast roll leaves that for later.

        The caller holds at least the log's mutex. The call may be repeated: until `acknowledge_roll` no other segment
        can be prepared, so the process never is more than one roll behind.
        """
        pending_roll = self._writer.pending_roll
        if pending_roll is None:
            return
        file, content = pending_roll
        assert isinstance(file, MappedFile)
        # The header as it was written. By now another process may have reclaimed the segment and recycled its file.
        header = Header.unpack(content)
        segment = Segment(self._segments.path(header.begin), header, file)
        if self._segments.free_list is not None:
            self._segments.free_list.forget(file.inode)
        if segment.is_valid:
            segment = self._segments.add(segment)
        before = self._active.segment
        is_finished = before is not None and (before.begin < segment.begin or before.header == header)
        self._active.adopt(segment)
        self._dirty.change_names()
        self._dirty.add(segment)
        if is_finished:
            self._note_finished(Tail(header.begin, header.first_sequence, header.begin))
        self._writer.acknowledge_roll()  # last: if this is interrupted earlier, the next call repeats all of it

    def _note_finished(self, begin: Tail) -> None:
        """Record that a segment was finished where another one begins, perhaps in the middle of a batch."""
        tail = self._control.tail(deferred=self._writer.deferred)
        self._dirty.finished(begin.offset, min(tail, begin, key=lambda each: each.offset))
        self.must_notify_finished = True

    def finish_segment(self) -> None:
        """Finish the active segment unless it is empty. The caller has nothing uncommitted."""
        segment = self._active.segment
        if segment is not None and segment.begin < self._writer.pending:
            self._active.leave()
            segment.finish(self._writer.pending)
            self.announce_change()

    # The rollback

    def roll_back(self) -> None:
        """Remove everything after the tail: the unfinished batch of this process or of a dead writer.

        Idempotent: a process that dies in here leaves the same work as one that died before it, because the reserved
        end, which says how far a writer may have written, is lowered last. Until then nothing that readers use changes:
        the tail stays, and no record before it is touched. The result is flushed before anything is appended again:
        after a power cut, removed records must not reappear in place of later ones.
        """
        if self._control.is_gap_pending:  # its process may have died before it rolled back the unpublished records
            self._control.publish(self._control.tail(), deferred=True)
        tail = self._control.tail(deferred=self._writer.deferred)
        self._active.leave()
        try:
            self._active.check_directory()
        except StorageError:
            pass  # the directory was replaced, and its content says nothing about this log
        else:
            self._segments.scan()  # an interrupted roll may have renamed a file without adding it to the list
        reserved = self._control.reserved_end
        removed = self._remove_beyond(tail.offset)
        segment = self.unfinished_at(tail.offset)
        if segment is not None:
            segment.reopen()
            segment.wipe(tail.offset, reserved)
            self._active.resume(segment)
        if removed or reserved > tail.offset:
            self._flush_rollback(segment, removed=removed)
        self._control.reserved_end = tail.offset
        self.announce_change()

    def roll_back_or_leave(self) -> None:
        """Roll back this process's unfinished batch. If that fails too, the next lock holder does it."""
        if self._forked:
            return
        try:
            self.roll_back()
            # The batch may have finished a segment and not recorded that.
            tail, active = self._control.tail(deferred=self._writer.deferred), self._active.segment
            if active is None or active.begin == tail.offset:
                self._note_finished(tail)
        except OSError as error:
            self._lock.leave_behind()
            raise self._nothing_sent(error) from error
        except BaseException:
            self._lock.leave_behind()
            raise

    def _remove_beyond(self, offset: Offset) -> bool:
        beyond = [begin for begin in self._segments.begins if begin > offset]
        for begin in reversed(beyond):
            self._segments.remove(begin)
        self._dirty.discard_beyond(offset)
        if beyond:
            self._dirty.change_names()
        return bool(beyond)

    def _flush_rollback(self, segment: Segment | None, *, removed: bool) -> None:
        try:
            if segment is not None:
                segment.flush()
            if removed:
                self._segments.names.flush()
        except OSError as error:
            self._dirty.failed(error)

    def unfinished_at(self, offset: Offset) -> Segment | None:
        """Return the segment that can be appended to at an offset; None if a new one must be created."""
        return None if self._control.is_gap_pending else self.reaching(offset)

    def reaching(self, offset: Offset) -> Segment | None:
        """Return the same as `unfinished_at`, but even if an offset gap is pending and the segment is poisoned."""
        begin = self._segments.covering(offset)
        if begin is None or begin < self._control.oldest_offset:  # the latter is being reclaimed, perhaps half deleted
            return None
        segment = self._segments.get(begin)
        if not isinstance(segment, Segment) or (segment.end is not None and segment.end <= offset):
            return None
        return segment


def _least(need: int) -> int:
    """Return the smallest file size for *need* bytes of records."""
    return rounded(SEGMENT_HEADER_SIZE + need, PAGE)
