"""A week of rolling segments, simulated: what a channel uses of disk, maps, descriptors and memory stays what it was.

A segment of real life is filled in minutes; here it takes a moment. A consumer keeps up, another one lags and catches
up, history is replayed now and then, and the channel is closed and opened in between.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from filechannel import ChannelOptions, DataExpiredError
from filechannel._format import NOTHING, PURE
from filechannel._offset import LogPosition
from filechannel._storage.reading.log_reader import LogReader
from filechannel._storage.store import Store
from tests.storage.channels import opened, reader_of
from tests.storage.reclaiming import reclaim
from tests.storage.resources import descriptors_under, maps_under

_SIZE = 64 << 10
_OPTIONS = ChannelOptions(segment_size=_SIZE)
_MAPPED = 6
_LOOK = 7  # segments from one look at what it takes to the next
_LAG = 3  # segments that the slow consumer may be behind
_MIB = 1 << 20


@dataclass(frozen=True)
class Footprint:
    """What a channel takes."""

    disk: int
    files: int
    maps: int
    descriptors: int
    memory: int

    @classmethod
    def of(cls, path: Path) -> Footprint:
        """Look at it."""
        entries = list((path / "segments").iterdir())
        return cls(
            sum(entry.stat().st_blocks * 512 for entry in entries),
            len(entries),
            maps_under(path / "segments"),
            descriptors_under(path / "segments"),
            _memory(),
        )


def _memory() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


class Day:
    """One day of a channel: opened in the morning, closed at night."""

    def __init__(self, store: Store, keen: LogPosition | None, slow: LogPosition | None) -> None:
        self._store = store
        self._keen, self._slow, self._late = (reader_of(store) for _ in range(3))
        self._keen.move(keen or store.lookup.earliest())
        self._slow.move(slow or store.lookup.earliest())

    def spend(self, segments: int, footprints: list[Footprint]) -> tuple[LogPosition, LogPosition]:
        """Fill so many segments; return where the consumers stand."""
        message = os.urandom(1000)
        for number in range(segments):
            for _ in range(_SIZE // 1008):
                self._store.log.append([message])
            _take_all(self._keen)
            if number % _LAG == _LAG - 1:
                _take_all(self._slow)
            self._look_at_history()
            # As in a process that lives on: on disk once in a while, and mostly consumed before that.
            reclaim(self._store, self._slow.native.offset, flush=number % 10 == 9)
            if number % _LOOK == 0:
                footprints.append(Footprint.of(self._store.path))
        self._store.flusher.flush()
        places = [LogPosition(reader.native.offset, reader.native.sequence) for reader in (self._keen, self._slow)]
        for reader in (self._keen, self._slow, self._late):
            reader.close()
        return places[0], places[1]

    def _look_at_history(self) -> None:
        """Read a little at the beginning of what is stored; the next time that may be reclaimed."""
        try:
            if self._late.take_many(3):
                return
        except DataExpiredError:
            pass
        self._late.move(self._store.lookup.earliest())


def _take_all(reader: LogReader) -> None:
    while reader.native.take() is not NOTHING:
        pass


def _live(path: Path, days: int, segments_a_day: int) -> None:
    footprints: list[Footprint] = []
    keen = slow = None
    for _ in range(days):
        with opened(path, _OPTIONS, mapped=_MAPPED) as store:
            keen, slow = Day(store, keen, slow).spend(segments_a_day, footprints)
    # The slow consumer's segments, the active one and two that wait, each with an index or without.
    most = _LAG + 1 + 2 + 1
    rest = footprints[len(footprints) // 4 :]
    assert max(each.files for each in rest) <= 2 * most
    assert max(each.disk for each in rest) <= most * (_SIZE + 2 * 4096)
    assert max(each.maps for each in rest) <= _MAPPED
    assert max(each.descriptors for each in rest) <= 2 * _MAPPED + 3
    assert max(each.memory for each in rest) - rest[0].memory < 8 * _MIB
    assert path.joinpath("quarantine").exists() is False


def test_a_few_days_leave_a_channel_as_it_was(memory: Path) -> None:
    """After a few simulated days the files and maps of a channel are as before."""
    _live(memory / "channel", days=3, segments_a_day=15 if PURE else 50)


@pytest.mark.soak
def test_a_week_leaves_a_channel_as_it_was(memory: Path) -> None:
    """After a simulated week, with a segment each minute, the files and maps of a channel are as before."""
    _live(memory / "channel", days=7, segments_a_day=24 * 60)
