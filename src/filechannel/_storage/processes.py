"""The processes that have a channel open for writing: a slot each, kept alive by the kernel.

A process holds the kernel's lock on the first byte of its slot for as long as it lives, and counts the slot's
generation up when it takes it. So a lock word, which names a slot and a generation, tells whether its owner is alive
without a pid and without a timeout: that works across containers, and a process that is merely stopped is alive.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from mmap import mmap
from typing import Final

from .._errors import StorageError
from .._format import load_u32, store_u32
from .._format.layout import (
    LOCK_GENERATION_BITS,
    LOCK_GENERATION_SHIFT,
    LOCK_SLOT_SHIFT,
    PROCESS,
    PROCESS_IN_LINE,
    PROCESS_SLOT_COUNT,
    PROCESS_SLOT_SIZE,
    PROCESS_SLOTS,
)
from .files import Files
from .holder import Holder
from .kernel_locks import KernelLocks, taken_bytes

_MOST_GENERATIONS = (1 << LOCK_GENERATION_BITS) - 1
_LONGEST_HOST = 40


class Processes:
    """The table of processes, and our own slot in it."""

    def __init__(self, words: mmap, locks: KernelLocks) -> None:
        self._words = words
        self._locks = locks
        self.slot: int = 0
        """Ours; 0 as long as there is none."""
        self.owner: int = 0
        """What a lock word says that is ours."""

    def join(self, clear: Callable[[int], object] = lambda _: None) -> None:
        """Take a slot. The caller holds the opening byte.

        *clear* removes what whoever had a slot before has left under its number, while that still counts as theirs.
        """
        taken = set(self.others())
        for slot in range(1, PROCESS_SLOT_COUNT):
            if slot not in taken:
                clear(slot)
                # The generation first: with the byte locked, an older one would make whoever died here look alive.
                generation = self._count_up(slot)
                if self._locks.take(_place(slot)):
                    self._describe(slot)
                    self.slot = slot
                    self.owner = slot << LOCK_SLOT_SHIFT | generation << LOCK_GENERATION_SHIFT
                    return
        raise StorageError(f"{PROCESS_SLOT_COUNT - 1} processes have the channel open, which is as many as can")

    def _count_up(self, slot: int) -> int:
        generation = load_u32(self._words, _place(slot)) % _MOST_GENERATIONS + 1
        store_u32(self._words, _place(slot), generation)
        return generation

    def _describe(self, slot: int) -> None:
        host = socket.gethostname().encode()[:_LONGEST_HOST]
        note = PROCESS.pack(0, 0, os.getpid(), time.time_ns(), host)[PROCESS_IN_LINE:]
        # Behind the generation, which must never go back, wherever we die.
        self._words[_place(slot) + PROCESS_IN_LINE : _place(slot) + PROCESS.size] = note

    def others(self) -> list[int]:
        """Return the slots of the other processes that are alive."""
        return others_in(self._locks)

    def is_alive(self, word: int) -> bool:
        """Tell whether the process that a lock word names has not ended."""
        slot = word >> LOCK_SLOT_SHIFT
        return self._has_slot(word) and (slot == self.slot or self._locks.is_taken(_place(slot)))

    def _has_slot(self, word: int) -> bool:
        """Tell whether no other process has taken its slot since."""
        return self.generation(word >> LOCK_SLOT_SHIFT) == word >> LOCK_GENERATION_SHIFT & _MOST_GENERATIONS

    def generation(self, slot: int) -> int:
        """Return how often a slot was taken, more or less."""
        return load_u32(self._words, _place(slot))

    # Who waits for room

    def is_in_line(self, slot: int) -> bool:
        """Tell whether the process in a slot says that its senders wait for room."""
        return bool(load_u32(self._words, _place(slot) + PROCESS_IN_LINE))

    def set_in_line(self, stands: bool) -> None:
        """Say whether senders of this process wait for room."""
        store_u32(self._words, _place(self.slot) + PROCESS_IN_LINE, int(stands))

    def take_out_of_line(self, word: int) -> None:
        """Say for the process that a lock word names that its senders wait no more. Who has its slot now stays."""
        if self._has_slot(word):
            store_u32(self._words, _place(word >> LOCK_SLOT_SHIFT) + PROCESS_IN_LINE, 0)

    def in_line(self) -> Iterator[int]:
        """Return the processes that say so, as a lock word would: from the one behind us on, going round to us."""
        flags = self._words[PROCESS_SLOTS + PROCESS_IN_LINE : _place(PROCESS_SLOT_COUNT) : PROCESS_SLOT_SIZE]
        first = self.slot + 1
        flags = flags[first:] + flags[:first]
        at = -1
        while (at := flags.find(1, at + 1)) >= 0:
            slot = (first + at) % PROCESS_SLOT_COUNT
            yield slot << LOCK_SLOT_SHIFT | self.generation(slot) << LOCK_GENERATION_SHIFT

    def holder(self, slot: int) -> Holder:
        """Return how a process described itself."""
        return holder_at(self._words, slot)

    def holder_of(self, word: int) -> Holder | None:
        """Return who has a lock word; None if it is free."""
        return self.holder(word >> LOCK_SLOT_SHIFT) if word else None

    def alive(self) -> list[Holder]:
        """Return every process that has the channel open for writing, this one included."""
        ours = [self.slot] if self.slot else []
        return [self.holder(slot) for slot in sorted(self.others() + ours)]


def holder_at(words: mmap, slot: int) -> Holder:
    """Return how the process in a slot of a control page described itself."""
    try:
        _, _, pid, since, host = PROCESS.unpack_from(words, _place(slot))
        moment = datetime.fromtimestamp(since / 1e9, UTC)
        return Holder(pid, host.rstrip(b"\0").decode(), moment) if pid else Holder(None, None, None)
    except (struct.error, ValueError, OverflowError, OSError):
        return Holder(None, None, None)


def writers_of(files: Files, descriptor: int, words: mmap) -> list[Holder]:
    """Return every process that has a channel open for writing, for somebody who has not: only the right to read."""
    return [holder_at(words, slot) for slot in slots_taken(files, descriptor)]


def slots_taken(files: Files, descriptor: int) -> list[int]:
    """Return the slots of those processes."""
    return _slots(taken_bytes(files, descriptor, *_TABLE))


def _place(slot: int) -> int:
    return PROCESS_SLOTS + slot * PROCESS_SLOT_SIZE


def others_in(locks: KernelLocks) -> list[int]:
    """Return the slots of the processes that have a channel open for writing, but for this one."""
    return _slots(locks.taken(*_TABLE))


def _slots(taken: list[int]) -> list[int]:
    return [slot for slot, rest in (divmod(byte - PROCESS_SLOTS, PROCESS_SLOT_SIZE) for byte in taken) if not rest]


_TABLE: Final = _place(1), _place(PROCESS_SLOT_COUNT) - 1
"""The first byte and the last."""
