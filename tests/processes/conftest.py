"""Fixtures of the tests that need several processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from filechannel._format import PURE
from tests.processes.workers import Workers


@pytest.fixture(autouse=True)
def _native_only() -> None:
    """Without the C core a process has a channel for itself."""
    if PURE:
        pytest.skip("the pure implementation has no compare-and-swap: a process has the channel for itself")


@pytest.fixture
def path(memory: Path) -> Path:
    """Where a channel may be made: in memory, since nothing here is about the disk."""
    return memory / "channel"


@pytest.fixture
def workers() -> Iterator[Workers]:
    """The other processes of a test; none of them outlives it."""
    workers = Workers()
    try:
        yield workers
    finally:
        workers.close()
