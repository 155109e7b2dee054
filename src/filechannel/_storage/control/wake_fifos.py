"""The wake FIFOs, named pipes by which one process wakes the event loops of another: `wake/<slot>`, a named eventfd.

An event loop cannot sleep on a futex, but it can watch a descriptor. A waiting process keeps its own FIFO open for
reading and writing, so that it never reaches end of file. A process that wakes it writes a byte. A surplus byte causes
a spurious wakeup, and a write to a full FIFO can be skipped, because its reader is woken anyway.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from ..._errors import DiskFullError, UnexpectedFileError
from ..._format import Mutex
from ..system.os_calls import Files, directory_mode
from .live_processes import Processes
from .lock_file import lock_mode

WAKE_FIFOS = "wake"
_MOST = 64  # FIFOs of other processes that are kept open
_UNKNOWN = -1, -1  # a generation that no slot has


class WakeFifos:
    """The wake FIFOs of one channel."""

    def __init__(self, files: Files, directory: Path, mode: int, processes: Processes) -> None:
        """Create the FIFO of our own slot, if the file system allows it."""
        self._files = files
        self._directory = directory
        self._processes = processes
        self._path_of_own = self._path(processes.slot)
        self._lock = Mutex()  # a signal handler may call `ring` while its own thread is inside
        self._open: dict[int, tuple[int, int]] = {}  # slot: generation, descriptor
        self._own: int | None = None
        self._file_of_own: tuple[int, int] | None = None
        with suppress(OSError, DiskFullError):
            files.make_directory(directory, directory_mode(mode))
            files.make_fifo(self._path_of_own, lock_mode(mode))  # a user who may only read could consume the bytes
            self._own = files.open_fifo(self._path_of_own)
            self._file_of_own = files.identity(self._own)

    def take_own(self) -> int | None:
        """Return a descriptor that becomes readable on a wakeup; None if there are no FIFOs. The caller closes it."""
        own, self._own = self._own, None
        return own

    def ring(self, slots: list[int]) -> None:
        """Wake the event loops of these processes."""
        with self._lock.held():
            for slot in slots:
                try:
                    generation, descriptor = self._open.get(slot, _UNKNOWN)
                    now = self._processes.generation(slot)
                    self._files.write_fifo(descriptor if generation == now else self._opened(slot, now))
                except OSError:
                    pass  # the FIFO was deleted, or is full: then its process is woken anyway

    def _opened(self, slot: int, generation: int) -> int:
        if slot not in self._open and len(self._open) >= _MOST:
            self._forget(next(iter(self._open)))
        self._forget(slot)
        descriptor = self._files.open_fifo(self._path(slot))
        _, kept = self._open.setdefault(slot, (generation, descriptor))
        if kept != descriptor:  # a signal handler has opened it in between
            self._files.close(descriptor)
        return kept

    def _forget(self, slot: int) -> None:
        known = self._open.pop(slot, None)
        if known is not None:
            self._files.close(known[1])

    def _path(self, slot: int) -> Path:
        return self._directory / str(slot)

    def close(self) -> None:
        """Close the FIFOs of other processes, and delete our own: programs that copy the directory could hang on it.

        The slot of this process must still be taken.
        """
        with self._lock.held():
            for slot in list(self._open):
                self._forget(slot)
        own = self.take_own()
        if own is not None:
            self._files.close(own)
        with suppress(OSError):
            # The directory may have been replaced by another channel, whose FIFO has the same name.
            if self._file_of_own is not None:
                self._files.unlink_fifo(self._path_of_own, self._file_of_own)


def remove_fifo(files: Files, directory: Path, slot: int) -> None:
    """Delete the FIFO that a dead process left.

    The caller does so before the slot gets another generation: a process that wakes this slot keeps the FIFO open for
    as long as the generation is the same.
    """
    with suppress(OSError):
        files.unlink_fifo(directory / str(slot))


def remove_fifos(files: Files, directory: Path) -> None:
    """Delete every FIFO that has the name of a slot. No other process may have the channel open."""
    with suppress(UnexpectedFileError):  # then no FIFO wakes a process, and its waiters rescan from time to time
        for name in files.list(directory):
            if name.isascii() and name.isdigit():
                files.unlink_fifo(directory / name)
