"""The checker itself, on models small enough to see through."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import pytest

from tests.model.checker import Label, ViolationError, explore
from tests.model.machine import Machine, Store, loaded


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """A token that moves along edges; those that begin with "fault" are faults."""

    edges: dict[int, dict[str, int]]
    flawed: int = -1
    last: int = -1

    def initial(self) -> Iterator[int]:
        """It begins at 0."""
        yield 0

    def successors(self, state: int) -> Iterator[tuple[Label, int]]:
        """The edges that leave *state*."""
        for name, following in self.edges.get(state, {}).items():
            yield ("token", name), following

    def flaw(self, state: int) -> str | None:
        """One state may be flawed."""
        return "flawed" if state == self.flawed else None

    def is_final(self, state: int) -> bool:
        """One state may be final."""
        return state == self.last

    def is_fault(self, label: Label) -> bool:
        """The name says it."""
        return label[1].startswith("fault")

    def describe(self, state: int) -> str:
        """The number."""
        return str(state)


class Flags(NamedTuple):
    """The shared memory of the store-buffer test."""

    x: int = 0
    y: int = 0


class Thread(NamedTuple):
    """Stores one flag, loads the other."""

    step: str = "store"
    buffer: tuple[Store, ...] = ()
    result: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreThenLoad:
    """The classic: x = 1; read y, beside y = 1; read x. Without fences both may read 0."""

    fence: bool
    names: tuple[str, ...] = ("first", "second")
    faults: frozenset[str] = frozenset()

    def initial(self) -> tuple[Flags, tuple[Thread, ...]]:
        """Both flags are down."""
        return Flags(), (Thread(), Thread())

    def flaw(self, memory: Flags, processes: tuple[Thread, ...]) -> str | None:
        """Both missed each other."""
        return "both read 0" if all(process.result == 0 for process in processes) else None

    def is_final(self, memory: Flags, processes: tuple[Thread, ...]) -> bool:
        """Any state will do."""
        return True

    def moves(self, who: int, memory: Flags, process: Thread) -> Iterator[tuple[str, Flags, Thread]]:
        """Store, make visible, load."""
        mine, other = ("x", "y") if who == 0 else ("y", "x")
        if process.buffer:
            yield "makes it visible", memory._replace(**{mine: 1}), process._replace(buffer=())
        if process.step == "store":
            yield "stores", memory, Thread("load", ((mine, 1),))
        elif process.step == "load" and not (self.fence and process.buffer):
            yield "loads", memory, process._replace(step="end", result=loaded(memory, process.buffer, other))


def test_a_flaw_comes_with_the_shortest_trace() -> None:
    """The checker reports the shortest trace to a violated invariant."""
    walk = Walk(edges={0: {"long": 1, "short": 2}, 1: {"on": 3}, 3: {"in": 4}, 2: {"in": 4}}, flawed=4)
    with pytest.raises(ViolationError) as caught:
        explore(walk)
    assert caught.value.promise == "flawed"
    assert caught.value.trace == ["token short", "token in"]
    assert "  1. token short\n  2. token in\n  => 4" in str(caught.value)


def test_a_state_that_only_a_fault_can_leave_is_stuck() -> None:
    """A state that only a fault leaves is reported as stuck, and a final state is not."""
    edges = {0: {"go": 1}, 1: {"fault": 0}}
    with pytest.raises(ViolationError, match="stuck"):
        explore(Walk(edges=edges))
    assert len(explore(Walk(edges=edges, last=1))) == 2


def test_a_cycle_that_cannot_reach_the_good_state_is_found() -> None:
    """A cycle that never reaches the good state is found, although it is never stuck."""
    graph = explore(Walk(edges={0: {"good": 1, "bad": 2}, 1: {"stay": 1}, 2: {"round": 3}, 3: {"round": 2}}))
    with pytest.raises(ViolationError, match="arrive") as caught:
        graph.require_reachable("arrive", lambda state: state == 1)
    assert caught.value.trace == ["token bad"]
    graph.require_reachable("arrive somewhere", lambda state: state in (1, 3))


def test_a_fault_does_not_count_as_a_way_to_the_good_state() -> None:
    """A fault is not a way to the good state, because liveness must not depend on a kill."""
    graph = explore(Walk(edges={0: {"stay": 0, "fault": 1}, 1: {"stay": 1}}))
    with pytest.raises(ViolationError, match="arrive"):
        graph.require_reachable("arrive", lambda state: state == 1)


def test_an_endless_exploration_ends_with_an_error() -> None:
    """An exploration without end raises at its limit of states."""
    endless = Walk(edges={number: {"on": number + 1} for number in range(100)})
    with pytest.raises(MemoryError, match="more than 50 states"):
        explore(endless, limit=50)


def test_store_buffers_let_two_threads_miss_each_other() -> None:
    """Without a fence between store and load two threads may both read the old value."""
    with pytest.raises(ViolationError, match="both read 0"):
        explore(Machine(StoreThenLoad(fence=False)))
    explore(Machine(StoreThenLoad(fence=True)))
