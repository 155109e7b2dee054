"""Those of this process who wait for room in a channel, first come, first served.

Only the first in line looks for room and tries; the others wait until it was served or has left. Whoever comes later
joins the line, even if there would be room for what it has: otherwise small messages would overtake a large batch for
ever. Which process is served next is the storage's affair (`Room`).
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager
from threading import Event, RLock, get_ident
from typing import final

from .._errors import NoRoomYetError
from .._storage.backlog import SMALLEST, Batch
from .._storage.store import Store
from .arrivals import POLL, SPACE, Arrivals, arrivals_of
from .loops import Sleeper, make_waiter, wake_together

_LONGEST_SLEEP = 1.0
_PAUSE = 0.02  # seconds between two looks for room where nobody can be woken


@final
class _Thread:
    """A thread that waits for its turn."""

    def __init__(self) -> None:
        self._event = Event()

    def wake(self) -> None:
        self._event.set()

    def wait(self, seconds: float) -> None:
        self._event.wait(seconds)


@final
class Place:
    """A place in the line."""

    __slots__ = ("batch", "has_left", "sleeper")

    def __init__(self, has_left: Callable[[], bool]) -> None:
        self.batch = SMALLEST
        """What it wants to send, as far as it is known."""
        self.has_left = has_left
        """Tells whether it has no reason to wait any more: its sender was closed."""
        self.sleeper: Sleeper | None = None


class Line:
    """The line of one channel."""

    def __init__(self, store: Store, space: Arrivals) -> None:
        self._room = store.room
        self._space = space
        self._lock = RLock()  # a signal handler may send
        self._places: deque[Place] = deque()
        self._served = 0
        """The thread whose place is first, while it tries."""
        self._room.may_pass = self._may_pass

    def __len__(self) -> int:
        """How many wait."""
        return len(self._places)

    def _may_pass(self) -> bool:
        return not self._places or self._served == get_ident()

    def is_needed(self) -> bool:
        """Tell whether there is no point in trying before standing in line."""
        return self._room.is_full()

    def join(self, has_left: Callable[[], bool]) -> Place:
        """Stand in line. Whoever does leaves it in the end."""
        place = Place(has_left)
        with self._lock:
            self._places.append(place)
            self._room.stand_in_line(True)
        return place

    def leave(self, place: Place) -> None:
        """Let the next one try."""
        with self._lock:
            was_first = self._is_first(place)
            self._places.remove(place)
            self._room.stand_in_line(bool(self._places))
        if was_first:
            self._wake_first()
            self._room.pass_turn()

    def _is_first(self, place: Place) -> bool:
        return self._places[0] is place

    def _wake_first(self) -> None:
        with self._lock:
            first = self._places[0] if self._places else None
        if first is not None and first.sleeper is not None:
            first.sleeper.wake()

    def wake_all(self) -> None:
        """Let everybody look again, for instance because a sender was closed. Any thread may call it."""
        if not self._places:
            return
        with self._lock:
            sleepers = [place.sleeper for place in self._places if place.sleeper is not None]
        wake_together(sleepers)
        self._space.wake_all()

    @contextmanager
    def serving(self) -> Generator[None]:
        """Let this thread, whose place is first, have the room that it asks for in the block."""
        before = self._served
        self._served = get_ident()
        try:
            yield
        finally:
            self._served = before

    def _has_news(self, place: Place) -> bool:
        return place.has_left() or self._room.has_room(place.batch)

    # Waiting

    async def wait(self, place: Place, longest_pause: float) -> None:
        """Sleep until there may be room and it is our turn, or no reason to wait. Cancelling it changes nothing."""
        while not self._is_first(place) and not place.has_left():
            waiter = place.sleeper = make_waiter()
            if self._is_first(place) or place.has_left():  # in this moment: nobody wakes us then
                break
            await waiter.wait()
        if not place.has_left():
            await self._space.wait(lambda: self._has_news(place), longest_pause)

    def sleep(self, place: Place, until: float | None, longest_pause: float) -> bool:
        """Let the thread sleep as `wait` does, but not beyond *until*, by the monotonic clock; tell whether in time."""
        while not self._is_first(place) and not place.has_left():
            left = _LONGEST_SLEEP if until is None else min(until - time.monotonic(), _LONGEST_SLEEP)
            if left <= 0:
                return False
            thread = place.sleeper = _Thread()
            if not self._is_first(place) and not place.has_left():
                thread.wait(left)
        return place.has_left() or self._space.sleep(lambda: self._has_news(place), until, longest_pause)


_lock = RLock()


def line_of(store: Store) -> Line:
    """Return the one line of a store that is open for writing."""
    with _lock:
        line = store.room.line
        if not isinstance(line, Line):
            space = Arrivals(store, poll=POLL, beacon=SPACE, beside=arrivals_of(store))
            line = store.room.line = Line(store, space)
            store.room.notify = space.published
        return line


def when_there_is_room(store: Store, append: Callable[[], object], timeout: float | None = None) -> None:
    """Append, standing in line with everybody else who sends; `NoRoomYetError` if that takes longer than *timeout*."""
    try:
        append()
        return
    except NoRoomYetError as full:
        refusal: NoRoomYetError = full
    until = None if timeout is None else time.monotonic() + timeout
    line = line_of(store)
    place = line.join(lambda: False)
    try:
        while until is None or time.monotonic() < until:
            place.batch = Batch(refusal.size, refusal.messages)
            line.sleep(place, until, _PAUSE)
            try:
                with line.serving():
                    append()
                return
            except NoRoomYetError as full:
                refusal = full
    finally:
        line.leave(place)
    raise refusal


def _start_over() -> None:
    """In a forked child another thread may have held the lock."""
    global _lock
    _lock = RLock()


os.register_at_fork(after_in_child=_start_over)
