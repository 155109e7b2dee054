"""How long a thread may sleep for the writer word."""

from __future__ import annotations

import time
from threading import local

from .._format import Guard, ensured
from .loops import runs_event_loop


class _Limit(local):
    until: float | None = None


_limit = _Limit()


def no_longer_than(until: float | None) -> Guard:
    """Let this thread sleep in a `with` block until the monotonic clock says *until*."""
    # The guard has no name, so that an exception raised by a signal handler cannot keep it (see mutex.c).
    return (ensured(setattr, _limit, "until", None), setattr(_limit, "until", until))[0]  # type: ignore[func-returns-value]


def may_sleep() -> bool:
    """Tell whether this thread may sleep: it runs no event loop, and has time."""
    return not runs_event_loop() and (_limit.until is None or time.monotonic() < _limit.until)
