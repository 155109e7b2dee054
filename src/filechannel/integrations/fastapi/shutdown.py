"""Detects that the server is about to stop.

A server notifies the app only when every response has ended, and an event stream does not end by itself. So the streams
listen to the same signals as the server: SIGTERM and SIGINT.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from types import FrameType

from ..._runtime.may_sleep import in_trio

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def notified_of_stop(notify: Callable[[], object]) -> Generator[None]:
    """Call *notify* in this event loop when the process receives SIGTERM or SIGINT. Previous handlers are called too.

    Only the main thread receives signals: in other threads this does nothing. A signal without a previous handler is
    not changed, since it ends the process immediately.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    notify_soon = _soon(notify)
    before = {number: signal.getsignal(number) for number in _SIGNALS}

    def handle(number: int, frame: FrameType | None) -> None:
        with suppress(RuntimeError):  # this loop is closed, but another signal handler still calls us
            notify_soon()
        if callable(handler := before[signal.Signals(number)]):
            handler(number, frame)

    handled = [number for number, handler in before.items() if callable(handler)]
    for number in handled:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number in handled:
            if signal.getsignal(number) is handle:
                signal.signal(number, before[number])


def _soon(notify: Callable[[], object]) -> Callable[[], object]:
    """Return a function that schedules *notify* in this event loop. A signal handler may call it at any time."""
    if in_trio():
        import trio

        token = trio.lowlevel.current_trio_token()
        return lambda: token.run_sync_soon(notify)
    loop = asyncio.get_running_loop()
    return lambda: loop.call_soon_threadsafe(notify)
