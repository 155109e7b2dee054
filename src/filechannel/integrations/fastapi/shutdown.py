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
    left alone, since it ends the process at once.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    tell_soon = _soon(notify)
    before = {number: signal.getsignal(number) for number in _SIGNALS}

    def hear(number: int, frame: FrameType | None) -> None:
        with suppress(RuntimeError):  # this loop is closed, but another signal handler still calls us
            tell_soon()
        if callable(listener := before[signal.Signals(number)]):
            listener(number, frame)

    heard = [number for number, listener in before.items() if callable(listener)]
    for number in heard:
        signal.signal(number, hear)
    try:
        yield
    finally:
        for number in heard:
            if signal.getsignal(number) is hear:
                signal.signal(number, before[number])


def _soon(notify: Callable[[], object]) -> Callable[[], object]:
    """Return a function that schedules *notify* in this event loop. A signal handler may call it at any time."""
    if in_trio():
        import trio

        token = trio.lowlevel.current_trio_token()
        return lambda: token.run_sync_soon(notify)
    loop = asyncio.get_running_loop()
    return lambda: loop.call_soon_threadsafe(notify)
