"""Those of this process who wait for room in a channel, first come, first served.

Only the first in line looks for room and tries; the others wait until it was served or has left. Whoever comes later
joins the line, even if there would be room for what it has: otherwise small messages would overtake a large batch for
ever. Which process is served next is the storage's affair (`Room`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import get_ident
from typing import final

import anyio

from .._errors import NoRoomYetError
from .._format import Guard, Mutex, ensured
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
        self._bell: SimpleQueue[None] = SimpleQueue()

    def wake(self) -> None:
        self._bell.put(None)

    def wait(self, seconds: float) -> None:
        with suppress(Empty):
            self._bell.get(timeout=seconds)


@final
class Place:
    """A place in the line."""

    __slots__ = ("batch", "has_left", "sleeper", "was_first")

    def __init__(self, has_left: Callable[[], bool]) -> None:
        self.batch = SMALLEST
        """What it wants to send, as far as it is known."""
        self.has_left = has_left
        """Tells whether it has no reason to wait any more: its sender was closed."""
        self.sleeper: Sleeper | None = None
        self.was_first = False


class Line:
    """The line of one channel."""

    def __init__(self, store: Store, space: Arrivals) -> None:
        self._room = store.room
        self._space = space
        self._lock = Mutex()  # a signal handler may send
        self._places: dict[Place, None] = {}  # in this order
        self._served: set[int] = set()
        """The thread whose place is first, while it tries."""
        self._room.may_pass = self._may_pass

    def __len__(self) -> int:
        """How many wait."""
        return len(self._places)

    def _may_pass(self) -> bool:
        return not self._places or get_ident() in self._served

    def is_needed(self) -> bool:
        """Tell whether there is no point in trying before standing in line."""
        return self._room.is_full()

    def standing(self, place: Place) -> Guard:
        """Stand in line for the body of a `with` statement. The caller calls `let_next_try` after it, in any case."""
        # The guard has no name, so that an exception raised by a signal handler cannot keep it (see mutex.c).
        return (ensured(self._places.pop, place, None), self._join(place))[0]  # type: ignore[func-returns-value]

    def _join(self, place: Place) -> None:
        with self._lock.held():
            self._places[place] = None
            self._room.stand_in_line(True)

    def let_next_try(self, place: Place) -> None:
        """Let the next one try, when one has left.

        If this is interrupted by an exception, those who wait find out within a second.
        """
        with self._lock.held():
            self._room.stand_in_line(bool(self._places))
        if place.was_first:
            self._wake_first()
            self._room.pass_turn()

    def _is_first(self, place: Place) -> bool:
        place.was_first = self._first() is place
        return place.was_first

    def _first(self) -> Place | None:
        with self._lock.held():
            return next(iter(self._places), None)

    def _wake_first(self) -> None:
        first = self._first()
        if first is not None and first.sleeper is not None:
            first.sleeper.wake()

    def wake_all(self) -> None:
        """Let everybody look again, for instance because a sender was closed. Any thread may call it."""
        if not self._places:
            return
        with self._lock.held():
            sleepers = [place.sleeper for place in self._places if place.sleeper is not None]
        wake_together(sleepers)
        self._space.wake_all()

    def serving(self) -> Guard:
        """Let this thread, whose place is first, have the room that it asks for in the body of a `with` statement."""
        # The guard has no name, so that an exception raised by a signal handler cannot keep it (see mutex.c).
        return (ensured(self._served.discard, get_ident()), self._served.add(get_ident()))[0]  # type: ignore[func-returns-value]

    def _has_news(self, place: Place) -> bool:
        return place.has_left() or self._room.has_room(place.batch)

    # Waiting

    async def wait(self, place: Place, longest_pause: float) -> None:
        """Sleep until there may be room and it is our turn, or no reason to wait. Cancelling it changes nothing."""
        while not self._is_first(place) and not place.has_left():
            waiter = place.sleeper = make_waiter()
            if self._is_first(place) or place.has_left():  # in this moment: nobody wakes us then
                break
            with anyio.move_on_after(_LONGEST_SLEEP):
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


_lock = Mutex()


def line_of(store: Store) -> Line:
    """Return the one line of a store that is open for writing."""
    with _lock.held():
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
    place = Place(lambda: False)
    try:
        with line.standing(place):
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
        line.let_next_try(place)
    raise refusal


def _start_over() -> None:
    """In a forked child another thread may have held the lock."""
    global _lock
    _lock = Mutex()


os.register_at_fork(after_in_child=_start_over)
