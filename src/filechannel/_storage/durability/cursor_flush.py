"""How often a consumer's position reaches the disk: after so many messages, so many seconds, or every one of them.

Positions are shared memory: whatever the process does, they are never lost with it. This is about power cuts alone,
after which a consumer goes on at the last position that reached the disk and gets what it took since then once more.
"""

from __future__ import annotations

import errno
import logging
import os
from contextlib import suppress
from typing import final

from .._errors import StorageError, storage_error
from .._format import Mutex
from .._options import CursorFlush
from .background import NoThreadError, background_threads
from .cursor import Cursor
from .cursors import Cursors
from .flush_timer import FLUSH_TIMER

_logger = logging.getLogger("filechannel")


@final
class PositionFlush:
    """Brings the position of one consumer to disk. What went wrong is told to whoever takes the next message."""

    def __init__(self, cursors: Cursors, cursor: Cursor, every: CursorFlush) -> None:
        self._cursors = cursors
        self._cursor = cursor
        self.waits = every == "fsync"
        """Whether a message is handed out only when the position behind it is on disk, where that can be waited for."""
        self.counts = self.waits or isinstance(every, int)
        """Whether it wants to know of every message."""
        self._every = every if isinstance(every, int) else 1
        self._counting, self._flushing = Mutex(), Mutex()
        self._taken = 0
        self._requested = 0
        self._flushed = 0
        self._seen = cursor.position
        self._error: StorageError | None = None
        self.is_closed = False
        if isinstance(every, float):
            FLUSH_TIMER.register(self, every)

    def check(self) -> None:
        """Raise what went wrong, once, before anything more is taken."""
        if self._error is not None:
            error, self._error = self._error, None
            raise StorageError(error.reason) from error

    def took(self, messages: int) -> None:
        """So many more were taken. Begins to flush in another thread when that is due; whoever waits flushes here."""
        with self._counting.held():
            self._taken += messages
            if self.waits or self._taken - self._requested < self._every:
                return
            self._requested = self._taken
        self.flush_soon()

    def flush_soon(self) -> None:
        """Flush in another thread."""
        try:
            background_threads().do(self.settle)
        except NoThreadError:  # the interpreter is shutting down: no thread takes anything any more
            self.settle()

    def settle(self) -> None:
        """Wait until the position behind what has been taken is on disk, or is known not to be."""
        wanted = self._taken
        with self._flushing.held():  # the thread that had it may have flushed for us, too
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
        """Flush; `OSError` also if the next position could not be stored, since the file system has shut down."""
        self._cursors.flush_one(self._cursor.name)
        if self.waits and not self.is_closed and not self._cursor.is_storable:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def flush_if_needed(self) -> None:
        """Flush if the position has changed since the last time. For the timer."""
        position = self._cursor.position
        if position != self._seen:
            self._cursors.flush_one(self._cursor.name)
            self._seen = position

    def close(self) -> None:
        """Flush once more, in another thread, and never again."""
        self.is_closed = True
        FLUSH_TIMER.forget(self)
        if self._flushed < self._taken or self._cursor.position != self._seen:
            with suppress(NoThreadError):
                background_threads().do(self.settle)
