"""Maintains every channel that this process has open: one thread for all of them.

Each process has one, and any of them may maintain a channel: whoever notices first that something is to be done. That
is the one in which a segment was finished, a consumer went on to the next or a name was removed; for the rest everybody
looks from time to time, the less often the longer a channel is quiet. One process at a time has its turn, by the
kernel's lock on a byte (see `upkeep`), so that nobody has to be elected and nobody is missed who dies.

Waking a thread takes longer than many messages, and it would be the sender who pays for it. So for a second after each
nudge the thread looks by itself, every few hundredths, whether there are others. Starting a thread takes as long as a
quarter of opening a channel, so the same holds for a second after a channel was opened: a process that opens and closes
channels in quick succession starts one thread.

It works on storage alone. What goes wrong is logged, counted where every process sees it, and tried again, at ever
longer intervals; senders and receivers never hear of it.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from heapq import heapify, heappop, heappush
from typing import TypeAlias, final

from .._errors import Busy, FileChannelError
from .._format import Mutex
from .._storage.background import NoThreadError, Timekeeper
from .._storage.store import Store
from .compressor import compress_step
from .retention import pause_while_empty, reclaim

Step: TypeAlias = Callable[[Store], float]
"""Does what is due for one channel, and returns after how many seconds it wants to be called again.

It is called with nobody else maintaining the channel. `Busy` says that another process is in the way, and is no error.
"""

STEPS: list[Step] = [reclaim, compress_step]
"""What maintaining a channel means, in this order."""

_MANY = 8  # segments; whoever fills more than that before anybody has looked makes room itself
_PATIENCE = 1.0  # seconds that it waits for whoever is at it
_SOON = 0.02  # seconds; who fills many small segments has them looked at together
_ATTENTIVE = 1.0  # seconds after a nudge in which the thread looks so often whether there are others
_BUSY = 0.2
_LONGEST = 60.0
_TOGETHER = 1.0  # who is due at some time within so many seconds is looked at in one go
_logger = logging.getLogger("filechannel")


@final
class _Charge:
    """One channel that is looked after."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.working = Mutex()
        """Held while somebody works on it."""
        self.due = 0.0
        """When to look at it, by the monotonic clock."""
        self.attended = object()
        """Another object each time that the thread looks at it."""
        self.asked: object = None
        """What `attended` was when the thread was last asked to look: as long as it still is, the thread will."""
        self.filled = 0
        """Segments that were filled since somebody looked."""
        self.failures = 0

    @property
    def is_nudged(self) -> bool:
        """Whether the thread will look at it soon."""
        return self.asked is self.attended


