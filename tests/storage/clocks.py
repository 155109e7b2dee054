"""Clocks that a test controls."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from filechannel._format.layout import INDEX_CHECKED
from filechannel._storage.log.active_segment import ActiveSegment
from filechannel._storage.segments.segment_index import ActiveIndex


def packed(entries: list[tuple[int, int, int]]) -> bytes:
    """Return marks as the writer gives them away."""
    return b"".join(INDEX_CHECKED.pack(*entry) for entry in entries)


class Clock:
    """The wall clock of the slow paths: the index and its readers."""

    def __init__(self, now: int) -> None:
        self.now = now

    def pass_seconds(self, seconds: float) -> None:
        """Let time pass."""
        self.now += int(seconds * 1e9)

    @classmethod
    def install(cls, monkeypatch: pytest.MonkeyPatch) -> Clock:
        """Stop the clock at the present."""
        clock = cls(time.time_ns())
        monkeypatch.setattr(time, "time_ns", lambda: clock.now)
        store = ActiveIndex.store

        def store_as_of_now(self: ActiveIndex, segment: Path, entries: bytes, visible: int) -> None:
            # The native writer has looked at the real clock. A test that cares stores marks after every append.
            now = [(offset, sequence, clock.now) for offset, sequence, _ in INDEX_CHECKED.iter_unpack(entries)]
            store(self, segment, packed(now), visible)

        latest = ActiveSegment._take_latest_time
        monkeypatch.setattr(ActiveIndex, "store", store_as_of_now)
        monkeypatch.setattr(ActiveSegment, "_take_latest_time", lambda self: min(latest(self), clock.now))
        return clock


class Ticks:
    """A wall clock that advances a microsecond whenever it is read."""

    def __init__(self) -> None:
        self._now = 2_000_000_000 * 10**9

    def __call__(self) -> int:
        """Look."""
        self._now += 1000
        return self._now

    @classmethod
    def install(cls, monkeypatch: pytest.MonkeyPatch) -> Ticks:
        """Use it instead of the wall clock."""
        ticks = cls()
        monkeypatch.setattr(time, "time_ns", ticks)
        return ticks
