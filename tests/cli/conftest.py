"""Fixtures of the tests of the command line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.shell import fill
from tests.processes.crew import Crew
from tests.storage.conftest import memory

__all__ = ["memory"]


@pytest.fixture
def path(memory: Path) -> Path:
    """Where a channel may be made."""
    return memory / "orders"


@pytest.fixture
def channel(path: Path) -> Path:
    """A channel of a hundred orders."""
    return fill(path, 100)


@pytest.fixture
def crew() -> Iterator[Crew]:
    """The other processes of a test; none of them outlives it."""
    crew = Crew()
    try:
        yield crew
    finally:
        crew.close()
