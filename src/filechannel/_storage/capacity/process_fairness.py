"""Fairness: the order in which processes whose senders wait for capacity get it.

A shared word names the *next process*, the one that gets capacity next. The first sender in a send queue stores its
process there; until that sender was served, or has stopped waiting, no other process gets capacity. So small messages
cannot overtake a large batch forever. After that another waiting process becomes the next one. A process that has died,
or has no waiting sender, is skipped. So is one that does not use available capacity: it was stopped, or its event loop
is busy.
"""

from __future__ import annotations

from collections.abc import Callable

from ..._format import load_u32, load_u64, store_u64, swap_if_u32
from ..._format.layout import CAPACITY_TURN, CAPACITY_WANTED, LOCK_SLOT_SHIFT
from ..control.control_page import Control
from ..control.live_processes import Processes
from .backlog import SMALLEST, Batch

_UNUSED_SECONDS = 0.5  # seconds that the next process may leave available capacity unused


class Fairness:
    """The next process of one channel. Unless stated otherwise, methods are called with the writer lock held."""

    def __init__(self, control: Control, processes: Processes) -> None:
        self._words = control.map
        self._processes = processes
        self._is_waiting = False
        self._idle: tuple[int, float] | None = None
        """The next process, if it does not use the available capacity, and since when."""

    @property
    def may_be_ours(self) -> bool:
        """Whether no other process is next and has waiting senders. Any thread may call this without the lock."""
        next_process = load_u32(self._words, CAPACITY_TURN)
        if next_process in (0, self._processes.own_word):
            return True
        return not self._processes.is_queued(next_process >> LOCK_SLOT_SHIFT)

    def is_ours(self, fits: Callable[[Batch], bool], now: float) -> bool:
        """Return whether this process may use the available capacity.

        *fits* returns whether a batch fits into it; *now* is the time of the monotonic clock.
        """
        next_process = load_u32(self._words, CAPACITY_TURN)
        if next_process in (0, self._processes.own_word) or not self._waits(next_process):
            return True
        if not fits(Batch(load_u64(self._words, CAPACITY_WANTED), load_u64(self._words, CAPACITY_WANTED + 8))):
            self._idle = None
            return False
        if self._idle is None or self._idle[0] != next_process:
            self._idle = next_process, now
        if now < self._idle[1] + _UNUSED_SECONDS:
            return False
        self._processes.remove_from_queue(next_process)
        return swap_if_u32(self._words, CAPACITY_TURN, next_process, 0)

    def _waits(self, word: int) -> bool:
        if not self._processes.is_queued(word >> LOCK_SLOT_SHIFT):
            return False
        if self._processes.is_alive(word):
            return True
        # A dead process does not remove itself: it would become the next process again and again.
        self._processes.remove_from_queue(word)
        return False

    def become_next(self, wanted: Batch) -> None:
        """Become the next process, unless another one is; *wanted* is what the first sender of the queue needs."""
        if not self._is_waiting:
            return
        self._processes.set_queued(True)  # another process may have removed this one as unresponsive
        next_process, own_word = load_u32(self._words, CAPACITY_TURN), self._processes.own_word
        if next_process in (0, own_word) or not self._waits(next_process):
            self._store_wanted(wanted)
            swap_if_u32(self._words, CAPACITY_TURN, next_process, own_word)

    def _store_wanted(self, wanted: Batch) -> None:
        store_u64(self._words, CAPACITY_WANTED, wanted.size)
        store_u64(self._words, CAPACITY_WANTED + 8, wanted.messages)

    def set_waiting(self, is_waiting: bool) -> None:
        """Set whether senders of this process wait. Needs no lock."""
        self._is_waiting = is_waiting
        self._processes.set_queued(is_waiting)

    def pass_on(self) -> None:
        """Let another process be the next one, if it was this process. Needs no lock."""
        own_word = self._processes.own_word
        if load_u32(self._words, CAPACITY_TURN) == own_word:
            self._store_wanted(SMALLEST)  # until the next process stores how much it waits for, which may never happen
            successor = next(filter(self._waits, self._processes.queued_slots()), 0)
            swap_if_u32(self._words, CAPACITY_TURN, own_word, successor)
