"""Who maintains a channel, and what came of it: one at a time, of all threads and processes that have it open.

The kernel's lock on a byte says who does so now, and frees it when that process dies; a word says who did so last, for
people. It is held for one pass only, so that whoever is stopped between two passes holds nobody up.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TypeVar, final

from .._errors import Busy
from .._format import Mutex, ensured, load_u32, load_u64, store_u32, store_u64, swap_if_u32
from .._format.layout import (
    MAINTAINED,
    MAINTAINER,
    MAINTENANCE_BYTE,
    MAINTENANCE_ERRORS,
    QUIET_OFFSET,
    QUIET_SINCE,
    RECLAIMED_BYTES,
    RECLAIMED_SEGMENTS,
)
from .control import Control
from .entrance import Membership
from .holder import Holder
from .kernel_locks import KernelLocks

R = TypeVar("R")
_PAUSE = 0.005  # seconds


@final
class Upkeep:
    """The maintenance of one channel, as every process knows it."""

    def __init__(self, control: Control, membership: Membership | None) -> None:
        """Without a membership, as for somebody who changes nothing, it can only be looked at."""
        self._control = control
        self._words = control.map
        self._membership = membership
        self._mutex = Mutex()

    @contextmanager
    def turn(self, may_wait: Callable[[], bool] = lambda: False) -> Generator[None]:
        """Hold the maintenance lock; `Busy` if another thread or process holds it and the caller may not wait.

        For threads that run no user code, and programs that end with an exception: one that a signal handler raises as
        this is entered or left leaves both locks to the garbage collector. Others use `in_turn`.
        """
        self._wait_for_threads(may_wait)
        with self._mutex.held(_PAUSE):  # `Busy` if another thread was faster
            try:
                self._begin_turn(may_wait)
                yield
            finally:
                self._locks.give_back(MAINTENANCE_BYTE)

    def in_turn(self, work: Callable[[], R], may_wait: Callable[[], bool] = lambda: False) -> R:
        """Call *work* with the maintenance lock held; `Busy` as for `turn`."""
        self._wait_for_threads(may_wait)
        give_back = self._locks.give_back
        # Twice: a signal handler may raise inside the first call, and other processes would wait for this one to end.
        with (
            self._mutex.held(_PAUSE),
            ensured(give_back, MAINTENANCE_BYTE),
            ensured(give_back, MAINTENANCE_BYTE),
        ):
            self._begin_turn(may_wait)
            return work()

    @property
    def _locks(self) -> KernelLocks:
        assert self._membership is not None
        return self._membership.locks

    def _wait_for_threads(self, may_wait: Callable[[], bool]) -> None:
        while self._mutex.owner:  # the kernel does not tell threads of one process apart
            _wait(may_wait)

    def _begin_turn(self, may_wait: Callable[[], bool]) -> None:
        while not self._locks.take(MAINTENANCE_BYTE):
            _wait(may_wait)
        self._note_turn()

    def _note_turn(self) -> None:
        assert self._membership is not None
        self._control.check_storable()
        store_u32(self._words, MAINTAINER, self._membership.processes.owner)
        now, offset = time.time_ns(), self._control.write_offset
        if offset != load_u64(self._words, QUIET_OFFSET):
            # The time first: dying in between makes it seem to have moved later than it did, never earlier.
            store_u64(self._words, QUIET_SINCE, now)
            store_u64(self._words, QUIET_OFFSET, offset)
        store_u64(self._words, MAINTAINED, now)

    # What is known

    def quiet(self, end: int) -> int:
        """Return for how long the log is known to end here (ns): nothing before that is younger."""
        if load_u64(self._words, QUIET_OFFSET) != end:
            return 0
        return max(0, time.time_ns() - load_u64(self._words, QUIET_SINCE))

    @property
    def maintainer(self) -> Holder | None:
        """Who maintained the channel last; None if nobody did, or it has ended."""
        word = load_u32(self._words, MAINTAINER)
        if not word or self._membership is None or not self._membership.processes.is_alive(word):
            return None
        return self._membership.processes.holder_of(word)

    @property
    def is_running(self) -> bool:
        """Whether somebody is in the middle of it, who may stand still there."""
        if self._membership is None:
            return False
        return self._mutex.owner != 0 or self._membership.locks.is_taken(MAINTENANCE_BYTE)

    @property
    def last_turn(self) -> int | None:
        """When that was (ns since the epoch)."""
        return load_u64(self._words, MAINTAINED) or None

    @property
    def errors(self) -> int:
        """How often it failed, in any process, since it was last done by hand."""
        return load_u32(self._words, MAINTENANCE_ERRORS)

    def count_error(self) -> None:
        """Increment the error counter, unless the error is that nothing can be stored any more."""
        if not self._control.is_storable:
            return
        seen = self.errors
        while not swap_if_u32(self._words, MAINTENANCE_ERRORS, seen, seen + 1 & 0xFFFFFFFF):
            seen = self.errors

    def forget_errors(self) -> None:
        """It works again, as whoever asked for it has seen."""
        store_u32(self._words, MAINTENANCE_ERRORS, 0)

    @property
    def reclaimed(self) -> tuple[int, int]:
        """How many segments were reclaimed, and how many bytes of records were in them."""
        return load_u64(self._words, RECLAIMED_SEGMENTS), load_u64(self._words, RECLAIMED_BYTES)

    def count_reclaimed(self, segments: int, size: int) -> None:
        """So many more. For whose turn it is."""
        store_u64(self._words, RECLAIMED_SEGMENTS, self.reclaimed[0] + segments)
        store_u64(self._words, RECLAIMED_BYTES, self.reclaimed[1] + size)


def _wait(may_wait: Callable[[], bool]) -> None:
    if not may_wait():
        raise Busy
    time.sleep(_PAUSE)
