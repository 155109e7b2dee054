"""What tests of maintenance may use: a clock that does not advance, and the fixtures of storage."""

from __future__ import annotations

import pytest

from tests.storage.clocks import Clock
from tests.storage.conftest import background, boots

__all__ = ["background", "boots", "clock"]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The wall clock, which moves only when the test moves it."""
    return Clock.install(monkeypatch)
