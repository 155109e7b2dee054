"""Makes the pages in front of the writer present, in the background.

A first touch of a page costs microseconds, as much as several small messages. A channel that is written to at speed has
its next pages prepared by another thread: as many as it has filled already, up to some mebibytes. A channel with little
traffic, or one that is flushed message by message, is left alone.
"""

from __future__ import annotations

from .._format import populate, populate_settle, populate_soon
from .segment import Segment

_PATIENCE = 256 << 10  # bytes written to one segment before it is worth it
_FARTHEST = 4 << 20


class PagesAhead:
    """Stays ahead of one writer. The caller holds the writer word."""

    def __init__(self) -> None:
        self._segment: Segment | None = None
        self._first = self._asked = 0
        self._possible: bool | None = None

    def advance(self, segment: Segment, offset: int, allocated_end: int) -> None:
        """Look at how far the writer has come, and prepare more if it is getting close."""
        if segment is not self._segment:
            self._segment, self._first, self._asked = segment, offset, offset
        written = offset - self._first
        if written < _PATIENCE or self._possible is False:
            return
        ahead = min(written, _FARTHEST)
        start, stop = max(self._asked, offset), min(offset + ahead, allocated_end)
        if self._asked - offset > ahead // 2 or start >= stop:
            return
        self._asked = stop
        position = segment.position(start)
        if self._possible is None:
            self._possible = populate(segment.map, position, 1)
        populate_soon(segment.map, position, segment.position(stop) - position)

    def close(self) -> None:
        """Let go of every map."""
        self._segment = None
        populate_settle()
