"""A lock that threads and processes share: a mutex in this process, and a lock word in the control page.

The lock word is 0 while the lock is free, and otherwise names the process that holds it. It is acquired with
compare-and-swap, and waiters sleep on it with a futex. The kernel knows whether the process that a word names is dead.
Then another process takes the lock over, by swapping exactly the word that it saw: of two processes that see the same
dead holder, one succeeds. A process that takes a lock over may find the data that it guards in any state.

Every sleep has a time limit: if a waiter is woken and killed before it acquires the lock, the other waiters are not
woken.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import get_ident

from typing_extensions import Buffer

from ..._errors import Busy, StorageError
from ..._format import PURE, Guard, Mutex, load_u32, swap_if_u32, take_word, wait_word
from ..._format.layout import CONTENDED
from ..._runtime.may_sleep import always
from .live_processes import Processes
from .lock_holder import Holder

_SPIN = 50e-6
_LONGEST_SLEEP = 0.1
_BRIEFLY = 0.05  # seconds; a thread of this process that has the mutex may wait for the GIL, or for a small flush


class SharedLock:
    """One of the lock words, re-entrant in a thread.

    A block that is left by an exception other than the package's own, for instance one raised by a signal handler, may
    leave the guarded data in any state. Then the lock word names no live process, and the next holder cleans up.
    """

    def __init__(
        self,
        words: Buffer,
        position: int,
        processes: Processes,
        entered: Callable[[bool], object] = lambda _: None,
        *,
        flushes: int | None = None,
    ) -> None:
        """*flushes*: the position of the word that counts the flushes of the file; None if there is no such word."""
        self._words = words
        self._position = position
        self._processes = processes
        self._entered = entered
        self.mutex: Mutex = Mutex()
        """Excludes the other threads of this process, and only those."""
        self.mutex.share(words, position, processes.own_word, flushes)

    def held(self, may_sleep: Callable[[], bool] = always) -> Guard:
        """Hold the lock in a `with` statement; raise `Busy` if it stays taken and the thread may not sleep.

        `entered` is called with the lock held, and is passed whether the lock was taken over from a dead process. No
        thread sleeps for the lock word with the mutex locked: another thread may be one that must not wait for it.
        """
        return self.mutex.held_shared(self._take, may_sleep, self._check_mutex_free, self._sleep)

    def check_storable(self) -> None:
        """Raise `StorageError` if a store to the lock word, or another one in its page, would kill the process."""
        if not self.mutex.can_store():
            raise StorageError(
                "the control file cannot be written to: its file system has shut down, or the file was truncated"
            )

    def _check_mutex_free(self) -> None:
        """Raise `Busy` if another thread holds the mutex for longer, for example during a flush."""
        until = time.monotonic() + _BRIEFLY
        while self.mutex.user not in (0, get_ident()):
            if time.monotonic() >= until:
                raise Busy
            time.sleep(_SPIN)

    def _enter(self, from_the_dead: bool) -> None:
        try:
            self._entered(from_the_dead)
        except BaseException:
            if from_the_dead:
                self.leave_behind()  # what the dead process left is still there: the next holder has to clean up
            raise

    def refuse_reentry(self, what: str) -> None:
        """Raise `RuntimeError` if the thread is inside already, interrupted there by a signal handler or a finalizer.

        The half-done state is not one to work on, and waiting for the thread itself would never end.
        """
        if self.mutex.user == get_ident():
            raise RuntimeError(f"{what}: the same thread is already inside this operation, and was interrupted there")

    @property
    def holder(self) -> Holder | None:
        """The process that holds the lock word; None if the lock is free."""
        return self._processes.holder_of(load_u32(self._words, self._position))

    @property
    def is_held(self) -> bool:
        """Whether the calling thread holds the lock."""
        return self.mutex.user == get_ident()

    def _take(self, slept: bool) -> int:
        """Acquire the lock word and return 0; or return the word, if it names a live process."""
        self.check_storable()
        words, position, own_word = self._words, self._position, self._processes.own_word
        if not slept and take_word(words, position, own_word, _SPIN):
            return self._took(from_the_dead=False)
        while True:
            seen = load_u32(words, position)
            if not seen:
                if swap_if_u32(words, position, 0, own_word | CONTENDED):  # CONTENDED, because other threads may sleep
                    return self._took(from_the_dead=False)
            elif self._is_left_behind(seen):
                if swap_if_u32(words, position, seen, own_word | CONTENDED):
                    return self._took(from_the_dead=True)
            else:
                return seen

    def _sleep(self, seen: int) -> None:
        """Sleep until the holder frees the lock word, or the time limit of a sleep is reached."""
        if seen & CONTENDED or swap_if_u32(self._words, self._position, seen, seen | CONTENDED):
            wait_word(self._words, self._position, seen | CONTENDED, _LONGEST_SLEEP)

    def _took(self, *, from_the_dead: bool) -> int:
        if PURE:
            self.mutex.took()
        self._enter(from_the_dead)
        return 0

    def _is_left_behind(self, word: int) -> bool:
        if word & ~CONTENDED == self._processes.own_word:
            # It names this process although we have the mutex. The C core never stops half-way, so a thread was
            # interrupted in the Python code while it acquired the lock.
            return not PURE
        return not self._processes.is_alive(word)

    def leave_behind(self) -> None:
        """Let the next holder of the lock clean up. The caller holds the lock, and is about to raise."""
        self.mutex.spoil()

    def abandon(self) -> None:
        """Never free the lock word from now on: in a forked child it belongs to the parent."""
        self.mutex.abandon()
