"""The process slots: one for each process that has a channel open for writing, kept alive by a kernel lock.

As long as it lives, a process holds the kernel lock on the byte of its slot in the lock file. It increments the
generation of the slot when it takes it. A lock word names a slot and a generation, so it shows whether its holder is
alive, without a pid and without a timeout. That works across containers, and a process that is merely stopped counts as
alive.

A process also marks its slot in the control file, with a kernel lock on the first byte of the slot. The mark is for
processes that cannot see the other lock: those of users who may only read, and those that found another lock file. A
reader can prevent the mark, so a process can share a channel without it.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from mmap import mmap
from pathlib import Path
from typing import Final

from ..._errors import StorageError
from ..._format import load_u32, store_u32
from ..._format.layout import (
    LOCK_GENERATION_BITS,
    LOCK_GENERATION_SHIFT,
    LOCK_SLOT_SHIFT,
    PROCESS,
    PROCESS_SLOT_COUNT,
    PROCESS_SLOT_SIZE,
    PROCESS_SLOTS,
    PROCESS_WAITING,
)
from ..system.kernel_locks import KernelLocks, taken_bytes
from ..system.os_calls import Files
from .lock_file import inspecting_locks
from .lock_holder import SHORTEST_NOTE, Holder

_MOST_GENERATIONS = (1 << LOCK_GENERATION_BITS) - 1


class Processes:
    """The table of process slots, and the slot of this process."""

    def __init__(self, words: mmap, locks: KernelLocks, marks: KernelLocks | None = None) -> None:
        """*locks* are those of the lock file, *marks* those of the control file."""
        self._words = words
        self._locks = locks
        self._marks = marks
        self.slot: int = 0
        """The slot of this process; 0 before `join`."""
        self.own_word: int = 0
        """The value of a lock word that this process holds."""

    def join(self, clear: Callable[[int], object] = lambda _: None) -> None:
        """Take a slot. The caller holds the open lock.

        *clear* removes what the previous process of a slot left under its number. It is called before the generation
        changes, while those files still count as the previous process's.
        """
        taken = set(self.others())
        for slot in range(1, PROCESS_SLOT_COUNT):
            if slot not in taken and self._mark(slot):
                clear(slot)
                # The generation first: once the byte is locked, an old one would make a dead lock holder look alive.
                generation = self._count_up(slot)
                if self._locks.take(slot):
                    self._describe(slot)
                    self.slot = slot
                    self.own_word = slot << LOCK_SLOT_SHIFT | generation << LOCK_GENERATION_SHIFT
                    return
        raise StorageError(f"{PROCESS_SLOT_COUNT - 1} processes have the channel open, which is the maximum")

    def _mark(self, slot: int) -> bool:
        """Mark a slot, if no reader prevents it; False if a process with locks on another file has marked it."""
        marks, position = self._marks, _slot_position(slot)
        return marks is None or marks.take(position) or not marks.is_taken(position, shared=False)

    def _count_up(self, slot: int) -> int:
        generation = load_u32(self._words, _slot_position(slot)) % _MOST_GENERATIONS + 1
        store_u32(self._words, _slot_position(slot), generation)
        return generation

    def _describe(self, slot: int) -> None:
        # Only what comes after the generation, which must never go back, even if this process dies here.
        store_u32(self._words, _slot_position(slot) + PROCESS_WAITING, 0)
        self._words[_slot_position(slot) + _FOR_PEOPLE : _slot_position(slot) + PROCESS.size] = _note()

    def others(self) -> list[int]:
        """Return the slots of the other processes that are alive."""
        return others_in(self._locks)

    def strangers(self) -> list[int]:
        """Return the slots that other processes have marked, also those that hold their locks on another lock file."""
        return [] if self._marks is None else _slots(self._marks.taken(*_TABLE, shared=False))

    def is_alive(self, word: int) -> bool:
        """Return whether the process that a lock word names has not ended."""
        slot = word >> LOCK_SLOT_SHIFT
        # No process ever has slot 0; its byte is MODE_BYTE, which every writer has locked.
        return slot != 0 and self._has_slot(word) and (slot == self.slot or self._locks.is_taken(slot, shared=False))

    def _has_slot(self, word: int) -> bool:
        """Return whether no other process has taken the slot since the lock word was written."""
        return self.generation(word >> LOCK_SLOT_SHIFT) == word >> LOCK_GENERATION_SHIFT & _MOST_GENERATIONS

    def generation(self, slot: int) -> int:
        """Return the generation of a slot, cut to the bits that a lock word has, whatever is stored."""
        return load_u32(self._words, _slot_position(slot)) & _MOST_GENERATIONS

    # Processes that wait for capacity

    def is_queued(self, slot: int) -> bool:
        """Return whether the process in a slot has set the flag that its senders wait for capacity."""
        return bool(load_u32(self._words, _slot_position(slot) + PROCESS_WAITING))

    def set_queued(self, is_queued: bool) -> None:
        """Set or clear the flag that senders of this process wait for capacity."""
        store_u32(self._words, _slot_position(self.slot) + PROCESS_WAITING, int(is_queued))

    def remove_from_queue(self, word: int) -> None:
        """Clear the flag of the process that a lock word names, unless another process has its slot by now."""
        if self._has_slot(word):
            store_u32(self._words, _slot_position(word >> LOCK_SLOT_SHIFT) + PROCESS_WAITING, 0)

    def queued_slots(self) -> Iterator[int]:
        """Yield the processes whose flag is set, as lock words: round-robin, from the slot after ours to our own."""
        flags = self._words[PROCESS_SLOTS + PROCESS_WAITING : _slot_position(PROCESS_SLOT_COUNT) : PROCESS_SLOT_SIZE]
        first = self.slot + 1
        flags = flags[first:] + flags[:first]
        at = -1
        while (at := flags.find(1, at + 1)) >= 0:
            slot = (first + at) % PROCESS_SLOT_COUNT
            yield slot << LOCK_SLOT_SHIFT | self.generation(slot) << LOCK_GENERATION_SHIFT

    def holder(self, slot: int) -> Holder:
        """Return the process in a slot, as it described itself."""
        return holder_at(self._words, slot)

    def holder_of(self, word: int) -> Holder | None:
        """Return the process that a lock word names; None if the lock is free."""
        return self.holder(word >> LOCK_SLOT_SHIFT) if word else None

    def alive(self) -> list[Holder]:
        """Return every process that has the channel open for writing, including this one."""
        ours = [self.slot] if self.slot else []
        return [self.holder(slot) for slot in sorted(self.others() + ours)]


def describe_opener(words: mmap) -> None:
    """Store in slot 0 that this process holds the open lock."""
    words[_PEOPLE] = _note()


def forget_opener(words: mmap) -> None:
    """Store in slot 0 that no process holds the open lock."""
    words[_PEOPLE] = bytes(_PEOPLE.stop - _PEOPLE.start)


def opener_of(files: Files, descriptor: int) -> Holder:
    """Return the process that holds the open lock, as it described itself in an open control file."""
    return _holder(files.read_at(descriptor, PROCESS.size, PROCESS_SLOTS))


def holder_at(words: mmap, slot: int) -> Holder:
    """Return how the process in a slot of a control page described itself."""
    return _holder(words[_slot_position(slot) : _slot_position(slot) + PROCESS.size])


def _holder(described: bytes) -> Holder:
    try:
        _, _, pid, since, host = PROCESS.unpack(described)
    except struct.error:
        return Holder(None, None, None)
    return Holder.of(pid, since, host)


def _note() -> bytes:
    """Return the description of this process, with the current time, for error messages."""
    host = socket.gethostname().encode()[:SHORTEST_NOTE]
    return PROCESS.pack(0, 0, os.getpid(), time.time_ns(), host)[_FOR_PEOPLE:]


@dataclass(frozen=True, slots=True)
class Living:
    """The processes that have a channel open for writing, as seen by a process that has not."""

    slots: list[int]
    is_complete: bool
    """False for a user who may not open the lock file: a process whose mark a reader prevents is not seen."""


def living_in(files: Files, path: Path, descriptor: int) -> Living:
    """Return the live processes, from the locks and the marks of a channel whose control file is open."""
    marked = _slots(taken_bytes(files, descriptor, *_TABLE, shared=False))
    with inspecting_locks(files, path) as visible:
        return Living(sorted({*marked, *visible.taken(1, PROCESS_SLOT_COUNT - 1)}), visible.is_complete)


def _slot_position(slot: int) -> int:
    return PROCESS_SLOTS + slot * PROCESS_SLOT_SIZE


def others_in(locks: KernelLocks) -> list[int]:
    """Return the slots of the processes that have a channel open for writing, except this one."""
    return locks.taken(1, PROCESS_SLOT_COUNT - 1, shared=False)


def _slots(taken: list[int]) -> list[int]:
    return [slot for slot, rest in (divmod(byte - PROCESS_SLOTS, PROCESS_SLOT_SIZE) for byte in taken) if not rest]


_TABLE: Final = _slot_position(1), _slot_position(PROCESS_SLOT_COUNT) - 1
"""The positions of the first and the last byte of the slots, without slot 0."""
_FOR_PEOPLE: Final = 8  # where pid, time and host begin in a slot; they are only shown to people
_PEOPLE: Final = slice(PROCESS_SLOTS + _FOR_PEOPLE, PROCESS_SLOTS + PROCESS.size)
