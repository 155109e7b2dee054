"""The tests of this directory fail if they leave something open, and do not make others fail."""

from __future__ import annotations

from pathlib import Path

from filechannel._storage.open_stores import STORES
from filechannel.blocking import open_channel
from tests.leftovers import close_leftovers


def test_what_a_test_left_open_is_closed_and_named(path: Path) -> None:
    """The fixture closes and names every channel and store that a test left open, so that later tests find nothing
    open.
    """
    channels = [open_channel(path, int), open_channel(path, int)]
    STORES.open(path, check=lambda _: None, new=None, readonly=False, max_mapped_segments=2)
    assert close_leftovers() == [path]
    assert not STORES._open
    for channel in channels:
        channel.close()
    assert close_leftovers() == []
