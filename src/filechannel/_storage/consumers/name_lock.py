"""Holding a consumer's name for a moment, to remove or move it, without being its owner."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from .._errors import ConsumerBusyError, UnexpectedFileError
from .._format.layout import NAME_OWNER, NAME_REMOVER
from .cursor_file import HEAD_SIZE, read_owner
from .files import Files
from .kernel_locks import KernelLocks
from .lock_file import lock_of

BRIEFLY = 0.2
"""Seconds; a visit takes far less, unless the visitor is stopped."""
_PAUSE = 0.001


@contextmanager
def visiting(
    files: Files, locks: KernelLocks, path: Path, name: str, *, patiently: bool = False
) -> Generator[int | None]:
    """Hold a name for a moment without owning it, and open its file; None if it has none, or there is another visitor.

    *locks* are those of the channel. *patiently*: wait for other visitors, though not for one that stands still. Raises
    `ConsumerBusyError` if the name has a live owner. A process that wants to own it meanwhile sees that there is a
    visitor, and tries again.
    """
    if not files.is_file(path):
        yield None
        return
    with holding(files, locks, path, name, patiently=patiently) as is_held:
        descriptor = _opened(files, path) if is_held else None
        try:
            yield descriptor
        finally:
            if descriptor is not None:
                files.close(descriptor)


@contextmanager
def holding(files: Files, locks: KernelLocks, path: Path, name: str, *, patiently: bool = False) -> Generator[bool]:
    """Hold a name in the same way, whatever has the name of its file; False if there is another visitor."""
    locks = locks.beside(lock_of(path))
    try:
        yield _hold(files, locks, path, name, patiently)
    finally:
        locks.close()


def _hold(files: Files, locks: KernelLocks, path: Path, name: str, patiently: bool) -> bool:
    """Take a name that has no owner; False if there is another visitor."""
    patience = time.monotonic() + BRIEFLY
    while True:
        free = locks.take(NAME_REMOVER)
        if free and locks.take(NAME_OWNER):
            return True
        if free or (patiently and time.monotonic() > patience):
            raise busy(path, name, head_of(files, path), "close it there, or let it unsubscribe()")
        if not patiently:
            return False
        time.sleep(_PAUSE)


def _opened(files: Files, path: Path) -> int | None:
    try:
        return files.open(path)
    except FileNotFoundError:
        return None
    except UnexpectedFileError:
        if files.is_file(path):  # a consumer, but not ours to write to: it has another name outside of the channel
            raise
        return None


def head_of(files: Files, path: Path) -> bytes:
    """Return the part of a consumer's file that counts; nothing if there is none, or something else in its place."""
    try:
        descriptor = files.open(path, writable=False)
    except (FileNotFoundError, UnexpectedFileError):
        return b""
    try:
        return files.read_at(descriptor, HEAD_SIZE, 0)
    finally:
        files.close(descriptor)


def busy(path: Path, name: str, content: bytes, advice: str | None = None) -> ConsumerBusyError:
    """Return the error for a name whose file says who owns it."""
    owner = read_owner(content).unless_ended()
    return ConsumerBusyError(name, owner.pid, owner.host, owner.since, advice, path=path.parent.parent)
