"""Flushes the stored position of a consumer: after a number of messages, at an interval, or for every message.

Positions are shared memory, so they survive a process crash. Flushing matters for power cuts only: afterwards a
consumer resumes at the last flushed position, and messages received since then are redelivered.
"""

from __future__ import annotations

import errno
import logging
import os
from contextlib import suppress
from typing import final

from ..._errors import StorageError, storage_error
from ..._format import Mutex
from ..._options import CursorFlush
from ..._runtime.threads import NoThreadError, background_threads
from ..consumers.cursor import Cursor
from ..consumers.cursors import Cursors
from .interval_flush import IntervalFlush

_logger = logging.getLogger("filechannel")


@final
class PositionFlush:
    """Flushes the position of one consumer. An error is raised to the caller that takes the next message."""

    def __init__(self, cursors: Cursors, cursor: Cursor, every: CursorFlush) -> None:
        self._cursors = cursors
        self._cursor = cursor
        self.waits = every == "fsync"
        """Whether a caller that can wait gets a message only after the position after it is on disk."""
        self.counts = self.waits or isinstance(every, int)
        """Whether the caller must call `took` for every message."""
        self._every = every if isinstance(every, int) else 1
        self._counting, self._flushing = Mutex(), Mutex()
        self._taken = 0
        self._requested = 0
        self._flushed = 0
        self._seen = cursor.position
        self._error: StorageError | None = None
        self.is_closed = False
        self._interval_flush = IntervalFlush(self)
        if isinstance(every, float):
            self._interval_flush.start(every)

    def check(self) -> None:
        """Raise the error of a failed flush, once, before another message is taken."""
        if self._error is not None:
            error, self._error = self._error, None
            raise StorageError(error.reason) from error

    def took(self, messages: int) -> None:
        """Count messages that were taken, and start a flush in another thread when one is due.

        Under "fsync" no flush is started: the caller flushes with `wait_until_flushed`.
        """
        with self._counting.held():
            self._taken += messages
            if self.waits or self._taken - self._requested < self._every:
                return
            self._requested = self._taken
        self.flush_soon()

    def flush_soon(self) -> None:
        """Flush in another thread."""
        try:
            background_threads().do(self.wait_until_flushed)
        except NoThreadError:  # the interpreter is shutting down, and no thread accepts new work
            self.wait_until_flushed()

    def wait_until_flushed(self) -> None:
        """Block until the position after the taken messages is on disk, or its flush has failed."""
        wanted = self._taken
        with self._flushing.held():  # the previous holder may have flushed this position, too
            if self._flushed >= wanted > 0:
                return
            taken = self._taken
            try:
                self._flush()
            except OSError as error:
                self._error = storage_error(f"the position of {self._cursor.name!r} could not be flushed", error)
                self._error.__cause__ = error
                _logger.error("%s", self._error)
            self._flushed = taken

    def _flush(self) -> None:
        """Flush; `OSError` also if the file system has shut down, so that the next position cannot be stored."""
        self._cursors.flush_one(self._cursor.name)
        if self.waits and not self.is_closed and not self._cursor.is_storable:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def flush_if_needed(self) -> None:
        """Flush if the position has changed since the last flush. Called at an interval."""
        position = self._cursor.position
        if position != self._seen:
            self._cursors.flush_one(self._cursor.name)
            self._seen = position

    def close(self) -> None:
        """Stop flushing at an interval, and flush a last time, in another thread, if the position has changed."""
        self.is_closed = True
        self._interval_flush.stop()
        if self._flushed < self._taken or self._cursor.position != self._seen:
            with suppress(NoThreadError):
                background_threads().do(self.wait_until_flushed)
