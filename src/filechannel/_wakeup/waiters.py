"""Waiting for a channel to change, in threads and in event loops, of this process and of others.

Waiter: say in the shared `WAKE` word that somebody waits, fence, look once more, sleep. Publisher: store, fence, look
at the word, and if somebody waits clear it and wake everybody. The fences make sure that not both miss each other; the
word's generation makes sure that nobody goes to sleep on a word that was cleared in between. Waking all of them is
right: each has its own position, and one that was cancelled or killed takes nobody's place.

Threads sleep on the word itself. Tasks are woken by their event loop: by a publisher of this process directly, by one
of another through the FIFO that the loop watches (see `doorbell`).

Whoever has a channel open read-only cannot say that it waits, and looks again from time to time instead; so does
everybody where there is no FIFO.
"""

from __future__ import annotations

import os
import time
from asyncio import Future
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import NamedTuple
from weakref import WeakKeyDictionary

import anyio

from .._format import (
    Mutex,
    Reader,
    ensured,
    fence,
    load_u32,
    load_u64,
    set_bit,
    spin_above,
    swap_if_u32,
    take_bits,
    wait_word,
    wake_word,
)
from .._format.layout import (
    PROCESS_SLOT_COUNT,
    ROOM,
    ROOM_LOOPS,
    WAITING_LOOPS,
    WAKE,
    WAKE_GENERATION,
    WAKE_LOOPS,
    WAKE_THREADS,
    WRITE_TAIL,
)
from .._storage.bells import Bells
from .._storage.store import Store
from .doorbell import Doorbell
from .loops import Waiter, make_future, make_waiter, wake_together
from .patience import may_sleep
from .watchdog import WATCHDOG

POLL = bool(os.environ.get("FILECHANNEL_POLL"))
"""Look again from time to time, as where there is neither futex nor FIFO; for tests."""
_SHORTEST_PAUSE = 0.001
_LONGEST_SLEEP = 1.0
_EVERYBODY = (1 << 31) - 1
_U32 = (1 << 32) - 1
_WORD_BITS = 64


class Beacon(NamedTuple):
    """Where it is said who waits: in a word, and in a bit for each process whose event loops do."""

    word: int
    loops: int
    watched: slice | None
    """Words of which one changes whenever there are news, `word` the last of them; None if others tell."""


MESSAGES = Beacon(WAKE, WAITING_LOOPS, slice(WRITE_TAIL, WAKE + 4))
"""For receivers: what there is, whether it is sealed, who waits."""
SPACE = Beacon(ROOM, ROOM_LOOPS, None)
"""For senders; the positions of consumers, which tell, are in files of their own."""


