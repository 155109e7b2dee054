"""The backlog: what is stored and not consumed, from the position of the slowest consumer to the end of the log.

Positions are shared memory, so reading them costs next to nothing. The directory is read only when a shared word says
that consumers were added or removed.
"""

from __future__ import annotations

import mmap
from contextlib import suppress
from typing import NamedTuple

from ..._errors import CorruptRecordError
from ..._format import Mutex
from ..._format.layout import OFFSET_GAP, RECORD_HEADER_SIZE
from ..._offset import LogPosition
from ..consumers.cursor_file_format import StoredPosition
from ..consumers.listing import ConsumerListing
from ..control.control_page import Control
from ..reading.lookup import LogLookup
from ..segments.catalog import Segments


class Batch(NamedTuple):
    """An amount of capacity: bytes of records, and messages."""

    size: int
    messages: int

    @classmethod
    def of(cls, payloads: int, messages: int) -> Batch:
        """Return the capacity that *messages* need if their payloads have *payloads* bytes in total."""
        return cls(payloads + RECORD_HEADER_SIZE * messages, messages)


SMALLEST = Batch(RECORD_HEADER_SIZE, 1)
"""The least capacity that a message needs."""
_MOST_READS = 100  # attempts to read a position that is written continually


class Backlog:
    """Counts exactly what is not consumed, in bytes of records and in messages."""

    def __init__(
        self, control: Control, segments: Segments, lookup: LogLookup, consumer_listing: ConsumerListing
    ) -> None:
        self._control = control
        self._segments = segments
        self._lookup = lookup
        self._consumer_listing = consumer_listing
        self._lock = Mutex()  # a signal handler or finalizer that sends may interrupt this
        self._known: int | None = None
        self._watched: list[mmap.mmap] = []

    def floor(self) -> LogPosition:
        """Return the position of the slowest consumer.

        It is the oldest message if there is no consumer, or if the position of one was reclaimed or is damaged.
        """
        with self._lock.held():
            known = self._control.registrations  # read first: a later change is noticed at the next call
            if known != self._known:
                maps = map(self._consumer_listing.watch, self._consumer_listing.names())
                self._watched = [each for each in maps if each is not None]
                self._known = known
        return self.slowest() or self._lookup.earliest()

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

    def slowest(self) -> LogPosition | None:
        """Return the position of the slowest of the consumers that `floor` found; None if it was reclaimed.

        Also None if a position cannot be read. Accesses no files.
        """
        with self._lock.held():
            positions = [self._read(each) for each in self._watched]
        known = [position for position in positions if position is not None]
        slowest = min(known, key=lambda position: position.offset, default=None)
        if slowest is None or len(known) < len(positions) or slowest.offset < self._control.oldest_offset:
            return None
        return slowest.log_position

    def _read(self, watched: mmap.mmap) -> StoredPosition | None:
        for _ in range(_MOST_READS):
            if (position := self._consumer_listing.read(watched)) is not None:
                return position
        return None

    def used(self) -> Batch:
        """Return the backlog, including records that are appended and not published."""
        tail = self._control.tail(deferred=self._control.deferred)
        return self.between(self.floor(), LogPosition(tail.offset, tail.sequence))

    def between(self, start: LogPosition, end: LogPosition) -> Batch:
        """Return the amount between two log positions."""
        size = end.offset - start.offset - self._unused_between(start.offset, end.offset)
        return Batch(max(0, size), max(0, end.sequence - start.sequence))

    def _unused_between(self, start: int, end: int) -> int:
        """Return how many offsets between two belong to offset gaps."""
        if start // OFFSET_GAP == end // OFFSET_GAP:
            return 0
        unused = 0
        for begin in self._segments.begins:
            if start < begin <= end and not begin % OFFSET_GAP:
                with suppress(CorruptRecordError):  # the receiver that reads it reports it
                    unused += begin - max(start, self._segments.header(begin).previous_end)
        return unused
