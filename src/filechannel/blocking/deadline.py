"""Deadlines of blocking calls, and the name of a process that delays them."""

from __future__ import annotations

import time

from .. import _checks as checks
from .._storage.writable_store import WritableStore


def deadline(timeout: float | None) -> float | None:
    """Return the time at which *timeout* is over, on the monotonic clock; None without a timeout."""
    if timeout is None:
        return None
    checks.seconds_or_zero("timeout", timeout)
    return time.monotonic() + timeout


def busy_writer(store: WritableStore) -> str:
    """Return a description of the process that holds the writer lock."""
    holder = store.log.holder
    return "another process" if holder is None else f"process {holder.pid} on {holder.host}"
