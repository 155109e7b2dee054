"""The registry word: consumers are positioned while maintenance decides what is the oldest message, and reclaims the
rest.

Messages are numbers. A fast consumer, which never moves, has read all of them but the last. Others register, at what
they take for the oldest, and seek back. The process that maintains the channel has the kernel's lock on a byte, which a
kill releases.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tests.model.machine import Store, loaded

DECIDED, COUNT = 1, 2
FAST = 2
NOWHERE = -1
KILLED = "is killed"


class Memory(NamedTuple):
    """What the processes share, the kernel's part included."""

    oldest: int = 0
    reclaiming: int = 0
    registry: int = 0
    place1: int = NOWHERE
    place2: int = NOWHERE
    removed: int = 0  # everything before it is reclaimed
    turn: int = 0  # the process that maintains the channel, plus one


class Process(NamedTuple):
    """A maintaining process, or a consumer."""

    step: str
    buffer: tuple[Store, ...] = ()
    seen: int = 0  # the registry word, as last seen
    found: int = 0  # what was found to be the oldest, or the position of the slowest
    back: int = 0  # consumer: how often it seeks back
    wanted: int = NOWHERE  # consumer: its new position, where it has to find its messages once it is registered there


Moves = Iterator[tuple[str, Memory, Process]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryProtocol:
    """Maintaining processes first, then at most two consumers; a flag of the last group that is not
    its default is a mutant.
    """

    names: tuple[str, ...] = ("maintainer1", "maintainer2", "consumer1", "consumer2")
    maintainers: int = 2
    back: int = 1
    faults: frozenset[str] = frozenset({KILLED})

    counts: bool = True  # a consumer that was positioned increments the word
    stores_before_counting: bool = True
    looks_after_noting: bool = True  # maintenance, at the positions
    decides_by_swap: bool = True
    believes_decisions: bool = True  # what is decided counts before it is written down
    removes_what_is_decided: bool = True  # not what it wants to decide

    def initial(self) -> tuple[Memory, tuple[Process, ...]]:
        """Nothing is reclaimed, and only the fast consumer is registered."""
        consumers = len(self.names) - self.maintainers
        return Memory(), (Process("begin"),) * self.maintainers + (Process("come", back=self.back),) * consumers

    def flaw(self, memory: Memory, processes: tuple[Process, ...]) -> str | None:
        """A consumer whose position is final finds its messages."""
        for process in processes[self.maintainers :]:
            if process.step in ("settled", "ended") and process.wanted < memory.removed:
                return "a consumer finds its messages gone"
        return None

    def is_final(self, memory: Memory, processes: tuple[Process, ...]) -> bool:
        """The consumers are where they wanted to be; maintenance runs for ever, or is dead."""
        return all(process.step == "ended" for process in processes[self.maintainers :])

    def moves(self, who: int, memory: Memory, process: Process) -> Moves:
        """The store buffer, a kill, then the next step of the program."""
        if process.buffer:
            (field, value), *younger = process.buffer
            yield (
                f"makes {field} = {value} visible",
                memory._replace(**{field: value}),
                process._replace(buffer=tuple(younger)),
            )
        if who < self.maintainers:
            if process.step != "dead":
                # What it has stored still becomes visible, before the kernel frees its lock.
                freed = memory if memory.turn != who + 1 else memory._replace(**dict(process.buffer), turn=0)
                yield KILLED, freed, Process("dead")
            yield from self._maintainer(who, memory, process)
        else:
            yield from self._consumer(who, memory, process)

    # The process that maintains the channel

    def _maintainer(self, who: int, memory: Memory, process: Process) -> Moves:
        step, drained = process.step, not process.buffer
        if step == "begin" and memory.turn == 0:
            yield "takes its turn", memory._replace(turn=who + 1), process._replace(step="note")
        elif step == "note":
            if memory.registry & DECIDED:
                yield "finds a decision", memory, process._replace(step="write down")
            elif not self.looks_after_noting and process.found == 0:
                yield "looks too early", memory, process._replace(found=1 + _slowest(memory))
            else:
                yield "notes registry", memory, process._replace(step="look", seen=memory.registry)
        elif step == "look":
            slowest = process.found - 1 if process.found else _slowest(memory)
            if slowest <= memory.oldest:
                yield "finds nothing to do", memory._replace(turn=0), Process("begin")
            else:
                stored = (("reclaiming", slowest),)
                following = "decide" if self.removes_what_is_decided else "remove first"
                yield f"stores reclaiming = {slowest}", memory, Process(following, stored, process.seen, slowest)
        elif step == "remove first":
            yield (
                f"removes up to {process.found}",
                memory._replace(removed=max(memory.removed, process.found)),
                process._replace(step="decide"),
            )
        elif step == "decide" and drained:
            if memory.registry == process.seen or not self.decides_by_swap:
                decided = memory._replace(registry=process.seen | DECIDED)
                yield "decides", decided, process._replace(step="write down")
            else:
                yield "finds registry changed", memory._replace(turn=0), Process("begin")
        elif step == "write down":
            oldest = max(memory.oldest, memory.reclaiming)
            yield f"stores oldest = {oldest}", memory, Process("clear", (("oldest", oldest),))
        elif step == "clear" and drained:
            yield "clears the bit", memory._replace(registry=memory.registry & ~DECIDED), Process("remove")
        elif step == "remove":
            yield f"removes up to {memory.oldest}", memory._replace(removed=memory.oldest, turn=0), Process("begin")

    # The consumer that is positioned

    def _consumer(self, who: int, memory: Memory, process: Process) -> Moves:
        place = f"place{who - self.maintainers + 1}"
        step = process.step
        if step in ("come", "compare"):
            yield from self._look_for_the_oldest(memory, process)
        elif step == "come, decided":
            yield from self._look_again(memory, process, "come", "put")
        elif step == "compare, decided":
            yield from self._look_again(memory, process, "compare", "compared")
        elif step == "put":
            stored = Process("count", (*process.buffer, (place, process.found)), back=process.back)
            stored = stored._replace(wanted=process.found)
            if self.stores_before_counting:
                yield f"is put at {process.found}", memory, stored
            elif not process.buffer:
                counted = memory._replace(registry=memory.registry + COUNT)
                yield f"counts up and is put at {process.found}", counted, stored._replace(step="compare")
        elif step == "count":
            if not self.counts:
                yield "does not count", memory, process._replace(step="compare")
            elif not process.buffer:
                counted = memory._replace(registry=memory.registry + COUNT)
                yield "counts up", counted, process._replace(step="compare")
        elif step == "compared":
            if process.wanted < process.found:
                yield "came too late", memory, process._replace(step="come", wanted=NOWHERE)
            else:
                yield "is settled", memory, process._replace(step="settled" if process.back else "ended")
        elif step == "settled":
            yield (
                "takes all but one",
                memory,
                Process("go back", (*process.buffer, (place, FAST)), back=process.back - 1, wanted=FAST),
            )
        elif step == "go back":
            yield "goes back", memory, process._replace(step="come", wanted=NOWHERE)

    def _look_for_the_oldest(self, memory: Memory, process: Process) -> Moves:
        registry = loaded(memory, process.buffer, "registry")
        following = "put" if process.step == "come" else "compared"
        if registry & DECIDED and self.believes_decisions:
            found = max(memory.oldest, memory.reclaiming)
            step = f"{process.step}, decided"
            yield f"reads {found}, which is decided", memory, process._replace(step=step, seen=registry, found=found)
        else:
            yield f"reads oldest = {memory.oldest}", memory, process._replace(step=following, found=memory.oldest)

    def _look_again(self, memory: Memory, process: Process, again: str, following: str) -> Moves:
        if memory.registry == process.seen:
            yield "sees the same registry", memory, process._replace(step=following, seen=0)
        else:
            yield "sees another registry", memory, process._replace(step=again, seen=0)


def _slowest(memory: Memory) -> int:
    return min(place for place in (FAST, memory.place1, memory.place2) if place != NOWHERE)
