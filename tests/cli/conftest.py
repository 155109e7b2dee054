"""Fixtures of the tests of the command line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.shell import STARTED, fill
from tests.processes.conftest import workers
from tests.storage.conftest import boots

__all__ = ["boots", "workers"]


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
    """Clear the settings of the terminal's width, which the environment or a library may have set."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture(autouse=True)
def _no_process_stays() -> Iterator[None]:
    """No command outlives its test, however that ends."""
    yield
    while STARTED:
        process = STARTED.pop()
        if process.poll() is None:
            process.kill()
        process.communicate()
