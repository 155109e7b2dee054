"""The channels that `top` shows: finds new and removed ones at each update, and measures their rates."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from glob import glob
from pathlib import Path
from typing import Final, final

from ..._errors import FileChannelError
from ..._maintenance.watch_channel import ConsumerFigures, Figures, Watch
from ..._offset import LogPosition
from ..._storage.capacity.backlog import Backlog, Batch
from ..._storage.manifest import MANIFEST
from .failures import explain

REMEMBERED: Final = 60
"""The length of a history, in updates."""


@final
@dataclass(slots=True)
class Pace:
    """The current rate of something, and its history."""

    per_second: float = 0.0
    bytes_per_second: float = 0.0
    history: deque[float] = field(default_factory=lambda: deque[float](maxlen=REMEMBERED))
    moved: float | None = None
    """When it last moved while it was watched, by the monotonic clock."""


@final
@dataclass(slots=True)
class Picture:
    """One channel as it is shown."""

    path: Path
    figures: Figures | None = None
    problem: str | None = None
    """Why there are no figures."""
    pace: Pace = field(default_factory=Pace)
    """The rate and history of sent messages."""
    paces: dict[str, Pace] = field(default_factory=dict[str, Pace])
    """For each consumer, its rate and the history of its lag."""

    def idle(self, consumer: ConsumerFigures) -> float:
        """Return for how long a consumer has not moved: by its stored position, or less if it was seen to move."""
        moved = self.paces[consumer.name].moved
        if moved is None or self.figures is None:
            return consumer.idle
        return min(consumer.idle, self.figures.time - moved)


@final
class ChannelSet:
    """Watches channels by their paths. Must be closed."""

    def __init__(self, patterns: Sequence[str]) -> None:
        """A pattern is the path of a channel, the path of a directory with channels in it, or a glob pattern."""
        self._patterns = patterns
        self._watches: dict[Path, Watch] = {}
        self._pictures: dict[Path, Picture] = {}

    def update(self) -> list[Picture]:
        """Return all channels that exist now, sorted by path."""
        paths = self._paths()
        for path in [path for path, watch in self._watches.items() if path not in paths or not watch.is_there]:
            self._forget(path)
        for path in [path for path in self._pictures if path not in paths]:
            del self._pictures[path]
        for path in paths:
            self._update_picture(self._pictures.setdefault(path, Picture(path)))
        return [self._pictures[path] for path in paths]

    def _paths(self) -> list[Path]:
        found: set[Path] = set()
        for pattern in self._patterns:
            for name in glob(pattern) or [pattern]:
                path = Path(name)
                if (path / MANIFEST).is_file():
                    found.add(path)
                elif path.is_dir():
                    found.update(manifest.parent for manifest in path.glob(f"*/{MANIFEST}"))
        return sorted(found)

    def _update_picture(self, picture: Picture) -> None:
        path = picture.path
        try:
            if path not in self._watches:
                self._watches[path] = Watch.open(path)
            watch = self._watches[path]
            figures = watch.figures()
        except (FileChannelError, OSError, ValueError) as error:
            self._forget(path)
            picture.figures, picture.problem = None, explain(error)
            return
        _follow(picture, figures, watch.backlog)
        picture.figures, picture.problem = figures, None

    def _forget(self, path: Path) -> None:
        watch = self._watches.pop(path, None)
        if watch is not None:
            watch.close()

    def close(self) -> None:
        """Stop watching."""
        for path in list(self._watches):
            self._forget(path)

    def __enter__(self) -> ChannelSet:
        """Return the set. The block closes it at the end."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stop watching."""
        self.close()


def _follow(picture: Picture, now: Figures, backlog: Backlog) -> None:
    """Update the rates of a channel and its consumers since the last update."""
    before = picture.figures or now
    seconds = max(now.time - before.time, 1e-9)
    _move(picture.pace, backlog.between(_end(before), _end(now)), seconds)
    if before is not now:  # the first update has no rate
        picture.pace.history.append(picture.pace.per_second)
    known = {consumer.name: consumer for consumer in before.consumers}
    for consumer in now.consumers:
        pace = picture.paces.setdefault(consumer.name, Pace())
        last = known.get(consumer.name, consumer)
        _move(pace, backlog.between(_log_position(last), _log_position(consumer)), seconds)
        pace.history.append(consumer.lag_messages)
        if consumer.offset != last.offset:
            pace.moved = now.time
    for name in picture.paces.keys() - {consumer.name for consumer in now.consumers}:
        del picture.paces[name]


def _end(figures: Figures) -> LogPosition:
    return LogPosition(figures.write_offset, figures.next_sequence)


def _log_position(consumer: ConsumerFigures) -> LogPosition:
    return LogPosition(consumer.offset, consumer.next_sequence)


def _move(pace: Pace, moved: Batch, seconds: float) -> None:
    """Set a rate. `Backlog.between` is empty for a move back, as by a seek."""
    pace.per_second, pace.bytes_per_second = moved.messages / seconds, moved.size / seconds
