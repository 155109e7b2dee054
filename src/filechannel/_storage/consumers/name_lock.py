"""Holding the lock of a consumer name briefly, to remove or move the consumer without owning it."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from ..._errors import ConsumerBusyError, UnexpectedFileError
from ..._format.layout import NAME_OWNER, NAME_REMOVER
from ..control.lock_file import lock_of
from ..system.kernel_locks import KernelLocks
from ..system.os_calls import Files
from .cursor_file_format import HEAD_SIZE, read_owner

BRIEFLY = 0.2
"""Seconds. The lock is held for a far shorter time, unless its holder is stopped."""
_PAUSE = 0.001


@contextmanager
def briefly_locked(
    files: Files, locks: KernelLocks, path: Path, name: str, *, patiently: bool = False
) -> Generator[int | None]:
    """Hold the lock of a name briefly without owning the name, and open its file.

    Yields None if there is no file, or if another process does this at the same time. *locks* are those of the channel.
    *patiently*: wait for such a process, but not for one that is stopped. Raises `ConsumerBusyError` if the name has a
    live owner. A process that wants to own the name meanwhile sees that the lock is held briefly, and tries again.
    """
    if not files.is_file(path):
        yield None
        return
    with name_locked(files, locks, path, name, patiently=patiently) as is_held:
        descriptor = _opened(files, path) if is_held else None
        try:
            yield descriptor
        finally:
            if descriptor is not None:
                files.close(descriptor)


@contextmanager
def name_locked(files: Files, locks: KernelLocks, path: Path, name: str, *, patiently: bool = False) -> Generator[bool]:
    """Hold the lock of a name as `briefly_locked` does, but do not open its file, which may be of any type.

    Yields False if another process does this at the same time.
    """
    locks = locks.beside(lock_of(path))
    try:
        yield _acquire(files, locks, path, name, patiently)
    finally:
        locks.close()


def _acquire(files: Files, locks: KernelLocks, path: Path, name: str, patiently: bool) -> bool:
    """Acquire the lock of a name without an owner. Return False if another process holds it briefly."""
    deadline = time.monotonic() + BRIEFLY
    while True:
        free = locks.take(NAME_REMOVER)
        if free and locks.take(NAME_OWNER):
            return True
        if free or (patiently and time.monotonic() > deadline):
            raise busy(path, name, head_of(files, path), "close it there, or call its unsubscribe()")
        if not patiently:
            return False
        time.sleep(_PAUSE)


def _opened(files: Files, path: Path) -> int | None:
    try:
        return files.open(path)
    except FileNotFoundError:
        return None
    except UnexpectedFileError:
        # A consumer, but it must not be written to: the file has another hard link outside of the channel.
        if files.is_file(path):
            raise
        return None


def head_of(files: Files, path: Path) -> bytes:
    """Return the bytes of a consumer's file that hold the fields; empty if there is no such regular file."""
    try:
        descriptor = files.open(path, writable=False)
    except (FileNotFoundError, UnexpectedFileError):
        return b""
    try:
        return files.read_at(descriptor, HEAD_SIZE, 0)
    finally:
        files.close(descriptor)


def busy(path: Path, name: str, content: bytes, hint: str | None = None) -> ConsumerBusyError:
    """Return the error for a name that is owned by the process named in its file."""
    owner = read_owner(content).unless_ended()
    return ConsumerBusyError(name, owner.pid, owner.host, owner.since, hint, path=path.parent.parent)
