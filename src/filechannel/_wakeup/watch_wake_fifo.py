"""The wake pipe: the wake FIFO of this process for one channel, watched by its event loops that wait.

Each loop that watches is notified of a byte, no matter which of them reads it, and may be notified spuriously: the
first loop to run wakes all waiters.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from .._format import Mutex
from .._runtime.may_sleep import in_trio
from .._storage.system.os_calls import Files

if TYPE_CHECKING:
    import trio

_files = Files()


class WakePipe:
    """Calls functions, in an event loop, when another process writes to the FIFO."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.handlers: list[Callable[[], object]] = []
        """The functions to call."""
        self._lock = Mutex()
        self._watching: set[asyncio.AbstractEventLoop | trio.lowlevel.TrioToken] = set()
        self.newest: object = None
        """The event loop that started to watch it last, and still does."""
        self._closed = False

    def watch(self) -> None:
        """Let the event loop of this thread watch it, unless it already does."""
        if in_trio():
            self._watch_in_trio()
            return
        loop = asyncio.get_running_loop()
        if loop not in self._watching and self._add(loop):
            loop.add_reader(self._descriptor, self._on_readable)

    def _add(self, loop: asyncio.AbstractEventLoop | trio.lowlevel.TrioToken) -> bool:
        with self._lock.held():
            if self._closed:
                return False
            # Closed loops do not watch it any more, and never run again.
            self._watching = {other for other in self._watching if not _is_over(other)}
            self._watching.add(loop)
            self.newest = loop
            return True

    def _on_readable(self) -> None:
        _files.read_fifo(self._descriptor)
        for handler in self.handlers:
            handler()

    def _watch_in_trio(self) -> None:
        import trio

        token = trio.lowlevel.current_trio_token()
        if token not in self._watching and self._add(token):
            trio.lowlevel.spawn_system_task(self._listen, token)

    async def _listen(self, token: trio.lowlevel.TrioToken) -> None:
        import trio

        try:
            with suppress(trio.ClosedResourceError):
                while not self._closed:
                    await trio.lowlevel.wait_readable(self._descriptor)
                    self._on_readable()
        finally:
            self._stopped(token)

    def close(self) -> None:
        """Stop watching; each loop removes it in its own thread, and the last one closes it."""
        with self._lock.held():
            self._closed = True
            watching = list(self._watching)
        for loop in watching:
            if _is_over(loop) or not self._ask_to_stop(loop):
                self._stopped(loop)
        self._stopped(None)

    def _ask_to_stop(self, loop: asyncio.AbstractEventLoop | trio.lowlevel.TrioToken) -> bool:
        if isinstance(loop, asyncio.AbstractEventLoop):
            if not loop.is_running():
                self._stop_watching(loop)  # no other thread runs the loop, and it may be closed without running again
                return True
            try:
                loop.call_soon_threadsafe(self._stop_watching, loop)
            except RuntimeError:
                return False  # it was closed at the same time
            return True
        import trio

        try:
            loop.run_sync_soon(trio.lowlevel.notify_closing, self._descriptor)
        except trio.RunFinishedError:
            return False
        return True

    def _stop_watching(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.remove_reader(self._descriptor)
        self._stopped(loop)

    def _stopped(self, loop: asyncio.AbstractEventLoop | trio.lowlevel.TrioToken | None) -> None:
        with self._lock.held():
            self._watching.discard(loop)
            self.newest = None
            if not self._closed or self._watching or self._descriptor < 0:
                return
            descriptor, self._descriptor = self._descriptor, -1
        _files.close(descriptor)


def _is_over(loop: asyncio.AbstractEventLoop | trio.lowlevel.TrioToken) -> bool:
    """Return whether an event loop has ended; a trio loop reports that only when it is called."""
    return isinstance(loop, asyncio.AbstractEventLoop) and loop.is_closed()
