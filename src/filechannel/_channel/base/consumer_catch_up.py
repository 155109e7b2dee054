"""Watching a consumer until it has caught up. Positions are shared memory, so looking costs next to nothing."""

from __future__ import annotations

import mmap

from .._errors import ConsumerDamagedError, UnknownConsumerError
from .._storage.index import Mark
from .._storage.store import Store

_SHORTEST_PAUSE = 0.001


class Pursuit:
    """One consumer on its way to a place.

    Nobody is told when a consumer of another process moves: whoever waits looks again, at ever longer intervals.
    """

    def __init__(self, store: Store, name: str, goal: Mark, longest_pause: float) -> None:
        self._store = store
        self._name = name
        self._goal = goal
        self._longest_pause = longest_pause
        self._pause = _SHORTEST_PAUSE
        self._registrations: int | None = None
        self._map: mmap.mmap | None = None

    @property
    def is_stale(self) -> bool:
        """Whether names came or went, so that `look_up` has to be called, which touches files."""
        return self._registrations != self._store.control.registrations

    def look_up(self) -> None:
        """Find the consumer; `UnknownConsumerError` or `ConsumerDamagedError` if that cannot be."""
        self._registrations = self._store.control.registrations
        self.close()
        self._map = self._store.roster.watch(self._name)
        if self._map is None:
            raise UnknownConsumerError(self._name, path=self._store.path)
        registration = self._store.roster.look(self._name)
        if registration is not None and registration.position is None:
            raise ConsumerDamagedError(self._name, path=self._store.path)

    def has_arrived(self) -> bool:
        """Tell whether everything before the goal was taken."""
        position = None if self._map is None else self._store.roster.read(self._map)
        # By number, too: nothing that is no message needs to be taken, and offsets may have been left out.
        return position is not None and (
            position.offset >= self._goal.offset or position.sequence >= self._goal.sequence
        )

    def pause(self) -> float:
        """Return how long to wait before the next look (s)."""
        pause, self._pause = self._pause, min(2 * self._pause, self._longest_pause)
        return pause

    def close(self) -> None:
        """Let go of the file."""
        if self._map is not None:
            self._map.close()
            self._map = None
