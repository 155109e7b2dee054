"""What the tests of the storage share."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.storage.background import Background
from tests.storage.boots import Boots


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a channel may be made."""
    return tmp_path / "channel"


@pytest.fixture
def memory() -> Iterator[Path]:
    """A directory in memory, where there is one: for tests that would wait for the disk for no reason."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as directory:
        yield Path(directory)


@pytest.fixture
def background(monkeypatch: pytest.MonkeyPatch) -> Background:
    """Background work, done when the test says so."""
    return Background.install(monkeypatch)


@pytest.fixture
def boots(monkeypatch: pytest.MonkeyPatch) -> Boots:
    """The boots of a machine."""
    return Boots.install(monkeypatch)
