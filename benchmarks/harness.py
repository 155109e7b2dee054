"""Runs contestants in alternating rounds, takes medians, and provides temporary directories.

The contestants of a group alternate, round after round, so that other work on the machine affects all alike. A ratio is
computed within each round, and the median is taken of the ratios, so a machine that slows down in the middle changes
little. Time in which a contestant was ready to run but other programs had the CPU is not counted, if the kernel reports
it. The garbage collector runs as in any program.
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
"""Runs the work once and returns the nanoseconds per message; setup and cleanup inside are not timed."""

WARM_UP = 5


@dataclass(frozen=True, slots=True)
class Series:
    """One figure per round, in the order of the rounds."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def quartiles(self) -> tuple[float, float]:
        """The quartiles: half of the rounds lie between these two."""
        if len(self.values) < 2:
            return self.median, self.median
        first, _, third = statistics.quantiles(self.values, n=4, method="inclusive")
        return first, third

    def as_mean(self) -> Series:
        """Return the mean as the only figure: events that happen in few rounds count, and so does noise."""
        return Series((statistics.fmean(self.values),))

    def per(self, yardstick: Series) -> Series:
        """Return the ratio within each round."""
        return Series(tuple(own / other for own, other in zip(self.values, yardstick.values, strict=True)))


@dataclass(frozen=True, slots=True)
class Bench:
    """How much to measure, and where."""

    memory: Path
    """A directory in RAM, if the machine has such a file system: for everything but FSYNC."""
    disk: Path
    """A directory on a disk: for FSYNC."""
    quick: bool
    peers: Mapping[str, str | None] = field(default_factory=dict)
    """The versions of packages to compare with, which have their own environment; None for one that is missing."""
    notes: list[str] = field(default_factory=list)
    """Notes for the readers of the report about this run."""

    def has_peer(self, package: str, group: str) -> bool:
        """Return whether a package can take part. If not, add a note to the report."""
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
        """Yield a new directory, and delete it afterwards."""
        path = Path(tempfile.mkdtemp(prefix="filechannel-bench-", dir=self.disk if disk else self.memory))
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)


def working_ns() -> int:
    """Return a clock in nanoseconds that stops while this thread waits for a CPU that other programs use."""
    return time.perf_counter_ns() - (0 if _SCHEDSTAT is None else int(os.pread(_SCHEDSTAT, 100, 0).split()[1]))


def _open_schedstat() -> int | None:
    try:
        return os.open("/proc/thread-self/schedstat", os.O_RDONLY)
    except OSError:
        return None


_SCHEDSTAT = _open_schedstat()


async def run_interleaved(contestants: Mapping[str, Round], rounds: int) -> dict[str, Series]:
    """Run every contestant once per round; the first rounds only warm up."""
    figures: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(WARM_UP + rounds):
        for name, run in contestants.items():
            figure = await run()
            if number >= WARM_UP:
                figures[name].append(figure)
    return {name: Series(tuple(values)) for name, values in figures.items()}
