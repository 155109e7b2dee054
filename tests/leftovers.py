"""What a test has left open in this process: it is closed, and reported in that test only."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

from filechannel import FileChannelError
from filechannel._channel.base.channel import BaseChannel, _channels
from filechannel._storage.open_stores import STORES

_LONGEST = 1.0  # seconds


def close_leftovers() -> list[Path]:
    """Close everything that is still open, so that later tests are not affected; return the directories."""
    left = [opened.store.path for opened in list(STORES._open.values())]
    for channel in list(_channels) if left else []:
        if isinstance(channel, BaseChannel):
            with suppress(FileChannelError, OSError):
                channel.close()
    # A thread may be about to close a channel that was dropped; a store that was opened without one has none.
    end = time.monotonic() + _LONGEST
    while STORES._open and time.monotonic() < end:
        time.sleep(0.001)
    for opened in list(STORES._open.values()):
        for _ in range(opened.users):
            STORES.close(opened.store)
    return left
