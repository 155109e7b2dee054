"""The processes that have a channel open for writing: a slot each, kept alive by the kernel.

A process holds the kernel's lock on the byte of its slot in the lock file for as long as it lives, and counts the
generation of the slot up when it takes it. So a lock word, which names a slot and a generation, says whether its owner
is alive without a pid and without a timeout: that works across containers, and a process that is merely stopped is
alive.

It also marks its slot in the control file, with a lock on its first byte, for those who cannot see the other one: users
who may only read, and processes that find another lock file. A reader can prevent that mark, so no process needs it to
share a channel.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from mmap import mmap
from pathlib import Path
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
from .holder import SHORTEST_NOTE, Holder
from .kernel_locks import KernelLocks, taken_bytes
from .lock_file import looking

_MOST_GENERATIONS = (1 << LOCK_GENERATION_BITS) - 1


class Processes:
    """The table of processes, and our own slot in it."""

    def __init__(self, words: mmap, locks: KernelLocks, marks: KernelLocks | None = None) -> None:
        """*locks* are those of the lock file, *marks* those of the control file."""
        self._words = words
        self._locks = locks
        self._marks = marks
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
            if slot not in taken and self._mark(slot):
                clear(slot)
                # The generation first: with the byte locked, an older one would make whoever died here look alive.
                generation = self._count_up(slot)
                if self._locks.take(slot):
                    self._describe(slot)
                    self.slot = slot
                    self.owner = slot << LOCK_SLOT_SHIFT | generation << LOCK_GENERATION_SHIFT
                    return
        raise StorageError(f"{PROCESS_SLOT_COUNT - 1} processes have the channel open, which is as many as can")

    def _mark(self, slot: int) -> bool:
        """Mark a slot, if no reader prevents it; False if a process has, which holds its locks on another file."""
        marks, place = self._marks, _place(slot)
        return marks is None or marks.take(place) or not marks.is_taken(place, shared=False)

    def _count_up(self, slot: int) -> int:
        generation = load_u32(self._words, _place(slot)) % _MOST_GENERATIONS + 1
        store_u32(self._words, _place(slot), generation)
        return generation

    def _describe(self, slot: int) -> None:
        # Behind the generation, which must never go back, wherever we die.
        store_u32(self._words, _place(slot) + PROCESS_IN_LINE, 0)
        self._words[_place(slot) + _FOR_PEOPLE : _place(slot) + PROCESS.size] = _note()

    def others(self) -> list[int]:
        """Return the slots of the other processes that are alive."""
        return others_in(self._locks)

    def strangers(self) -> list[int]:
        """Return the slots that other processes have marked, also those that hold their locks on another file."""
        return [] if self._marks is None else _slots(self._marks.taken(*_TABLE, shared=False))

    def is_alive(self, word: int) -> bool:
        """Return whether the process that a lock word names has not ended."""
        slot = word >> LOCK_SLOT_SHIFT
        # No process ever has slot 0; its byte is MODE_BYTE, which every writer has locked.
        return slot != 0 and self._has_slot(word) and (slot == self.slot or self._locks.is_taken(slot, shared=False))

    def _has_slot(self, word: int) -> bool:
        """Tell whether no other process has taken its slot since."""
        return self.generation(word >> LOCK_SLOT_SHIFT) == word >> LOCK_GENERATION_SHIFT & _MOST_GENERATIONS

    def generation(self, slot: int) -> int:
        """Return how often a slot was taken, more or less; as much of it as a lock word has, whatever is stored."""
        return load_u32(self._words, _place(slot)) & _MOST_GENERATIONS

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


def describe_opener(words: mmap) -> None:
    """Say in slot 0 that this process holds the opening byte."""
    words[_PEOPLE] = _note()


def forget_opener(words: mmap) -> None:
    """Say that no process does."""
    words[_PEOPLE] = bytes(_PEOPLE.stop - _PEOPLE.start)


def opener_of(files: Files, descriptor: int) -> Holder:
    """Return the process that holds the opening byte, as it described itself in an open control file."""
    return _holder(files.read_at(descriptor, PROCESS.size, PROCESS_SLOTS))


def holder_at(words: mmap, slot: int) -> Holder:
    """Return how the process in a slot of a control page described itself."""
    return _holder(words[_place(slot) : _place(slot) + PROCESS.size])


def _holder(described: bytes) -> Holder:
    try:
        _, _, pid, since, host = PROCESS.unpack(described)
        moment = datetime.fromtimestamp(since / 1e9, UTC)
        return Holder(pid, host.rstrip(b"\0").decode(), moment) if pid else Holder(None, None, None)
    except (struct.error, ValueError, OverflowError, OSError):
        return Holder(None, None, None)


def _note() -> bytes:
    """Return what a slot says for people, as of now."""
    host = socket.gethostname().encode()[:SHORTEST_NOTE]
    return PROCESS.pack(0, 0, os.getpid(), time.time_ns(), host)[_FOR_PEOPLE:]


@dataclass(frozen=True, slots=True)
class Living:
    """The processes that have a channel open for writing, as one sees them that has not."""

    slots: list[int]
    is_complete: bool
    """False for a user who may not open the lock file: a process whose mark a reader prevents is not seen."""


def living_in(files: Files, path: Path, descriptor: int) -> Living:
    """Look at the locks and the marks of a channel, whose control file is open."""
    marked = _slots(taken_bytes(files, descriptor, *_TABLE, shared=False))
    with looking(files, path) as sight:
        return Living(sorted({*marked, *sight.taken(1, PROCESS_SLOT_COUNT - 1)}), sight.is_complete)


def _place(slot: int) -> int:
    return PROCESS_SLOTS + slot * PROCESS_SLOT_SIZE


def others_in(locks: KernelLocks) -> list[int]:
    """Return the slots of the processes that have a channel open for writing, but for this one."""
    return locks.taken(1, PROCESS_SLOT_COUNT - 1, shared=False)


def _slots(taken: list[int]) -> list[int]:
    return [slot for slot, rest in (divmod(byte - PROCESS_SLOTS, PROCESS_SLOT_SIZE) for byte in taken) if not rest]


_TABLE: Final = _place(1), _place(PROCESS_SLOT_COUNT) - 1
"""The first byte and the last."""
_FOR_PEOPLE: Final = 8  # where pid, time and host begin in a slot
_PEOPLE: Final = slice(PROCESS_SLOTS + _FOR_PEOPLE, PROCESS_SLOTS + PROCESS.size)
