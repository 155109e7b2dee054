"""When the server is told to stop.

A server says so to the app only when every response has ended, and a stream does not end by itself. So whoever streams
listens to what the server listens to: SIGTERM and SIGINT.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from types import FrameType

from ..._wakeup.loops import in_trio

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def told_to_stop(tell: Callable[[], object]) -> Generator[None]:
    """Have *tell* called in this event loop when the process is told to stop; whoever listened before is told too.

    Only the main thread hears signals: in any other one this does nothing. Neither does it where nobody listened, since
    such a process ends at once.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    tell_soon = _soon(tell)
    before = {number: signal.getsignal(number) for number in _SIGNALS}

    def hear(number: int, frame: FrameType | None) -> None:
        with suppress(RuntimeError):  # this loop is over, and somebody else has kept us
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


def _soon(tell: Callable[[], object]) -> Callable[[], object]:
    """Return what has it called in this event loop; a signal handler may call that, in the middle of anything."""
    if in_trio():
        import trio

        token = trio.lowlevel.current_trio_token()
        return lambda: token.run_sync_soon(tell)
    loop = asyncio.get_running_loop()
    return lambda: loop.call_soon_threadsafe(tell)
