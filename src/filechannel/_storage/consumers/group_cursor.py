"""The file of a group: one position for all its members, and a ring of their deliveries.

What happens for every message is in `_format/read/group_ring.py`. This module contains what happens rarely: a member
dies or its lease ends, the group is moved, or the lock holder was killed. In the last case
the other words are computed from the entries: an entry that was written is in the ring, even if the other words do not
include it yet.
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NoReturn, TypeVar

from ..._errors import AckError, ConsumerDamagedError, counted_messages
from ..._format import add_u64, advance_position, load_u64, store_u64, swap_if_u64
from ..._format.layout import (
    ENTRY,
    ENTRY_ACKED,
    ENTRY_DEADLINE,
    ENTRY_DELAYED,
    ENTRY_READY,
    ENTRY_SKIPPED,
    ENTRY_STATE,
    GROUP_DUE,
    GROUP_ENTRIES,
    GROUP_HEAD,
    GROUP_INITIALIZED,
    GROUP_LOCK,
    GROUP_READY,
    GROUP_RING,
    GROUP_SIZE,
    GROUP_TAIL,
    NAME_MEMBERS,
    NAME_OWNER,
)
from ..._format.read.group_ring import entry_start, is_sound
from ..._offset import LogPosition, Offset
from ..._runtime.may_sleep import always
from ..control.live_processes import Processes
from ..control.shared_lock import SharedLock
from ..store_events import StoreEvents
from ..system.kernel_locks import KernelLocks
from ..system.os_calls import Files
from .cursor import Cursor, own
from .group_file_format import DONE, U64, GroupWords, ring_problem
from .redeliver_expired import Redelivery

R = TypeVar("R")
_NEVER = (1 << 64) - 1


def _nothing() -> None:
    pass


class Group(Cursor):
    """The open file of a group, shared by all members of this process."""

    def __init__(
        self,
        name: str,
        content: mmap.mmap,
        locks: KernelLocks,
        processes: Processes,
        path: Path,
        events: StoreEvents,
    ) -> None:
        super().__init__(name, content, locks)
        self._path = path
        self.members: int = 0
        """How many receivers of this process use it, without clones."""
        self._events = events
        self._processes = processes
        self._has_ring = False
        self._lock: SharedLock = SharedLock(content, GROUP_LOCK, processes, self._entered)
        self._words = GroupWords(content)
        self.redelivery: Redelivery = Redelivery(self._words, processes, self._locked, self._check_ring)

    @classmethod
    def open(  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        cls,
        files: Files,
        locks: KernelLocks,
        path: Path,
        name: str,
        mode: int,
        processes: Processes,
        events: StoreEvents,
    ) -> Group:
        """Share the name with the other members."""
        content, locks = own(files, locks, path, name, mode, GROUP_SIZE, shared=True)
        try:
            locks.take(NAME_MEMBERS + processes.slot)
        except BaseException:
            locks.close()
            raise
        return cls(name, content, locks, processes, path, events)

    @property
    def owner(self) -> int:
        """The owner value in the ring entries of this process."""
        return self._processes.own_word

    def leave(self) -> bool:
        """Remove one member; return whether it was the last one of this process."""
        self.members -= 1
        return not self.members

    @property
    def is_last(self) -> bool:
        """Whether this process has the only member, and no other can join before the file is closed."""
        return self.members == 1 and self._locks.take(NAME_OWNER)

    def close(self) -> None:
        """Release the name, and close the file. Waits until another thread that holds the group's lock releases it."""
        with self._lock.mutex.held():
            super().close()

    def _note_departure(self) -> None:
        if self._locks.take(NAME_OWNER):  # else the group has other members
            super()._note_departure()

    # The lock

    def _locked(self, work: Callable[[], R], may_sleep: Callable[[], bool] = always) -> R:
        """Call *work* with the lock, and move the position past the messages acknowledged meanwhile.

        Raises `ConsumerDamagedError`, with nothing changed, if the words that the members share contradict each other.
        Not a context manager: an exception that a signal handler raises inside a generator would leave the lock taken.
        """
        with self._lock.held(may_sleep):
            if not self._is_sound:
                self._raise_damaged()
            result = work()
        if advance_position(self.map, self.owner):
            self._events.ring_freed()
        self._events.position_moved()
        return result

    @property
    def _is_sound(self) -> bool:
        initialized = self._words.load(GROUP_INITIALIZED)
        if not initialized:
            return not self._has_ring  # a ring that a member has used stays as long as there are members
        return initialized == 1 and is_sound(self.map)

    def check_words(self, may_sleep: Callable[[], bool]) -> None:
        """Raise `ConsumerDamagedError` if the words that the members share contradict each other."""
        if not self._is_sound:
            self._locked(_nothing, may_sleep)  # another member may have been changing them: check again with the lock

    def _check_ring(self) -> None:
        self._locked(self._refuse_damaged_ring)

    def _refuse_damaged_ring(self) -> None:
        if ring_problem(self.map) is not None:
            self._raise_damaged()

    def _raise_damaged(self) -> NoReturn:
        problem = ring_problem(self.map) or "its words contradict each other"
        raise ConsumerDamagedError(self.name, path=self._path.parent.parent, file=self._path, problem=problem)

    def _entered(self, from_the_dead: bool) -> None:
        """Repair the words if the lock was taken over from a process that died."""
        if not from_the_dead or not load_u64(self.map, GROUP_INITIALIZED):
            return
        head, tail = self._words.load(GROUP_HEAD), self._words.load(GROUP_TAIL)
        if not head <= tail <= head + GROUP_ENTRIES:
            self._raise_damaged()
        if tail - head < GROUP_ENTRIES and self._words.word(tail) & ENTRY_STATE != ENTRY_ACKED:
            _, _, end, sequence, _ = self._words.read(tail)
            self._words.resume_at(end, sequence + 1)  # the entry was written, but the words do not include it yet
            tail += 1
            self._words.store(GROUP_TAIL, tail)
        states = [self._words.word(number) & ENTRY_STATE for number in range(head, tail)]
        self._words.store(GROUP_READY, states.count(ENTRY_READY))
        self._words.store(GROUP_DUE, 0)
        oldest = next((n for n, state in enumerate(states, head) if state not in DONE), None)
        offset, sequence = self._words.next if oldest is None else self._words.read(oldest)[1:4:2]
        self.store(offset, sequence, time.time_ns())  # a slot that was being written is not a valid one

    # Starting

    def begin(self, start: LogPosition | None) -> None:
        """Create the ring if there is none, at the position or, if there is no position either, at *start*."""
        if self.position is not None and self._words.load(GROUP_INITIALIZED):
            if ring_problem(self.map) is not None:
                self._check_ring()  # with the lock: another member may have been changing it
            # The ring stays valid as long as there are members: no member has to wait for the lock.
        else:
            self._locked(partial(self._begin_at, start))
        self._has_ring = True

    def _begin_at(self, start: LogPosition | None) -> None:
        if self.position is None:
            assert start is not None
            self.store(start.offset, start.sequence, time.time_ns())
            self._words.store(GROUP_INITIALIZED, 0)
        if not self._words.load(GROUP_INITIALIZED):
            self._make_ring()

    def _make_ring(self) -> None:
        position = self.position
        if position is None:  # another process changed what was just stored
            raise ConsumerDamagedError(self.name, path=self._path.parent.parent)
        self.map[GROUP_RING:GROUP_SIZE] = bytes(GROUP_SIZE - GROUP_RING)
        for word in (GROUP_HEAD, GROUP_TAIL, GROUP_READY):
            self._words.store(word, 0)
        self._words.store(GROUP_DUE, _NEVER)
        self._words.resume_at(position.offset, position.sequence)
        self._words.store(GROUP_INITIALIZED, 1)

    # Leases

    def extend(self, number: int, word: int, deadline: int, may_sleep: Callable[[], bool] = always) -> bool:
        """Extend a lease; False if the entry has changed."""

        def store_deadline() -> bool:
            if self._words.word(number) != word:
                return False
            self._words.store(entry_start(number) + ENTRY_DEADLINE, deadline)
            return True

        return self._locked(store_deadline, may_sleep)

    # Seeking

    def move(self, to: LogPosition) -> LogPosition:
        """Move the group to a log position, and return where it was.

        Raises `AckError`, with nothing changed, if a delivery is outstanding or will be redelivered.
        """

        def move() -> LogPosition:
            open_ones = sum(self._words.word(number) & ENTRY_STATE not in DONE for number in self._words.numbers())
            if open_ones or self._words.is_full:
                what = f"{counted_messages(open_ones)} {'is' if open_ones == 1 else 'are'} not acknowledged"
                raise AckError(self.name, f"the group cannot be moved: {what}; acknowledge everything, then seek")
            offset, sequence = self._words.next
            self._append_skip(to)
            return LogPosition(Offset(offset), sequence)

        return self._locked(move)

    def start_over(self, at: LogPosition) -> None:
        """Move to a log position after a purge; all deliveries are dropped."""

        def acknowledge_all() -> None:
            for number in self._words.numbers():
                self._acknowledge(number)
            self._words.store(GROUP_READY, 0)

        def skip_purged() -> None:
            if self._words.next[0] < at.offset and not self._words.is_full:
                self._append_skip(at)

        self._locked(acknowledge_all)
        self._locked(skip_purged)

    def expire_before(self, oldest: LogPosition, current: int) -> int | None:
        """Move to the oldest stored message. Drop earlier entries that would be redelivered, and the one at *current*.

        *current* is the offset of the message that the caller was about to receive.
        Returns how many messages were missed; None if another member has done it already.
        """

        def expire() -> int | None:
            missed, changed = 0, False
            for number in self._words.numbers():
                word, offset, _, _, _ = self._words.read(number)
                is_gone = word & ENTRY_STATE in (ENTRY_READY, ENTRY_DELAYED) or offset == current
                if offset < oldest.offset and is_gone and word & ENTRY_STATE not in DONE:
                    self._acknowledge(number)
                    missed += 1
            offset, sequence = self._words.next
            if offset < oldest.offset and not self._words.is_full:
                missed += max(0, oldest.sequence - sequence)
                self._append_skip(oldest)
                changed = True
            return missed if missed or changed else None

        return self._locked(expire)

    def _acknowledge(self, number: int) -> None:
        while (word := self._words.word(number)) & ENTRY_STATE not in DONE:
            if swap_if_u64(self.map, entry_start(number), word, word & ~ENTRY_STATE):
                if word & ENTRY_STATE == ENTRY_READY:
                    add_u64(self.map, GROUP_READY, U64)
                return

    def _append_skip(self, to: LogPosition) -> None:
        """Append an entry without a message, after which the group continues at *to*. The ring must not be full.

        Like an append of a message, it takes effect with a single store.
        """
        tail = self._words.load(GROUP_TAIL)
        old, number = self._words.word(tail), entry_start(tail)
        ENTRY.pack_into(self.map, number, old, self._words.next[0], to.offset, to.sequence - 1 & U64, 0)
        store_u64(self.map, number, old & ~ENTRY_STATE | ENTRY_SKIPPED)
        self._words.resume_at(to.offset, to.sequence)
        self._words.store(GROUP_TAIL, tail + 1)
