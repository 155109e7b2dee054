"""`Sleeper`: what another thread can wake. `ThreadWakeup`: lets a thread sleep until woken, or until a time limit."""

from __future__ import annotations

from threading import TIMEOUT_MAX, Lock
from typing import Protocol, final


class Sleeper(Protocol):
    """A task or thread that sleeps until it is woken, once."""

    def wake(self) -> None:
        """Wake it. Any thread may call this, any number of times."""
        ...


_WOKEN_ALREADY = ("release unlocked lock",)


@final
class ThreadWakeup:
    """Wakes a thread that waits; if none does, the next `wait` returns at once. Several calls of `wake` count as one.

    Each method works with one call of a C function, so an exception that a signal handler raises leaves nothing locked.
    `SimpleQueue.get(timeout=…)` is such a call too, but it may block forever: if the time is over before it begins to
    sleep, CPython before 3.13 passes the negative remainder on, which means "no limit".
    """

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = Lock()  # locked while nothing has woken the thread
        self._lock.acquire()

    @property
    def is_pending(self) -> bool:
        """Whether the next `wait` returns at once."""
        return not self._lock.locked()

    def wake(self) -> None:
        """Wake the thread. Any thread may call this."""
        try:
            self._lock.release()
        except RuntimeError as error:
            if error.args != _WOKEN_ALREADY:
                raise  # by a signal handler

    def clear(self) -> None:
        """Forget that it was woken: the next `wait` sleeps."""
        self._lock.acquire(blocking=False)

    def wait(self, seconds: float | None = None) -> bool:
        """Sleep until woken, at most this many seconds. Return whether it was woken."""
        return self._lock.acquire(timeout=-1 if seconds is None else min(max(seconds, 0.0), TIMEOUT_MAX))
