"""The steps of a publisher in the wake protocol."""

from __future__ import annotations

from tests.model.machine import bits, loaded
from tests.model.wake_rules import FLAGS, GENERATION, LOOP, THREAD, Memory, Moves, Process, WakeRules


def publish(rules: WakeRules, who: int, memory: Memory, process: Process) -> Moves:
    """Lock the writer word (a locked instruction), then one plain store."""
    offset = loaded(memory, process.buffer, "write_offset") + 1
    if not rules.publisher_locks:
        stored = Process("fence", (*process.buffer, ("write_offset", offset)), left=process.left - 1)
        yield f"stores write_offset = {offset}", memory, stored
        return
    if rules.one_move_to_publish:
        yield f"publishes {offset}", memory._replace(write_offset=offset), Process("check", left=process.left - 1)
    elif memory.writer == 0 and not process.buffer:
        stored = Process("unlock", (("write_offset", offset),), left=process.left - 1)
        yield f"stores write_offset = {offset}", memory._replace(writer=who + 1), stored


def unlock(rules: WakeRules, who: int, memory: Memory, process: Process) -> Moves:
    """An exchange, which on x86 is the fence between the store and the look at the wake word."""
    if not rules.publisher_unlocks_by_swap:
        stored = process._replace(step="check", buffer=(*process.buffer, ("writer", 0)))
        yield "stores writer = 0", memory, stored
        return
    if not process.buffer:
        step = "check" if process.early < 0 else "checked early"
        yield "unlocks", memory._replace(writer=0), process._replace(step=step)
    if rules.loads_overtake_swaps and not rules.publisher_fence and process.early < 0:
        yield "looks at wake too early", memory, process._replace(early=1, seen=memory.wake)


def fence(rules: WakeRules, who: int, memory: Memory, process: Process) -> Moves:
    """Wait until the store is visible, before the look at the wake word."""
    if not process.buffer or not rules.publisher_fence:
        yield "continues", memory, process._replace(step="check")


def check(rules: WakeRules, who: int, memory: Memory, process: Process) -> Moves:
    """Load the wake word, to see whether there are waiters."""
    process = process._replace(seen=loaded(memory, process.buffer, "wake"))
    yield "looks at wake" + _answer(process), memory, _decided(rules, process)


def checked_early(rules: WakeRules, who: int, memory: Memory, process: Process) -> Moves:
    """The same, with what the CPU loaded too early."""
    process = process._replace(early=-1)
    yield "goes by what it saw" + _answer(process), memory, _decided(rules, process)


def clear(rules: WakeRules, who: int, memory: Memory, process: Process) -> Moves:
    """Swap the flags away and begin a new generation, so that no waiter falls asleep on what it saw before."""
    if process.buffer:
        return
    if rules.has_generation and memory.wake != process.seen:
        yield "finds wake changed", memory, process._replace(step="check", seen=0)
        return
    wake = (memory.wake + GENERATION) & ~FLAGS if rules.has_generation else 0
    # Without a generation it is a plain exchange: the flags that count are the ones it brings back.
    process = process._replace(seen=memory.wake & FLAGS)
    following = process._replace(step="wake threads") if process.seen & THREAD else _after_threads(rules, process)
    yield "clears wake", memory._replace(wake=wake), following


def wake_threads(rules: WakeRules, who: int, memory: Memory, process: Process) -> Moves:
    """FUTEX_WAKE(all)."""
    yield "wakes all threads", memory._replace(sleepers=0), _after_threads(rules, process)


def take_armed(rules: WakeRules, who: int, memory: Memory, process: Process) -> Moves:
    """Swap `armed` with 0; from now on the publisher has to send a byte to each loop whose bit was set."""
    process = process._replace(owed=process.owed | memory.armed)
    following = _written(process) if rules.wake_before_armed else process._replace(step="clear")
    yield "takes armed", memory._replace(armed=0), following


def write(rules: WakeRules, who: int, memory: Memory, process: Process) -> Moves:
    """One byte into one FIFO."""
    waiter = next(bits(process.owed))
    written = memory._replace(fifos=memory.fifos | 1 << waiter)
    following = _written(process._replace(owed=process.owed & ~(1 << waiter)))
    yield f"writes to the FIFO of {rules.names[waiter]}", written, following


def dying(rules: WakeRules, who: int, memory: Memory, process: Process) -> Moves:
    """Another process takes over the writer lock of the killed one."""
    if not process.buffer:
        yield "loses the writer word", memory._replace(writer=0), Process("dead")


def _answer(process: Process) -> str:
    return ": a waiter" if process.seen & FLAGS else ": no waiter"


def _decided(rules: WakeRules, process: Process) -> Process:
    if not process.seen & FLAGS:
        return _written(process)
    if process.seen & LOOP and not rules.wake_before_armed:
        return process._replace(step="take armed")
    return process._replace(step="clear")


def _after_threads(rules: WakeRules, process: Process) -> Process:
    if process.seen & LOOP and rules.wake_before_armed:
        return process._replace(step="take armed", seen=0)
    return _written(process)


def _written(process: Process) -> Process:
    if process.owed:
        return process._replace(step="write", seen=0)
    return Process("publish" if process.left else "ended", process.buffer, left=process.left)
