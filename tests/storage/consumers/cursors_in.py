"""The consumers in a directory, without a store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from filechannel._storage.consumers.cursors import Cursors
from filechannel._storage.store_events import StoreEvents
from filechannel._storage.system.kernel_locks import KernelLocks
from filechannel._storage.system.os_calls import Files


def cursors_in(
    directory: Path, files: Files, locks: KernelLocks, count_change: Callable[[], object] = lambda: None
) -> Cursors:
    """Return the consumers in a directory; no event has a handler."""
    return Cursors(
        files,
        directory,
        0o600,
        locks,
        StoreEvents(),
        create=lambda create: create(),
        count_change=count_change,
        check_directory=lambda: None,
    )
