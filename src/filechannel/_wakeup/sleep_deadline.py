"""Limits how long a thread sleeps while it waits for locks, for methods with a timeout."""

from __future__ import annotations

from .._format import Guard, ensured
from .._runtime.may_sleep import DEADLINE


def no_longer_than(until: float | None) -> Guard:
    """Let this thread sleep for locks until *until* (monotonic clock) at most, in the body of a `with` statement."""
    # The guard has no name, so that an exception raised by a signal handler cannot keep it (see mutex.c).
    return (ensured(setattr, DEADLINE, "until", None), setattr(DEADLINE, "until", until))[0]  # type: ignore[func-returns-value]
