"""The watchdog: wakes tasks within about a second if the process that should wake them has died.

A publisher clears the waiter bits in the wake word, and then wakes the waiters. If it is killed in between, they stay
asleep although data is available. Threads limit the time they sleep; event loops cannot do that without waking up, so
one thread rescans for all of them: a lane of the scheduler, as long as tasks wait.
"""

from __future__ import annotations

import logging
from typing import Protocol
from weakref import WeakSet

from .._format import Mutex
from .._runtime.fork_registry import Phase, reset_in_child
from .._runtime.scheduler import WATCHDOG_LANE, Lane, TimedCall
from .._runtime.threads import NoThreadError

_RESCAN_SECONDS = 1.0
_logger = logging.getLogger("filechannel")


class Watched(Protocol):
    """Waiters that the watchdog rescans."""

    is_watched: bool
    """Whether the watchdog will rescan. It sets False before it rescans, and True again if tasks still wait."""

    def rescan(self) -> bool:
        """Wake tasks that have data available. Return whether tasks still wait."""
        ...


class Watchdog:
    """Rescans every channel of the process that tasks wait for."""

    def __init__(self, lane: Lane = WATCHDOG_LANE) -> None:
        self._lane = lane
        self.start_over()

    def start_over(self) -> None:
        """Reset: a forked child has no waiting tasks."""
        self._lock = Mutex()
        self._watched: WeakSet[Watched] = WeakSet()
        self._rescans = TimedCall(self._lane, self._rescan_all)

    def watch(self, watched: Watched) -> None:
        """Rescan until no task waits any more. The caller has registered its waiter before."""
        with self._lock.held():
            self._watched.add(watched)
            try:
                self._rescans.request(_RESCAN_SECONDS)
            except NoThreadError:  # no more threads: the next task that waits tries again, and most never need it
                return
            watched.is_watched = True  # last: if interrupted before this, the next task that waits repeats all of it

    # In the thread of the lane

    def _rescan_all(self) -> float | None:
        with self._lock.held():  # other threads register waiters meanwhile
            watched = list(self._watched)
        if not watched:
            return None
        while watched:
            self._rescan(watched.pop())  # popped, to keep no closed object alive
        return _RESCAN_SECONDS

    def _rescan(self, watched: Watched) -> None:
        # A task that starts to wait after this sets the flag again; a task that started before is rescanned.
        watched.is_watched = False
        try:
            tasks_wait = watched.rescan()
        except Exception:  # the other channels must be rescanned too
            _logger.exception("rescanning for waiters failed")
            tasks_wait = False
        if tasks_wait:
            watched.is_watched = True
            return
        with self._lock.held():
            if not watched.is_watched:
                self._watched.discard(watched)


WATCHDOG = Watchdog()
reset_in_child(Phase.STORES, WATCHDOG.start_over)
