"""Ctrl-C where it may come: between two steps, so that it is known how far it got."""

from __future__ import annotations

import signal
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType
from typing import final


@final
class Interrupts:
    """Whether Ctrl-C was pressed while it could not be answered."""

    def __init__(self) -> None:
        self.pending: bool = False

    def note(self, _number: int, _frame: FrameType | None) -> None:
        """It was."""
        self.pending = True


@contextmanager
def uninterrupted() -> Generator[Interrupts]:
    """Let Ctrl-C wait until the block is over, and tell the block about it; for the main thread."""
    waiting = Interrupts()
    before = signal.signal(signal.SIGINT, waiting.note)
    try:
        yield waiting
    finally:
        signal.signal(signal.SIGINT, before)
    if waiting.pending:
        raise KeyboardInterrupt
