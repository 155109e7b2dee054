"""Redelivery in a group: after a member died, its lease expired, or the delay of a nack is over."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Protocol, TypeVar, final

from ..._format import add_u64, swap_if_u64
from ..._format.layout import (
    ENTRY_ATTEMPT_SHIFT,
    ENTRY_ATTEMPTS,
    ENTRY_DEADLINE,
    ENTRY_DELAYED,
    ENTRY_END,
    ENTRY_OFFSET,
    ENTRY_OUT,
    ENTRY_OWNER_SHIFT,
    ENTRY_READY,
    ENTRY_SKIPPED,
    ENTRY_STATE,
    GROUP_DUE,
    GROUP_READY,
    LOCK_GENERATION_SHIFT,
)
from ..._format.read.group_ring import LIVENESS_CHECK_NS, entry_start
from ..control.live_processes import Processes
from .group_file_format import DONE, GroupWords

_NEVER = (1 << 64) - 1
R = TypeVar("R")


class Locked(Protocol):
    """Calls a function with the group's lock."""

    def __call__(self, work: Callable[[], R], may_sleep: Callable[[], bool], /) -> R:
        """Call *work* with the lock and return its result; `Busy` if the thread may not sleep until it is free."""
        ...


@final
class Redelivery:
    """Makes deliveries of one group available again. Every member of the group calls it when its time has come."""

    def __init__(
        self, words: GroupWords, processes: Processes, locked: Locked, check_ring: Callable[[], object]
    ) -> None:
        """*check_ring* raises if the ring is damaged."""
        self._words = words
        self._processes = processes
        self._locked = locked
        self._check_ring = check_ring

    def run(self, may_sleep: Callable[[], bool]) -> int:
        """Make deliveries available again whose member died, whose lease expired, or whose delay is over.

        Returns their number. Waits for the lock; raises `Busy` if the thread may not sleep.
        """
        words, now = self._words, time.monotonic_ns()
        if not self._locked(partial(self._begin_check, now), may_sleep):
            return 0
        due, alive, overdue, ready = _NEVER, dict[int, bool](), list[tuple[int, int]](), 0
        for number in words.numbers():
            word, deadline = words.word(number), words.load(entry_start(number) + ENTRY_DEADLINE)
            state, owner = word & ENTRY_STATE, word >> ENTRY_OWNER_SHIFT << LOCK_GENERATION_SHIFT
            if state > ENTRY_SKIPPED or (state not in DONE and self._is_backwards(number)):
                self._check_ring()  # with the lock: the entry may have been reused since
            ready += state == ENTRY_READY
            if state == ENTRY_OUT and owner not in alive:
                alive[owner] = self._processes.is_alive(owner)
            if (state == ENTRY_OUT and deadline > now and alive[owner]) or (state == ENTRY_DELAYED and deadline > now):
                due = min(due, deadline)
            elif state in (ENTRY_OUT, ENTRY_DELAYED):
                overdue.append((number, word))

        def redeliver() -> int:
            if ready > words.load(GROUP_READY):  # a member was killed before it incremented the counter
                words.store(GROUP_READY, ready)
            redelivered = [self._redeliver(number, word, now, alive) for number, word in overdue]
            if not words.numbers():
                swap_if_u64(words.map, GROUP_DUE, now + LIVENESS_CHECK_NS, _NEVER)
            return sum(redelivered)

        redelivered = self._locked(redeliver, may_sleep)
        words.lower_due(due)
        return redelivered

    def _begin_check(self, now: int) -> bool:
        """Return whether the entries have to be checked now."""
        words = self._words
        if not words.numbers():
            words.store(GROUP_DUE, _NEVER)  # else every waiting member would check again and again
            return False
        if now < words.load(GROUP_DUE) <= now + LIVENESS_CHECK_NS:
            return False
        # Not "never" before the check is complete: another member has to check again if this process is killed here.
        words.store(GROUP_DUE, now + LIVENESS_CHECK_NS)
        return True

    def _is_backwards(self, number: int) -> bool:
        words, start = self._words, entry_start(number)
        return words.load(start + ENTRY_OFFSET) >= words.load(start + ENTRY_END)

    def _redeliver(self, number: int, word: int, now: int, alive: dict[int, bool]) -> bool:
        words = self._words
        is_out = word & ENTRY_STATE == ENTRY_OUT
        is_alive = not is_out or alive[word >> ENTRY_OWNER_SHIFT << LOCK_GENERATION_SHIFT]
        if is_alive and words.load(entry_start(number) + ENTRY_DEADLINE) > now:
            return False  # extended meanwhile, under the lock
        new = word & ~ENTRY_STATE | ENTRY_READY
        if is_out and word >> ENTRY_ATTEMPT_SHIFT & ENTRY_ATTEMPTS < ENTRY_ATTEMPTS:
            new += 1 << ENTRY_ATTEMPT_SHIFT
        if not swap_if_u64(words.map, entry_start(number), word, new):
            return False
        add_u64(words.map, GROUP_READY, 1)
        return True
