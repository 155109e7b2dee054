"""`BlockingCalls`: work of a channel in other threads, such as flush, seal and seek. Closing waits for it.

A cancelled task leaves its thread running, with files that must not be closed while it uses them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from anyio import ClosedResourceError

from ..._format import ensured
from ..._wakeup.event_loops import run_in_thread
from .signal_safe_work import do_undisturbed

R = TypeVar("R")
_PAUSE = 0.002  # seconds


class BlockingCalls:
    """The blocking calls of one channel object."""

    def __init__(self) -> None:
        self._running: set[object] = set()
        self._closed = False

    async def run(self, work: Callable[[], R]) -> R:
        """Call *work* in a thread. Raise `ClosedResourceError` if the channel was closed before it started."""
        return await run_in_thread(lambda: self.do(work))

    def do(self, work: Callable[[], R]) -> R:
        """Call *work* in this thread. Raise `ClosedResourceError` if the channel was closed before."""
        call = object()
        with ensured(self._running.discard, call):  # on any exception
            self._running.add(call)
            if self._closed:
                raise ClosedResourceError
            return work()

    def do_undisturbed(self, work: Callable[[], object]) -> None:
        """Like `do`, but complete the work even if a signal handler raises meanwhile.

        For work that holds kernel locks: if an exception interrupts a generator-based context manager, it releases its
        locks when it is garbage-collected, and by then they may belong to another thread.
        """
        do_undisturbed(lambda: self.do(work))

    def finish(self) -> None:
        """Refuse new calls, and block until none is running."""
        self._closed = True
        while self._running:
            time.sleep(_PAUSE)
