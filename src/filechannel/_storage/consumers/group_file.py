"""The file of a group: one position for all its members, and a ring of what they were given.

What happens to every message is in `_format/ring.py`. Here is what happens seldom: a member dies or lets a lease end,
the group is moved, or whoever had the lock was killed with it. Then everything is told anew from the entries: one that
was made is in the ring whether or not the words around it say so yet.
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NoReturn, TypeVar

from typing_extensions import Buffer

from .._errors import AckError, ConsumerDamagedError
from .._format import add_u64, load_u64, move_on, store_u32, store_u64, swap_if_u64
from .._format.layout import (
    ENTRY,
    ENTRY_ATTEMPT_SHIFT,
    ENTRY_ATTEMPTS,
    ENTRY_DEADLINE,
    ENTRY_DELAYED,
    ENTRY_END,
    ENTRY_OFFSET,
    ENTRY_OUT,
    ENTRY_OWNER_SHIFT,
    ENTRY_PASSED,
    ENTRY_READY,
    ENTRY_SETTLED,
    ENTRY_STATE,
    GROUP_BEGUN,
    GROUP_DUE,
    GROUP_ENTRIES,
    GROUP_HEAD,
    GROUP_LOCK,
    GROUP_NEXT,
    GROUP_NEXT_SEQUENCE,
    GROUP_READY,
    GROUP_RING,
    GROUP_SIZE,
    GROUP_TAIL,
    LOCK_GENERATION_SHIFT,
    NAME_MEMBERS,
    NAME_OWNER,
)
from .._format.ring import LOOK_AFTER, is_sound, place
from .._offset import Offset
from .cursor import Cursor, own
from .files import Files
from .index import Mark
from .kernel_locks import KernelLocks
from .processes import Processes
from .shared_lock import SharedLock

R = TypeVar("R")
_NEVER = _U64 = (1 << 64) - 1
_DONE = (ENTRY_SETTLED, ENTRY_PASSED)


def _nothing() -> None:
    pass


def _always() -> bool:
    return True


class Group(Cursor):
    """The open file of a group, shared by all members of this process."""

    def __init__(self, name: str, content: mmap.mmap, locks: KernelLocks, processes: Processes, path: Path) -> None:
        super().__init__(name, content, locks)
        self._path = path
        self.members: int = 0
        """How many receivers of this process, clones not counted, use it."""
        self.on_moved: Callable[[], object] = _nothing
        """Called when the position may have moved."""
        self.on_freed: Callable[[], object] = _nothing
        """Called when the ring was full, and is not any more: other members may wait for that."""
        self._processes = processes
        self._lock: SharedLock = SharedLock(content, GROUP_LOCK, processes, self._entered)

    @classmethod
    def open(cls, files: Files, locks: KernelLocks, path: Path, name: str, mode: int, processes: Processes) -> Group:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        """Share the name with the other members."""
        content, locks = own(files, locks, path, name, mode, GROUP_SIZE, shared=True)
        try:
            locks.take(NAME_MEMBERS + processes.slot)
        except BaseException:
            locks.close()
            raise
        return cls(name, content, locks, processes, path)

    @property
    def owner(self) -> int:
        """What the entries say that are ours."""
        return self._processes.owner

    def leave(self) -> bool:
        """One member less; tell whether it was the last of this process."""
        self.members -= 1
        return not self.members

    @property
    def is_last(self) -> bool:
        """Whether there is one member left, ours, and nobody else can come before the file is closed."""
        return self.members == 1 and self._locks.take(NAME_OWNER)

    def close(self) -> None:
        """Release the name, and close the file. Another thread that holds the group's lock releases it first."""
        with self._lock.mutex.held():
            super().close()

    def _note_departure(self) -> None:
        if self._locks.take(NAME_OWNER):  # else there are others
            super()._note_departure()

    # The lock

    def _locked(self, work: Callable[[], R], may_sleep: Callable[[], bool] = _always) -> R:
        """Do something with the lock, and let the position follow what was settled meanwhile.

        `ConsumerDamagedError`, and nothing changed, if the words that the members share contradict each other. Not a
        context manager: an exception that a signal handler raises in a generator would leave the lock taken.
        """
        with self._lock.held(may_sleep):
            if not self._is_sound:
                self._raise_damaged()
            result = work()
        if move_on(self.map, self.owner):
            self.on_freed()
        self.on_moved()
        return result

    @property
    def _is_sound(self) -> bool:
        begun = self._load(GROUP_BEGUN)
        return not begun or (begun == 1 and is_sound(self.map))

    def check_words(self, may_sleep: Callable[[], bool]) -> None:
        """Raise `ConsumerDamagedError` if the words that the members share contradict each other."""
        if not self._is_sound:
            self._locked(_nothing, may_sleep)  # another member may have been changing them: this looks again

    def _check_ring(self) -> None:
        self._locked(self._refuse_damaged_ring)

    def _refuse_damaged_ring(self) -> None:
        if ring_problem(self.map) is not None:
            self._raise_damaged()

    def _raise_damaged(self) -> NoReturn:
        problem = ring_problem(self.map) or "its words contradict each other"
        raise ConsumerDamagedError(self.name, path=self._path.parent.parent, file=self._path, problem=problem)

    def _entered(self, from_the_dead: bool) -> None:
        if not from_the_dead or not load_u64(self.map, GROUP_BEGUN):
            return
        head, tail = self._load(GROUP_HEAD), self._load(GROUP_TAIL)
        if not head <= tail <= head + GROUP_ENTRIES:
            self._raise_damaged()
        if tail - head < GROUP_ENTRIES and self._word(tail) & ENTRY_STATE != ENTRY_SETTLED:
            _, _, end, sequence, _ = self._read(tail)
            self._go_on_at(end, sequence + 1)  # it was made, and nobody has said so yet
            tail += 1
            self._store(GROUP_TAIL, tail)
        states = [self._word(number) & ENTRY_STATE for number in range(head, tail)]
        self._store(GROUP_READY, states.count(ENTRY_READY))
        self._store(GROUP_DUE, 0)
        oldest = next((n for n, state in enumerate(states, head) if state not in _DONE), None)
        offset, sequence = self._next if oldest is None else self._read(oldest)[1:4:2]
        self.store(offset, sequence, time.time_ns())  # a slot that was being written is not one that counts

    # Beginning

    def begin(self, start: Mark | None) -> None:
        """Make the ring if there is none, from the position or, if that is not there either, from *start*."""
        if self.position is not None and self._load(GROUP_BEGUN):
            if ring_problem(self.map) is not None:
                self._check_ring()  # with the lock: another member may have been changing it
            return  # and it stays so as long as there are members: nobody has to wait for the lock
        self._locked(partial(self._begin_at, start))

    def _begin_at(self, start: Mark | None) -> None:
        if self.position is None:
            assert start is not None
            self.store(start.offset, start.sequence, time.time_ns())
            self._store(GROUP_BEGUN, 0)
        if not self._load(GROUP_BEGUN):
            self._make_ring()

    def _make_ring(self) -> None:
        position = self.position
        assert position is not None
        self.map[GROUP_RING:GROUP_SIZE] = bytes(GROUP_SIZE - GROUP_RING)
        for word in (GROUP_HEAD, GROUP_TAIL, GROUP_READY):
            self._store(word, 0)
        self._store(GROUP_DUE, _NEVER)
        self._go_on_at(position.offset, position.sequence)
        self._store(GROUP_BEGUN, 1)

    # Looking after what the members have

    def tend(self, may_sleep: Callable[[], bool] = _always) -> int:
        """Let come again what members had that died or let the lease end, and what was delayed until now.

        Returns how many. Also waits until the lock can be had; `Busy` where the thread may not.
        """
        now = time.monotonic_ns()
        if not self._locked(partial(self._begin_to_look, now), may_sleep):
            return 0
        due, alive, overdue, ready = _NEVER, dict[int, bool](), list[tuple[int, int]](), 0
        for number in self._numbers():
            word, deadline = self._word(number), self._load(place(number) + ENTRY_DEADLINE)
            state, owner = word & ENTRY_STATE, word >> ENTRY_OWNER_SHIFT << LOCK_GENERATION_SHIFT
            if state > ENTRY_PASSED or (state not in _DONE and self._is_backwards(number)):
                self._check_ring()  # with the lock: its place may have been used again since
            ready += state == ENTRY_READY
            if state == ENTRY_OUT and owner not in alive:
                alive[owner] = self._processes.is_alive(owner)
            if (state == ENTRY_OUT and deadline > now and alive[owner]) or (state == ENTRY_DELAYED and deadline > now):
                due = min(due, deadline)
            elif state in (ENTRY_OUT, ENTRY_DELAYED):
                overdue.append((number, word))

        def give_again() -> int:
            if ready > self._load(GROUP_READY):  # a member was killed before it could count
                self._store(GROUP_READY, ready)
            again = [self._come_again(number, word, now, alive) for number, word in overdue]
            if not self._numbers():
                swap_if_u64(self.map, GROUP_DUE, now + LOOK_AFTER, _NEVER)
            return sum(again)

        again = self._locked(give_again, may_sleep)
        self._be_due(due)
        return again

    def _begin_to_look(self, now: int) -> bool:
        """Return whether the entries have to be looked at now."""
        if not self._numbers():
            self._store(GROUP_DUE, _NEVER)  # or every member that waits would look again and again
            return False
        if now < self._load(GROUP_DUE) <= now + LOOK_AFTER:
            return False
        # Not never, before the look is over: another member has to look again if we are killed here.
        self._store(GROUP_DUE, now + LOOK_AFTER)
        return True

    def _is_backwards(self, number: int) -> bool:
        return self._load(place(number) + ENTRY_OFFSET) >= self._load(place(number) + ENTRY_END)

    def _come_again(self, number: int, word: int, now: int, alive: dict[int, bool]) -> bool:
        is_out = word & ENTRY_STATE == ENTRY_OUT
        is_alive = not is_out or alive[word >> ENTRY_OWNER_SHIFT << LOCK_GENERATION_SHIFT]
        if is_alive and self._load(place(number) + ENTRY_DEADLINE) > now:
            return False  # extended meanwhile, which takes the lock
        new = word & ~ENTRY_STATE | ENTRY_READY
        if is_out and word >> ENTRY_ATTEMPT_SHIFT & ENTRY_ATTEMPTS < ENTRY_ATTEMPTS:
            new += 1 << ENTRY_ATTEMPT_SHIFT
        if not swap_if_u64(self.map, place(number), word, new):
            return False
        add_u64(self.map, GROUP_READY, 1)
        return True

    def extend(self, number: int, word: int, deadline: int, may_sleep: Callable[[], bool] = _always) -> bool:
        """Let a lease end later; False if it has moved on."""

        def store_deadline() -> bool:
            if self._word(number) != word:
                return False
            self._store(place(number) + ENTRY_DEADLINE, deadline)
            return True

        return self._locked(store_deadline, may_sleep)

    # Going elsewhere

    def move(self, to: Mark) -> Mark:
        """Go on at a place, and return where it stood.

        `AckError`, and nothing changed, if a member has something, or something comes again.
        """

        def move() -> Mark:
            open_ones = sum(self._word(number) & ENTRY_STATE not in _DONE for number in self._numbers())
            if open_ones or self._is_full:
                raise AckError(self.name, f"it cannot be moved: {open_ones} messages of the group are not settled")
            offset, sequence = self._next
            self._pass_to(to)
            return Mark(Offset(offset), sequence, 0)

        return self._locked(move)

    def start_over(self, at: Mark) -> None:
        """Go on at a place; whatever was handed out is gone."""

        def settle_all() -> None:
            for number in self._numbers():
                self._settle(number)
            self._store(GROUP_READY, 0)

        def pass_by() -> None:
            if self._next[0] < at.offset and not self._is_full:
                self._pass_to(at)

        self._locked(settle_all)
        self._locked(pass_by)

    def expire_before(self, oldest: Mark, reading: int) -> int | None:
        """Go on at the oldest message there is, and settle what lay before and comes again, or is being read now.

        Returns how many were missed; None if another member has seen to it.
        """

        def expire() -> int | None:
            missed, changed = 0, False
            for number in self._numbers():
                word, offset, _, _, _ = self._read(number)
                is_gone = word & ENTRY_STATE in (ENTRY_READY, ENTRY_DELAYED) or offset == reading
                if offset < oldest.offset and is_gone and word & ENTRY_STATE not in _DONE:
                    self._settle(number)
                    missed += 1
            offset, sequence = self._next
            if offset < oldest.offset and not self._is_full:
                missed += max(0, oldest.sequence - sequence)
                self._pass_to(oldest)
                changed = True
            return missed if missed or changed else None

        return self._locked(expire)

    def _settle(self, number: int) -> None:
        while (word := self._word(number)) & ENTRY_STATE not in _DONE:
            if swap_if_u64(self.map, place(number), word, word & ~ENTRY_STATE):
                if word & ENTRY_STATE == ENTRY_READY:
                    add_u64(self.map, GROUP_READY, _U64)
                return

    def _pass_to(self, to: Mark) -> None:
        """Make an entry of nothing, so that going elsewhere is one store, too. The ring is not full."""
        tail = self._load(GROUP_TAIL)
        old, number = self._word(tail), place(tail)
        ENTRY.pack_into(self.map, number, old, self._next[0], to.offset, to.sequence - 1 & _U64, 0)
        store_u64(self.map, number, old & ~ENTRY_STATE | ENTRY_PASSED)
        self._go_on_at(to.offset, to.sequence)
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

    def _go_on_at(self, offset: int, sequence: int) -> None:
        self._store(GROUP_NEXT, offset)
        self._store(GROUP_NEXT_SEQUENCE, sequence & _U64)

    def _be_due(self, when: int) -> None:
        while when < (due := self._load(GROUP_DUE)) and not swap_if_u64(self.map, GROUP_DUE, due, when):
            pass

    def _load(self, word: int) -> int:
        return load_u64(self.map, word)

    def _store(self, word: int, value: int) -> None:
        store_u64(self.map, word, value)

    def _word(self, number: int) -> int:
        return load_u64(self.map, place(number))

    def _read(self, number: int) -> tuple[int, int, int, int, int]:
        return entry_at(self.map, number)


