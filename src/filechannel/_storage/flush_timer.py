"""Flushes in the background what is to be flushed at intervals, data and positions: one thread for all of it."""

from __future__ import annotations

import logging
import os
import time
import weakref
from threading import Condition, Thread
from typing import Protocol

from .._errors import Busy

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
    """Calls `flush` on each registered flusher at its interval, from a thread that exists only when needed."""

    def __init__(self) -> None:
        self.start_over()

    def start_over(self) -> None:
        """Forget everything: a forked child has not got the thread, and its channels are the parent's."""
        self._changed = Condition()
        self._registered: weakref.WeakKeyDictionary[Flushable, tuple[float, float]] = weakref.WeakKeyDictionary()
        self._running = False

    def register(self, flusher: Flushable, seconds: float) -> None:
        """Flush every so many seconds from now on."""
        with self._changed:
            self._registered[flusher] = (time.monotonic() + seconds, seconds)
            self._begin()
            self._changed.notify()

    def begin(self) -> None:
        """Try again if the thread could not be started; otherwise nothing happens."""
        if not self._running:
            with self._changed:
                self._begin()

    def _begin(self) -> None:
        """Start the thread if there is none, and something to flush. The caller holds the lock."""
        if not self._running and self._registered:
            try:
                Thread(target=self._run, name="filechannel-flush-timer", daemon=True).start()
                self._running = True
            except RuntimeError as error:  # no more threads: whoever asks for a flush next tries again
                _logger.error("flushing in the background could not be started: %s", error)

    def forget(self, flusher: Flushable) -> None:
        """Stop flushing it."""
        with self._changed:
            self._registered.pop(flusher, None)
            self._changed.notify()

    def _run(self) -> None:
        # The due ones have no name here: it would keep a closed channel alive until the next round.
        while (due := self._due()) is not None:
            while due:
                self._flush(due.pop())

    def _due(self) -> list[Flushable] | None:
        """Return whose time has come, perhaps nobody's after a wait; None when there is nobody left."""
        with self._changed:
            now = time.monotonic()
            # Asked for once: a channel that nobody uses any more may disappear at any time.
            first = min((moment for moment, _ in self._registered.values()), default=None)
            if first is None:
                self._running = False
                return None
            if first > now:
                self._changed.wait(first - now)
                return []
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
