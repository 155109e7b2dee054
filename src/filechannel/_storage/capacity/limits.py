"""The limits of a capacity, for the current size of the file system."""

from __future__ import annotations

from pathlib import Path

from ..._options import Capacity
from ..system.os_calls import Files
from .backlog import Batch

UNLIMITED = (1 << 64) - 1


def limits_of(capacity: Capacity | None, files: Files, path: Path) -> Batch | None:
    """Return how much may be unconsumed, for the current size of the file system; None if there is no limit."""
    if capacity is None:
        return None
    size, messages = capacity.in_bytes(disk_of(capacity, files, path)), capacity.max_messages
    return Batch(UNLIMITED if size is None else size, UNLIMITED if messages is None else messages)


def disk_of(capacity: Capacity, files: Files, path: Path) -> int | None:
    """Return the size of the file system of a path; None if the capacity does not depend on it."""
    return None if capacity.fraction is None else files.total_space(path)


def finite(limit: int) -> int | None:
    """Return a limit as users see it: None if it is unlimited."""
    return None if limit == UNLIMITED else limit