@final
class Worker:
    """The thread. It ends within a second when there is no channel to look after, and keeps no process from ending."""

    def __init__(self) -> None:
        self.start_over()

    def start_over(self) -> None:
        """Forget everything: a forked child has not got the thread, and its channels are the parent's."""
        self._lock = Mutex()
        self._charges: dict[Store, _Charge] = {}
        self._queue: list[tuple[float, int, _Charge]] = []
        """A heap of who is due when; those whose time has changed since stay until they are at the top."""
        self._count = 0
        self._thread = Timekeeper("filechannel-maintenance", self._attend_due)
        self._nudged: deque[_Charge] = deque()
        """Those that the thread does not know of yet."""
        self._attentive_until = 0.0
        self._must_be_woken = True

    def look_after(self, store: Store) -> None:
        """Maintain a channel until it is closed. Telling twice is telling once."""
        with self._lock.held():
            if store in self._charges:
                return
            self._charges[store] = charge = _Charge(store)
            store.on_boundary = partial(self.nudge, store)
            store.on_filled = partial(self.keep_up, store)
            store.on_closing.append(partial(self.forget, store))
            self._schedule(charge, _SOON)
            self._attentive_until = time.monotonic() + _ATTENTIVE
            must_be_woken = self._must_be_woken
        if must_be_woken:
            self._wake()

    def _schedule(self, charge: _Charge, seconds: float) -> None:
        """Look at a channel after so many seconds. The caller holds the lock."""
        due = time.monotonic() + seconds
        charge.due = due if seconds < _TOGETHER else math.ceil(due / _TOGETHER) * _TOGETHER
        self._count += 1
        heappush(self._queue, (charge.due, self._count, charge))

    def _wake(self) -> None:
        try:
            self._thread.wake()
        except NoThreadError as error:  # no more threads: the next nudge tries again
            _logger.error("maintenance could not be started: %s", error)

    def nudge(self, store: Store) -> None:
        """Look at a channel soon. Any thread may call this, at any time; it does not wait."""
        charge = self._charges.get(store)
        if charge is not None and charge.asked is not (attended := charge.attended):
            self._nudged.append(charge)
            # In this order: the thread says that it must be woken, and only then looks which channels were nudged.
            if self._must_be_woken:
                self._wake()
            charge.asked = attended  # last: interrupted before this, the next nudge does all of it again

    def keep_up(self, store: Store) -> None:
        """Look at a channel in which a segment was filled soon; now and here if nobody has looked for many of them.

        On a busy machine the thread may get no chance beside one that sends without a pause, and what is consumed would
        pile up. An event loop is not held up: it has pauses.
        """
        self.nudge(store)
        charge = self._charges.get(store)
        if charge is None:
            return
        charge.filled += 1
        if charge.filled > _MANY and store.log.may_sleep():
            try:
                with charge.working.held(_PATIENCE):
                    if charge.filled > _MANY:  # else the thread was at it
                        self._make_room(charge)
            except Busy:
                pass  # the thread, or another process, is at it

    def _make_room(self, charge: _Charge) -> None:
        charge.filled = 0
        try:
            charge.store.upkeep.in_turn(lambda: reclaim(charge.store))
        except (FileChannelError, OSError) as error:  # the sender has nothing to do with it
            self._failed(charge, error)

    def forget(self, store: Store) -> None:
        """Look after it no more. When this returns nobody works on it."""
        with self._lock.held():
            charge = self._charges.pop(store, None)
            self._queue = [entry for entry in self._queue if entry[2] is not charge]
            heapify(self._queue)
            must_be_woken = self._must_be_woken
        if must_be_woken and self._thread.is_running:  # else it ends by itself, soon
            self._wake()
        if charge is not None:
            with charge.working.held():
                store.on_boundary = store.on_filled = _nothing

    # The thread

    def _attend_due(self) -> float | None:
        due = self._take_due()
        while due:
            self._attend(due.pop())  # which has no name here: that would keep a closed channel alive
        with self._lock.held():
            now = time.monotonic()
            if not self._charges and now >= self._attentive_until:
                self._must_be_woken = True
                return None
            return self._pause(self._queue[0][0] - now if self._queue else _LONGEST, now)

    def _take_due(self) -> list[_Charge]:
        """Return the channels whose time has come."""
        with self._lock.held():
            now = time.monotonic()
            self._must_be_woken = False
            self._take_nudged(now)
            found: list[_Charge] = []
            while self._queue and self._queue[0][0] <= now:
                due, _, charge = heappop(self._queue)
                if due == charge.due:  # else it is somewhere else in the queue
                    found.append(charge)
            return found

    def _take_nudged(self, now: float) -> None:
        """Learn who was nudged. If nobody was for a while, more may be in this moment, and are looked at together."""
        soon = _SOON if now >= self._attentive_until else 0.0
        while self._nudged:
            charge = self._nudged.popleft()
            self._attentive_until = now + _ATTENTIVE
            # One that is in trouble has its own time.
            if charge.store in self._charges and not charge.failures and charge.due > now + soon:
                self._schedule(charge, soon)

    def _pause(self, due: float, now: float) -> float:
        """Return for how long to sleep: until the time of a channel comes, or the next look at which were nudged."""
        if now < self._attentive_until:
            return max(min(due, _SOON), 0.0)
        self._must_be_woken = True
        return 0.0 if self._nudged else max(due, 0.0)

    def _attend(self, charge: _Charge) -> None:
        with charge.working.held():
            if charge.store not in self._charges:
                return  # it was closed meanwhile
            charge.attended = object()  # before the look: whatever changes from here on is told again
            charge.filled = 0
            seconds = self._maintain(charge)
            with self._lock.held():
                # Told again in the middle of it: soon, unless it is in trouble.
                again = seconds if charge.failures or not charge.is_nudged else min(seconds, _SOON)
                if charge.store in self._charges:  # else it was closed meanwhile, and nothing of it is to be kept
                    self._schedule(charge, again)

    def _maintain(self, charge: _Charge) -> float:
        """Do every step, and return after how many seconds to come again."""
        store, failures = charge.store, charge.failures
        try:
            seconds = pause_while_empty(store) if store.is_empty else self._take_turn(charge)
            store.let_go_of_removed()
        except Busy:
            return _BUSY
        except Exception as error:  # the thread serves every channel of the process: nothing may end it
            return self._failed(charge, error)
        if charge.failures == failures:
            charge.failures = 0
        return seconds

    def _take_turn(self, charge: _Charge) -> float:
        try:
            with charge.store.upkeep.turn():
                return min(self._do(step, charge) for step in STEPS)
        except Busy:
            return _BUSY

    def _do(self, step: Step, charge: _Charge) -> float:
        try:
            return step(charge.store)
        except Busy:
            return _BUSY
        except Exception as error:  # the other steps have nothing to do with it
            return self._failed(charge, error)

    @staticmethod
    def _failed(charge: _Charge, error: Exception) -> float:
        charge.failures += 1
        charge.store.upkeep.count_error()
        _logger.error("%s: maintenance failed, and will be tried again: %s", charge.store.path, error)
        return min(2.0**charge.failures, _LONGEST)


def _nothing() -> None:
    pass


WORKER = Worker()
os.register_at_fork(after_in_child=WORKER.start_over)