class Arrivals:
    """Wakes tasks and threads when a channel has something new for readers, or for senders."""

    def __init__(self, store: Store, *, poll: bool, beacon: Beacon = MESSAGES, beside: Arrivals | None = None) -> None:
        """*beside* others of the same channel: there is one FIFO for both, and who rings wakes both."""
        self._words = store.control.map
        self._word, self._loops, self._watched = beacon
        self._slot = 0 if store.processes is None else store.processes.slot
        self._word_of_slot, self._bit_of_slot = self._loops + self._slot // _WORD_BITS * 8, self._slot % _WORD_BITS
        self._bells = bells = store.bells
        self._doorbell: Doorbell | None = _doorbell(bells) if beside is None else beside._doorbell
        if self._doorbell is not None:
            self._doorbell.answers.append(self._wake_tasks)
        self._polls = poll or store.readonly
        self._lock = Mutex()  # a receiver may be collected, and closed by that, anywhere
        self._waiting: dict[Waiter | Future[None], Callable[[], bool]] = {}
        self._sleeping: set[SimpleQueue[None]] = set()
        """What wakes the threads that sleep outside of the native core."""
        self._sleepers = bytearray(8)
        """How many threads sleep inside the native core, as a number of it."""
        self.is_watched = False
        self._quiet: bytes | None = None
        """The words as they were when somebody had announced us, and nobody who waited had news."""

    @property
    def waiting(self) -> int:
        """How many tasks and threads of this process wait."""
        return len(self._waiting) + len(self._sleeping) + load_u64(self._sleepers, 0)

    # Tasks

    async def wait(self, has_news: Callable[[], bool], longest_pause: float) -> None:
        """Sleep until there may be news; returns at once if there are. Cancelling it changes nothing."""
        if self._polls or self._doorbell is None:
            await self._poll(has_news, longest_pause)
            return
        waiter = make_waiter()
        try:
            if not self._register(waiter, waiter.loop, has_news):
                await waiter.wait()
        finally:
            self.leave(waiter)

    def enter(self, has_news: Callable[[], bool]) -> Future[None] | None:
        """Return a future that is done when there may be news; None if there are, or it cannot be had: then use `wait`.

        Whoever does not wait for it until it is done says so with `leave`.
        """
        future = None if self._polls or self._doorbell is None else make_future()
        if future is None:
            return None
        late = True
        try:
            late = self._register(future, future.get_loop(), has_news)
        finally:
            if late:
                self.leave(future)
        return None if late else future

    def _register(self, waiter: Waiter | Future[None], loop: object, has_news: Callable[[], bool]) -> bool:
        """Have somebody woken, and tell whether that was too late, because there are news."""
        assert self._doorbell is not None
        if loop is not self._doorbell.newest:
            self._doorbell.watch()
        with self._lock.held():
            self._waiting[waiter] = has_news
        if not self.is_watched:
            WATCHDOG.watch(self)
        self._announce_task()
        return has_news()

    def leave(self, waiter: Waiter | Future[None]) -> None:
        """Nobody has to be woken any more."""
        with self._lock.held():
            self._waiting.pop(waiter, None)

    async def _poll(self, has_news: Callable[[], bool], longest_pause: float) -> None:
        """Look again from time to time, or when somebody of this process says that there is something to look at."""
        pause = _SHORTEST_PAUSE
        while not has_news():
            waiter = make_waiter()
            with self._lock.held():
                self._waiting[waiter] = has_news
            try:
                with anyio.move_on_after(pause):
                    await waiter.wait()
            finally:
                self.leave(waiter)
            pause = min(2 * pause, longest_pause)

    def _announce_task(self) -> None:
        # First whose loop, then that there is one: whoever sees the latter looks for the former.
        words, word = self._words, self._word
        set_bit(words, self._word_of_slot, self._bit_of_slot)
        fence()
        seen = load_u32(words, word)
        if seen & WAKE_LOOPS or swap_if_u32(words, word, seen, seen | WAKE_LOOPS):
            fence()
        else:
            self._announce(WAKE_LOOPS)

    def _announce(self, who: int) -> int:
        """Say in the word that somebody waits, and return it."""
        seen = load_u32(self._words, self._word)
        while not seen & who:
            if swap_if_u32(self._words, self._word, seen, seen | who):
                seen |= who
                break
            seen = load_u32(self._words, self._word)
        fence()
        return seen

    def look_after(self) -> bool:
        """Wake whoever has news, and tell whether somebody goes on waiting. For the watchdog."""
        if not self._waiting:
            return False
        watched = self._watched
        if watched is not None and self._words[watched] == self._quiet:
            return True
        with self._lock.held():
            waiting = list(self._waiting.items())
        self._announce_task()  # a publisher may have died with it
        words = None if watched is None else self._words[watched]
        late = [waiter for waiter, has_news in waiting if has_news()]
        for waiter in late:
            self.leave(waiter)
        wake_together(late)
        self._quiet = words if words is not None and not late and words[-4] & WAKE_LOOPS else None
        return True

    # Threads

    def let_sleep(self, reader: Reader, spin: float) -> None:
        """Let threads that receive from a reader sleep inside the native core, having watched for so long."""
        if not self._polls:
            reader.sleep_with(self._sleepers, spin)

    def sleep(self, has_news: Callable[[], bool], until: float | None, longest_pause: float) -> bool:
        """Let the thread sleep until there are news, or the monotonic clock says *until*; tell whether there are."""
        pause = _SHORTEST_PAUSE
        bell: SimpleQueue[None] = SimpleQueue()
        with ensured(self._sleeping.discard, bell):
            self._sleeping.add(bell)
            while not has_news():
                left = _LONGEST_SLEEP if until is None else min(until - time.monotonic(), _LONGEST_SLEEP)
                if left <= 0:
                    return False
                if self._polls:
                    self._pause(bell, has_news, min(pause, left))
                    pause = min(2 * pause, longest_pause)
                    continue
                seen = self._announce(WAKE_THREADS)
                if not has_news():
                    wait_word(self._words, self._word, seen, left)
            return True

    @staticmethod
    def _pause(bell: SimpleQueue[None], has_news: Callable[[], bool], seconds: float) -> None:
        """Sleep for so long, unless another thread of this process says that there is something to look at."""
        if not has_news():
            with suppress(Empty):
                bell.get(timeout=seconds)

    def watch(self, offset: int, seconds: float) -> bool:
        """Watch for something behind an offset for so long, without sleeping; tell whether there is."""
        return spin_above(self._words, WRITE_TAIL, offset, seconds)

    # Waking

    def published(self) -> None:
        """Wake every task that waits, in any process. Any thread may call it."""
        others = take_bits(self._words, self._loops, PROCESS_SLOT_COUNT // _WORD_BITS)
        if self._slot in others:
            others.remove(self._slot)
        if others and self._bells is not None:
            self._bells.ring(others)
        self._wake_tasks()

    def wake_all(self) -> None:
        """Let everybody of this process who waits look again. Any thread may call it."""
        self._wake_tasks()
        if self._sleeping and self._polls:
            for bell in list(self._sleeping):
                bell.put(None)
        elif self._sleeping or load_u64(self._sleepers, 0):
            # Another generation, so that nobody goes to sleep who looked before.
            seen = load_u32(self._words, self._word)
            while not swap_if_u32(self._words, self._word, seen, seen + WAKE_GENERATION & _U32):
                seen = load_u32(self._words, self._word)
            wake_word(self._words, self._word, _EVERYBODY)

    def _wake_tasks(self) -> None:
        if self._waiting:  # whoever comes now has announced itself, or will, and looks after that
            waiting: dict[Waiter | Future[None], Callable[[], bool]] = {}
            try:
                with self._lock.held():
                    waiting, self._waiting = self._waiting, {}
                wake_together(waiting)
            except BaseException:
                # Ctrl-C, or a stack that is too deep: the next publisher wakes them, or the watchdog.
                self._wait_on(waiting)
                raise

    def _wait_on(self, waiting: dict[Waiter | Future[None], Callable[[], bool]]) -> None:
        """Have them woken all the same who should have been and perhaps were not."""
        # A future that is done may have nobody left who says so; whoever has a waiter always does.
        left = {who: news for who, news in waiting.items() if not isinstance(who, Future) or not who.done()}
        with self._lock.held():
            self._waiting = left | self._waiting
        if left and not self._polls:
            WATCHDOG.watch(self)  # which may have looked while nobody was to be seen
            self._announce_task()

    def close(self) -> None:
        """Let go of our FIFO."""
        if self._doorbell is not None:
            self._doorbell.close()


def _doorbell(bells: Bells | None) -> Doorbell | None:
    own = None if bells is None else bells.take_own()
    return None if own is None else Doorbell(own)


_lock = Mutex()
_arrivals: WeakKeyDictionary[Store, Arrivals] = WeakKeyDictionary()


def arrivals_of(store: Store) -> Arrivals:
    """Return the one object that wakes the readers of a store."""
    with _lock.held():
        arrivals = _arrivals.get(store)
        if arrivals is None:
            arrivals = _arrivals[store] = Arrivals(store, poll=POLL)
            store.notify = arrivals.published
            store.on_close = arrivals.close
            if not store.readonly:
                store.log.may_sleep = may_sleep
        return arrivals


def _start_over() -> None:
    """A forked child has none of the stores, and another thread may have held the lock."""
    global _lock
    _lock = Mutex()
    _arrivals.clear()


os.register_at_fork(after_in_child=_start_over)
