"""Fixtures of the tests of the command line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.shell import STARTED, fill
from tests.processes.crew import Crew
from tests.storage.conftest import boots, memory

__all__ = ["boots", "memory"]


@pytest.fixture
def path(memory: Path) -> Path:
    """Where a channel may be made."""
    return memory / "orders"


@pytest.fixture
def channel(path: Path) -> Path:
    """A channel of a hundred orders."""
    return fill(path, 100)


@pytest.fixture(autouse=True)
def _no_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing says how wide a line may be, whatever started the tests; a library may have said so meanwhile."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture(autouse=True)
def _nobody_stays() -> Iterator[None]:
    """No command outlives its test, however that ends."""
    yield
    while STARTED:
        process = STARTED.pop()
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture
def crew() -> Iterator[Crew]:
    """The other processes of a test; none of them outlives it."""
    crew = Crew()
    try:
        yield crew
    finally:
        crew.close()
