"""The two clocks of the hot path: the wall clock for cursors and index entries, and the time until a task yields.

A turn is how long a task may run before it yields to its event loop (cooperative yielding). It belongs to the thread,
as the loop does: a task that works on a thousand channels has one turn, not a thousand.
"""

from __future__ import annotations

import time
from threading import local

_SLICE_NS = 1_000_000
_SLICE_UNITS = 32
_BYTES_PER_UNIT = 512


class _Turn(local):
    """The state of this thread's turn; the clock is read only once per `_SLICE_UNITS` units of work."""

    def __init__(self) -> None:
        self.began = 0
        self.units = _SLICE_UNITS


_turn = _Turn()


def wall_clock_ns() -> int:
    """Return the time in nanoseconds since the epoch."""
    return time.time_ns()


def charge_slice(size: int, /) -> None:
    """Count one operation on *size* bytes."""
    _turn.units -= 1 + size // _BYTES_PER_UNIT


def slice_is_over() -> bool:
    """Return whether this thread has worked for about a millisecond since `begin_slice`, and should yield."""
    if _turn.units > 0:
        return False
    if time.monotonic_ns() - _turn.began >= _SLICE_NS:
        return True
    _turn.units = _SLICE_UNITS
    return False


def begin_slice() -> None:
    """Start a new slice: the event loop of this thread has just run."""
    _turn.began = time.monotonic_ns()
    _turn.units = _SLICE_UNITS
