"""What tests of maintenance may use: a clock that stands still."""

from __future__ import annotations

import pytest

from tests.storage.clocks import Clock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The wall clock, which moves only when told to."""
    return Clock.install(monkeypatch)
