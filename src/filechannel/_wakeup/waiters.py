"""Waiters: waiting for a channel to change, in threads and event loops, across processes.

A waiter sets a bit in the shared wake word, executes a fence, rescans, and sleeps. A publisher stores, executes a
fence, and reads the word; if a bit is set, it clears the word and wakes all waiters. Because of the fences, at least
one of the two sees the other. The generation in the word ensures that a waiter does not fall asleep on a word that was
cleared in between. Waking all waiters is correct: each has its own position, and a waiter that was cancelled or killed
does not use up the wakeup of another one.

Threads sleep on the word itself (futex). Tasks are woken by their event loop: directly by a publisher of this process,
and through the wake FIFO that the loop watches by a publisher of another process (see `watch_wake_fifo`).

A process that has the channel open read-only cannot set the bit, and polls instead. So do all processes if there is no
FIFO.
"""

from __future__ import annotations

import os
import time
from asyncio import Future
from collections.abc import Callable
from typing import NamedTuple

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
    CAPACITY_LOOPS,
    CAPACITY_WAKE,
    PROCESS_SLOT_COUNT,
    WAITING_LOOPS,
    WAKE,
    WAKE_GENERATION,
    WAKE_LOOPS,
    WAKE_THREADS,
    WRITE_TAIL,
)
from .._runtime.thread_wakeup import ThreadWakeup
from .._storage.control.wake_fifos import WakeFifos
from .._storage.store import Store
from .._storage.writable_store import WritableStore
from .event_loops import Waiter, make_future, make_waiter, wake_together
from .per_store import PerStore
from .watch_wake_fifo import WakePipe
from .watchdog import WATCHDOG

POLL = bool(os.environ.get("FILECHANNEL_POLL"))
"""Poll, as on systems without futex or FIFO; for tests."""
_SHORTEST_PAUSE = 0.001
_LONGEST_SLEEP = 1.0
_ALL_THREADS = (1 << 31) - 1
_U32 = (1 << 32) - 1
_WORD_BITS = 64


class WakeWord(NamedTuple):
    """Where waiters are recorded: in a word, and in one bit for each process whose event loops wait."""

    word: int
    loops: int
    watched: slice | None
    """Words of which one changes whenever data becomes available; `word` is the last of them. None if there are
    none."""


MESSAGES = WakeWord(WAKE, WAITING_LOOPS, slice(WRITE_TAIL, WAKE + 4))
"""For receivers: the tail, whether the channel is sealed, and the waiters."""
CAPACITY = WakeWord(CAPACITY_WAKE, CAPACITY_LOOPS, None)
"""For senders. What frees capacity, the positions of consumers, is in other files."""


