"""What the tests of the storage share."""

from __future__ import annotations

import pytest

from tests.storage.background import Background
from tests.storage.boots import Boots


@pytest.fixture
def background(monkeypatch: pytest.MonkeyPatch) -> Background:
    """Background work, done when the test says so."""
    return Background.install(monkeypatch)


@pytest.fixture
def boots(monkeypatch: pytest.MonkeyPatch) -> Boots:
    """The boots of a machine."""
    return Boots.install(monkeypatch)
