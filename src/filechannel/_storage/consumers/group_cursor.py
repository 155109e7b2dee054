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

from typing_extensions import Buffer

from ..._errors import AckError, ConsumerDamagedError, counted_messages
from ..._format import add_u64, advance_position, load_u64, store_u32, store_u64, swap_if_u64
from ..._format.layout import (
    ENTRY,
    ENTRY_ACKED,
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
    GROUP_ENTRIES,
    GROUP_HEAD,
    GROUP_INITIALIZED,
    GROUP_LOCK,
    GROUP_NEXT,
    GROUP_NEXT_SEQUENCE,
    GROUP_READY,
    GROUP_RING,
    GROUP_SIZE,
    GROUP_TAIL,
    LARGEST_OFFSET,
    LOCK_GENERATION_SHIFT,
    NAME_MEMBERS,
    NAME_OWNER,
)
from ..._format.read.group_ring import LIVENESS_CHECK_NS, entry_start, is_sound
from ..._offset import LogPosition, Offset
from ..._runtime.may_sleep import always
from ..control.process_slots import Processes
from ..control.shared_lock import SharedLock
from ..store_events import StoreEvents
from ..system.kernel_locks import KernelLocks
from ..system.os_calls import Files
from .cursor import Cursor, own

R = TypeVar("R")
_NEVER = _U64 = (1 << 64) - 1
_DONE = (ENTRY_ACKED, ENTRY_SKIPPED)


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
        initialized = self._load(GROUP_INITIALIZED)
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
        head, tail = self._load(GROUP_HEAD), self._load(GROUP_TAIL)
        if not head <= tail <= head + GROUP_ENTRIES:
            self._raise_damaged()
        if tail - head < GROUP_ENTRIES and self._word(tail) & ENTRY_STATE != ENTRY_ACKED:
            _, _, end, sequence, _ = self._read(tail)
            self._resume_at(end, sequence + 1)  # the entry was written, but the words do not include it yet
            tail += 1
            self._store(GROUP_TAIL, tail)
        states = [self._word(number) & ENTRY_STATE for number in range(head, tail)]
        self._store(GROUP_READY, states.count(ENTRY_READY))
        self._store(GROUP_DUE, 0)
        oldest = next((n for n, state in enumerate(states, head) if state not in _DONE), None)
        offset, sequence = self._next if oldest is None else self._read(oldest)[1:4:2]
        self.store(offset, sequence, time.time_ns())  # a slot that was being written is not a valid one

    # Starting

    def begin(self, start: LogPosition | None) -> None:
        """Create the ring if there is none, at the position or, if there is no position either, at *start*."""
        if self.position is not None and self._load(GROUP_INITIALIZED):
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
            self._store(GROUP_INITIALIZED, 0)
        if not self._load(GROUP_INITIALIZED):
            self._make_ring()

    def _make_ring(self) -> None:
        position = self.position
        if position is None:  # another process changed what was just stored
            raise ConsumerDamagedError(self.name, path=self._path.parent.parent)
        self.map[GROUP_RING:GROUP_SIZE] = bytes(GROUP_SIZE - GROUP_RING)
        for word in (GROUP_HEAD, GROUP_TAIL, GROUP_READY):
            self._store(word, 0)
        self._store(GROUP_DUE, _NEVER)
        self._resume_at(position.offset, position.sequence)
        self._store(GROUP_INITIALIZED, 1)

    # Redelivery and leases

    def tend(self, may_sleep: Callable[[], bool] = always) -> int:
        """Make deliveries available again whose member died, whose lease expired, or whose delay is over.

        Returns their number. Waits for the lock; raises `Busy` if the thread may not sleep.
        """
        now = time.monotonic_ns()
        if not self._locked(partial(self._begin_check, now), may_sleep):
            return 0
        due, alive, overdue, ready = _NEVER, dict[int, bool](), list[tuple[int, int]](), 0
        for number in self._numbers():
            word, deadline = self._word(number), self._load(entry_start(number) + ENTRY_DEADLINE)
            state, owner = word & ENTRY_STATE, word >> ENTRY_OWNER_SHIFT << LOCK_GENERATION_SHIFT
            if state > ENTRY_SKIPPED or (state not in _DONE and self._is_backwards(number)):
                self._check_ring()  # with the lock: the entry may have been reused since
            ready += state == ENTRY_READY
            if state == ENTRY_OUT and owner not in alive:
                alive[owner] = self._processes.is_alive(owner)
            if (state == ENTRY_OUT and deadline > now and alive[owner]) or (state == ENTRY_DELAYED and deadline > now):
                due = min(due, deadline)
            elif state in (ENTRY_OUT, ENTRY_DELAYED):
                overdue.append((number, word))

        def redeliver() -> int:
            if ready > self._load(GROUP_READY):  # a member was killed before it incremented the counter
                self._store(GROUP_READY, ready)
            redelivered = [self._redeliver(number, word, now, alive) for number, word in overdue]
            if not self._numbers():
                swap_if_u64(self.map, GROUP_DUE, now + LIVENESS_CHECK_NS, _NEVER)
            return sum(redelivered)

        redelivered = self._locked(redeliver, may_sleep)
        self._lower_due(due)
        return redelivered

    def _begin_check(self, now: int) -> bool:
        """Return whether the entries have to be checked now."""
        if not self._numbers():
            self._store(GROUP_DUE, _NEVER)  # else every waiting member would check again and again
            return False
        if now < self._load(GROUP_DUE) <= now + LIVENESS_CHECK_NS:
            return False
        # Not "never" before the check is complete: another member has to check again if this process is killed here.
        self._store(GROUP_DUE, now + LIVENESS_CHECK_NS)
        return True

    def _is_backwards(self, number: int) -> bool:
        return self._load(entry_start(number) + ENTRY_OFFSET) >= self._load(entry_start(number) + ENTRY_END)

    def _redeliver(self, number: int, word: int, now: int, alive: dict[int, bool]) -> bool:
        is_out = word & ENTRY_STATE == ENTRY_OUT
        is_alive = not is_out or alive[word >> ENTRY_OWNER_SHIFT << LOCK_GENERATION_SHIFT]
        if is_alive and self._load(entry_start(number) + ENTRY_DEADLINE) > now:
            return False  # extended meanwhile, under the lock
        new = word & ~ENTRY_STATE | ENTRY_READY
        if is_out and word >> ENTRY_ATTEMPT_SHIFT & ENTRY_ATTEMPTS < ENTRY_ATTEMPTS:
            new += 1 << ENTRY_ATTEMPT_SHIFT
        if not swap_if_u64(self.map, entry_start(number), word, new):
            return False
        add_u64(self.map, GROUP_READY, 1)
        return True

    def extend(self, number: int, word: int, deadline: int, may_sleep: Callable[[], bool] = always) -> bool:
        """Extend a lease; False if the entry has changed."""

        def store_deadline() -> bool:
            if self._word(number) != word:
                return False
            self._store(entry_start(number) + ENTRY_DEADLINE, deadline)
            return True

        return self._locked(store_deadline, may_sleep)

    # Seeking

    def move(self, to: LogPosition) -> LogPosition:
        """Move the group to a log position, and return where it was.

        Raises `AckError`, with nothing changed, if a delivery is outstanding or will be redelivered.
        """

        def move() -> LogPosition:
            open_ones = sum(self._word(number) & ENTRY_STATE not in _DONE for number in self._numbers())
            if open_ones or self._is_full:
                what = f"{counted_messages(open_ones)} {'is' if open_ones == 1 else 'are'} not acknowledged"
                raise AckError(self.name, f"the group cannot be moved: {what}; acknowledge everything, then seek")
            offset, sequence = self._next
            self._append_skip(to)
            return LogPosition(Offset(offset), sequence)

        return self._locked(move)

    def start_over(self, at: LogPosition) -> None:
        """Move to a log position after a purge; all deliveries are dropped."""

        def acknowledge_all() -> None:
            for number in self._numbers():
                self._acknowledge(number)
            self._store(GROUP_READY, 0)

        def skip_purged() -> None:
            if self._next[0] < at.offset and not self._is_full:
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
            for number in self._numbers():
                word, offset, _, _, _ = self._read(number)
                is_gone = word & ENTRY_STATE in (ENTRY_READY, ENTRY_DELAYED) or offset == current
                if offset < oldest.offset and is_gone and word & ENTRY_STATE not in _DONE:
                    self._acknowledge(number)
                    missed += 1
            offset, sequence = self._next
            if offset < oldest.offset and not self._is_full:
                missed += max(0, oldest.sequence - sequence)
                self._append_skip(oldest)
                changed = True
            return missed if missed or changed else None

        return self._locked(expire)

    def _acknowledge(self, number: int) -> None:
        while (word := self._word(number)) & ENTRY_STATE not in _DONE:
            if swap_if_u64(self.map, entry_start(number), word, word & ~ENTRY_STATE):
                if word & ENTRY_STATE == ENTRY_READY:
                    add_u64(self.map, GROUP_READY, _U64)
                return

    def _append_skip(self, to: LogPosition) -> None:
        """Append an entry without a message, after which the group continues at *to*. The ring must not be full.

        Like an append of a message, it takes effect with a single store.
        """
        tail = self._load(GROUP_TAIL)
        old, number = self._word(tail), entry_start(tail)
        ENTRY.pack_into(self.map, number, old, self._next[0], to.offset, to.sequence - 1 & _U64, 0)
        store_u64(self.map, number, old & ~ENTRY_STATE | ENTRY_SKIPPED)
        self._resume_at(to.offset, to.sequence)
        self._store(GROUP_TAIL, tail + 1)

    # Words

    @property
    def _next(self) -> tuple[int, int]:
        return self._load(GROUP_NEXT), self._load(GROUP_NEXT_SEQUENCE)

    @property
    def _is_full(self) -> bool:
        return self._load(GROUP_TAIL) - self._load(GROUP_HEAD) >= GROUP_ENTRIES

    def _numbers(self) -> range:
        return range(self._load(GROUP_HEAD), self._load(GROUP_TAIL))

    def _resume_at(self, offset: int, sequence: int) -> None:
        self._store(GROUP_NEXT, offset)
        self._store(GROUP_NEXT_SEQUENCE, sequence & _U64)

    def _lower_due(self, when: int) -> None:
        while when < (due := self._load(GROUP_DUE)) and not swap_if_u64(self.map, GROUP_DUE, due, when):
            pass

    def _load(self, word: int) -> int:
        return load_u64(self.map, word)

    def _store(self, word: int, value: int) -> None:
        store_u64(self.map, word, value)

    def _word(self, number: int) -> int:
        return load_u64(self.map, entry_start(number))

    def _read(self, number: int) -> tuple[int, int, int, int, int]:
        return entry_at(self.map, number)


