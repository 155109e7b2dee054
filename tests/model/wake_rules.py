"""The wake word: how waiters notice that something was published.

Bit 0 of the word says that a thread sleeps on it, bit 1 that a task of an event loop waits; the rest is a generation.
Event loops have a bit each in `armed` and a FIFO each. Publishers store `write_offset` under the writer lock, which is
only a mutex here: a process that is killed with it loses it once its stores have landed (lock_protocol.py models the
lock itself).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tests.model.machine import Store

THREAD, LOOP, FLAGS, GENERATION = 1, 2, 3, 4
KILLED = "is killed"


class Memory(NamedTuple):
    """What the processes share, the kernel's part included."""

    write_offset: int = 0
    wake: int = 0
    armed: int = 0  # a bit per process
    fifos: int = 0  # a bit per process: there is at least a byte in its FIFO
    sleepers: int = 0  # a bit per process, on the futex
    writer: int = 0  # the holder of the writer lock, plus one


class Process(NamedTuple):
    """A publisher, or a waiter: a thread or a task of an event loop."""

    step: str
    buffer: tuple[Store, ...] = ()
    seen: int = 0  # the wake word, as last seen
    left: int = 0  # publisher: messages to publish
    owed: int = 0  # publisher: a bit per FIFO that it has to write to
    received: int = 0  # waiter: how far it has read
    early: int = -1  # what the CPU has loaded too early: write_offset for a waiter, 1 for a publisher


Moves = Iterator[tuple[str, Memory, Process]]
State = tuple[Memory, tuple[Process, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class WakeRules:
    """The processes that take part, and the protocol; each flag of the last group that is not at its default is a
    mutant.
    """

    names: tuple[str, ...] = ("P1", "P2", "thread", "loop")
    messages: tuple[int, ...] = (1, 1)
    kills: bool = False
    bounded_sleeps: bool = False
    publisher_locks: bool = True  # not for a consumer that moves: what it stores is its own, and a fence follows
    one_move_to_publish: bool = False  # makes no difference unless the stores outlive the critical section
    loads_overtake_swaps: bool = False  # as on ARM, where an atomic instruction is not a fence
    faults: frozenset[str] = frozenset({KILLED})

    waiter_fence: bool = True
    waiter_arms_by_swap: bool = True
    publisher_fence: bool = True  # an explicit one, besides the exchange that unlocks
    publisher_unlocks_by_swap: bool = True
    has_generation: bool = True
    loop_always_swaps: bool = True  # the wake word, even if its bit is set already
    armed_before_wake: bool = True  # the loop's bit in `armed`, then its bit in the wake word
    wake_before_armed: bool = True  # the publisher clears the wake word, then takes `armed`
