"""What is stored and not consumed: from where the slowest registered consumer stands to the end of the log.

Positions are shared memory, so a look at them costs next to nothing; files are looked at only when a shared word says
that names came or went.
"""

from __future__ import annotations

import mmap
from contextlib import suppress
from typing import NamedTuple

from .._errors import CorruptRecordError
from .._format import Mutex
from .._format.layout import OFFSET_JUMP, RECORD_HEADER_SIZE
from .control import Control
from .cursor_file import Position
from .index import Mark
from .places import Places
from .roster import Roster
from .segments import Segments


class Batch(NamedTuple):
    """Something that takes room: bytes of records, and messages."""

    size: int
    messages: int

    @classmethod
    def of(cls, payloads: int, messages: int) -> Batch:
        """Describe messages whose payloads have so many bytes together."""
        return cls(payloads + RECORD_HEADER_SIZE * messages, messages)


SMALLEST = Batch(RECORD_HEADER_SIZE, 1)
"""What every message needs at least."""
_TRIES = 100  # of reading a position that is written to all the time


class Backlog:
    """Counts what nobody has taken yet, exactly, in bytes of records and in messages."""

    def __init__(self, control: Control, segments: Segments, places: Places, roster: Roster) -> None:
        self._control = control
        self._segments = segments
        self._places = places
        self._roster = roster
        self._lock = Mutex()  # a handler or finalizer that sends may come in between
        self._known: int | None = None
        self._watched: list[mmap.mmap] = []

    def floor(self) -> Mark:
        """Return where the slowest consumer stands; the oldest message with none, or one overtaken or damaged."""
        with self._lock.held():
            known = self._control.registrations  # before the look: a change that comes later is seen the next time
            if known != self._known:
                maps = map(self._roster.watch, self._roster.names())
                self._watched = [each for each in maps if each is not None]
                self._known = known
        return self.slowest() or self._places.earliest()

    def close(self) -> None:
        """Close the files of the consumers' positions."""
        with self._lock.held():
            for each in self._watched:
                each.close()
            self._watched = []

    @property
    def has_consumers(self) -> bool:
        """Whether any consumer is registered that `floor` knows of."""
        return bool(self._watched)

    def slowest(self) -> Mark | None:
        """Return where the slowest of the consumers stands that `floor` knows of, unless it was overtaken.

        None as well if one of them cannot be read: that one begins anew. Touches no files.
        """
        with self._lock.held():
            positions = [self._read(each) for each in self._watched]
        known = [position for position in positions if position is not None]
        slowest = min(known, key=lambda position: position.offset, default=None)
        if slowest is None or len(known) < len(positions) or slowest.offset < self._control.oldest_offset:
            return None
        return Mark(slowest.offset, slowest.sequence, slowest.time)

    def _read(self, watched: mmap.mmap) -> Position | None:
        for _ in range(_TRIES):
            if (position := self._roster.read(watched)) is not None:
                return position
        return None

    def used(self) -> Batch:
        """Return what nobody has taken yet, with what is appended and not visible."""
        tail = self._control.tail(deferred=self._control.deferred)
        return self.between(self.floor(), Mark(tail.offset, tail.sequence, 0))

    def between(self, start: Mark, end: Mark) -> Batch:
        """Return what lies between two places."""
        size = end.offset - start.offset - self._left_out(start.offset, end.offset)
        return Batch(max(0, size), max(0, end.sequence - start.sequence))

    def _left_out(self, start: int, end: int) -> int:
        """Return how many offsets between two were never used: the log has gone on elsewhere after a failure."""
        if start // OFFSET_JUMP == end // OFFSET_JUMP:
            return 0
        left_out = 0
        for begin in self._segments.begins:
            if start < begin <= end and not begin % OFFSET_JUMP:
                with suppress(CorruptRecordError):  # that is for whoever reads it
                    left_out += begin - max(start, self._segments.header(begin).previous_end)
        return left_out
