"""Holding a consumer's name for a moment, to remove or move it, without being its owner."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from .._errors import ConsumerBusyError
from .._format.layout import CURSOR_OWNER, CURSOR_REMOVER
from .cursor_file import HEAD_SIZE, read_owner
from .files import Files
from .kernel_locks import KernelLocks

BRIEFLY = 0.2
"""Seconds; a visit takes far less, unless the visitor is stopped."""
_PAUSE = 0.001


@contextmanager
def visiting(files: Files, path: Path, name: str, *, patiently: bool = False) -> Generator[KernelLocks | None]:
    """Hold the name for a moment without owning it; None if it is not there, or another visitor is.

    *patiently*: wait for other visitors, though not for one that stands still. Raises `ConsumerBusyError` if the name
    has a live owner. Whoever wants to own it meanwhile sees that there is a visitor, and tries again.
    """
    patience = time.monotonic() + BRIEFLY
    while True:
        try:
            locks = KernelLocks(files, path)
        except (FileNotFoundError, IsADirectoryError):
            yield None
            return
        try:
            free = locks.take(CURSOR_REMOVER)
            is_late = patiently and time.monotonic() > patience
            if (is_late and not free) or (free and not locks.take(CURSOR_OWNER)):
                raise busy(path, name, locks.read(HEAD_SIZE, 0), "close it there, or let it unsubscribe()")
            if free and locks.are_at(path):
                yield locks
                return
        finally:
            locks.close()
        if not patiently:
            yield None
            return
        time.sleep(_PAUSE)


def busy(path: Path, name: str, content: bytes, advice: str | None = None) -> ConsumerBusyError:
    """Return the error for a name whose file says who owns it."""
    owner = read_owner(content)
    return ConsumerBusyError(name, owner.pid, owner.host, owner.since, advice, path=path.parent.parent)
