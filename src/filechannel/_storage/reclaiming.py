"""Removing the files of segments that were given up: by senders, in a full channel that drops its oldest messages.

It takes a flush, and belongs in another thread. Whoever dies on the way leaves files that the next one removes.
"""

from __future__ import annotations

import logging
from contextlib import suppress

from .._errors import FileChannelError
from .._offset import Offset
from .background import background_threads
from .control import Control
from .flush import Flusher
from .log import Log
from .segments import Segments

_MOST = 32  # segments that wait to be removed
_logger = logging.getLogger("filechannel")


class Reclaiming:
    """Removes segments before the oldest message."""

    def __init__(self, segments: Segments, control: Control, log: Log, flusher: Flusher) -> None:
        self._segments = segments
        self._control = control
        self._log = log
        self._flusher = flusher

    @property
    def _given_up(self) -> int:
        oldest = self._control.oldest_offset
        return sum(begin < oldest for begin in self._segments.begins)

    def begin(self) -> None:
        """Have it done; by the caller if others do not keep up with it."""
        if self._given_up > _MOST:
            self.run()
            return
        with suppress(RuntimeError):  # the interpreter is shutting down: whoever opens the channel next does it
            background_threads().submit(self.run)

    def run(self) -> None:
        """Remove what was given up. A failure is logged, and the next time it is tried again."""
        if not self._given_up:
            return
        try:
            self._flusher.forget_before_oldest(self._remove)
        except (FileChannelError, OSError) as error:
            _logger.error("%s: dropped segments could not be removed: %s", self._segments.directory, error)

    def _remove(self, oldest: Offset) -> None:
        self._segments.remove_before(oldest)
        with self._log.writing():
            self._log.announce_change()
