"""What tests of maintenance may use: a clock that stands still, and background work that waits."""

from __future__ import annotations

import pytest

from tests.storage.clocks import Clock
from tests.storage.conftest import background

__all__ = ["background"]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The wall clock, which moves only when told to."""
    return Clock.install(monkeypatch)
