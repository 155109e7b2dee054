"""A disk that waits, fails or counts when a test says so."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from filechannel._storage.system.os_calls import Files


class Gate:
    """Controls every flush of a file: open it lets flushes through, closed it holds them back."""

    def __init__(self) -> None:
        self.flushes = 0
        """How many flushes have ended."""
        self.reached = threading.Event()
        """A flush has waited for the gate while it was closed."""
        self.error: OSError | None = None
        """What the next flush fails with."""
        self._open = threading.Event()
        self._open.set()

    def pass_through(self) -> None:
        """Wait for the gate, as part of a flush."""
        if not self._open.is_set():
            self.reached.set()
            assert self._open.wait(60)
        if self.error is not None:
            error, self.error = self.error, None
            raise error

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Hold every flush back for a while."""
        self.reached.clear()
        self._open.clear()
        try:
            yield
        finally:
            self._open.set()

    def open(self) -> None:
        """Let all flushes through."""
        self._open.set()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    """The gate before the disk of this test."""
    gate, flush = Gate(), Files.flush

    def gated(self: Files, descriptor: int) -> None:
        gate.pass_through()
        flush(self, descriptor)
        gate.flushes += 1

    monkeypatch.setattr(Files, "flush", gated)
    yield gate
    gate.open()
