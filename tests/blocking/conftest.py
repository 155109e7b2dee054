"""Fixtures of the tests without async."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from filechannel import ChannelOptions, Durability
from filechannel.blocking import FileChannel, open_channel
from tests.channel.gates import gate
from tests.leftovers import close_leftovers

__all__ = ["gate"]

DURABILITIES = {"OS": Durability.OS, "interval": Durability.interval(0.05), "FSYNC": Durability.FSYNC}


@pytest.fixture(params=list(DURABILITIES))
def durability(request: pytest.FixtureRequest) -> Durability:
    """Each of the three durabilities."""
    return DURABILITIES[request.param]


@pytest.fixture
def channel(path: Path, durability: Durability) -> Iterator[FileChannel[int]]:
    """An open channel of numbers, under each durability."""
    with open_channel(path, int, options=ChannelOptions(durability=durability)) as channel:
        yield channel


@pytest.fixture(autouse=True)
def _nothing_stays_open() -> Iterator[None]:
    """Fail a test that leaves a store open; the tests after it find nothing open."""
    yield
    left = close_leftovers()
    assert not left, f"the test has left open: {', '.join(map(str, left))}"
