"""What the lock protocol works on: the shared memory with the log, and the processes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.model.machine import Store

CONTENDED = 1
HALF, WHOLE = 1, 2
KILLED, STOPPED, CONTINUED = "is killed", "is stopped", "is continued"
LOCKS_BYTE, ANNOUNCES = "locks the byte of its slot", "announces a new generation"
COMES_BACK = "comes back and "
WAITS = frozenset({"try", "read", "probe byte", "probe generation", "take over", "contend", "wait", "asleep"})
OWNS = frozenset({"wipe", "forget", "reserve", "copy half", "copy rest", "publish", "unlock"})


class Memory(NamedTuple):
    """What the processes share, the kernel's part included."""

    word: int = 0
    tail: int = 0  # records published
    reserved_end: int = 0
    unpublished: int = 0  # what lies after the tail: nothing, half a record, a whole one
    flaw: str | None = None
    locked_bytes: int = 0  # a bit per slot
    generations: tuple[int, ...] = ()
    sleepers: int = 0  # a bit per process, on the futex
    stopped: int = 0
    kills: int = 0  # that may still happen


class Writer(NamedTuple):
    """One process, and after its death the one that registers the same slot."""

    step: str
    buffer: tuple[Store, ...] = ()
    seen: int = 0
    contended: int = 0  # what it acquires the lock with: once it has slept, others may sleep too
    left: int = 0  # messages to send
    generation: int = 1


Moves = Iterator[tuple[str, Memory, Writer]]
State = tuple[Memory, tuple[Writer, ...]]


def land(memory: Memory, store: Store) -> Memory:
    """The memory once *store* is visible, with the flaw that this reveals."""
    field, value = store
    if field == "reserved_end":
        return memory._replace(reserved_end=value)
    if field == "unpublished":
        if value == HALF and memory.unpublished:
            return memory._replace(flaw="a record is copied over an unpublished one")
        return memory._replace(unpublished=value)
    if value != memory.tail + 1:
        return memory._replace(flaw="a publication is lost")
    if memory.unpublished != WHOLE:
        return memory._replace(flaw="a record is published that is not whole")
    return memory._replace(tail=value, unpublished=0)
