"""Reading the log: a native reader that finds its segments and knows what to do about damage."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from threading import get_ident
from typing import NoReturn

from .._errors import CorruptRecordError, DataExpiredError, storage_errors
from .._format import NOTHING, Reader, store_u64
from .._format.layout import CONTROL_SIZE, WRITE_TAIL
from .._offset import Offset
from .compressed import StoredSegment
from .control import Control
from .cursor import Cursor
from .damage import behind_gap
from .index import Mark
from .places import Places
from .segment import Segment, Window
from .segments import Segments

Decode = Callable[[bytes], object]
Refuse = Callable[[int, int, bytes, Exception], NoReturn]
PATIENCE = 10.0
"""Seconds at one place after which a reader rests."""
_logger = logging.getLogger("filechannel")


class LogReader:
    """A native reader and the segment it stands in."""

    def __init__(
        self,
        control: Control,
        segments: Segments,
        places: Places,
        cursor: Cursor | None,
        decode: Decode | None,
        refuse: Refuse,
        *,
        reuse: bool,
        skip_damage: bool,
        stop: Mark | None = None,
    ) -> None:
        self._control = control
        self._segments = segments
        self._places = places
        self._skip_damage = skip_damage
        self._segment: StoredSegment | None = None
        self._window: Window | None = None
        self._batching: set[int] = set()  # threads in the middle of take_many
        self._seen_at, self._seen_since = -1, 0.0  # by whoever looked whether it rests
        self.stop = stop
        """Where it ends, for good; it never stands behind it. None: where the log does."""
        self.expire: Callable[[Mark, int], int | None] | None = None
        """Of a member of a group: let the group go on at the oldest message; None if another member has told so."""
        self.on_passed: Callable[[], object] = _nothing
        """Called when it goes on to another segment."""
        cursor_map = None if cursor is None else cursor.map
        words = control.map if stop is None else _words_that_end_at(stop.offset)
        self.native: Reader = Reader(
            words, cursor_map, decode, self._advance, self._damaged, refuse, reuse, segments.limits.payload
        )

    def move(self, place: Mark) -> None:
        """Stand at a record boundary, or at the stop if that comes first."""
        self._let_go(self.native)
        place = self._up_to_stop(place)
        self.native.move(place.offset, place.sequence)

    def start_over(self, place: Mark) -> None:
        """Stand at a record boundary, and forget what was handed out before it: it is gone."""
        self.native.forget()
        self.move(place)

    def _up_to_stop(self, place: Mark) -> Mark:
        return place if self.stop is None or place.offset < self.stop.offset else self.stop

    def stand_beside(self, other: LogReader) -> None:
        """Stand where another reader stands, and in its segment: that may have been dropped already."""
        segment, window = other._segment, other._window
        self.move(Mark(Offset(other.native.offset), other.native.sequence, 0))
        if segment is not None and window is not None:
            self._bind(self.native, segment, window)

    def leave(self, segment: Segment) -> None:
        """Let go of a segment if it is ours: others are to be mapped. It is asked for again when it is needed."""
        if segment is self._segment:
            self._let_go(self.native)

    def leave_removed(self) -> None:
        """Let go of the segment if its file is gone: its disk space would not be free. Any thread may call this.

        Who reads on may read to its end if what comes there is nowhere else any more; who rests may not.
        """
        segment = self._segment
        if segment is None or not segment.is_removed:
            return
        offset = self.native.offset  # not of one that is closed: that of a group lies in a file that others may change
        is_last_copy = segment.begin < self._control.oldest_offset and offset < segment.limit
        if not is_last_copy or self._rests_at(offset):
            self._let_go(self.native)

    def _rests_at(self, offset: int) -> bool:
        now = time.monotonic()
        if offset != self._seen_at:
            self._seen_at, self._seen_since = offset, now
        return now - self._seen_since >= PATIENCE

    def close(self) -> None:
        """Let go of the segment and the cursor."""
        self.native.release()
        self._segment = self._window = None

    def take_many(self, most: int) -> list[object]:
        """Return up to `most` items; an error waits until what came before it is taken, and is told by the next call.

        Use this, not the native one, which drops an error that is told only once.
        """
        thread = get_ident()
        self._batching.add(thread)
        try:
            return self.native.take_many(most)
        except DataExpiredError:
            pass  # nothing came before it
        finally:
            self._batching.discard(thread)
        # This tells it and goes on behind; unless a clone was told meanwhile.
        item = self.native.take()
        return [] if item is NOTHING else [item]

    def take_next_delivery(self) -> object:
        """Return one more delivery of a batch, or NOTHING; an error raised here is told again by the next call."""
        thread = get_ident()
        self._batching.add(thread)
        try:
            return self.native.take_delivery()
        finally:
            self._batching.discard(thread)

    # From segment to segment

    def _advance(self, reader: Reader) -> None:
        """Find the segment that holds the reader's offset. There is something beyond it."""
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
                return  # something was removed in this moment: look again
            if not self._skip_damage:
                raise
            self._pass(reader, self._next_readable(offset), error.reason)
            return
        if offset <= segment.begin:
            reader.move(segment.begin, segment.header.first_sequence)
        left = self._segment
        self._bind(reader, segment, segment.window(max(offset, segment.begin)))
        if segment is left:
            return  # only another part of it
        if isinstance(left, Segment) and left.begin < segment.begin:
            self._segments.cool(left)
        if isinstance(segment, Segment) and not self._segments.keeps(segment):
            self.leave(segment)  # another thread needed the room in this moment
        self.on_passed()

    def _bind(self, reader: Reader, segment: StoredSegment, window: Window) -> None:
        self._segment, self._window = segment, window
        reader.bind(window.content, window.begin)

    def _let_go(self, reader: Reader) -> None:
        self._segment = self._window = None
        reader.unbind()

    def _segment_at(self, offset: Offset) -> StoredSegment:
        """Return the segment that holds an offset, or begins behind it with nothing missing in between."""
        begin = self._segments.covering(offset)
        if begin is not None and begin < self._control.oldest_offset:
            begin = None  # it ends here, and is being given up
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

    def _next_readable(self, offset: Offset) -> Mark:
        """Return where the first segment behind an offset begins that can be opened, or the end of the log."""
        end = self._places.latest()  # before the look: what is sent meanwhile lies behind that place
        following = self._segments.following(offset)
        while following is not None:
            try:
                header = self._segments.get(following).header
                return Mark(header.begin, header.first_sequence, header.created)
            except CorruptRecordError:
                following = self._segments.following(following)
        return end

    def _expired(self, reader: Reader) -> None:
        """Go on at the oldest message, and say so if any was missed.

        If not, only offsets that were left out lay in between, or control records.
        """
        earliest = self._places.earliest()
        place = self._up_to_stop(earliest)
        missed: int | None = max(0, place.sequence - reader.sequence)
        if not missed:
            self._segment = None
            reader.unbind()
            reader.move(place.offset, place.sequence)
            return
        if get_ident() not in self._batching:  # there it may be held back: then the next call comes here again
            if self.expire is not None:
                missed = self.expire(place, reader.offset)
            reader.move(place.offset, place.sequence)
        if missed is not None:
            raise DataExpiredError(missed, earliest.offset)

    # Damage

    def _damaged(self, reader: Reader, reason: str) -> None:
        """Decide about a record that does not validate: look again, go on behind it, or say so."""
        with storage_errors(self._segments.directory.parent, "it cannot be read"):
            self._decide_about_damage(reader, reason)

    def _decide_about_damage(self, reader: Reader, reason: str) -> None:
        segment, window, offset = self._segment, self._window, Offset(reader.offset)
        if segment is None or window is None or not segment.is_valid:
            if segment is not None:
                self._segments.forget(segment.begin)  # another file has taken the name
            self._let_go(reader)
        elif window.end < segment.limit and window.begin != offset:
            self._let_go(reader)  # perhaps it is only cut off; the window that begins here has all of it
        elif (place := self._behind_unfinished(segment, offset)) is not None:
            self._let_go(reader)
            reader.move(place.offset, place.sequence)
        elif self._skip_damage:
            self._pass(reader, self._behind(segment, offset, reader.sequence), segment.explain(offset, reason))
        else:
            raise self._corrupt(segment.path, offset, segment.explain(offset, reason))

    def _behind_unfinished(self, segment: StoredSegment, offset: Offset) -> Mark | None:
        """Return where the next segment begins if it says that this one, which does not say so itself, ends here.

        Records are flushed before the end of their segment is stored. So after a power cut that end may be missing
        until the channel is recovered, and a process that may only read cannot do that.
        """
        following = self._segments.following(segment.begin) if segment.end is None else None
        header = None if following is None else self._segments.get(following).header
        if header is None or header.previous_end != offset:
            return None
        return self._up_to_stop(Mark(header.begin, header.first_sequence, header.created))

    def _behind(self, segment: StoredSegment, offset: Offset, sequence: int) -> Mark:
        """Return where to go on; how many messages were lost is known only at a mark, and one at the least."""
        stop = min(segment.limit, self._control.write_offset)
        marks = self._places.marks(segment)
        target = behind_gap(segment, offset, stop, marks) or stop
        known = [mark for mark in marks if mark.offset == target]
        return known[0] if known else Mark(target, sequence + 1, 0)

    def _pass(self, reader: Reader, place: Mark, reason: str) -> None:
        path, offset, place = self._segments.directory.parent, reader.offset, self._up_to_stop(place)
        _logger.warning("%s: skipped from offset %d to %d: %s", path, offset, place.offset, reason)
        self._let_go(reader)
        reader.move(place.offset, place.sequence)


def _nothing() -> None:
    pass


def _words_that_end_at(offset: int) -> bytearray:
    """Return a control page of our own in which everything up to an offset is published, and never more.

    The one word that a native reader trusts is in there, so that it stops by itself and needs no look at another.
    """
    words = bytearray(CONTROL_SIZE)
    store_u64(words, WRITE_TAIL, offset)
    return words
