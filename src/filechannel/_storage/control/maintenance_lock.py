"""The maintenance lock, held by one thread of one process at a time, and the results of maintenance.

A kernel lock on a byte shows which process does maintenance now, and is freed when that process dies. A word in the
control page names the process that did maintenance last, for people. The lock is held for one pass only, so that a
process that is stopped between two passes does not block other processes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TypeVar, final

from ..._errors import Busy
from ..._format import Mutex, ensured, load_u32, load_u64, store_u32, store_u64, swap_if_u32
from ..._format.layout import (
    MAINTAINED,
    MAINTAINER,
    MAINTENANCE_BYTE,
    MAINTENANCE_ERRORS,
    QUIET_OFFSET,
    QUIET_SINCE,
    RECLAIMED_BYTES,
    RECLAIMED_SEGMENTS,
)
from ..system.kernel_locks import KernelLocks
from .control_page import Control
from .joining import Membership
from .lock_holder import Holder

R = TypeVar("R")
_PAUSE = 0.005  # seconds


@final
class MaintenanceLock:
    """The maintenance lock of one channel, and what the control page says about maintenance."""

    def __init__(self, control: Control, membership: Membership | None) -> None:
        """Without a membership, as in a read-only store, the lock cannot be taken, only its state can be read."""
        self._control = control
        self._words = control.map
        self._membership = membership
        self._mutex = Mutex()

    @contextmanager
    def held(self, may_sleep: Callable[[], bool] = lambda: False) -> Generator[None]:
        """Hold the maintenance lock; `Busy` if another thread or process holds it and the thread may not sleep.

        For threads that run no user code, and for programs that end with an exception: if a signal handler raises while
        this is entered or left, both locks stay held until the garbage collector frees them. Other callers use
        `run_locked`.
        """
        self._wait_for_threads(may_sleep)
        with self._mutex.held(_PAUSE):  # `Busy` if another thread was faster
            try:
                self._begin_run(may_sleep)
                yield
            finally:
                self._locks.release(MAINTENANCE_BYTE)

    def run_locked(self, work: Callable[[], R], may_sleep: Callable[[], bool] = lambda: False) -> R:
        """Call *work* with the maintenance lock held; `Busy` as for `held`."""
        self._wait_for_threads(may_sleep)
        release = self._locks.release
        # Twice: a signal handler may raise inside the first call. Without the second one, other processes would wait
        # until this process ends.
        with (
            self._mutex.held(_PAUSE),
            ensured(release, MAINTENANCE_BYTE),
            ensured(release, MAINTENANCE_BYTE),
        ):
            self._begin_run(may_sleep)
            return work()

    @property
    def _locks(self) -> KernelLocks:
        assert self._membership is not None
        return self._membership.locks

    def _wait_for_threads(self, may_sleep: Callable[[], bool]) -> None:
        while self._mutex.owner:  # the kernel does not tell threads of one process apart
            _wait(may_sleep)

    def _begin_run(self, may_sleep: Callable[[], bool]) -> None:
        while not self._locks.take(MAINTENANCE_BYTE):
            _wait(may_sleep)
        self._record_run()

    def _record_run(self) -> None:
        assert self._membership is not None
        self._control.check_storable()
        store_u32(self._words, MAINTAINER, self._membership.processes.own_word)
        now, offset = time.time_ns(), self._control.write_offset
        if offset != load_u64(self._words, QUIET_OFFSET):
            # The time first: if the process dies in between, the log seems to have moved later than it did, never
            # earlier.
            store_u64(self._words, QUIET_SINCE, now)
            store_u64(self._words, QUIET_OFFSET, offset)
        store_u64(self._words, MAINTAINED, now)

    # State of maintenance

    def quiet(self, end: int) -> int:
        """Return for how long the log is known to end here (ns): every message is at least that old."""
        if load_u64(self._words, QUIET_OFFSET) != end:
            return 0
        return max(0, time.time_ns() - load_u64(self._words, QUIET_SINCE))

    @property
    def maintainer(self) -> Holder | None:
        """The process that did maintenance last; None if there was none, or it has ended."""
        word = load_u32(self._words, MAINTAINER)
        if not word or self._membership is None or not self._membership.processes.is_alive(word):
            return None
        return self._membership.processes.holder_of(word)

    @property
    def is_running(self) -> bool:
        """Whether a thread or process is doing maintenance now; it may be stopped in the middle."""
        if self._membership is None:
            return False
        return self._mutex.owner != 0 or self._membership.locks.is_taken(MAINTENANCE_BYTE)

    @property
    def last_run(self) -> int | None:
        """When maintenance was last started (ns since the epoch); None if never."""
        return load_u64(self._words, MAINTAINED) or None

    @property
    def errors(self) -> int:
        """How often maintenance failed, in any process, since it was last run by hand."""
        return load_u32(self._words, MAINTENANCE_ERRORS)

    def count_error(self) -> None:
        """Increment the error counter, unless the control page cannot be stored to any more."""
        if not self._control.is_storable:
            return
        seen = self.errors
        while not swap_if_u32(self._words, MAINTENANCE_ERRORS, seen, seen + 1 & 0xFFFFFFFF):
            seen = self.errors

    def forget_errors(self) -> None:
        """Reset the error counter, because maintenance that was run by hand has succeeded."""
        store_u32(self._words, MAINTENANCE_ERRORS, 0)

    @property
    def reclaimed(self) -> tuple[int, int]:
        """The number of segments that were reclaimed, and the bytes of records that were in them."""
        return load_u64(self._words, RECLAIMED_SEGMENTS), load_u64(self._words, RECLAIMED_BYTES)

    def count_reclaimed(self, segments: int, size: int) -> None:
        """Add to the reclaimed segments and bytes. The caller holds the maintenance lock."""
        store_u64(self._words, RECLAIMED_SEGMENTS, self.reclaimed[0] + segments)
        store_u64(self._words, RECLAIMED_BYTES, self.reclaimed[1] + size)


def _wait(may_sleep: Callable[[], bool]) -> None:
    if not may_sleep():
        raise Busy
    time.sleep(_PAUSE)
