"""Prepares the file of the next segment before the active segment is full, so that a roll is only a rename.

The file is requested once, when half of the active segment is used: a channel with little traffic takes no more disk
space than it uses. A file from the free list is as good as a new one if its disk space is allocated; otherwise the rest
is allocated. Another thread does this, and leaves the file mapped. If that fails, or is too late, the sender that rolls
creates the file itself.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import suppress
from typing import final

from ..._errors import ClosedResourceError, DiskFullError, StorageError
from ..._format import Writer
from ..._format.layout import SEGMENT_HEADER_SIZE
from ..._runtime.threads import NoThreadError, background_threads
from ..segments.catalog import Segments
from ..segments.free_list import FreeFile
from ..segments.segment import Header, Segment, segment_name
from ..store_events import StoreEvents
from ..system.mapped_files import MappedFile
from ..system.os_calls import Files

SMALLEST = 16 << 10
"""Size of a segment from which on preparing the next one is worth the effort."""
_logger = logging.getLogger("filechannel")


@final
class NextSegment:
    """Prepares the next segment of one writer. Unless stated otherwise, the caller holds the log's mutex."""

    def __init__(
        self,
        files: Files,
        segments: Segments,
        writer: Writer,
        events: StoreEvents,
        *,
        on_ready: Callable[[], object],
    ) -> None:
        """*on_ready* is called from any thread when a file is ready, to hand it over: `Log.prepare_next_segment`."""
        self._files = files
        self._segments = segments
        self._writer = writer
        self._on_ready = on_ready
        self._on_fast_roll = events.maintenance_due.__call__  # has another thread call `Log.catch_up`
        self._requested: Segment | None = None
        segments.add_user(self)

    def advance(self, segment: Segment, offset: int) -> int:
        """Request the next segment if half of this one is used; return the offset at which to call this again.

        The caller holds the writer lock.
        """
        middle = (segment.begin + segment.space_end) // 2
        if segment is self._requested or len(segment.map) < SMALLEST:
            return segment.space_end
        if offset < middle:
            return middle
        self._requested = segment
        if self._segments.next_free_file() is not None:
            self._on_ready()
        else:
            with suppress(NoThreadError):  # the interpreter is shutting down
                background_threads().do(lambda: self._prepare_file(segment))
        return segment.space_end

    def _prepare_file(self, segment: Segment) -> None:
        if not self.is_requested(segment):
            return  # the writer has rolled without it, or the channel is closed
        try:
            file = self._segments.prepare_free_file(segment)
        except (DiskFullError, FileNotFoundError, ClosedResourceError):
            return  # the next send reports a full disk; a sender took the file already; or the channel was closed
        except (OSError, StorageError) as error:
            if self.is_requested(segment):  # otherwise the channel was just closed, and that caused the error
                _logger.warning("%s: the next segment could not be prepared: %s", segment.path.parent.parent, error)
            return
        if self.is_requested(segment) and file is not None:
            self._on_ready()

    def is_requested(self, segment: Segment) -> bool:
        """Return whether the segment after this one was requested: nothing else is prepared until this one is full.

        Needs no lock.
        """
        return segment is self._requested

    def hand_over(self, free: FreeFile, file: MappedFile) -> None:
        """Give the writer a prepared file, with the names and the header that a fast roll needs."""
        space = len(file.map) - SEGMENT_HEADER_SIZE
        window = space if len(file.map) < SMALLEST else space // 2
        directory = self._segments.names.open_directory()
        self._writer.prepare_next(
            file,
            file.map,
            Header.new(0, 0, 0).pack(),
            *free.inode,
            os.fsencode(free.path.name),
            os.fsencode(segment_name(0)),
            0,
            window,
            self._on_fast_roll,
            self._files.watch_roll,
            directory.descriptor,
        )

    def release_map(self, file: MappedFile, _segments: list[Segment]) -> None:
        """Forget the prepared file if it is the one that will be unmapped. Any thread may call this."""
        self._writer.forget_next(file)

    def mark_ready(self, segment: Segment) -> None:
        """Record that the segment after this one is prepared, so that it is not requested."""
        self._requested = segment

    def close(self) -> None:
        """Forget the request."""
        self._requested = None
