"""Whether a thread may sleep while it waits for a lock: not if it runs an event loop, and not beyond its deadline."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from threading import local

_LOCK_WAIT_SECONDS = 0.2  # long enough for one flush of another process


class _Deadline(local):
    """The deadline of each thread."""

    until: float | None = None


DEADLINE = _Deadline()
"""Until when this thread may sleep, on the monotonic clock; None if there is no limit. Set by `no_longer_than`."""


def may_sleep() -> bool:
    """Return whether this thread may sleep: it does not run an event loop, and has time left."""
    return not runs_event_loop() and (DEADLINE.until is None or time.monotonic() < DEADLINE.until)


def always() -> bool:
    """Return True: a `may_sleep` for a thread that waits for a lock as long as necessary."""
    return True


def briefly() -> Callable[[], bool]:
    """Return a `may_sleep` for waits that are long enough for one flush of another process, but no longer.

    It returns True until the time is over. A stopped process must not be waited for.
    """
    until = time.monotonic() + _LOCK_WAIT_SECONDS
    return lambda: time.monotonic() < until


def runs_event_loop() -> bool:
    """Return whether the calling thread runs an event loop right now."""
    return asyncio._get_running_loop() is not None or in_trio()


def in_trio() -> bool:
    """Return whether the calling thread runs trio. Checks the thread, not the loop: trio may be a guest of asyncio."""
    if "trio" not in sys.modules:
        return False
    from sniffio import thread_local  # trio requires it and keeps it up to date

    return thread_local.name == "trio"
