"""What a failed flush means: which messages may be lost, who gets an error, and where the log resumes.

A failed flush is final. The kernel reports a write error only once; the next `fsync` would return success. So:

- The file is never flushed again. The log ends at the write offset and resumes in a new file.
- Every sender whose message may not be on disk gets an error. Under `FSYNC` those are the senders that wait, and the
  next `flush` raises, too. Otherwise every later `flush` raises, in any process, because receivers have seen messages
  that may not be on disk.
- This ends when those messages are no longer stored, or with the next boot: recovery then determines what is on disk.

Only an error of the kernel about data is a failed flush. Running out of descriptors must not look like one, so files
are kept open until they are flushed.
"""

from __future__ import annotations

import logging
from collections import deque
from pathlib import Path
from typing import final

from ..._errors import StorageError, verify_command
from ..control.control_page import Control
from ..log.log import Log

_logger = logging.getLogger("filechannel")
_REMEMBERED = 1024  # failures; the senders of records before the oldest of them got their error long ago


@final
class FailedFlushes:
    """The failed flushes of one channel, as far as this process has to handle or to report them."""

    def __init__(self, control: Control, log: Log, path: Path) -> None:
        self._control = control
        self._log = log
        self._path = path
        self._last: StorageError | None = None
        """The error of the last failed flush of this process, until `report` has raised it and durability is known."""
        self._reported = control.failed_flushes
        """The number of failed flushes, of all processes, that were reported here."""
        self._lost: deque[tuple[range, StorageError]] = deque(maxlen=_REMEMBERED)
        """The offsets of records that were never published, with the error of the flush that failed."""

    def handle(self, cause: OSError) -> StorageError:
        """End the log at the write offset, resume in a new file, and return the error to raise."""
        with self._log.writing():
            tail = self._control.tail()
            where = "" if isinstance(cause, FileNotFoundError) else "the kernel's log (dmesg) may say why, and "
            error = StorageError(
                f"a flush failed, messages around offset {tail.offset} may not be on disk: {cause}; "
                f"{where}{verify_command(self._path)} shows what is damaged or missing"
            )
            error.__cause__ = cause
            self._last = error
            self._control.count_failed_flush()
            if self._log.writer.deferred:
                appended = self._control.tail(deferred=True)
                self._lost.append((range(tail.offset, appended.offset), error))
                if not self._control.is_durability_unknown:
                    self._control.durable_offset = tail.offset  # under FSYNC everything published is on disk
            _logger.error("%s", error)
            self._log.abandon_active()
        return error

    def is_last(self, error: StorageError) -> bool:
        """Return whether this is the error of the last failed flush, which is logged already, and not reported yet."""
        return error is self._last

    def report(self) -> None:
        """Raise `StorageError` if the durability of stored messages is unknown, or after a flush that failed.

        The caller holds the flush lock.
        """
        failed = self._control.failed_flushes
        if not self._control.is_durability_unknown and failed == self._reported:
            return
        error = self._last or self.failed_elsewhere()
        self._reported = failed
        if not self._control.is_durability_unknown:
            self._last = None
        raise StorageError(error.reason) from error

    def known_loss(self, offset: int) -> StorageError | None:
        """Return the error of the failed flush in this process that lost the record at an offset; None if none did."""
        lost = self._lost.copy()  # another thread may be in `handle`, and append to it meanwhile
        return next((error for offsets, error in lost if offset in offsets), None)

    def failed_elsewhere(self) -> StorageError:
        """Return the error for messages that a failed flush of another process has affected."""
        return StorageError(
            "a flush failed in another process, whose log says why: messages may not be on disk; "
            f"{verify_command(self._path)} shows what is damaged or missing"
        )
