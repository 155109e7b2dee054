"""The tasks of this process that wait for one channel to change.

The waiter arms the shared wake word, looks once more, and sleeps; the publisher stores, looks at the word, and if it
is armed clears it and wakes everybody. The fences on both sides make sure that not both miss each other. Waking all
of them is right: each has its own cursor, and a task that was cancelled meanwhile takes nobody's place.

Whoever has a channel open read-only cannot arm anything, and looks again from time to time instead.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import RLock
from weakref import WeakKeyDictionary

import anyio

from .._format import fence, load_u32, swap_if_u32
from .._format.layout import WAKE, WAKE_ARMED
from .._storage.store import Store
from .loops import Waiter, make_waiter, wake_together

_SHORTEST_PAUSE = 0.001
_LONGEST_PAUSE = 0.05


class Arrivals:
    """Wakes tasks when a channel has something new for readers."""

    def __init__(self, store: Store) -> None:
        self._words = store.control.map
        self._can_arm = not store.readonly
        self._lock = RLock()  # a receiver may be collected, and closed by that, anywhere
        self._waiting: set[Waiter] = set()

    @property
    def waiting(self) -> int:
        """How many tasks wait."""
        return len(self._waiting)

    async def wait(self, has_news: Callable[[], bool]) -> None:
        """Sleep until there may be news; returns at once if there are. Cancelling it changes nothing."""
        if not self._can_arm:
            await _poll(has_news)
            return
        waiter = make_waiter()
        with self._lock:
            self._waiting.add(waiter)
        try:
            self._arm()
            if not has_news():
                await waiter.wait()
        finally:
            with self._lock:
                self._waiting.discard(waiter)

    def wake_all(self) -> None:
        """Wake whoever waits now. Any thread may call it."""
        with self._lock:
            waiting, self._waiting = self._waiting, set()
        wake_together(waiting)

    def _arm(self) -> None:
        while not (seen := load_u32(self._words, WAKE)) & WAKE_ARMED:
            if swap_if_u32(self._words, WAKE, seen, seen | WAKE_ARMED):
                break
        fence()


async def _poll(has_news: Callable[[], bool]) -> None:
    pause = _SHORTEST_PAUSE
    while not has_news():
        await anyio.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)


_lock = RLock()
_arrivals: WeakKeyDictionary[Store, Arrivals] = WeakKeyDictionary()


def arrivals_of(store: Store) -> Arrivals:
    """Return the one object that wakes the readers of a store."""
    with _lock:
        arrivals = _arrivals.get(store)
        if arrivals is None:
            arrivals = _arrivals[store] = Arrivals(store)
            store.notify = arrivals.wake_all
        return arrivals
