"""Prefaults the pages that the writer fills next, in a background thread.

The first access to a page costs microseconds, as much as several small messages. For a channel with high traffic,
another thread prefaults the next pages: as many as were filled already, up to a few mebibytes. The writer requests them
as it approaches them. The first pages of the next segment are requested when its file is ready. A channel with little
traffic, or one that is flushed after each message, is not prefaulted.
"""

from __future__ import annotations

import mmap

from ..._format import Writer, populate, populate_soon, populate_wait
from ..segments.segment import Segment

_WRITTEN_BEFORE_START = 256 << 10  # bytes written before prefaulting starts
_FARTHEST = 8 << 20
_SMALLEST = 1 << 20  # size of a segment from which on prefaulting is worth the effort


class PagePrefault:
    """Prefaults pages for one writer. Unless stated otherwise, the caller holds the log's mutex."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._segment: Segment | None = None
        self._first: int = 0
        self._possible: bool | None = None

    def advance(self, segment: Segment, offset: int, allocated_end: int) -> None:
        """Check the progress of the writer, and start prefaulting if there is enough traffic."""
        if self._segment is None:
            self._first = offset
        self._segment = segment
        written = offset - self._first
        if written < _WRITTEN_BEFORE_START or len(segment.map) < _SMALLEST:
            return
        if self._possible is None:
            self._possible = populate(segment.map, segment.position(offset), 1)
        if self._possible:
            self._writer.populate_ahead(allocated_end, min(written, _FARTHEST))

    def begin(self, following: mmap.mmap) -> None:
        """Prefault the first pages of the next segment, if prefaulting is active. Needs no lock."""
        if self._possible and not self._writer.deferred and len(following) >= _SMALLEST:
            populate_soon(following, 0, min(_FARTHEST, len(following)))

    def close(self) -> None:
        """Release every map."""
        self._segment = None
        populate_wait()
