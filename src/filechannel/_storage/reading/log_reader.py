"""The reader of a log: a native reader, plus the code that finds its segments and handles damage and expired data."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from threading import get_ident
from typing import NoReturn

from ..._errors import CorruptRecordError, DataExpiredError, storage_errors
from ..._format import NOTHING, Reader, store_u64
from ..._format.layout import CONTROL_SIZE, WRITE_TAIL
from ..._offset import LogPosition, Offset
from ..consumers.cursor import Cursor
from ..control.control_page import Control
from ..segments.catalog import Segments
from ..segments.compressed_segment import StoredSegment
from ..segments.segment import Segment, Window
from ..store_events import StoreEvents
from .lookup import LogLookup
from .resync import behind_gap

Decode = Callable[[bytes], object]
Refuse = Callable[[int, int, bytes, Exception], NoReturn]
IDLE_SECONDS = 10.0
"""Seconds without progress after which a reader counts as idle."""
_logger = logging.getLogger("filechannel")


class LogReader:
    """A native reader and the segment that it currently reads."""

    def __init__(
        self,
        control: Control,
        segments: Segments,
        lookup: LogLookup,
        events: StoreEvents,
        cursor: Cursor | None,
        decode: Decode | None,
        refuse: Refuse,
        *,
        reuse: bool,
        skip_damage: bool,
        stop: LogPosition | None = None,
    ) -> None:
        self._control = control
        self._segments = segments
        self._lookup = lookup
        self._segment_left = events.maintenance_due
        self._skip_damage = skip_damage
        self._segment: StoredSegment | None = None
        self._window: Window | None = None
        self._batching: set[int] = set()  # threads inside take_many
        self._seen_at, self._seen_since = -1, 0.0  # the offset at the last idle check, and since when
        self.stop = stop
        """Where reading ends for good; the reader never moves past it. None: at the end of the log."""
        self.expire: Callable[[LogPosition, int], int | None] | None = None
        """For a group member: moves the group to the oldest message and returns how many messages it missed.

        Returns None if another member has reported that already.
        """
        cursor_map = None if cursor is None else cursor.map
        words = control.map if stop is None else _words_that_end_at(stop.offset)
        self.native: Reader = Reader(
            words, cursor_map, decode, self._advance, self._damaged, refuse, reuse, segments.limits.payload
        )
        self.native.notify_capacity(events.capacity_freed.__call__)

    def move(self, log_position: LogPosition) -> None:
        """Move to a record boundary, or to the stop if that comes first."""
        self._let_go(self.native)
        log_position = self._up_to_stop(log_position)
        self.native.move(log_position.offset, log_position.sequence)

    def start_over(self, log_position: LogPosition) -> None:
        """Move to a record boundary, and forget the deliveries before it: their messages are no longer stored."""
        self.native.forget()
        self.move(log_position)

    def _up_to_stop(self, log_position: LogPosition) -> LogPosition:
        return log_position if self.stop is None or log_position.offset < self.stop.offset else self.stop

    def copy_position_of(self, other: LogReader) -> None:
        """Move to the position of another reader, and share its segment: that may have been unmapped already."""
        segment, window = other._segment, other._window
        self.move(LogPosition(Offset(other.native.offset), other.native.sequence))
        if segment is not None and window is not None:
            self._bind(self.native, segment, window)

    def leave(self, segment: Segment) -> None:
        """Release a segment if this reader uses it, so that other segments can be mapped.

        The reader gets it again when it needs it.
        """
        if segment is self._segment:
            self._let_go(self.native)

    def leave_removed(self) -> None:
        """Release the segment if its file was deleted: otherwise its disk space stays in use. Any thread may call this.

        A reader that makes progress may read the segment to its end if this is the last copy; an idle reader may not.
        """
        segment = self._segment
        if segment is None or not segment.is_removed:
            return
        # Read only while a segment is bound, so not after `close`: the offset of a group is stored in a shared file.
        offset = self.native.offset
        is_last_copy = segment.begin < self._control.oldest_offset and offset < segment.limit
        if not is_last_copy or self._rests_at(offset):
            self._let_go(self.native)

    def _rests_at(self, offset: int) -> bool:
        now = time.monotonic()
        if offset != self._seen_at:
            self._seen_at, self._seen_since = offset, now
        return now - self._seen_since >= IDLE_SECONDS

    def close(self) -> None:
        """Release the segment and the cursor."""
        self.native.release()
        self._segment = self._window = None

    def take_many(self, most: int) -> list[object]:
        """Return up to `most` items. If an error follows them, the next call raises it.

        Use this instead of the native method, which would lose an error that is raised only once.
        """
        thread = get_ident()
        self._batching.add(thread)
        try:
            return self.native.take_many(most)
        except DataExpiredError:
            pass  # no item came before the error
        finally:
            self._batching.discard(thread)
        # This raises the error and moves past it, unless a clone of the reader has raised it in the meantime.
        item = self.native.take()
        return [] if item is NOTHING else [item]

    def take_next_delivery(self) -> object:
        """Return one more delivery of a batch, or NOTHING. The next call raises an error from here again."""
        thread = get_ident()
        self._batching.add(thread)
        try:
            return self.native.take_delivery()
        finally:
            self._batching.discard(thread)

    # From segment to segment

    def _advance(self, reader: Reader) -> None:
        """Find the segment that holds the reader's offset. The log has records beyond it."""
        with storage_errors(self._segments.directory.parent, "it cannot be read"):
            self._find_segment(reader)

    def _find_segment(self, reader: Reader) -> None:
        offset, oldest = Offset(reader.offset), self._control.oldest_offset
        if offset < oldest:
            self._expired(reader)
            return
        try:
            segment = self._segment_at(offset)
        except CorruptRecordError as error:
            if self._control.oldest_offset != oldest:
                return  # segments were just reclaimed: the reader tries again
            if not self._skip_damage:
                raise
            self._pass(reader, self._next_readable(offset), error.reason)
            return
        if offset <= segment.begin:
            reader.move(segment.begin, segment.header.first_sequence)
        left = self._segment
        self._bind(reader, segment, segment.window(max(offset, segment.begin)))
        if segment is left:
            return  # only another window of the same segment
        if isinstance(left, Segment) and left.begin < segment.begin:
            self._segments.drop_from_page_cache(left)
        if isinstance(segment, Segment) and not self._segments.keeps(segment):
            self.leave(segment)  # another thread has just mapped a different segment in its place
        self._segment_left()

    def _bind(self, reader: Reader, segment: StoredSegment, window: Window) -> None:
        self._segment, self._window = segment, window
        reader.bind(window.content, window.begin)

    def _let_go(self, reader: Reader) -> None:
        self._segment = self._window = None
        reader.unbind()

    def _segment_at(self, offset: Offset) -> StoredSegment:
        """Return the segment that holds an offset, or the next one if no records are missing in between."""
        begin = self._segments.covering(offset)
        if begin is not None and begin < self._control.oldest_offset:
            begin = None  # it ends at or before the offset, and is being reclaimed
        if begin is not None and offset < (segment := self._segments.get(begin)).limit:
            return segment
        following = self._segments.following(offset)
        if following is None:
            raise self._missing(offset, "the segment is missing")
        segment = self._segments.get(following)
        if segment.header.previous_end > offset:
            raise self._missing(offset, f"the records up to {segment.header.previous_end} are missing")
        return segment

    def _missing(self, offset: Offset, reason: str) -> CorruptRecordError:
        begin = self._segments.covering(offset)
        return self._corrupt(self._segments.path(offset if begin is None else begin), offset, reason)

    def _corrupt(self, segment: Path, offset: Offset, reason: str) -> CorruptRecordError:
        return CorruptRecordError(segment.name, offset, reason, path=self._segments.directory.parent)

    def _next_readable(self, offset: Offset) -> LogPosition:
        """Return where the first segment after an offset begins that can be opened, or the end of the log."""
        end = self._lookup.latest()  # first, so that messages sent during the search are after this position
        following = self._segments.following(offset)
        while following is not None:
            try:
                header = self._segments.get(following).header
                return LogPosition(header.begin, header.first_sequence)
            except CorruptRecordError:
                following = self._segments.following(following)
        return end

    def _expired(self, reader: Reader) -> None:
        """Move to the oldest message, and raise `DataExpiredError` if messages were missed.

        If none was missed, there were only an offset gap or control records in between.
        """
        earliest = self._lookup.earliest()
        log_position = self._up_to_stop(earliest)
        missed: int | None = max(0, log_position.sequence - reader.sequence)
        if not missed:
            self._segment = None
            reader.unbind()
            reader.move(log_position.offset, log_position.sequence)
            return
        # Inside a batch the error may be held back. So the reader does not move, and the next call gets here again.
        if get_ident() not in self._batching:
            if self.expire is not None:
                missed = self.expire(log_position, reader.offset)
            reader.move(log_position.offset, log_position.sequence)
        if missed is not None:
            raise DataExpiredError(missed, earliest.offset)

    # Damage

    def _damaged(self, reader: Reader, reason: str) -> None:
        """Handle a record that does not validate: read again, skip it, or raise `CorruptRecordError`."""
        with storage_errors(self._segments.directory.parent, "it cannot be read"):
            self._decide_about_damage(reader, reason)

    def _decide_about_damage(self, reader: Reader, reason: str) -> None:
        segment, window, offset = self._segment, self._window, Offset(reader.offset)
        if segment is None or window is None or not segment.is_valid:
            if segment is not None:
                self._segments.forget(segment.begin)  # another file has its name now
            self._let_go(reader)
        elif window.end < segment.limit and window.begin != offset:
            self._let_go(reader)  # the window may only cut off the record; one that begins here has all of it
        elif (log_position := self._behind_unfinished(segment, offset)) is not None:
            self._let_go(reader)
            reader.move(log_position.offset, log_position.sequence)
        elif self._skip_damage:
            self._pass(reader, self._behind(segment, offset, reader.sequence), segment.explain(offset, reason))
        else:
            raise self._corrupt(segment.path, offset, segment.explain(offset, reason))

    def _behind_unfinished(self, segment: StoredSegment, offset: Offset) -> LogPosition | None:
        """Return where the next segment begins if its header says that this one, which stores no end, ends here.

        Records are flushed before the end of their segment is stored. So after a power cut that end may be missing
        until the channel is recovered, and a read-only process cannot recover it.
        """
        following = self._segments.following(segment.begin) if segment.end is None else None
        header = None if following is None else self._segments.get(following).header
        if header is None or header.previous_end != offset:
            return None
        return self._up_to_stop(LogPosition(header.begin, header.first_sequence))

    def _behind(self, segment: StoredSegment, offset: Offset, sequence: int) -> LogPosition:
        """Return where to resume after damage.

        How many messages were lost is known only if an index entry is found there; otherwise one is assumed.
        """
        stop = min(segment.limit, self._control.write_offset)
        entries = self._lookup.entries(segment)
        target = behind_gap(segment, offset, stop, entries) or stop
        known = [entry.log_position for entry in entries if entry.offset == target]
        return known[0] if known else LogPosition(target, sequence + 1)

    def _pass(self, reader: Reader, log_position: LogPosition, reason: str) -> None:
        path, offset, log_position = self._segments.directory.parent, reader.offset, self._up_to_stop(log_position)
        _logger.warning("%s: skipped from offset %d to %d: %s", path, offset, log_position.offset, reason)
        self._let_go(reader)
        reader.move(log_position.offset, log_position.sequence)


def _words_that_end_at(offset: int) -> bytearray:
    """Return a private control page in which everything up to an offset is published, and never more.

    It contains the only word that a native reader uses. So the reader stops by itself, without a check for the stop.
    """
    words = bytearray(CONTROL_SIZE)
    store_u64(words, WRITE_TAIL, offset)
    return words
