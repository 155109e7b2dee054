"""Record boundaries: the oldest, the newest, by offset, by sequence and by time."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import takewhile

from .._errors import CorruptRecordError
from .._format import Columns
from .._format.layout import CONTROL_RECORD, RECORD_HEADER_SIZE
from .._offset import Offset
from .compressed import StoredSegment
from .control import Control, Tail
from .files import Files
from .index import Mark, last_mark_at_or_before, read_marks
from .segments import Segments

_HOP = 1 << 16  # bytes at a time: as far as it is from one mark of the index to the next
_EPOCH, _MICROSECOND = datetime.fromtimestamp(0, UTC), timedelta(microseconds=1)


class _OvertakenError(CorruptRecordError):
    """The file is not that segment any more: it is found elsewhere, or gone."""


class Places:
    """Finds record boundaries. `CorruptRecordError` if damage lies in the way."""

    def __init__(self, files: Files, control: Control, segments: Segments) -> None:
        self._files = files
        self._control = control
        self._segments = segments
        self.before_look: Callable[[], object] = _nothing
        """Called before an index is read: who writes may have marks to store."""

    def earliest(self) -> Mark:
        """Return where the oldest stored message begins. Damage there is for whoever reads it."""
        while True:
            first = self._first_from(self._control.oldest_offset)
            if first.offset == self._control.oldest_offset:  # else it was removed meanwhile
                return first

    def _first_from(self, oldest: Offset) -> Mark:
        sequence = self._control.tail().sequence  # before the look: what is sent meanwhile lies behind that place
        begin = self._segments.first_from(oldest)
        while begin is not None:
            try:
                first = _first(self._segments.get(begin))
            except CorruptRecordError:
                begin = self._segments.following(begin)
            else:
                return Mark(oldest, first.sequence, first.time)
        return Mark(oldest, sequence, 0)

    def latest(self) -> Mark:
        """Return where the next message will begin."""
        tail = self._control.tail()
        return Mark(tail.offset, tail.sequence, 0)

    def _calmly(self, find: Callable[[], Mark]) -> Mark:
        """Find a place, and look again where another process has removed what seemed to be damaged."""
        while True:
            oldest = self._control.oldest_offset
            try:
                return find()
            except _OvertakenError:
                self._segments.drop_reused()  # unless somebody has let go of it already
            except CorruptRecordError:
                # Given up since, or compressed, and its file is another's by now.
                if self._control.oldest_offset == oldest and not self._segments.drop_reused():
                    raise

    def at(self, offset: int) -> Mark:
        """Return an offset with its sequence; `ValueError` if no record begins there."""
        return self._calmly(lambda: self._at(offset))

    def _at(self, offset: int) -> Mark:
        tail, oldest = self._control.tail(), self._control.oldest_offset
        if offset == tail.offset:
            return Mark(tail.offset, tail.sequence, 0)
        if not oldest <= offset < tail.offset:
            raise ValueError(f"offset {offset} is not in the channel, which holds {oldest} to {tail.offset}")
        begin = self._segments.covering(offset)
        following = self._segments.following(offset)
        if begin is not None:
            segment = self._segments.get(begin)
            if offset < min(segment.limit, tail.offset):
                mark = last_mark_at_or_before(self.marks(segment), offset) or _first(segment)
                return _walk(segment, mark, offset)
        previous_end = self._require_records(offset, tail)
        if following is not None and offset == previous_end:
            return _first(self._segments.get(following))
        raise ValueError(f"no record begins at offset {offset}: no offsets were used there")

    def _require_records(self, offset: int, tail: Mark | Tail) -> Offset:
        """Return where the records before the next segment end; `CorruptRecordError` if that is beyond the offset."""
        begin, following = self._segments.covering(offset), self._segments.following(offset)
        previous_end = tail.offset if following is None else self._segments.get(following).header.previous_end
        if offset < previous_end:
            name = self._segments.path(offset if begin is None else begin).name
            reason = f"the records up to {previous_end} are missing"
            raise CorruptRecordError(name, Offset(offset), reason, path=self._segments.directory.parent)
        return previous_end

    def at_or_behind(self, offset: int) -> Mark:
        """Return the first record boundary that does not lie before an offset of the channel."""
        return self._calmly(lambda: self._at_or_behind(offset))

    def _at_or_behind(self, offset: int) -> Mark:
        tail = self.latest()
        if offset >= tail.offset:
            return tail  # whatever comes meanwhile
        begin = self._segments.covering(offset)
        segment = None if begin is None else self._segments.get(begin)
        end = None if segment is None else min(segment.limit, tail.offset)
        if segment is None or end is None or offset >= end:
            following = self._segments.following(offset)
            return tail if following is None else _first(self._segments.get(following))
        mark = _hop(segment, last_mark_at_or_before(self.marks(segment), offset) or _first(segment), offset)
        return mark if mark.offset >= offset else _step(segment, mark)

    def numbered(self, sequence: int) -> Mark:
        """Return where the message with this number begins; `ValueError` if it is not stored."""
        return self._calmly(lambda: self._numbered(sequence))

    def _numbered(self, sequence: int) -> Mark:
        first, tail = self.earliest(), self.latest()
        if not first.sequence <= sequence <= tail.sequence:
            stored = f"{first.sequence} to {tail.sequence - 1} are"
            if first.sequence == tail.sequence:
                stored = f"none is, and {tail.sequence} comes next"
            raise ValueError(f"message {sequence} is not stored: {stored}")
        if sequence == tail.sequence:
            return tail
        begins = [begin for begin in self._segments.begins if begin >= first.offset]
        place = bisect_right(begins, sequence, key=lambda begin: self._segments.header(begin).first_sequence)
        if not place:  # given up since, unless its file was lost
            name, channel = self._segments.path(first.offset).name, self._segments.directory.parent
            raise CorruptRecordError(name, first.offset, "the segment is missing", path=channel)
        segment = self._segments.get(begins[place - 1])
        older = [mark for mark in self.marks(segment) if mark.sequence <= sequence]
        end = min(segment.limit, tail.offset)
        found = _walk_to_sequence(segment, older[-1] if older else _first(segment), sequence, end)
        if found is None:
            # The next segment begins with a higher number. Unless records are missing, a repair has left them out.
            self._require_records(end, tail)
            raise ValueError(f"message {sequence} is not stored: it was damaged or lost, and a repair has left it out")
        return found

    def since(self, moment: datetime) -> Mark:
        """Return a boundary with nothing at or after the moment before it; it may be a little early."""
        wanted = _nanoseconds(moment)
        return self._calmly(lambda: self._since(wanted))

    def _since(self, wanted: int) -> Mark:
        begins, place = self._begun_before(wanted)
        if not place:
            return self.earliest()
        segment = self._segments.get(begins[place - 1])
        # The clock is read before the record is written: what comes before the last entry that is older than the moment
        # is older too, and only the record of the entry itself may straddle it.
        older = list(takewhile(lambda mark: mark.time < wanted, self.marks(segment)))
        return older[-1] if older else _first(segment)

    def _begun_before(self, moment: int) -> tuple[list[Offset], int]:
        """Return where the segments begin, and how many of them were begun before a moment."""
        oldest = self._control.oldest_offset
        begins = [begin for begin in self._segments.begins if begin >= oldest]
        return begins, bisect_left(begins, moment, key=lambda begin: self._segments.header(begin).created)

    def until(self, moment: datetime) -> Mark:
        """Return a boundary with nothing before the moment at or behind it; it may be a little late."""
        wanted = _nanoseconds(moment)
        return self._calmly(lambda: self._until(wanted))

    def _until(self, wanted: int) -> Mark:
        begins, place = self._begun_before(wanted)
        if not place:
            return self.earliest()
        # The clock is read before the record is written: what comes behind an entry is not older.
        marks = self.marks(self._segments.get(begins[place - 1]))
        younger = next((mark for mark in marks if mark.time >= wanted), None)
        if younger is not None:
            return younger
        return _first(self._segments.get(begins[place])) if place < len(begins) else self.latest()

    def written_at(self, place: Mark, known: dict[Offset, list[Mark]]) -> int:
        """Return a time before which the record at a place was not written (ns since the epoch), by the index.

        Where damage lies in the way that is the time of the place itself. Indexes that were read stay in *known*, for
        whoever asks about many places.
        """
        try:
            begin = self._segments.covering(place.offset)
            if begin is None or place.offset >= self._segments.get(begin).limit:
                begin = self._segments.first_from(place.offset)
            if begin is None:
                return place.time
            segment = self._segments.get(begin)
            if begin not in known:
                known[begin] = self.marks(segment)
            return (last_mark_at_or_before(known[begin], place.offset) or _first(segment)).time
        except CorruptRecordError:
            return place.time

    def marks(self, segment: StoredSegment) -> list[Mark]:
        """Return the index of a segment, as far as readers see it."""
        # Before the index: what it says beyond may be taken back and written anew meanwhile.
        end = min(segment.limit, self._control.write_offset)
        self.before_look()
        return [mark for mark in read_marks(self._files, segment.path) if segment.begin <= mark.offset <= end]


def _nothing() -> None:
    pass


def _nanoseconds(moment: datetime) -> int:
    if moment.utcoffset() is None:
        raise ValueError(f"{moment.isoformat()} has no time zone: give an aware datetime")
    return (moment - _EPOCH) // _MICROSECOND * 1000  # exact, as a number of seconds would not be


def _first(segment: StoredSegment) -> Mark:
    return Mark(segment.begin, segment.header.first_sequence, segment.header.created)


def _walk(segment: StoredSegment, mark: Mark, offset: int) -> Mark:
    """Step from one boundary to another, counting messages."""
    mark = _hop(segment, mark, offset)
    if mark.offset < offset:
        raise ValueError(f"no record begins at offset {offset}: the next one begins at {_step(segment, mark).offset}")
    return Mark(mark.offset, mark.sequence, 0)


def _walk_to_sequence(segment: StoredSegment, mark: Mark, wanted: int, end: int) -> Mark | None:
    """Step from a boundary to the message with a number; None if the records end before it."""
    mark = _hop(segment, mark, end, wanted - mark.sequence)
    while mark.offset < end:
        is_message, _ = _read(segment, mark.offset)
        if is_message and mark.sequence == wanted:
            return Mark(mark.offset, mark.sequence, 0)
        mark = _step(segment, mark)
    return None


def _hop(segment: StoredSegment, mark: Mark, stop: int, most: int | None = None) -> Mark:
    """Pass records that end at or before an offset, and at most so many messages. They are checked on the way."""
    columns, end = Columns(None), mark.sequence + (stop - mark.offset if most is None else most)
    while mark.offset < stop and mark.sequence < end:
        reach = min(stop, mark.offset + _HOP)
        content, begin = segment.span(mark.offset, reach)
        try:
            reached, passed = columns.take(
                content, begin, begin + reach - mark.offset, mark.offset, end - mark.sequence
            )
        except ValueError:  # it reaches further, or is damaged
            following = _step(segment, mark)
            if following.offset > stop:
                break
            mark = following
        else:
            columns.finish()
            mark = Mark(Offset(mark.offset + reached - begin), mark.sequence + passed, 0)
    return mark


def _step(segment: StoredSegment, mark: Mark) -> Mark:
    """Pass one record."""
    is_message, size = _read(segment, mark.offset)
    return Mark(Offset(mark.offset + size), mark.sequence + is_message, 0)


def _read(segment: StoredSegment, offset: int) -> tuple[bool, int]:
    """Return whether a record is a message, and its size."""
    try:
        word, payload = segment.read(offset, segment.limit)
    except ValueError as error:
        kind = CorruptRecordError if segment.is_valid else _OvertakenError
        raise kind(segment.path.name, Offset(offset), segment.explain(offset, str(error))) from error
    return not word & CONTROL_RECORD, RECORD_HEADER_SIZE + len(payload)
