"""Has the file of the next segment ready before the active one is full, so that rolling is a rename.

Asked for past the half of a segment, once: a channel with little traffic takes no more disk space than it uses. A file
that waits already is as good as one that is made, if it has its disk space; otherwise it gets the rest. Another thread
does that, and leaves the file mapped. If it fails, or is not done in time, whoever sends makes the file as ever.
"""

from __future__ import annotations

import logging
import mmap
from contextlib import suppress

from .._errors import DiskFullError, StorageError
from .background import background_threads
from .maps import MappedFile
from .segment import Segment
from .segments import Segments

SMALLEST = 16 << 10
"""Size of segments from which on it is worth another thread's time."""
_logger = logging.getLogger("filechannel")


class Preparation:
    """Prepares the next segment of one writer. The caller holds the writer word."""

    def __init__(self, segments: Segments) -> None:
        self._segments = segments
        self._asked: Segment | None = None
        self._file: MappedFile | None = None

    def look_at(self, segment: Segment, offset: int) -> int:
        """Return the offset by which the writer, which is at another one, has to ask again."""
        if segment is self._asked or len(segment.map) < SMALLEST:
            return segment.room_end
        middle = (segment.begin + segment.room_end) // 2
        return middle if offset < middle else segment.room_end

    def advance(self, segment: Segment, offset: int) -> mmap.mmap | None:
        """Look at how far the writer has come; return the map of what comes next, if it is there already."""
        if segment is not self._asked:
            if self.look_at(segment, offset) < segment.room_end or len(segment.map) < SMALLEST:
                return None
            self._asked, self._file = segment, self._segments.ready_spare()
            if self._file is None:
                with suppress(RuntimeError):  # the interpreter is shutting down
                    background_threads().submit(self._prepare, segment)
        return None if self._file is None else self._file.map

    def _prepare(self, segment: Segment) -> None:
        try:
            file = self._segments.prepare_spare(segment)
        except (DiskFullError, FileNotFoundError):
            return  # for whoever sends to say, if it comes to that; or somebody has taken the file already
        except (OSError, StorageError) as error:
            _logger.warning("%s: the next segment could not be prepared: %s", segment.path.parent.parent, error)
            return
        if self._asked is segment:
            self._file = file

    def close(self) -> None:
        """Let go of every map."""
        self._asked = self._file = None
