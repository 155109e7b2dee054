"""Mutexes, in Python: what `_native/memory/mutex.c` does, as far as Python code can.

In the C core a lock is held exactly as long as its guard is alive, and no signal handler can run between locking the
mutex and creating the guard. Here a handler can run between two bytecodes of `held`, of `__enter__` and of `__exit__`.
If it raises an exception there, the mutex stays locked. So with this implementation a program whose signal handlers
raise has no guarantee, unless it exits then.
"""

from __future__ import annotations

from asyncio import Future
from collections.abc import Callable
from threading import RLock, get_ident, local
from types import TracebackType

from anyio import ClosedResourceError
from typing_extensions import Buffer

from ..._errors import Busy, FileChannelError
from ..layout import CONTENDED, LOCK_GENERATION_SHIFT
from .atomics import load_u32, swap_if_u32
from .futex import release_word, wake_word
from .prefault import StoreCheck, can_store, can_store_word

_NO_PROCESS = 1 << LOCK_GENERATION_SHIFT  # slot 0 is never used
_LONGEST = 1e6
_OWN = FileChannelError, Busy, ClosedResourceError, OSError


class _Thread(local):
    """How many mutexes the calling thread has locked."""

    locked = 0


_thread = _Thread()


class Guard:
    """Holds a mutex, or makes a call at the end, for the body of a `with` statement."""

    __slots__ = ("_end",)

    def __init__(self, end: Callable[[bool], object]) -> None:
        """*end* is called with whether the body was left by an exception that is not one of the package's own."""
        self._end: Callable[[bool], object] | None = end

    def __enter__(self) -> None:
        """Do nothing: `held` has already locked the mutex."""

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: TracebackType | None) -> None:
        """Unlock the mutex, or make the call."""
        self._finish(kind is not None and not issubclass(kind, _OWN))

    def __del__(self) -> None:
        """Do what `__exit__` does, unless that was done."""
        self._finish(True)

    def _finish(self, spoils: bool) -> None:
        end, self._end = self._end, None
        if end is not None:
            end(spoils)


class Mutex:
    """A re-entrant lock, which processes share if it has a lock word in a map.

    With the C core, an exception raised by a signal handler cannot leave it locked.
    """

    def __init__(self) -> None:
        self._lock = RLock()
        self._depth = self._shared = 0
        self._spoiled = self._abandoned = self._taken = False
        self._words: Buffer | None = None
        self._position = self._process = 0
        self._flushes: int | None = None
        self._check = StoreCheck()
        self.owner: int = 0
        """The thread that has locked it; 0 if none has."""

    @property
    def user(self) -> int:
        """The thread that has locked it and holds the lock word, or is about to take it; 0 if there is none."""
        return self.owner if self._shared else 0

    def held(self, seconds: float | None = None, /) -> Guard:
        """Lock it and return a guard for a `with` statement; `Busy` after *seconds*."""
        if seconds is not None and not 0 <= seconds <= _LONGEST:
            raise ValueError("seconds must be between 0 and a million")
        self._acquire(-1 if seconds is None else seconds)
        return Guard(self._unlock)

    def _acquire(self, seconds: float) -> None:
        if not self._lock.acquire(timeout=seconds):
            raise Busy
        self.owner = get_ident()
        self._depth += 1
        _thread.locked += self._depth == 1

    def _unlock(self, _: bool) -> None:
        self._depth -= 1
        if not self._depth:
            self.owner = 0
            _thread.locked -= 1
        self._lock.release()

    def lock(self) -> None:
        """Lock it, for a caller that cannot use a `with` statement and runs no Python code before it unlocks it."""
        self._acquire(-1)

    def unlock(self) -> None:
        """Unlock it again."""
        self._unlock(False)

    # The lock word

    def share(self, words: Buffer, position: int, process: int, flushes: int | None, /) -> None:
        """Free this lock word with the last shared guard, if it names this process then.

        *flushes* is the position of the word that counts the flushes of its file; None if there is no such word.
        """
        load_u32(words, position)
        if flushes is not None:
            load_u32(words, flushes)
        self._words, self._position, self._process = words, position, process
        self._flushes, self._check = flushes, StoreCheck()

    def can_store(self) -> bool:
        """Make the page of the lock word writable, unless it is known to be; False if a store would be fatal."""
        if self._words is None:
            return True
        if self._flushes is None:
            return can_store(self._words, self._position, 4)
        return can_store_word(self._words, self._position, self._flushes, self._check)

    def held_shared(
        self,
        take: Callable[[bool], int],
        may_sleep: Callable[[], bool],
        check_owner: Callable[[], object],
        sleep: Callable[[int], object],
        /,
    ) -> Guard:
        """Lock it, take the lock word, and return a guard; `Busy` if the word is taken and the thread may not sleep."""
        slept = False
        while True:
            if not may_sleep():
                check_owner()
            self._acquire(-1)
            seen = self._take(take, slept)
            if not seen:
                return Guard(self._leave)
            self._shared -= 1
            self._unlock(False)
            if not may_sleep():
                raise Busy
            sleep(seen)
            slept = True

    def _take(self, take: Callable[[bool], int], slept: bool) -> int:
        self._shared += 1
        if self._shared > 1:
            return 0
        try:
            seen = take(slept)
        except BaseException as error:
            self._leave(not isinstance(error, _OWN))
            raise
        return seen

    def took(self) -> None:
        """Note, in the callback that takes the lock word, that it was taken. Only this implementation needs that."""
        self._taken = True

    def _leave(self, spoils: bool) -> None:
        self._spoiled |= spoils
        self._shared -= 1
        if not self._shared:
            self._free_word()
        self._unlock(False)

    def _free_word(self) -> None:
        spoiled, self._spoiled = self._spoiled, False
        taken, self._taken = self._taken, False
        # If it names this process but was not taken here, another thread has it, in an append without the mutex.
        if self._words is None or self._abandoned or not taken:
            return
        if not self.can_store():  # then no process can take or free it any more
            return
        word = load_u32(self._words, self._position)
        while word & ~CONTENDED == self._process:
            if not spoiled:
                release_word(self._words, self._position)
                return
            if swap_if_u32(self._words, self._position, word, _NO_PROCESS):
                wake_word(self._words, self._position, 1)
                return
            word = load_u32(self._words, self._position)

    def spoil(self) -> None:
        """Let the next holder of the lock word clean up."""
        self._spoiled = True

    def abandon(self) -> None:
        """Never store to the lock word from now on."""
        self._abandoned = True


def holds_mutex() -> bool:
    """Return whether the calling thread has locked any mutex, or is inside a reader."""
    return _thread.locked > 0


def count_locked(change: int) -> None:
    """Count something else that the calling thread holds exclusively, and for which another thread would wait."""
    _thread.locked += change


def ensured(call: Callable[..., object], /, *arguments: object) -> Guard:
    """Return a guard that makes a call at the end of a `with` statement, however that is left.

    With the C core, and if the call is of a C function, no signal handler can prevent it.
    """
    return Guard(lambda _: call(*arguments))


def resolve(*futures: Future[None]) -> None:
    """Set the result of every asyncio future that is not done to None.

    With the C core, no signal handler can prevent it.
    """
    for future in futures:
        if not future.done():
            future.set_result(None)
