"""The content of a group's file: the words that the members share, and the ring of their deliveries.

`docs/format.md` describes both. The members change most words through the native core (`_format/read/group_ring`).
"""

from __future__ import annotations

import mmap
from typing import final

from typing_extensions import Buffer

from ..._format import load_u64, store_u32, store_u64, swap_if_u64
from ..._format.layout import (
    ENTRY,
    ENTRY_ACKED,
    ENTRY_SKIPPED,
    ENTRY_STATE,
    GROUP_DUE,
    GROUP_ENTRIES,
    GROUP_HEAD,
    GROUP_INITIALIZED,
    GROUP_LOCK,
    GROUP_NEXT,
    GROUP_NEXT_SEQUENCE,
    GROUP_SIZE,
    GROUP_TAIL,
    LARGEST_OFFSET,
)
from ..._format.read.group_ring import entry_start, is_sound

U64 = (1 << 64) - 1
DONE = (ENTRY_ACKED, ENTRY_SKIPPED)
"""The states of an entry whose message is not delivered any more."""


@final
class GroupWords:
    """The words of an open group file. Any thread may read them; changing them takes the lock or a compare-and-swap."""

    def __init__(self, content: mmap.mmap) -> None:
        self.map: mmap.mmap = content

    @property
    def next(self) -> tuple[int, int]:
        """Offset and sequence of the next message that no member has claimed yet."""
        return self.load(GROUP_NEXT), self.load(GROUP_NEXT_SEQUENCE)

    @property
    def is_full(self) -> bool:
        """Whether the ring has no free entry."""
        return self.load(GROUP_TAIL) - self.load(GROUP_HEAD) >= GROUP_ENTRIES

    def numbers(self) -> range:
        """Return the numbers of the entries in the ring, oldest first."""
        return range(self.load(GROUP_HEAD), self.load(GROUP_TAIL))

    def resume_at(self, offset: int, sequence: int) -> None:
        """Set the offset and sequence of the next message to claim."""
        self.store(GROUP_NEXT, offset)
        self.store(GROUP_NEXT_SEQUENCE, sequence & U64)

    def lower_due(self, when: int) -> None:
        """Let the entries be checked at this time (monotonic clock, ns) at the latest."""
        while when < (due := self.load(GROUP_DUE)) and not swap_if_u64(self.map, GROUP_DUE, due, when):
            pass

    def load(self, word: int) -> int:
        """Load a word of the file."""
        return load_u64(self.map, word)

    def store(self, word: int, value: int) -> None:
        """Store a word of the file."""
        store_u64(self.map, word, value)

    def word(self, number: int) -> int:
        """Load the word of an entry: state, attempt and owner."""
        return load_u64(self.map, entry_start(number))

    def read(self, number: int) -> tuple[int, int, int, int, int]:
        """Return word, offset, end, sequence and deadline of an entry."""
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
        if word & ENTRY_STATE not in DONE and offset >= end:
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
