"""How long to wait, and for whom."""

from __future__ import annotations

import time

from .. import _checks as checks
from .._storage.store import Store


def deadline(timeout: float | None) -> float | None:
    """Return when to give up, by the monotonic clock."""
    if timeout is None:
        return None
    checks.seconds_or_zero("timeout", timeout)
    return time.monotonic() + timeout


def busy_writer(store: Store) -> str:
    """Say who is in the middle of sending."""
    holder = store.log.holder
    return "another process" if holder is None else f"process {holder.pid} on {holder.host}"
