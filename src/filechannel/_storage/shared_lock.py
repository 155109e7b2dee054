"""A lock that threads and processes share: a mutex of this process, and a word in the control page.

The word is 0 while free, and else names the process that has it. It is taken with compare-and-swap and waited for with
a futex. Whoever dies with it is found out by asking the kernel, and only exactly the word that was seen is taken over,
so that of two who see the same dead owner one succeeds. Whoever takes over finds what the lock guards in any state.

Every sleep is bounded: a waiter that was woken and killed before it took the word leaves the others asleep.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from threading import RLock, get_ident

from typing_extensions import Buffer

from .._errors import Busy
from .._format import PURE, load_u32, release_word, swap_if_u32, take_word, wait_word, wake_word
from .._format.layout import CONTENDED, LOCK_GENERATION_SHIFT
from .holder import Holder
from .processes import Processes

_SPIN = 50e-6
_LONGEST_SLEEP = 0.1
_NOBODY = 1 << LOCK_GENERATION_SHIFT  # slot 0 is nobody's, and never was
_BRIEFLY = 0.05  # seconds; a thread of this process that has the mutex may wait for the GIL, or for a small flush


def _always() -> bool:
    return True


class SharedLock:
    """One of the lock words, re-entrant in a thread."""

    def __init__(
        self, words: Buffer, position: int, processes: Processes, entered: Callable[[bool], object] = lambda _: None
    ) -> None:
        self._words = words
        self._position = position
        self._processes = processes
        self._entered = entered
        self._depth = 0
        self._taken = self._forked = False
        self._user = 0  # the thread that has the mutex
        self.mutex: RLock = RLock()
        """Keeps the other threads of this process out, and only those."""

    @contextmanager
    def held(self, may_sleep: Callable[[], bool] = _always) -> Generator[None]:
        """Hold the lock; `Busy` where it is taken for longer and the thread may not sleep.

        Whoever has just taken the word is told, and whether that was from the dead. Nobody sleeps for the word with the
        mutex in hand: another thread may be one that must not wait for it.
        """
        slept = False
        while True:
            if not may_sleep():
                self._look_at_mutex()
            with self.mutex:
                depth = self._depth
                try:
                    # Inside, so that Ctrl-C, which may come at every call, leaves nothing counted.
                    self._depth, self._user = depth + 1, get_ident()
                    taken_by = 0 if depth else self._take(slept)
                    if not taken_by:
                        yield
                        return
                finally:
                    self._depth = depth
                    if not depth:
                        self._user = 0  # first: Ctrl-C may come in between, and what is still ours then is taken over
                        self._free()
            if not may_sleep():
                raise Busy
            self._sleep(taken_by)
            slept = True

    def _look_at_mutex(self) -> None:
        """Give up where another thread keeps the mutex, as for a flush.

        Only a look: what takes it is a `with`, since a signal between taking it otherwise and knowing so would leave it
        taken for ever.
        """
        until = time.monotonic() + _BRIEFLY
        while self._user not in (0, get_ident()):
            if time.monotonic() >= until:
                raise Busy
            time.sleep(_SPIN)

    def _enter(self, from_the_dead: bool) -> None:
        try:
            self._entered(from_the_dead)
        except BaseException:
            if from_the_dead:
                self.leave_behind()  # what the dead left is still there: somebody else has to see to it
            raise

    def refuse_reentry(self, what: str) -> None:
        """Raise `RuntimeError` if the thread is inside already: it was interrupted by a signal handler or a finalizer.

        What it left half done is no state to work on, and waiting for it would be for ever.
        """
        if self._user == get_ident():
            raise RuntimeError(f"{what}: this thread is in the middle of it already, and was interrupted there")

    @property
    def holder(self) -> Holder | None:
        """Whose process has the word; None if nobody's."""
        return self._processes.holder_of(load_u32(self._words, self._position))

    @property
    def is_held(self) -> bool:
        """Whether the thread that asks, which has the mutex, holds it."""
        return self._depth > 0

    def _take(self, slept: bool) -> int:
        """Take the word and return 0; else return it, which names somebody who is alive."""
        words, position, owner = self._words, self._position, self._processes.owner
        if not slept and take_word(words, position, owner, _SPIN):
            return self._took(from_the_dead=False)
        while True:
            seen = load_u32(words, position)
            if not seen:
                if swap_if_u32(words, position, 0, owner | CONTENDED):  # there may be others who sleep
                    return self._took(from_the_dead=False)
            elif self._is_left_behind(seen):
                if swap_if_u32(words, position, seen, owner | CONTENDED):
                    return self._took(from_the_dead=True)
            else:
                return seen

    def _sleep(self, seen: int) -> None:
        """Sleep until whoever has the word frees it, or for a while."""
        if seen & CONTENDED or swap_if_u32(self._words, self._position, seen, seen | CONTENDED):
            wait_word(self._words, self._position, seen | CONTENDED, _LONGEST_SLEEP)

    def _took(self, *, from_the_dead: bool) -> int:
        self._taken = True
        self._enter(from_the_dead)
        return 0

    def _is_left_behind(self, word: int) -> bool:
        if self._is_ours(word):
            # Although we have the mutex, and the C core never stops half-way: a thread was interrupted on its way in.
            return not PURE
        return not self._processes.is_alive(word)

    def _is_ours(self, word: int) -> bool:
        return word & ~CONTENDED == self._processes.owner

    def leave_behind(self) -> None:
        """Let the word, which is ours, name somebody who is not alive: the next one cleans up."""
        word = load_u32(self._words, self._position)
        while self._is_ours(word) and not swap_if_u32(self._words, self._position, word, _NOBODY):
            word = load_u32(self._words, self._position)
        wake_word(self._words, self._position, 1)

    def abandon(self) -> None:
        """Free nothing from now on: in a forked child the word is the parent's."""
        self._forked = True

    def _free(self) -> None:
        if self._forked:
            return
        # Without the C core it may be another thread's, in the middle of an append that takes only the word.
        if (self._taken or not PURE) and self._is_ours(load_u32(self._words, self._position)):
            release_word(self._words, self._position)
        self._taken = False
