"""How long a thread may sleep for the writer word."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager
from threading import local

from .loops import runs_event_loop


class _Limit(local):
    until: float | None = None


_limit = _Limit()


@contextmanager
def no_longer_than(until: float | None) -> Generator[None]:
    """Let this thread sleep in the block until the monotonic clock says *until*."""
    try:
        _limit.until = until
        yield
    finally:
        _limit.until = None


def may_sleep() -> bool:
    """Tell whether this thread may sleep: it runs no event loop, and has time."""
    return not runs_event_loop() and (_limit.until is None or time.monotonic() < _limit.until)
