"""Makes the pages in front of the writer present, in the background.

A first touch of a page costs microseconds, as much as several small messages. A channel that is written to at speed has
its next pages prepared by another thread: as many as it has filled already, up to some mebibytes, and on into the file
of the next segment. A channel with little traffic, or one that is flushed message by message, is left alone.
"""

from __future__ import annotations

import mmap

from .._format import populate, populate_settle, populate_soon
from .segment import Segment

_PATIENCE = 256 << 10  # bytes written before it is worth it
_FARTHEST = 8 << 20  # two windows of the writer
_SMALLEST = 1 << 20  # segments for which it is


class PagesAhead:
    """Stays ahead of one writer. The caller holds the writer word."""

    def __init__(self) -> None:
        self._segment: Segment | None = None
        # Offsets, so that they mean the same in the next segment.
        self._first: int = 0
        self._asked: int = 0
        self._possible: bool | None = None

    def advance(self, segment: Segment, offset: int, allocated_end: int, following: mmap.mmap | None) -> None:
        """Look at how far the writer has come, and prepare more if it is getting close."""
        if self._segment is None:
            self._first = self._asked = offset
        self._segment = segment
        written = offset - self._first
        if written < _PATIENCE or len(segment.map) < _SMALLEST or self._possible is False:
            return
        ahead = min(written, _FARTHEST)
        if self._asked - offset > ahead // 2:
            return
        start, stop = max(self._asked, offset), offset + ahead
        self._populate(segment.map, segment.position(start), segment.position(min(stop, allocated_end)))
        self._asked = max(start, min(stop, allocated_end))
        if stop > segment.room_end and following is not None:
            # The next segment begins about where this one ends: its first records lie as far in.
            position = segment.position(segment.begin)
            reach = stop - segment.room_end
            self._populate(
                following, position + max(start - segment.room_end, 0), min(position + reach, len(following))
            )
            self._asked = stop

    def _populate(self, map_: mmap.mmap, position: int, end: int) -> None:
        if position >= end:
            return
        if self._possible is None:
            self._possible = populate(map_, position, 1)
        populate_soon(map_, position, end - position)

    def close(self) -> None:
        """Let go of every map."""
        self._segment = None
        populate_settle()
