"""Makes the pages in front of the writer present, in the background.

A first touch of a page costs microseconds, as much as several small messages. A channel that is written to at speed has
its next pages prepared by another thread: as many as it has filled already, up to some mebibytes. The writer itself
asks for them as it comes closer, and those at the beginning of the next segment are asked for when its file is ready.
A channel with little traffic, or one that is flushed message by message, is left alone.
"""

from __future__ import annotations

import mmap

from .._format import Writer, populate, populate_settle, populate_soon
from .segment import Segment

_PATIENCE = 256 << 10  # bytes written before it is worth it
_FARTHEST = 8 << 20
_SMALLEST = 1 << 20  # segments for which it is


class PagesAhead:
    """Stays ahead of one writer. The caller holds the writer word."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._segment: Segment | None = None
        self._first: int = 0
        self._possible: bool | None = None

    def advance(self, segment: Segment, offset: int, allocated_end: int) -> None:
        """Look at how far the writer has come, and have it stay ahead if that is worth it."""
        if self._segment is None:
            self._first = offset
        self._segment = segment
        written = offset - self._first
        if written < _PATIENCE or len(segment.map) < _SMALLEST:
            return
        if self._possible is None:
            self._possible = populate(segment.map, segment.position(offset), 1)
        if self._possible:
            self._writer.stay_ahead(allocated_end, min(written, _FARTHEST))

    def begin(self, following: mmap.mmap) -> None:
        """Make the first pages of the next segment present, if that is done at all. Any thread may call this."""
        if self._possible and not self._writer.deferred and len(following) >= _SMALLEST:
            populate_soon(following, 0, min(_FARTHEST, len(following)))

    def close(self) -> None:
        """Let go of every map."""
        self._segment = None
        populate_settle()
