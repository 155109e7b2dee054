"""The writer lock: which process may append, and what happens when the lock holder is killed.

Each process has a slot. The lock word is 0 when free, else slot | generation | contended. A writer reserves, copies a
record in two halves, publishes it and unlocks; a process that takes over from a dead writer wipes what was reserved but
not published. Spinning is not modelled: a failed compare-and-swap that is tried again changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.model.lock_state import (
    ANNOUNCES,
    COMES_BACK,
    CONTENDED,
    CONTINUED,
    HALF,
    KILLED,
    LOCKS_BYTE,
    OWNS,
    STOPPED,
    WAITS,
    WHOLE,
    Memory,
    Moves,
    State,
    Writer,
    land,
)
from tests.model.machine import Store, bits


@dataclass(frozen=True, slots=True, kw_only=True)
class LockProtocol:
    """The circumstances, and the protocol; each flag that is not at its default is a mutant."""

    names: tuple[str, ...] = ("A", "B")
    messages: int = 1
    kills: int = 0
    victims: str = "AB"
    generations: int = 1
    comes_back_to_send: bool = True
    store_buffers: bool = True
    stops: bool = False
    bounded_sleeps: bool = True
    faults: frozenset[str] = frozenset({KILLED, STOPPED, COMES_BACK + LOCKS_BYTE, COMES_BACK + ANNOUNCES})

    probes_generation: bool = True
    generation_in_word: bool = True
    takes_over_by_swap: bool = True
    looks_at_contended: bool = True
    stays_contended: bool = True
    cleans_up: bool = True
    wipes_before_forgetting: bool = True
    stores_land_before_byte_is_free: bool = True
    generation_before_byte: bool = True

    def initial(self) -> State:
        """All processes are registered and want to send."""
        count = len(self.names)
        memory = Memory(locked_bytes=(1 << count) - 1, generations=(1,) * count, kills=self.kills)
        return memory, (Writer("try", left=self.messages),) * count

    def flaw(self, memory: Memory, processes: tuple[Writer, ...]) -> str | None:
        """Two owners, an unpublished record under a free word, or a flaw that a store left behind."""
        if sum(process.step in OWNS for process in processes) > 1:
            return "two live owners"
        if memory.word == 0 and memory.unpublished:
            return "the word is free and an unpublished record lies after the tail"
        return memory.flaw

    def is_final(self, memory: Memory, processes: tuple[Writer, ...]) -> bool:
        """Every process has sent everything, is dead or is stopped."""
        return all(
            process.step in ("ended", "dead") or memory.stopped >> who & 1 for who, process in enumerate(processes)
        )

    def served(self, who: int) -> Callable[[Memory, tuple[Writer, ...]], bool]:
        """Whether process *who* has the lock, does not want it, or waits for a holder that was stopped with it."""

        def good(memory: Memory, processes: tuple[Writer, ...]) -> bool:
            if processes[who].step not in WAITS or memory.stopped >> who & 1:
                return True
            return any(memory.stopped >> other & 1 and processes[other].step in OWNS for other in range(len(processes)))

        return good

    def owner_word(self, who: int, process: Writer) -> int:
        """The value of the lock word when *who* has it, not contended."""
        return (who + 1) << 4 | (process.generation if self.generation_in_word else 0) << 1

    def moves(self, who: int, memory: Memory, process: Writer) -> Moves:
        """Signals, the store buffer, then the next step of the program."""
        step, me = process.step, 1 << who
        if process.buffer:
            store, *younger = process.buffer
            yield f"makes {store[0]} = {store[1]} visible", land(memory, store), process._replace(buffer=tuple(younger))
        if step not in ("dead", "ended", "dying"):
            if memory.kills and self.names[who] in self.victims:
                yield from self._kill(who, memory, process)
            if self.stops:
                toggled = memory._replace(stopped=memory.stopped ^ me)
                yield CONTINUED if memory.stopped & me else STOPPED, toggled, process
        if step != "ended" and not memory.stopped & me:
            yield from STEPS[step](self, who, memory, process)

    def _kill(self, who: int, memory: Memory, process: Writer) -> Moves:
        """SIGKILL: what was stored still lands, and only then the kernel unlocks the byte."""
        me = 1 << who
        memory = memory._replace(kills=memory.kills - 1, sleepers=memory.sleepers & ~me, stopped=memory.stopped & ~me)
        dying = Writer("dying", process.buffer, generation=process.generation)
        if self.stores_land_before_byte_is_free and process.buffer:
            yield KILLED, memory, dying
        else:
            yield KILLED, memory._replace(locked_bytes=memory.locked_bytes & ~me), dying._replace(step="dead")

    def _dying(self, who: int, memory: Memory, process: Writer) -> Moves:
        if not process.buffer:
            freed = memory._replace(locked_bytes=memory.locked_bytes & ~(1 << who))
            yield "loses the byte of its slot", freed, process._replace(step="dead")

    def _register(self, who: int, memory: Memory, process: Writer) -> Moves:
        """A new process takes the slot of the dead one: two moves, in one of two orders."""
        first = process.step == "dead"
        if first and memory.generations[who] == self.generations:
            return
        if first == self.generation_before_byte:
            generation = memory.generations[who] + 1
            generations = (*memory.generations[:who], generation, *memory.generations[who + 1 :])
            what, memory = ANNOUNCES, memory._replace(generations=generations)
        else:
            what, memory = LOCKS_BYTE, memory._replace(locked_bytes=memory.locked_bytes | 1 << who)
        if first:
            yield COMES_BACK + what, memory, process._replace(step="registering")
        elif self.comes_back_to_send:
            yield what, memory, Writer("try", left=self.messages, generation=memory.generations[who])
        else:
            yield what, memory, Writer("ended", generation=memory.generations[who])

    def _try(self, who: int, memory: Memory, process: Writer) -> Moves:
        if memory.word == 0:
            word = self.owner_word(who, process) | process.contended
            yield "locks the word", memory._replace(word=word), process._replace(step="reserve", contended=0)
        else:
            contended = process.contended if self.stays_contended else 0
            yield "finds the word taken", memory, process._replace(step="read", contended=contended)

    def _read(self, who: int, memory: Memory, process: Writer) -> Moves:
        if memory.word == 0:
            yield "reads a free word", memory, process._replace(step="try")
        else:
            probe = "probe generation" if self.probes_generation and self.generation_in_word else "probe byte"
            yield "reads who has the word", memory, process._replace(step=probe, seen=memory.word)

    def _probe_generation(self, who: int, memory: Memory, process: Writer) -> Moves:
        if memory.generations[(process.seen >> 4) - 1] == process.seen >> 1 & 7:
            yield "finds the owner's generation current", memory, process._replace(step="probe byte")
        else:
            yield "finds the owner's generation outdated", memory, process._replace(step="take over")

    def _probe_byte(self, who: int, memory: Memory, process: Writer) -> Moves:
        owner = (process.seen >> 4) - 1
        # The kernel does not report a lock to its holder: a process sees its own byte as unlocked.
        if owner == who or not memory.locked_bytes >> owner & 1:
            yield "finds the owner's byte unlocked", memory, process._replace(step="take over")
        else:
            yield "finds the owner's byte locked", memory, process._replace(step="contend")

    def _take_over(self, who: int, memory: Memory, process: Writer) -> Moves:
        if memory.word == process.seen or not self.takes_over_by_swap:
            memory = memory._replace(word=self.owner_word(who, process) | CONTENDED)
            step = "wipe" if self.cleans_up else "reserve"
            yield "takes over", memory, process._replace(step=step, seen=0, contended=0)
        else:
            yield "is too late to take over", memory, process._replace(step="try", seen=0)

    def _contend(self, who: int, memory: Memory, process: Writer) -> Moves:
        if process.seen & CONTENDED:
            yield "need not mark the word", memory, process._replace(step="wait")
        elif memory.word == process.seen:
            marked = memory._replace(word=memory.word | CONTENDED)
            yield "marks the word contended", marked, process._replace(step="wait", seen=marked.word)
        else:
            yield "is too late to mark the word", memory, process._replace(step="try", seen=0)

    def _wait(self, who: int, memory: Memory, process: Writer) -> Moves:
        if memory.word == process.seen:
            asleep = memory._replace(sleepers=memory.sleepers | 1 << who)
            yield "sleeps", asleep, process._replace(step="asleep", seen=0)
        else:
            yield "need not sleep", memory, process._replace(step="try", seen=0)

    def _asleep(self, who: int, memory: Memory, process: Writer) -> Moves:
        awake = process._replace(step="try", contended=CONTENDED)
        if not memory.sleepers >> who & 1:
            yield "wakes up", memory, awake
        elif self.bounded_sleeps:
            yield "has slept long enough", memory._replace(sleepers=memory.sleepers & ~(1 << who)), awake

    def _wipe(self, who: int, memory: Memory, process: Writer) -> Moves:
        """Clean-up: both stores may be repeated by the next one if this one dies, but only in this order."""
        if memory.reserved_end == memory.tail:
            yield "finds nothing to clean", memory, process._replace(step="reserve")
            return
        store: Store = ("unpublished", 0) if self.wipes_before_forgetting else ("reserved_end", memory.tail)
        yield self._store("wipe", memory, process._replace(step="forget"), store)

    def _forget(self, who: int, memory: Memory, process: Writer) -> Moves:
        store: Store = ("reserved_end", memory.tail) if self.wipes_before_forgetting else ("unpublished", 0)
        yield self._store("forget", memory, process._replace(step="reserve"), store)

    def _write(self, who: int, memory: Memory, process: Writer) -> Moves:
        following, field, value = WRITING[process.step]
        yield self._store(process.step, memory, process._replace(step=following), (field, value or memory.tail + 1))

    def _store(self, what: str, memory: Memory, process: Writer, store: Store) -> tuple[str, Memory, Writer]:
        if self.store_buffers:
            return f"does: {what}", memory, process._replace(buffer=(*process.buffer, store))
        return f"does: {what}", land(memory, store), process

    def _unlock(self, who: int, memory: Memory, process: Writer) -> Moves:
        if process.buffer:
            return
        rest = process._replace(step="try" if process.left > 1 else "ended", left=process.left - 1)
        if memory.word & CONTENDED and self.looks_at_contended:
            yield "unlocks and owes a wakeup", memory._replace(word=0), rest._replace(step="wake one")
        else:
            yield "unlocks", memory._replace(word=0), rest

    def _wake_one(self, who: int, memory: Memory, process: Writer) -> Moves:
        rest = process._replace(step="try" if process.left else "ended")
        if not memory.sleepers:
            yield "wakes no process", memory, rest
        for sleeper in bits(memory.sleepers):
            yield f"wakes {self.names[sleeper]}", memory._replace(sleepers=memory.sleepers & ~(1 << sleeper)), rest


STEPS: dict[str, Callable[[LockProtocol, int, Memory, Writer], Moves]] = {
    "try": LockProtocol._try,
    "read": LockProtocol._read,
    "probe byte": LockProtocol._probe_byte,
    "probe generation": LockProtocol._probe_generation,
    "take over": LockProtocol._take_over,
    "contend": LockProtocol._contend,
    "wait": LockProtocol._wait,
    "asleep": LockProtocol._asleep,
    "wipe": LockProtocol._wipe,
    "forget": LockProtocol._forget,
    "reserve": LockProtocol._write,
    "copy half": LockProtocol._write,
    "copy rest": LockProtocol._write,
    "publish": LockProtocol._write,
    "unlock": LockProtocol._unlock,
    "wake one": LockProtocol._wake_one,
    "dying": LockProtocol._dying,
    "dead": LockProtocol._register,
    "registering": LockProtocol._register,
}

WRITING = {
    "reserve": ("copy half", "reserved_end", 0),
    "copy half": ("copy rest", "unpublished", HALF),
    "copy rest": ("publish", "unpublished", WHOLE),
    "publish": ("unlock", "tail", 0),
}
