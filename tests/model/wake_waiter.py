"""The steps of a waiter in the wake protocol: a thread that sleeps on the futex, or a task that watches a FIFO."""

from __future__ import annotations

from tests.model.wake_rules import LOOP, THREAD, Memory, Moves, Process, WakeRules


def look(rules: WakeRules, who: int, memory: Memory, process: Process) -> Moves:
    """Receive all there is, or get ready to wait."""
    if memory.write_offset > process.received:
        yield f"receives up to {memory.write_offset}", memory, process._replace(received=memory.write_offset)
    elif _flag(rules, who) == LOOP and rules.armed_before_wake:
        yield "finds nothing", memory, process._replace(step="arm itself")
    else:
        yield "finds nothing", memory, process._replace(step="load")


def arm_itself(rules: WakeRules, who: int, memory: Memory, process: Process) -> Moves:
    """A loop sets its bit in `armed`; a CPU may load the wake word before that is visible."""
    if rules.loads_overtake_swaps and not rules.loop_always_swaps and memory.wake & LOOP:
        yield "finds wake armed, too early", memory, process._replace(step="arm itself late")
    step = "load" if rules.armed_before_wake else "look again"
    yield "sets its bit in armed", memory._replace(armed=memory.armed | 1 << who), process._replace(step=step)


def arm_itself_late(rules: WakeRules, who: int, memory: Memory, process: Process) -> Moves:
    """The same, when the wake word has been looked at already."""
    yield "sets its bit in armed", memory._replace(armed=memory.armed | 1 << who), process._replace(step="look again")


def load(rules: WakeRules, who: int, memory: Memory, process: Process) -> Moves:
    """Load the wake word, to see whether the own flag is set already."""
    if process.buffer:
        return
    yield from _look_too_early(rules, memory, process)
    flag = _flag(rules, who)
    if memory.wake & flag and not (flag == LOOP and rules.loop_always_swaps):
        yield "finds wake armed", memory, _armed(rules, who, process, memory.wake)
    else:
        yield "reads wake", memory, process._replace(step="arm", seen=memory.wake)


def arm(rules: WakeRules, who: int, memory: Memory, process: Process) -> Moves:
    """Set the own flag in the wake word."""
    yield from _look_too_early(rules, memory, process)
    wake = process.seen | _flag(rules, who)
    if not rules.waiter_arms_by_swap:
        yield f"stores wake = {wake}", memory, _armed(rules, who, process._replace(buffer=(("wake", wake),)), wake)
    elif memory.wake == process.seen:
        yield "arms wake", memory._replace(wake=wake), _armed(rules, who, process, wake)
    else:
        yield "finds wake changed", memory, process._replace(step="load", seen=0)


def look_again(rules: WakeRules, who: int, memory: Memory, process: Process) -> Moves:
    """What was published before the flag was visible is found here; what comes later finds the flag."""
    if rules.waiter_fence and process.buffer:
        return
    offset = memory.write_offset if process.early < 0 else process.early
    if offset > process.received:
        yield f"looks again and receives up to {offset}", memory, Process("look", process.buffer, received=offset)
    else:
        step = "wait" if _flag(rules, who) == THREAD else "asleep"
        yield "looks again and finds nothing", memory, process._replace(step=step, early=-1)


def wait(rules: WakeRules, who: int, memory: Memory, process: Process) -> Moves:
    """FUTEX_WAIT: compare and sleep, in one."""
    if process.buffer:
        return
    if memory.wake == process.seen:
        asleep_now = memory._replace(sleepers=memory.sleepers | 1 << who)
        yield "sleeps", asleep_now, process._replace(step="asleep", seen=0)
    else:
        yield "need not sleep", memory, process._replace(step="look", seen=0)


def asleep(rules: WakeRules, who: int, memory: Memory, process: Process) -> Moves:
    """Until woken, or until the time is up."""
    me, awake = 1 << who, process._replace(step="look")
    if memory.fifos & me:
        yield "reads its FIFO", memory._replace(fifos=memory.fifos & ~me), awake
    elif _flag(rules, who) == THREAD and not memory.sleepers & me:
        yield "wakes up", memory, awake
    elif rules.bounded_sleeps:
        yield "has slept long enough", memory._replace(sleepers=memory.sleepers & ~me), awake


def _flag(rules: WakeRules, who: int) -> int:
    return LOOP if rules.names[who].startswith("loop") else THREAD


def _armed(rules: WakeRules, who: int, process: Process, wake: int) -> Process:
    if _flag(rules, who) == THREAD:
        return process._replace(step="look again", seen=wake)
    return process._replace(step="look again" if rules.armed_before_wake else "arm itself", seen=0)


def _look_too_early(rules: WakeRules, memory: Memory, process: Process) -> Moves:
    if rules.loads_overtake_swaps and not rules.waiter_fence and process.early < 0:
        yield "looks at write_offset too early", memory, process._replace(early=memory.write_offset)
