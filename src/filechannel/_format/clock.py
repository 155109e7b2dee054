"""The two clocks of the hot path: the wall clock stamped on cursors and index entries, and the turn.

A turn is how long a task may go on without giving way to its event loop. It belongs to the thread, since a loop does:
a task that works on a thousand channels has one turn, not a thousand.
"""

from __future__ import annotations

import time
from threading import local

_TURN_NS = 1_000_000
_TURN_UNITS = 32
_BYTES_PER_UNIT = 512


class _Turn(local):
    """Where this thread's turn stands; the clock is read once in so many units of work."""

    def __init__(self) -> None:
        self.began = 0
        self.units = _TURN_UNITS


_turn = _Turn()


def wall_clock_ns() -> int:
    """Nanoseconds since the epoch."""
    return time.time_ns()


def charge_turn(size: int, /) -> None:
    """Count one operation on so many bytes."""
    _turn.units -= 1 + size // _BYTES_PER_UNIT


def turn_is_over() -> bool:
    """Tell whether this thread has worked for about a millisecond since `begin_turn`."""
    if _turn.units > 0:
        return False
    if time.monotonic_ns() - _turn.began >= _TURN_NS:
        return True
    _turn.units = _TURN_UNITS
    return False


def begin_turn() -> None:
    """Start a new turn: the event loop of this thread has just had its say."""
    _turn.began = time.monotonic_ns()
    _turn.units = _TURN_UNITS
