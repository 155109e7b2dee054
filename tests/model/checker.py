"""A small explicit-state model checker.

It visits every state that a model can reach, breadth first, so the first violation it meets has a shortest trace. Three
things are checked: no state has a flaw; no state is stuck (a process still waits, and nothing can happen but faults);
and, on demand, that from every state a good one can still be reached without the help of faults.
"""

from __future__ import annotations

import gc
from array import array
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from typing import Generic, Protocol, TypeVar, final

Label = tuple[str, str]
"""The process and its move."""

S = TypeVar("S", bound=Hashable)


class Model(Protocol[S]):
    """What the checker needs to know about a protocol."""

    def initial(self) -> Iterable[S]:
        """The states in which it may begin."""

    def successors(self, state: S) -> Iterable[tuple[Label, S]]:
        """Everything that can happen next."""

    def flaw(self, state: S) -> str | None:
        """What is wrong with this state, if anything."""

    def is_final(self, state: S) -> bool:
        """Whether every process may stay here for ever."""

    def is_fault(self, label: Label) -> bool:
        """Whether this may happen but must not be needed, such as a kill."""

    def describe(self, state: S) -> str:
        """The state, to be read by people."""


@final
class ViolationError(Exception):
    """A promise that the protocol does not keep, with the shortest way there."""

    def __init__(self, promise: str, trace: list[Label], state: str) -> None:
        self.promise = promise
        self.trace = [f"{who} {what}" for who, what in trace]
        lines = (f"{number:3}. {step}" for number, step in enumerate(self.trace, 1))
        super().__init__("\n".join([promise, *lines, f"  => {state}"]))


@final
class Graph(Generic[S]):
    """Every reachable state, in the order of its distance from the beginning."""

    def __init__(self, describe: Callable[[S], str]) -> None:
        self.states: list[S] = []
        self._describe = describe
        self._numbers: dict[S, int] = {}
        self._origins: list[tuple[int, Label] | None] = []
        # The moves that are not faults, as two columns: millions of small objects would be slow to make.
        self._befores = array("L")
        self._afters = array("L")

    def __len__(self) -> int:
        return len(self.states)

    def add(self, state: S, before: int, label: Label | None) -> int:
        """The number of *state*, a new one if it was not known."""
        number = self._numbers.get(state)
        if number is None:
            number = self._numbers[state] = len(self.states)
            self.states.append(state)
            self._origins.append(None if label is None else (before, label))
        return number

    def connect(self, before: int, after: int) -> None:
        """Note that *after* can be reached from *before* without a fault."""
        self._befores.append(before)
        self._afters.append(after)

    def violation(self, promise: str, number: int) -> ViolationError:
        """The error that says how state *number* came about."""
        trace: list[Label] = []
        origin = self._origins[number]
        while origin is not None:
            trace.append(origin[1])
            origin = self._origins[origin[0]]
        return ViolationError(promise, trace[::-1], self._describe(self.states[number]))

    def require_reachable(self, promise: str, good: Callable[[S], bool]) -> None:
        """Raise ViolationError unless from every state a good one can be reached without a fault."""
        with _collector_paused():
            hopeless = self._hopeful(good).find(0)
        if hopeless >= 0:
            raise self.violation(promise, hopeless)

    def _hopeful(self, good: Callable[[S], bool]) -> bytearray:
        """A 1 for each state from which a good one can be reached: backwards from the good ones."""
        predecessors: list[list[int]] = [[] for _ in self.states]
        for before, after in zip(self._befores, self._afters, strict=True):
            predecessors[after].append(before)
        pending = [number for number, state in enumerate(self.states) if good(state)]
        hopeful = bytearray(len(self.states))
        for number in pending:
            hopeful[number] = 1
        while pending:
            for before in predecessors[pending.pop()]:
                if not hopeful[before]:
                    hopeful[before] = 1
                    pending.append(before)
        return hopeful


def explore(model: Model[S], limit: int = 1_000_000) -> Graph[S]:
    """Visit every state; raise ViolationError at the first one that is flawed or stuck, MemoryError beyond *limit*."""
    graph = Graph(model.describe)
    with _collector_paused():
        for state in model.initial():
            graph.add(state, 0, None)
        for number, state in enumerate(graph.states):  # `graph.states` grows during the loop
            _visit(model, graph, number, state)
            if len(graph) > limit:
                raise MemoryError(f"more than {limit} states")
    return graph


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Millions of tuples that all stay: the collector would look at them again and again."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def _visit(model: Model[S], graph: Graph[S], number: int, state: S) -> None:
    flaw = model.flaw(state)
    if flaw is not None:
        raise graph.violation(flaw, number)
    stuck = True
    for label, following in model.successors(state):
        after = graph.add(following, number, label)
        if not model.is_fault(label):
            graph.connect(number, after)
            stuck = False
    if stuck and not model.is_final(state):
        raise graph.violation("stuck", number)