def forget_ring(head: mmap.mmap) -> None:
    """Let a group begin again at its position when its next member comes. There are none now."""
    store_u32(head, GROUP_LOCK, 0)
    store_u64(head, GROUP_BEGUN, 0)


def ring_problem(content: Buffer) -> str | None:
    """Return what is wrong with the ring in the file of a group; None if nothing is, or there is no ring.

    With the lock: while a member changes the ring, its words may contradict each other for a moment.
    """
    if memoryview(content).nbytes < GROUP_SIZE or not (begun := load_u64(content, GROUP_BEGUN)):
        return None
    if begun != 1:
        return f"begun is {begun}"
    head, tail = load_u64(content, GROUP_HEAD), load_u64(content, GROUP_TAIL)
    if not head <= tail <= head + GROUP_ENTRIES:
        return f"entries {head} to {tail}"
    if not is_sound(content):
        return f"next offset {load_u64(content, GROUP_NEXT)} does not follow entry {tail - 1}"
    for number in range(head, tail):
        word, offset, end, _, _ = entry_at(content, number)
        if word & ENTRY_STATE > ENTRY_PASSED:
            return f"entry {number} has no known state"
        if word & ENTRY_STATE not in _DONE and offset >= end:
            return f"entry {number} goes from offset {offset} to {end}"
    return None


def numbers_in(content: bytes) -> tuple[int, int]:
    """Return the number of the oldest entry in the file of a group and that of the next one; 0 and 0 without a ring.

    The same if there cannot be such entries: `ring_problem` says so.
    """
    if len(content) < GROUP_SIZE or not load_u64(content, GROUP_BEGUN):
        return 0, 0
    head, tail = load_u64(content, GROUP_HEAD), load_u64(content, GROUP_TAIL)
    return (head, tail) if head <= tail <= head + GROUP_ENTRIES else (0, 0)


def entry_at(content: Buffer, number: int) -> tuple[int, int, int, int, int]:
    """Return word, offset, end, sequence and deadline of an entry."""
    return ENTRY.unpack_from(content, place(number))
