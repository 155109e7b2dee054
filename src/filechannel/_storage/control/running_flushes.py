"""The word of the control page that says which files are being flushed."""

from __future__ import annotations

import mmap
from typing import final

from ..._format import load_u32, swap_if_u32
from ..._format.layout import CONTROL_FLUSHES_STEP, FLUSHES, FLUSHES_STEP, FLUSHING_CONTROL


@final
class RunningFlushes:
    """The running flushes of one channel, in all processes. Writers read the word to avoid pages that are read-only."""

    def __init__(self, map_: mmap.mmap) -> None:
        self._map = map_

    def begin(self, files: int) -> None:
        """Announce to all writers that these files are being flushed from now on, which makes their pages read-only."""
        seen = load_u32(self._map, FLUSHES)
        while not swap_if_u32(self._map, FLUSHES, seen, seen | files):
            seen = load_u32(self._map, FLUSHES)

    def end(self, files: int) -> None:
        """Announce to all writers that the flush of these files has ended, with or without success.

        The caller has checked that the word can be stored even if the file system has shut down.
        """
        step = CONTROL_FLUSHES_STEP if files & FLUSHING_CONTROL else FLUSHES_STEP
        seen = load_u32(self._map, FLUSHES)
        while not swap_if_u32(self._map, FLUSHES, seen, (seen & ~files) + step & 0xFFFFFFFF):
            seen = load_u32(self._map, FLUSHES)
