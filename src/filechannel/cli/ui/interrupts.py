"""Delays Ctrl-C to a point between two steps, so that it is known how far a command got."""

from __future__ import annotations

import signal
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType
from typing import final


@final
class Interrupts:
    """Whether Ctrl-C was pressed while it was delayed."""

    def __init__(self) -> None:
        self.pending: bool = False

    def note(self, _number: int, _frame: FrameType | None) -> None:
        """Record that Ctrl-C was pressed. The signal handler."""
        self.pending = True


@contextmanager
def uninterrupted() -> Generator[Interrupts]:
    """Delay Ctrl-C until the end of the block; the block can see that it is pending. Only for the main thread."""
    waiting = Interrupts()
    before = signal.signal(signal.SIGINT, waiting.note)
    try:
        yield waiting
    finally:
        signal.signal(signal.SIGINT, before)
    if waiting.pending:
        raise KeyboardInterrupt
