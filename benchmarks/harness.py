"""Rounds in turn, medians, and the directories they happen in.

Contestants of a group take turns, round after round, so that whatever else the machine does hits all alike. A ratio is
taken within each round and only then the median of them, so a machine that slows down in the middle changes little.
Time in which a contestant could run but other programs had the CPU is not counted, where the kernel tells. The garbage
collector runs as it does in any program.
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

Round: TypeAlias = Callable[[], Coroutine[object, object, float]]
"""Works once and returns nanoseconds a message; what it does besides that is not timed."""

WARM_UP = 5


@dataclass(frozen=True, slots=True)
class Series:
    """One figure a round, in the order of the rounds."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def quartiles(self) -> tuple[float, float]:
        """Half of the rounds lie between these two."""
        if len(self.values) < 2:
            return self.median, self.median
        first, _, third = statistics.quantiles(self.values, n=4, method="inclusive")
        return first, third

    def as_mean(self) -> Series:
        """Return the mean as the only figure: what happens in a few rounds counts, and so does noise."""
        return Series((statistics.fmean(self.values),))

    def per(self, yardstick: Series) -> Series:
        """Return the ratio within each round."""
        return Series(tuple(own / other for own, other in zip(self.values, yardstick.values, strict=True)))


@dataclass(frozen=True, slots=True)
class Bench:
    """How much to measure, and where."""

    memory: Path
    """Backed by RAM if the machine has such a file system: everything but FSYNC."""
    disk: Path
    """Backed by a disk: FSYNC."""
    quick: bool
    peers: Mapping[str, str | None] = field(default_factory=dict)
    """The versions of packages to compare with that have an environment of their own; None for one that is missing."""
    notes: list[str] = field(default_factory=list)
    """What a reader of the report should know about this run."""

    def has_peer(self, package: str, group: str) -> bool:
        """Tell whether a package can take part, and note it in the report if not."""
        if self.peers.get(package) is not None:
            return True
        self.notes.append(
            f"Left out of '{group}', because it is not installed in .venvs/peers: {package}. "
            "`make bench` installs it, and needs the network for that."
        )
        return False

    def rounds(self, full: int) -> int:
        return max(5, full // 8) if self.quick else full

    @contextmanager
    def scratch(self, *, disk: bool = False) -> Iterator[Path]:
        """Give a fresh directory that is gone afterwards."""
        path = Path(tempfile.mkdtemp(prefix="filechannel-bench-", dir=self.disk if disk else self.memory))
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)


def working_ns() -> int:
    """Return a clock of nanoseconds that stands still while this thread waits for a CPU that others have."""
    return time.perf_counter_ns() - (0 if _SCHEDSTAT is None else int(os.pread(_SCHEDSTAT, 100, 0).split()[1]))


def _open_schedstat() -> int | None:
    try:
        return os.open("/proc/thread-self/schedstat", os.O_RDONLY)
    except OSError:
        return None


_SCHEDSTAT = _open_schedstat()


async def take_turns(contestants: Mapping[str, Round], rounds: int) -> dict[str, Series]:
    """Run every contestant once a round; the first rounds only warm up."""
    figures: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(WARM_UP + rounds):
        for name, run in contestants.items():
            figure = await run()
            if number >= WARM_UP:
                figures[name].append(figure)
    return {name: Series(tuple(values)) for name, values in figures.items()}
