"""The two clocks of the hot path: the wall clock for cursors and index entries, and the time until a task yields.

A slice is how long a task may run before it yields to its event loop (cooperative yielding). It belongs to the thread,
as the loop does: a task that works on a thousand channels has one slice, not a thousand.
"""

from __future__ import annotations

import time
from threading import local

_SLICE_NS = 1_000_000
_SLICE_UNITS = 32
_BYTES_PER_UNIT = 512


class _Slice(local):
    """The state of this thread's slice; the clock is read only once per `_SLICE_UNITS` units of work."""

    def __init__(self) -> None:
        self.started = 0
        self.units = _SLICE_UNITS


_slice = _Slice()


def wall_clock_ns() -> int:
    """Return the time in nanoseconds since the epoch."""
    return time.time_ns()


def charge_slice(size: int, /) -> None:
    """Count one operation on *size* bytes."""
    _slice.units -= 1 + size // _BYTES_PER_UNIT


def slice_is_over() -> bool:
    """Return whether this thread has worked for about a millisecond since `begin_slice`, and should yield."""
    if _slice.units > 0:
        return False
    if time.monotonic_ns() - _slice.started >= _SLICE_NS:
        return True
    _slice.units = _SLICE_UNITS
    return False


def begin_slice() -> None:
    """Start a new slice: the event loop of this thread has just run."""
    _slice.started = time.monotonic_ns()
    _slice.units = _SLICE_UNITS
