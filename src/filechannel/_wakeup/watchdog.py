"""Wakes whoever should have been woken by a process that died on the way, within a second or so.

A publisher clears the word that says who waits, and then wakes them. Killed in between, it leaves them asleep, with
news. Threads bound their sleep; event loops cannot without waking up, so one thread looks after all of them. It exists
only while somebody waits.
"""

from __future__ import annotations

import logging
import os
import time
from typing import Protocol
from weakref import WeakSet

from .._format import Mutex
from .._storage.background import NoThreadError, Timekeeper

_SECONDS = 1.0
_logger = logging.getLogger("filechannel")


class Watched(Protocol):
    """Somebody whose waiters are looked after."""

    is_watched: bool
    """Whether it will be: the watchdog says no before it looks, and yes again if somebody goes on waiting."""

    def look_after(self) -> bool:
        """Wake whoever has news, and tell whether somebody goes on waiting."""
        ...


class Watchdog:
    """Looks after every channel of the process that somebody waits for."""

    def __init__(self) -> None:
        self.start_over()

    def start_over(self) -> None:
        """Forget everything: a forked child has not got the thread, and nobody who waits."""
        self._lock = Mutex()
        self._watched: WeakSet[Watched] = WeakSet()
        self._thread = Timekeeper("filechannel-watchdog", self._attend)
        self._due = 0.0

    @property
    def is_running(self) -> bool:
        """Whether the thread is there."""
        return self._thread.is_running

    def watch(self, watched: Watched) -> None:
        """Look after it until no task waits there any more. The caller's waiter is one that `look_after` knows of."""
        with self._lock.held():
            self._watched.add(watched)
            try:
                self._thread.begin()
            except NoThreadError:  # no more threads: the next task that waits tries again, and most never need us
                return
            watched.is_watched = True  # last: interrupted before this, the next task that waits does all of it again

    def _attend(self) -> float | None:
        with self._lock.held():  # others begin to wait while we look
            watched = list(self._watched)
        now = time.monotonic()
        if not watched:
            self._due = 0.0
            return None
        if not self._due:
            self._due = now + _SECONDS
        if now < self._due:
            return self._due - now
        while watched:
            self._look(watched.pop())  # popped, so that we keep nothing alive that is closed now
        self._due = now + _SECONDS
        return 0.0

    def _look(self, watched: Watched) -> None:
        # Whoever begins to wait after this says that it is to be watched; whoever began before is seen.
        watched.is_watched = False
        try:
            goes_on = watched.look_after()
        except Exception:  # the thread serves every channel of the process: nothing may end it
            _logger.exception("looking after waiters failed")
            goes_on = False
        if goes_on:
            watched.is_watched = True
            return
        with self._lock.held():
            if not watched.is_watched:
                self._watched.discard(watched)


WATCHDOG = Watchdog()
os.register_at_fork(after_in_child=WATCHDOG.start_over)
