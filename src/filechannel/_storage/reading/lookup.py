"""Finds record boundaries: the oldest, the newest, and by offset, sequence or time."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import takewhile

from ..._errors import CorruptRecordError
from ..._format import skip_records
from ..._format.layout import CONTROL_RECORD, RECORD_HEADER_SIZE
from ..._offset import LogPosition, Offset
from ..control.control_page import Control, Tail
from ..segments.catalog import Segments
from ..segments.compressed_segment import StoredSegment
from ..segments.segment_index import IndexEntry, last_entry_at_or_before, read_entries
from ..system.os_calls import Files

_SKIPPED = 1 << 16  # bytes to skip at a time: the distance between two index entries
_EPOCH, _MICROSECOND = datetime.fromtimestamp(0, UTC), timedelta(microseconds=1)


class _RecycledError(CorruptRecordError):
    """The file no longer holds that segment, which is stored in another file or was reclaimed."""


class LogLookup:
    """Finds record boundaries. Its methods raise `CorruptRecordError` if damage prevents that."""

    def __init__(
        self,
        files: Files,
        control: Control,
        segments: Segments,
        store_index_entries: Callable[[], object] | None = None,
    ) -> None:
        """*store_index_entries* stores the index entries that a writer of this process has not stored yet."""
        self._files = files
        self._control = control
        self._segments = segments
        self._store_index_entries = store_index_entries

    def earliest(self) -> LogPosition:
        """Return where the oldest stored message begins. Damage there is reported when it is read."""
        return self.earliest_entry().log_position

    def earliest_entry(self) -> IndexEntry:
        """Return the same with the time at which its segment was created; 0 if that is unknown."""
        while True:
            first = self._first_from(self._control.oldest_offset)
            if first.offset == self._control.oldest_offset:  # else it was reclaimed in the meantime
                return first

    def _first_from(self, oldest: Offset) -> IndexEntry:
        sequence = self._control.tail().sequence  # first, so that messages sent during the search come after it
        begin = self._segments.first_from(oldest)
        while begin is not None:
            try:
                first = _first(self._segments.get(begin))
            except CorruptRecordError:
                begin = self._segments.following(begin)
            else:
                return IndexEntry(oldest, first.sequence, first.time)
        return IndexEntry(oldest, sequence, 0)

    def latest(self) -> LogPosition:
        """Return where the next message will begin."""
        tail = self._control.tail()
        return LogPosition(tail.offset, tail.sequence)

    def _retry_if_reclaimed(self, find: Callable[[], LogPosition]) -> LogPosition:
        """Call *find*, and repeat it if apparent damage is a segment that another process has reclaimed."""
        while True:
            oldest = self._control.oldest_offset
            try:
                return find()
            except _RecycledError:
                self._segments.drop_reused()  # another thread may have done that already
            except CorruptRecordError:
                # It is damage only if the segment was not reclaimed, or compressed, and its file not recycled since.
                if self._control.oldest_offset == oldest and not self._segments.drop_reused():
                    raise

    def at(self, offset: int) -> LogPosition:
        """Return an offset with its sequence; `ValueError` if no record begins there."""
        return self._retry_if_reclaimed(lambda: self._at(offset))

    def _at(self, offset: int) -> LogPosition:
        tail, oldest = self._control.tail(), self._control.oldest_offset
        if offset == tail.offset:
            return LogPosition(tail.offset, tail.sequence)
        if not oldest <= offset < tail.offset:
            raise ValueError(f"offset {offset} is not in the channel, which has {oldest} to {tail.offset}")
        begin = self._segments.covering(offset)
        following = self._segments.following(offset)
        if begin is not None:
            segment = self._segments.get(begin)
            if offset < min(segment.limit, tail.offset):
                return _walk(segment, self._known_before(segment, offset), offset)
        previous_end = self._require_records(offset, tail)
        if following is not None and offset == previous_end:
            return _first(self._segments.get(following)).log_position
        raise ValueError(f"no record begins at offset {offset}: it lies in an offset gap")

    def _known_before(self, segment: StoredSegment, offset: int) -> LogPosition:
        """Return the last log position at or before an offset that is known without reading records."""
        return (last_entry_at_or_before(self.entries(segment), offset) or _first(segment)).log_position

    def _require_records(self, offset: int, tail: LogPosition | Tail) -> Offset:
        """Return where the records before the next segment end; `CorruptRecordError` if that is beyond the offset."""
        begin, following = self._segments.covering(offset), self._segments.following(offset)
        previous_end = tail.offset if following is None else self._segments.get(following).header.previous_end
        if offset < previous_end:
            name = self._segments.path(offset if begin is None else begin).name
            reason = f"the records up to {previous_end} are missing"
            raise CorruptRecordError(name, Offset(offset), reason, path=self._segments.directory.parent)
        return previous_end

    def at_or_after(self, offset: int) -> LogPosition:
        """Return the first record boundary at or after an offset of the channel."""
        return self._retry_if_reclaimed(lambda: self._at_or_after(offset))

    def _at_or_after(self, offset: int) -> LogPosition:
        tail = self.latest()
        if offset >= tail.offset:
            return tail  # even if messages are sent in the meantime
        begin = self._segments.covering(offset)
        segment = None if begin is None else self._segments.get(begin)
        end = None if segment is None else min(segment.limit, tail.offset)
        if segment is None or end is None or offset >= end:
            following = self._segments.following(offset)
            return tail if following is None else _first(self._segments.get(following)).log_position
        reached = _skip(segment, self._known_before(segment, offset), offset)
        return reached if reached.offset >= offset else _step(segment, reached)

    def numbered(self, sequence: int) -> LogPosition:
        """Return where the message with this sequence begins; `ValueError` if it is not stored."""
        return self._retry_if_reclaimed(lambda: self._numbered(sequence))

    def _numbered(self, sequence: int) -> LogPosition:
        first, tail = self.earliest(), self.latest()
        if not first.sequence <= sequence <= tail.sequence:
            stored = f"{first.sequence} to {tail.sequence - 1} are"
            if first.sequence == tail.sequence:
                stored = f"the channel is empty, and the next sequence is {tail.sequence}"
            raise ValueError(f"message {sequence} is not stored: {stored}")
        if sequence == tail.sequence:
            return tail
        begins = [begin for begin in self._segments.begins if begin >= first.offset]
        index = bisect_right(begins, sequence, key=lambda begin: self._segments.header(begin).first_sequence)
        if not index:  # the segment was reclaimed since, or its file was lost
            name, channel = self._segments.path(first.offset).name, self._segments.directory.parent
            raise CorruptRecordError(name, first.offset, "the segment is missing", path=channel)
        segment = self._segments.get(begins[index - 1])
        older = [entry for entry in self.entries(segment) if entry.sequence <= sequence]
        start, end = older[-1] if older else _first(segment), min(segment.limit, tail.offset)
        found = _walk_to_sequence(segment, start.log_position, sequence, end)
        if found is None:
            # The next segment begins with a higher sequence. Unless records are missing, a repair has left them out.
            self._require_records(end, tail)
            raise ValueError(f"message {sequence} is not stored: it was damaged or lost, and a repair left it out")
        return found

    def since(self, moment: datetime) -> LogPosition:
        """Return a boundary such that no record before it was written at or after *moment*; it may be a bit early."""
        wanted = _nanoseconds(moment)
        return self._retry_if_reclaimed(lambda: self._since(wanted))

    def _since(self, wanted: int) -> LogPosition:
        begins, index = self._started_before(wanted)
        if not index:
            return self.earliest()
        segment = self._segments.get(begins[index - 1])
        # The clock is read before the record is written. So all records before the last entry that is older than the
        # moment are older, too. Only the record of that entry itself may have been written after the moment.
        older = list(takewhile(lambda entry: entry.time < wanted, self.entries(segment)))
        return (older[-1] if older else _first(segment)).log_position

    def _started_before(self, moment: int) -> tuple[list[Offset], int]:
        """Return where the segments begin, and how many of them were created before a moment."""
        oldest = self._control.oldest_offset
        begins = [begin for begin in self._segments.begins if begin >= oldest]
        return begins, bisect_left(begins, moment, key=lambda begin: self._segments.header(begin).created)

    def until(self, moment: datetime) -> LogPosition:
        """Return a boundary such that no record from there on was written before *moment*; it may be a bit late."""
        wanted = _nanoseconds(moment)
        return self._retry_if_reclaimed(lambda: self._until(wanted))

    def _until(self, wanted: int) -> LogPosition:
        begins, index = self._started_before(wanted)
        if not index:
            return self.earliest()
        # The clock is read before the record is written, so no record after an entry is older than it.
        entries = self.entries(self._segments.get(begins[index - 1]))
        younger = next((entry for entry in entries if entry.time >= wanted), None)
        if younger is None and index < len(begins):
            younger = _first(self._segments.get(begins[index]))
        return self.latest() if younger is None else younger.log_position

    def written_at(self, offset: Offset, known: dict[Offset, list[IndexEntry]], fallback: int) -> int:
        """Return the earliest time (ns since the epoch) at which a record can have been written, by the index.

        *fallback* if no segment holds it, or if damage prevents the lookup. The indexes that were read are kept in
        *known*, for callers that ask about many offsets.
        """
        try:
            begin = self._segments.covering(offset)
            if begin is None or offset >= self._segments.get(begin).limit:
                begin = self._segments.first_from(offset)
            if begin is None:
                return fallback
            segment = self._segments.get(begin)
            if begin not in known:
                known[begin] = self.entries(segment)
            return (last_entry_at_or_before(known[begin], offset) or _first(segment)).time
        except CorruptRecordError:
            return fallback

    def entries(self, segment: StoredSegment) -> list[IndexEntry]:
        """Return the index entries of a segment, for published records only."""
        # Read before the index: records beyond this end may be rolled back and replaced while the index is read.
        end = min(segment.limit, self._control.write_offset)
        if self._store_index_entries is not None:
            self._store_index_entries()
        return [entry for entry in read_entries(self._files, segment.path) if segment.begin <= entry.offset <= end]


def _nanoseconds(moment: datetime) -> int:
    if moment.utcoffset() is None:
        raise ValueError(f"{moment.isoformat()} has no time zone: use an aware datetime")
    return (moment - _EPOCH) // _MICROSECOND * 1000  # exact, unlike a float of seconds


def _first(segment: StoredSegment) -> IndexEntry:
    """Return the entry that every segment has even without an index: its header."""
    return IndexEntry(segment.begin, segment.header.first_sequence, segment.header.created)


def _walk(segment: StoredSegment, start: LogPosition, offset: int) -> LogPosition:
    """Skip records from one boundary to another, and count the messages; `ValueError` if none begins at *offset*."""
    reached = _skip(segment, start, offset)
    if reached.offset < offset:
        following = _step(segment, reached)
        raise ValueError(f"no record begins at offset {offset}: the next one begins at {following.offset}")
    return reached


def _walk_to_sequence(segment: StoredSegment, start: LogPosition, wanted: int, end: int) -> LogPosition | None:
    """Skip records from a boundary to the message with a sequence; return None if the records end before it."""
    reached = _skip(segment, start, end, wanted - start.sequence)
    while reached.offset < end:
        is_message, _ = _read(segment, reached.offset)
        if is_message and reached.sequence == wanted:
            return reached
        reached = _step(segment, reached)
    return None


def _skip(segment: StoredSegment, start: LogPosition, stop: int, most: int | None = None) -> LogPosition:
    """Skip the records that end at or before *stop*, with at most *most* messages. Their checksums are verified."""
    reached, end = start, start.sequence + (stop - start.offset if most is None else most)
    while reached.offset < stop and reached.sequence < end:
        size = min(stop - reached.offset, _SKIPPED)
        content, first = segment.span(reached.offset, reached.offset + size)
        position, messages = skip_records(content, first, first + size, reached.offset, end - reached.sequence)
        following = LogPosition(Offset(reached.offset + position - first), reached.sequence + messages)
        if position == first:  # the record continues beyond the range, or is damaged
            following = _step(segment, reached)
            if following.offset > stop:
                break
        reached = following
    return reached


def _step(segment: StoredSegment, start: LogPosition) -> LogPosition:
    """Skip one record."""
    is_message, size = _read(segment, start.offset)
    return LogPosition(Offset(start.offset + size), start.sequence + is_message)


def _read(segment: StoredSegment, offset: int) -> tuple[bool, int]:
    """Return whether a record is a message, and its size."""
    try:
        word, payload = segment.read(offset, segment.limit)
    except ValueError as error:
        kind = CorruptRecordError if segment.is_valid else _RecycledError
        channel = segment.path.parent.parent
        raise kind(segment.path.name, Offset(offset), segment.explain(offset, str(error)), path=channel) from error
    return not word & CONTROL_RECORD, RECORD_HEADER_SIZE + len(payload)
