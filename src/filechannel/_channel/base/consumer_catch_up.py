"""Waiting until a consumer has caught up. Positions are in shared memory, so polling costs next to nothing."""

from __future__ import annotations

import mmap

from ..._errors import ConsumerDamagedError, UnknownConsumerError
from ..._offset import LogPosition
from ..._storage.store import Store

_SHORTEST_PAUSE = 0.001


class CatchUpWait:
    """The wait for one consumer to reach a log position.

    There is no wakeup when a consumer of another process moves, so the caller polls, at increasing intervals.
    """

    def __init__(self, store: Store, name: str, goal: LogPosition, longest_pause: float) -> None:
        self._store = store
        self._name = name
        self._goal = goal
        self._longest_pause = longest_pause
        self._pause = _SHORTEST_PAUSE
        self._registrations: int | None = None
        self._map: mmap.mmap | None = None

    @property
    def is_stale(self) -> bool:
        """Whether consumers were registered or removed, so that `look_up` has to be called, which accesses files."""
        return self._registrations != self._store.control.registrations

    def look_up(self) -> None:
        """Find the consumer. Raise `UnknownConsumerError` or `ConsumerDamagedError` if that is not possible."""
        self._registrations = self._store.control.registrations
        self.close()
        self._map = self._store.consumer_listing.watch(self._name)
        if self._map is None:
            raise UnknownConsumerError(self._name, path=self._store.path)
        registration = self._store.consumer_listing.find(self._name)
        if registration is not None and registration.position is None:
            raise ConsumerDamagedError(self._name, path=self._store.path)

    def has_caught_up(self) -> bool:
        """Return whether everything before the goal was consumed."""
        position = None if self._map is None else self._store.consumer_listing.read(self._map)
        # Also by sequence: control records need not be consumed, and offsets may have been skipped.
        return position is not None and (
            position.offset >= self._goal.offset or position.sequence >= self._goal.sequence
        )

    def pause(self) -> float:
        """Return how long to wait before the next poll, in seconds."""
        pause, self._pause = self._pause, min(2 * self._pause, self._longest_pause)
        return pause

    def close(self) -> None:
        """Unmap the file."""
        if self._map is not None:
            self._map.close()
            self._map = None
