"""One thread a process that extends leases while somebody works on what they are for.

It exists only while there is something to keep, and never waits for long: a process that was stopped in the middle of
one group must not cost the members of another theirs.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from threading import Condition, Thread
from typing import final

from anyio import ClosedResourceError

from .._errors import Busy, FileChannelError
from .._wakeup.patience import no_longer_than

_PATIENCE = 0.02  # seconds
_SHORTLY = 0.05
_logger = logging.getLogger("filechannel")


@final
class Keeper:
    """Calls what was registered with it again and again, until that fails or is not wanted any more."""

    def __init__(self) -> None:
        self.start_over()

    def start_over(self) -> None:
        """Forget everything: a forked child has not got the thread, and none of the leases."""
        self._changed = Condition()
        self._due: dict[object, tuple[float, float, Callable[[], object]]] = {}
        self._running = False

    @contextmanager
    def keeping(self, extend: Callable[[], object], every: float) -> Generator[None]:
        """Call *extend* every so many seconds as long as the body runs. What it raises ends that, silently."""
        key = object()
        try:
            with self._changed:
                self._due[key] = time.monotonic() + every, every, extend
                if not self._running:
                    Thread(target=self._run, name="filechannel-keeper", daemon=True).start()
                    self._running = True
                self._changed.notify()
            yield
        finally:
            with self._changed:
                self._due.pop(key, None)

    def _run(self) -> None:
        while (found := self._next()) is not None:
            key, every, extend = found
            pause: float | None = None
            try:
                with no_longer_than(time.monotonic() + _PATIENCE):
                    extend()
                pause = every
            except Busy:
                pause = min(every, _SHORTLY)
            except (FileChannelError, ClosedResourceError):
                pass  # lost or closed: whoever settles it is told
            except Exception:  # the thread serves every group of the process: nothing may end it
                _logger.exception("extending a lease failed")
            with self._changed:
                if key in self._due and pause is not None:
                    self._due[key] = time.monotonic() + pause, every, extend
                else:
                    self._due.pop(key, None)

    def _next(self) -> tuple[object, float, Callable[[], object]] | None:
        """Wait until the next one is due and return it; None if there is nothing to keep."""
        with self._changed:
            while self._due:
                key, (when, every, extend) = min(self._due.items(), key=lambda item: item[1][0])
                left = when - time.monotonic()
                if left <= 0:
                    return key, every, extend
                self._changed.wait(left)
            self._running = False
            return None


KEEPER = Keeper()
os.register_at_fork(after_in_child=KEEPER.start_over)
