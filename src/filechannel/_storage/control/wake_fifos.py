"""FIFOs by which one process wakes the event loops of another: `wake/<slot>`, an eventfd with a name.

An event loop cannot sleep on a futex, but it can watch a descriptor. Whoever waits keeps its own FIFO open for reading
and writing, so that it never ends; whoever rings writes a byte. A byte too many wakes somebody for nothing, and a FIFO
that is full has been rung.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from .._errors import DiskFullError, UnexpectedFileError
from .._format import Mutex
from .files import Files, directory_mode
from .lock_file import lock_mode
from .processes import Processes

WAKE_FIFOS = "wake"
_MOST = 64  # FIFOs of others that are kept open
_UNKNOWN = -1, -1  # a generation that no slot has


class Bells:
    """The FIFOs of one channel."""

    def __init__(self, files: Files, directory: Path, mode: int, processes: Processes) -> None:
        """Make the FIFO of our own slot, if that is possible here."""
        self._files = files
        self._directory = directory
        self._processes = processes
        self._path_of_own = self._path(processes.slot)
        self._lock = Mutex()  # a signal handler may ring while its own thread does
        self._open: dict[int, tuple[int, int]] = {}  # slot: generation, descriptor
        self._own: int | None = None
        self._file_of_own: tuple[int, int] | None = None
        with suppress(OSError, DiskFullError):
            files.make_directory(directory, directory_mode(mode))
            files.make_fifo(self._path_of_own, lock_mode(mode))  # who could only read would take bytes away
            self._own = files.open_fifo(self._path_of_own)
            self._file_of_own = files.identity(self._own)

    def take_own(self) -> int | None:
        """Return a descriptor to read from when somebody rings; None where there are no FIFOs. The caller closes it."""
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
                    pass  # gone, or rung more often than it was looked at

    def _opened(self, slot: int, generation: int) -> int:
        if slot not in self._open and len(self._open) >= _MOST:
            self._forget(next(iter(self._open)))
        self._forget(slot)
        descriptor = self._files.open_fifo(self._path(slot))
        _, kept = self._open.setdefault(slot, (generation, descriptor))
        if kept != descriptor:  # a handler has opened it in between
            self._files.close(descriptor)
        return kept

    def _forget(self, slot: int) -> None:
        known = self._open.pop(slot, None)
        if known is not None:
            self._files.close(known[1])

    def _path(self, slot: int) -> Path:
        return self._directory / str(slot)

    def close(self) -> None:
        """Let go of the FIFOs of others, and remove our own: whoever copies the directory stumbles over it.

        The slot is still ours.
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
    """Remove what somebody who died has left.

    Before the slot has another generation: whoever rings keeps a FIFO open for as long as that is the same.
    """
    with suppress(OSError):
        files.unlink_fifo(directory / str(slot))


def remove_fifos(files: Files, directory: Path) -> None:
    """Remove every FIFO that has the name of a slot; no other process has the channel open."""
    with suppress(UnexpectedFileError):  # wakes no process, which costs the others a look from time to time
        for name in files.list(directory):
            if name.isascii() and name.isdigit():
                files.unlink_fifo(directory / name)
