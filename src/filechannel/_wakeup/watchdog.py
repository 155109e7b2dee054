"""Wakes whoever should have been woken by a process that died on the way, within a second or so.

A publisher clears the word that says who waits, and then wakes them. Killed in between, it leaves them asleep, with
news. Threads bound their sleep; event loops cannot without waking up, so one thread looks after all of them. It exists
only while somebody waits.
"""

from __future__ import annotations

import logging
import os
from threading import Condition, Thread
from typing import Protocol
from weakref import WeakSet

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
        self._changed = Condition()
        self._watched: WeakSet[Watched] = WeakSet()
        self._running = False

    def watch(self, watched: Watched) -> None:
        """Look after it until nobody waits there any more. The caller's waiter is one that `look_after` knows of."""
        with self._changed:
            watched.is_watched = True
            self._watched.add(watched)
            if not self._running:
                try:
                    Thread(target=self._run, name="filechannel-watchdog", daemon=True).start()
                except RuntimeError:  # no more threads: whoever waits next tries again, and most never need us
                    watched.is_watched = False
                else:
                    self._running = True

    def _run(self) -> None:
        while self._wait():
            with self._changed:  # others begin to wait while we look
                everybody = list(self._watched)
            while everybody:
                self._look(everybody.pop())  # and nothing that is closed now is kept alive by us

    def _wait(self) -> bool:
        with self._changed:
            self._changed.wait(_SECONDS)
            self._running = bool(self._watched)
            return self._running

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
        with self._changed:
            if not watched.is_watched:
                self._watched.discard(watched)


WATCHDOG = Watchdog()
os.register_at_fork(after_in_child=WATCHDOG.start_over)
