"""What a channel has done in other threads: flush, seal, seek and the like. Closing waits for it.

A task that was cancelled leaves its thread behind, at work with files that must not be closed under it.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Condition
from typing import TypeVar

from anyio import ClosedResourceError
from anyio.to_thread import run_sync

R = TypeVar("R")


class Errands:
    """The errands of one channel object."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._running = 0
        self._closed = False

    async def run(self, work: Callable[[], R]) -> R:
        """Do something in a thread; `ClosedResourceError` if the channel was closed before it began."""
        return await run_sync(self.do, work)

    def do(self, work: Callable[[], R]) -> R:
        """Do something here; `ClosedResourceError` if the channel was closed before."""
        begun = False
        try:
            with self._changed:
                if self._closed:
                    raise ClosedResourceError
                self._running += 1
                begun = True  # with nothing in between: Ctrl-C may come at every call
            return work()
        finally:
            if begun:
                with self._changed:
                    self._running -= 1
                    self._changed.notify_all()

    def finish(self) -> None:
        """Begin no more, and block until nobody is at work."""
        with self._changed:
            self._closed = True
            self._changed.wait_for(lambda: not self._running)