def reset_ring(head: mmap.mmap) -> None:
    """Let a group start at its position again when its next member joins. It has no members now."""
    store_u32(head, GROUP_LOCK, 0)
    store_u64(head, GROUP_INITIALIZED, 0)


def ring_problem(content: Buffer) -> str | None:
    """Return what is wrong with the ring in a group's file; None if nothing is, or if there is no ring.

    Call it with the lock: while a member changes the ring, its words may contradict each other.
    """
    if memoryview(content).nbytes < GROUP_SIZE or not (initialized := load_u64(content, GROUP_INITIALIZED)):
        return None
    if initialized != 1:
        return f"its 'initialized' word is {initialized}"
    head, tail = load_u64(content, GROUP_HEAD), load_u64(content, GROUP_TAIL)
    if not head <= tail <= head + GROUP_ENTRIES:
        return f"entries {head} to {tail}"
    if max(load_u64(content, GROUP_NEXT), load_u64(content, GROUP_NEXT_SEQUENCE)) > LARGEST_OFFSET:
        return "its next offset or sequence is larger than one may be"
    if not is_sound(content):
        return f"next offset {load_u64(content, GROUP_NEXT)} does not follow entry {tail - 1}"
    for number in range(head, tail):
        word, offset, end, _, _ = entry_at(content, number)
        if word & ENTRY_STATE > ENTRY_SKIPPED:
            return f"entry {number} has no known state"
        if word & ENTRY_STATE not in _DONE and offset >= end:
            return f"entry {number} spans offset {offset} to {end}"
    return None


def numbers_in(content: bytes) -> tuple[int, int]:
    """Return the number of the oldest entry in a group's file and the number of the next one.

    Returns 0 and 0 without a ring, or if the two numbers are not valid: `ring_problem` reports that.
    """
    if len(content) < GROUP_SIZE or not load_u64(content, GROUP_INITIALIZED):
        return 0, 0
    head, tail = load_u64(content, GROUP_HEAD), load_u64(content, GROUP_TAIL)
    return (head, tail) if head <= tail <= head + GROUP_ENTRIES else (0, 0)


def entry_at(content: Buffer, number: int) -> tuple[int, int, int, int, int]:
    """Return word, offset, end, sequence and deadline of an entry."""
    return ENTRY.unpack_from(content, entry_start(number))
