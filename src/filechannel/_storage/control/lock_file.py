"""The file `lock`, which carries the exclusive kernel locks of a channel and has no content.

Every process that has a file open can lock its bytes, and a shared lock needs only the right to read. So on a file that
readers may open, any reader could block the locks for as long as it likes. Only users who may both read and write the
channel can open this file, and those could do worse.

The file may be deleted while it is in use, by a cleanup job or by hand. The next process would make another file, hold
other locks and believe that it is alone. Therefore the control page stores the inode number of the lock file that
counts, which no other file can have while a process has it open. Each process also marks its slot in `control`, with a
kernel lock there. A process that finds another inode number looks for marks, and is refused if there are any. A reader
can keep a process from marking its slot, but only a user who may write can delete the lock file.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from ..._format.layout import NAME_LOCK_COUNT, NAME_LOCK_SIZE, NAME_LOCKS
from ..system.kernel_locks import KernelLocks
from ..system.os_calls import Files

LOCK = "lock"


def lock_mode(mode: int) -> int:
    """Return the permission bits of the lock file: only users who may both read and write the channel may open it."""
    both = mode & (mode & 0o222) << 1
    return both | both >> 1


def open_lock_file(files: Files, path: Path, control: int, *, linked: bool = False) -> KernelLocks:
    """Open the lock file of a channel, for the users who may write its control file; create it if it is missing.

    With *linked*, also open a lock file that has names outside the channel: another process may hold locks on it.
    """
    locks = KernelLocks(files, path / LOCK, create=True, mode=0o600, linked=linked)
    try:
        locks.let_in(control, lock_mode)
    except BaseException:
        locks.close()
        raise
    return locks


def name_lock(encoded_name: str) -> int:
    """Return the first byte of the name lock of a consumer, whose name is given as it is encoded in file names."""
    number = int.from_bytes(blake2b(encoded_name.encode(), digest_size=8).digest(), "little")
    return NAME_LOCKS + number % NAME_LOCK_COUNT * NAME_LOCK_SIZE


def lock_of(path: Path) -> int:
    """Return the first byte of the name lock of the consumer that a cursor or group file belongs to."""
    return name_lock(path.name.partition(".")[0])


@dataclass(frozen=True, slots=True)
class VisibleLocks:
    """What a process that takes no locks can see of the locks of a channel."""

    locks: KernelLocks | None
    """None if there is no lock file, or this process may not open it."""
    is_complete: bool
    """Whether locks that are not seen are free; False for a user who may not open the lock file."""

    def is_taken(self, byte: int) -> bool:
        """Return whether a byte is seen to be locked."""
        return self.locks is not None and self.locks.is_taken(byte)

    def taken(self, first: int, last: int) -> list[int]:
        """Return which bytes from first to last are seen to be locked."""
        return [] if self.locks is None else self.locks.taken(first, last)


@contextmanager
def inspecting_locks(files: Files, path: Path) -> Generator[VisibleLocks]:
    """Inspect the locks of a channel without taking any. Each call opens the file, which may be created or replaced."""
    try:
        locks = KernelLocks(files, path / LOCK, writable=False)
    except FileNotFoundError:  # no process has opened the channel here, or there are only marks
        yield VisibleLocks(None, is_complete=True)
        return
    except OSError:
        yield VisibleLocks(None, is_complete=False)
        return
    try:
        yield VisibleLocks(locks, is_complete=True)
    finally:
        locks.close()
