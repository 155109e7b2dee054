"""What a channel has done in other threads: flush, seal, seek and the like. Closing waits for it.

A task that was cancelled leaves its thread behind, at work with files that must not be closed under it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from anyio import ClosedResourceError

from .._format import ensured
from .._storage.background import do_undisturbed
from .._wakeup.loops import run_in_thread

R = TypeVar("R")
_PAUSE = 0.002  # seconds


class Errands:
    """The errands of one channel object."""

    def __init__(self) -> None:
        self._running: set[object] = set()
        self._closed = False

    async def run(self, work: Callable[[], R]) -> R:
        """Do something in a thread; `ClosedResourceError` if the channel was closed before it began."""
        return await run_in_thread(lambda: self.do(work))

    def do(self, work: Callable[[], R]) -> R:
        """Do something here; `ClosedResourceError` if the channel was closed before."""
        errand = object()
        with ensured(self._running.discard, errand):  # whatever interrupts us
            self._running.add(errand)
            if self._closed:
                raise ClosedResourceError
            return work()

    def do_undisturbed(self, work: Callable[[], object]) -> None:
        """Do something as `do` does, to its end, whatever a signal handler raises meanwhile.

        For what holds locks of the kernel: a generator-based context manager that an exception interrupts frees them
        when it is collected, and by then they may be those of another thread.
        """
        do_undisturbed(lambda: self.do(work))

    def finish(self) -> None:
        """Begin no more, and block until none is running."""
        self._closed = True
        while self._running:
            time.sleep(_PAUSE)
