"""The machine that the protocols run on: processes, their store buffers, futexes and signals.

A state is (memory, processes). One move of one process makes at most one access to what is shared, so every order of
accesses is explored; a process that the scheduler forgets, or SIGSTOP stops, is simply one that does not move.

Stores are those of x86 (TSO): a plain store enters the FIFO buffer of its process and becomes visible at any later
time; loads look into the own buffer first; locked instructions, fences and system calls wait until the buffer is empty.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Generic, Protocol, TypeVar, final

from tests.model.checker import Label

Store = tuple[str, int]
"""The field of the memory, and what will be in it."""

Packed = tuple[int, ...]
"""A state as numbers: of the memory, then of each process. Small and quick to hash."""

M = TypeVar("M", bound=Hashable)
P = TypeVar("P", bound=Hashable)
T = TypeVar("T", bound=Hashable)


class Program(Protocol[M, P]):
    """A protocol: what each of the processes that share a memory can do."""

    @property
    def names(self) -> tuple[str, ...]:
        """The processes."""

    @property
    def faults(self) -> frozenset[str]:
        """The moves that may happen but must not be needed."""

    def initial(self) -> tuple[M, tuple[P, ...]]:
        """Where it begins."""

    def moves(self, who: int, memory: M, process: P) -> Iterable[tuple[str, M, P]]:
        """What process *who* can do next, signals that hit it included: (what, memory after, process after)."""

    def flaw(self, memory: M, processes: tuple[P, ...]) -> str | None:
        """What is wrong with this state, if anything."""

    def is_final(self, memory: M, processes: tuple[P, ...]) -> bool:
        """Whether every process may stay here for ever."""


@final
class Machine(Generic[M, P]):
    """A model for the checker: the program, with moves cached, since the same ones occur in many states."""

    def __init__(self, program: Program[M, P]) -> None:
        self._program = program
        self._memories: Numbered[M] = Numbered()
        self._processes: Numbered[P] = Numbered()
        self._moves: dict[tuple[int, int, int], list[tuple[Label, int, int]]] = {}

    def initial(self) -> Iterator[Packed]:
        """The one state where the program begins."""
        memory, processes = self._program.initial()
        yield (self._memories.number(memory), *map(self._processes.number, processes))

    def successors(self, state: Packed) -> Iterator[tuple[Label, Packed]]:
        """One move of one process."""
        memory = state[0]
        for who in range(1, len(state)):
            key = (who, memory, state[who])
            moves = self._moves.get(key)
            if moves is None:
                moves = self._moves[key] = list(self._compute_moves(*key))
            for label, new_memory, new_process in moves:
                yield label, (new_memory, *state[1:who], new_process, *state[who + 1 :])

    def _compute_moves(self, who: int, memory: int, process: int) -> Iterator[tuple[Label, int, int]]:
        name = self._program.names[who - 1]
        before = self._memories.items[memory], self._processes.items[process]
        for what, new_memory, new_process in self._program.moves(who - 1, *before):
            yield (name, what), self._memories.number(new_memory), self._processes.number(new_process)

    def unpack(self, state: Packed) -> tuple[M, tuple[P, ...]]:
        """The state that the numbers encode."""
        return self._memories.items[state[0]], tuple(map(self._processes.items.__getitem__, state[1:]))

    def holds(self, predicate: Callable[[M, tuple[P, ...]], bool]) -> Callable[[Packed], bool]:
        """The same predicate for packed states."""
        return lambda state: predicate(*self.unpack(state))

    def flaw(self, state: Packed) -> str | None:
        """What the program says."""
        return self._program.flaw(*self.unpack(state))

    def is_final(self, state: Packed) -> bool:
        """What the program says."""
        return self._program.is_final(*self.unpack(state))

    def is_fault(self, label: Label) -> bool:
        """Whether the move is a fault, on which no promise may rely."""
        return label[1] in self._program.faults

    def describe(self, state: Packed) -> str:
        """Memory and processes, fields at their defaults left out."""
        memory, processes = self.unpack(state)
        return "\n     ".join(map(brief, (memory, *processes)))


@final
class Numbered(Generic[T]):
    """Each different item gets a number."""

    def __init__(self) -> None:
        self.items: list[T] = []
        self._numbers: dict[T, int] = {}

    def number(self, item: T) -> int:
        """The number of *item*."""
        number = self._numbers.setdefault(item, len(self.items))
        if number == len(self.items):
            self.items.append(item)
        return number


def brief(item: object) -> str:
    """A named tuple without the fields that are zero or empty."""
    assert isinstance(item, tuple)
    fields: dict[str, object] = item._asdict()  # type: ignore[attr-defined]
    return ", ".join(f"{name}={value}" for name, value in fields.items() if value)


def loaded(memory: object, buffer: tuple[Store, ...], field: str) -> int:
    """What a process with this store buffer reads."""
    for name, value in reversed(buffer):
        if name == field:
            return value
    value = getattr(memory, field)
    assert isinstance(value, int)
    return value


def bits(mask: int) -> Iterator[int]:
    """The numbers of the bits that are set, lowest first."""
    number = 0
    while mask >> number:
        if mask >> number & 1:
            yield number
        number += 1