class Waiters:
    """Wakes tasks and threads when a channel has data for receivers, or capacity for senders."""

    def __init__(
        self, store: Store, *, poll: bool, word: WakeWord = MESSAGES, share_fifo_of: Waiters | None = None
    ) -> None:
        """Share the FIFO of *share_fifo_of*, other waiters of the same channel: a byte in it wakes both."""
        self._words = store.control.map
        self._word, self._loops, self._watched = word
        wake_fifos: WakeFifos | None
        if isinstance(store, WritableStore):
            self._slot, wake_fifos, self._polls = store.processes.slot, store.wake_fifos, poll
        else:
            self._slot, wake_fifos, self._polls = 0, None, True
        self._word_of_slot, self._bit_of_slot = self._loops + self._slot // _WORD_BITS * 8, self._slot % _WORD_BITS
        self._wake_fifos = wake_fifos
        self._wake_pipe: WakePipe | None = _wake_pipe(wake_fifos) if share_fifo_of is None else share_fifo_of._wake_pipe
        if self._wake_pipe is not None:
            self._wake_pipe.handlers.append(self._wake_tasks)
        self._lock = Mutex()  # the garbage collector may close a receiver anywhere
        self._waiting: dict[Waiter | Future[None], Callable[[], bool]] = {}
        self._sleeping: set[ThreadWakeup] = set()
        """What wakes the threads that sleep outside of the native core."""
        self._sleepers = bytearray(8)
        """The number of threads that sleep inside the native core, which counts them here."""
        self.is_watched = False
        self._words_without_data: bytes | None = None
        """The words at the last rescan, if the waiter bit was set and no waiter had data available then."""

    @property
    def waiting(self) -> int:
        """The number of tasks and threads of this process that wait."""
        return len(self._waiting) + len(self._sleeping) + load_u64(self._sleepers, 0)

    # Tasks

    async def wait(self, has_data: Callable[[], bool], longest_pause: float) -> None:
        """Sleep until data may be available; return at once if it is. Cancelling changes nothing."""
        if self._polls or self._wake_pipe is None:
            await self._poll(has_data, longest_pause)
            return
        waiter = make_waiter()
        try:
            if not self._register(waiter, waiter.loop, has_data):
                await waiter.wait()
        finally:
            self.stop_waiting(waiter)

    def start_waiting(self, has_data: Callable[[], bool]) -> Future[None] | None:
        """Return a future that is done when data may be available; None if it is, or if only `wait` is possible.

        A caller that stops waiting before the future is done calls `stop_waiting`.
        """
        future = None if self._polls or self._wake_pipe is None else make_future()
        if future is None:
            return None
        is_available = True
        try:
            is_available = self._register(future, future.get_loop(), has_data)
        finally:
            if is_available:
                self.stop_waiting(future)
        return None if is_available else future

    def _register(self, waiter: Waiter | Future[None], loop: object, has_data: Callable[[], bool]) -> bool:
        """Register a waiter. Return True if data is available already, so that no wakeup may follow."""
        assert self._wake_pipe is not None
        if loop is not self._wake_pipe.newest:
            self._wake_pipe.watch()
        with self._lock.held():
            self._waiting[waiter] = has_data
        if not self.is_watched:
            WATCHDOG.watch(self)
        self._announce_task()
        return has_data()

    def stop_waiting(self, waiter: Waiter | Future[None]) -> None:
        """Remove a waiter."""
        with self._lock.held():
            self._waiting.pop(waiter, None)

    async def _poll(self, has_data: Callable[[], bool], longest_pause: float) -> None:
        """Poll, or rescan when another thread or task of this process calls `wake_all`."""
        pause = _SHORTEST_PAUSE
        while not has_data():
            waiter = make_waiter()
            with self._lock.held():
                self._waiting[waiter] = has_data
            try:
                with anyio.move_on_after(pause):
                    await waiter.wait()
            finally:
                self.stop_waiting(waiter)
            pause = min(2 * pause, longest_pause)

    def _announce_task(self) -> None:
        # First the bit of this process, then the wake word: a publisher that sees the word then checks the bits.
        words, word = self._words, self._word
        set_bit(words, self._word_of_slot, self._bit_of_slot)
        fence()
        seen = load_u32(words, word)
        if seen & WAKE_LOOPS or swap_if_u32(words, word, seen, seen | WAKE_LOOPS):
            fence()
        else:
            self._announce(WAKE_LOOPS)

    def _announce(self, bit: int) -> int:
        """Set the waiter bit in the wake word, and return the word."""
        seen = load_u32(self._words, self._word)
        while not seen & bit:
            if swap_if_u32(self._words, self._word, seen, seen | bit):
                seen |= bit
                break
            seen = load_u32(self._words, self._word)
        fence()
        return seen

    def rescan(self) -> bool:
        """Wake tasks that have data available. Return whether tasks still wait. For the watchdog."""
        if not self._waiting:
            return False
        watched = self._watched
        if watched is not None and self._words[watched] == self._words_without_data:
            return True
        with self._lock.held():
            waiting = list(self._waiting.items())
        self._announce_task()  # a publisher may have died after clearing it
        words = None if watched is None else self._words[watched]
        missed = [waiter for waiter, has_data in waiting if has_data()]
        for waiter in missed:
            self.stop_waiting(waiter)
        wake_together(missed)
        self._words_without_data = words if words is not None and not missed and words[-4] & WAKE_LOOPS else None
        return True

    # Threads

    def let_sleep(self, reader: Reader, spin: float) -> None:
        """Let threads that receive from a reader sleep inside the native core, after spinning for *spin* seconds."""
        if not self._polls:
            reader.sleep_with(self._sleepers, spin)

    def sleep(self, has_data: Callable[[], bool], until: float | None, longest_pause: float) -> bool:
        """Block the thread until data is available, at most until *until* (monotonic clock). Return whether it is."""
        pause = _SHORTEST_PAUSE
        wakeup = ThreadWakeup()
        with ensured(self._sleeping.discard, wakeup):
            self._sleeping.add(wakeup)
            while not has_data():
                remaining = _LONGEST_SLEEP if until is None else min(until - time.monotonic(), _LONGEST_SLEEP)
                if remaining <= 0:
                    return False
                if self._polls:
                    self._pause(wakeup, has_data, min(pause, remaining))
                    pause = min(2 * pause, longest_pause)
                    continue
                seen = self._announce(WAKE_THREADS)
                if not has_data():
                    wait_word(self._words, self._word, seen, remaining)
            return True

    @staticmethod
    def _pause(wakeup: ThreadWakeup, has_data: Callable[[], bool], seconds: float) -> None:
        """Sleep for this long, unless another thread of this process calls `wake_all`."""
        if not has_data():
            wakeup.wait(seconds)

    def watch(self, offset: int, seconds: float) -> bool:
        """Spin until there is data after an offset, at most this long. Return whether there is."""
        return spin_above(self._words, WRITE_TAIL, offset, seconds)

    # Waking

    def published(self) -> None:
        """Wake all waiting tasks, in all processes. Any thread may call this."""
        others = take_bits(self._words, self._loops, PROCESS_SLOT_COUNT // _WORD_BITS)
        if self._slot in others:
            others.remove(self._slot)
        if others and self._wake_fifos is not None:
            self._wake_fifos.ring(others)
        self._wake_tasks()

    def wake_all(self) -> None:
        """Let all waiters of this process rescan. Any thread may call this."""
        self._wake_tasks()
        if self._sleeping and self._polls:
            for wakeup in list(self._sleeping):
                wakeup.wake()
        elif self._sleeping or load_u64(self._sleepers, 0):
            # Increment the generation, so that a thread that checked before this does not fall asleep.
            seen = load_u32(self._words, self._word)
            while not swap_if_u32(self._words, self._word, seen, seen + WAKE_GENERATION & _U32):
                seen = load_u32(self._words, self._word)
            wake_word(self._words, self._word, _ALL_THREADS)

    def _wake_tasks(self) -> None:
        if self._waiting:  # a task that registers now has set its bit, or will, and rescans after that
            waiting: dict[Waiter | Future[None], Callable[[], bool]] = {}
            try:
                with self._lock.held():
                    waiting, self._waiting = self._waiting, {}
                wake_together(waiting)
            except BaseException:
                # Ctrl-C, or a stack overflow: the next publisher or the watchdog wakes them.
                self._register_again(waiting)
                raise

    def _register_again(self, waiting: dict[Waiter | Future[None], Callable[[], bool]]) -> None:
        """Register waiters again that should have been woken and perhaps were not."""
        # The task of a completed future may not call `stop_waiting` any more; the task of a waiter always does.
        still_waiting = {
            who: has_data for who, has_data in waiting.items() if not isinstance(who, Future) or not who.done()
        }
        with self._lock.held():
            self._waiting = still_waiting | self._waiting
        if still_waiting and not self._polls:
            WATCHDOG.watch(self)  # it may have rescanned while the waiters were not registered
            self._announce_task()

    def close(self) -> None:
        """Close the wake pipe."""
        if self._wake_pipe is not None:
            self._wake_pipe.close()


def _wake_pipe(wake_fifos: WakeFifos | None) -> WakePipe | None:
    own = None if wake_fifos is None else wake_fifos.take_own()
    return None if own is None else WakePipe(own)


def _make_waiters(store: Store) -> Waiters:
    waiters = Waiters(store, poll=POLL)
    store.events.message_published.attach(waiters.published)
    store.events.closed.attach(waiters.close)
    return waiters


_waiters = PerStore(_make_waiters)


def waiters_of(store: Store) -> Waiters:
    """Return the waiters for the receivers of a store; there is one object per store."""
    return _waiters.of(store)
