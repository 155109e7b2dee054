"""Has the file of the next segment ready before the active one is full, so that rolling is a rename.

Asked for past the half of a segment, once: a channel with little traffic takes no more disk space than it uses. A file
that waits already is as good as one that is made, if it has its disk space; otherwise it gets the rest. Another thread
does that, and leaves the file mapped. If it fails, or is not done in time, whoever sends makes the file as ever.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress

from .._errors import ClosedResourceError, DiskFullError, StorageError
from .background import NoThreadError, background_threads
from .segment import Segment
from .segments import Segments

SMALLEST = 16 << 10
"""Size of segments from which on it is worth another thread's time."""
_logger = logging.getLogger("filechannel")


class Preparation:
    """Prepares the next segment of one writer. The caller holds the writer word."""

    def __init__(self, segments: Segments, on_ready: Callable[[], object]) -> None:
        """*on_ready* is called, from any thread, when a file is ready."""
        self._segments = segments
        self._on_ready = on_ready
        self._asked: Segment | None = None

    def advance(self, segment: Segment, offset: int) -> int:
        """Look at how far the writer has come, and return the offset by which it has to ask again."""
        middle = (segment.begin + segment.room_end) // 2
        if segment is self._asked or len(segment.map) < SMALLEST:
            return segment.room_end
        if offset < middle:
            return middle
        self._asked = segment
        if self._segments.ready_spare() is not None:
            self._on_ready()
        else:
            with suppress(NoThreadError):  # the interpreter is shutting down
                background_threads().do(lambda: self._prepare(segment))
        return segment.room_end

    def _prepare(self, segment: Segment) -> None:
        if not self.is_asked_for(segment):
            return  # the writer has gone on without it, or the channel is closed
        try:
            file = self._segments.prepare_spare(segment)
        except (DiskFullError, FileNotFoundError, ClosedResourceError):
            return  # the next send reports a full disk; a sender took the file already; or the channel was closed
        except (OSError, StorageError) as error:
            if self.is_asked_for(segment):  # otherwise it was closed in this moment, and the error says only that
                _logger.warning("%s: the next segment could not be prepared: %s", segment.path.parent.parent, error)
            return
        if self.is_asked_for(segment) and file is not None:
            self._on_ready()

    def is_asked_for(self, segment: Segment) -> bool:
        """Tell whether nothing is left to do until a segment is full."""
        return segment is self._asked

    def is_ready(self, segment: Segment) -> None:
        """A file waits already: nobody has to ask for one."""
        self._asked = segment

    def close(self) -> None:
        """Forget what was asked for."""
        self._asked = None
