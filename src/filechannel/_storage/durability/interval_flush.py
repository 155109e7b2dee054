"""Flushes in the background what is to be flushed at intervals, data and positions: one thread for all of it."""

from __future__ import annotations

import logging
import os
import time
import weakref
from collections.abc import Callable
from typing import Protocol

from .._errors import Busy
from .._format import Mutex
from .background import NoThreadError, Timekeeper

_logger = logging.getLogger("filechannel")


class Flushable(Protocol):
    """Whatever wants to be flushed at intervals."""

    @property
    def is_closed(self) -> bool:
        """Whether it flushes nothing any more."""
        ...

    def flush_if_needed(self) -> None:
        """Flush unless everything is on disk already."""
        ...


class FlushTimer:
    """Calls `flush_if_needed` on each registered flusher at its interval, on a thread that exists only when needed."""

    def __init__(self) -> None:
        self.start_over()

    def start_over(self) -> None:
        """Forget everything: a forked child has not got the thread, and its channels are the parent's."""
        self._lock = Mutex()
        self._registered: weakref.WeakKeyDictionary[Flushable, tuple[float, float]] = weakref.WeakKeyDictionary()
        self._thread = Timekeeper("filechannel-flush-timer", self._attend)

    def register(self, flusher: Flushable, seconds: float) -> None:
        """Flush every so many seconds from now on."""
        with self._lock.held():
            self._registered[flusher] = (time.monotonic() + seconds, seconds)
        self._begin(self._thread.wake)

    def begin(self) -> None:
        """Try again if the thread could not be started; otherwise nothing happens."""
        if not self._thread.is_running and self._registered:
            self._begin(self._thread.begin)

    @staticmethod
    def _begin(start: Callable[[], object]) -> None:
        try:
            start()
        except NoThreadError as error:  # no more threads: the next call of `begin` tries again
            _logger.error("flushing in the background could not be started: %s", error)

    def knows(self, flusher: Flushable) -> bool:
        """Return whether it is registered."""
        return flusher in self._registered

    def forget(self, flusher: Flushable) -> None:
        """Stop flushing it."""
        with self._lock.held():
            self._registered.pop(flusher, None)

    # On the thread

    def _attend(self) -> float | None:
        due = self._due()
        while due:
            self._flush(due.pop())  # which has no name here: that would keep a closed channel alive
        with self._lock.held():
            first = min((moment for moment, _ in self._registered.values()), default=None)
        return None if first is None else max(first - time.monotonic(), 0.0)

    def _due(self) -> list[Flushable]:
        """Return those whose time has come."""
        with self._lock.held():
            now = time.monotonic()
            due = [flusher for flusher, (moment, _) in self._registered.items() if moment <= now]
            for flusher in due:
                seconds = self._registered[flusher][1]
                self._registered[flusher] = (now + seconds, seconds)
            return due

    @staticmethod
    def _flush(flusher: Flushable) -> None:
        try:
            flusher.flush_if_needed()
        except Busy:
            pass  # another process is flushing, or was stopped there: others must not wait for that
        except Exception as error:  # the thread serves every channel of the process: nothing may end it
            if not flusher.is_closed:  # closing flushes
                _logger.error("flushing in the background failed: %s", error)


FLUSH_TIMER = FlushTimer()
os.register_at_fork(after_in_child=FLUSH_TIMER.start_over)
