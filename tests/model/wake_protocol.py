"""The wake protocol as a whole: where it begins, when it is done, and the table of its steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.model import wake_publisher, wake_waiter
from tests.model.wake_rules import KILLED, Memory, Moves, Process, State, WakeRules


@dataclass(frozen=True, slots=True, kw_only=True)
class WakeProtocol(WakeRules):
    """Publishers first, then waiters; the name of a waiter says what it is."""

    def initial(self) -> State:
        """Nothing is published, every waiter is awake."""
        publishers = tuple(Process("publish", left=count) for count in self.messages)
        waiters = (Process("look"),) * (len(self.names) - len(publishers))
        return Memory(), publishers + waiters

    def flaw(self, memory: Memory, processes: tuple[Process, ...]) -> str | None:
        """No state is bad as such: what matters is whether it can be left."""
        return None

    def is_final(self, memory: Memory, processes: tuple[Process, ...]) -> bool:
        """The publishers are done or dead, and the waiters have received everything."""
        publishers, waiters = processes[: len(self.messages)], processes[len(self.messages) :]
        return all(publisher.step in ("ended", "dead") for publisher in publishers) and all(
            waiter.received == memory.write_offset for waiter in waiters
        )

    def moves(self, who: int, memory: Memory, process: Process) -> Moves:
        """The store buffer, a kill, then the next step of the program."""
        if process.buffer:
            (field, value), *younger = process.buffer
            visible = memory._replace(**{field: value})
            yield f"makes {field} = {value} visible", visible, process._replace(buffer=tuple(younger))
        if self.kills and who < len(self.messages) and process.step not in ("ended", "dying", "dead"):
            yield KILLED, memory, Process("dying" if memory.writer == who + 1 else "dead", process.buffer)
        if process.step in STEPS:
            yield from STEPS[process.step](self, who, memory, process)


STEPS: dict[str, Callable[[WakeRules, int, Memory, Process], Moves]] = {
    "publish": wake_publisher.publish,
    "unlock": wake_publisher.unlock,
    "fence": wake_publisher.fence,
    "check": wake_publisher.check,
    "checked early": wake_publisher.checked_early,
    "clear": wake_publisher.clear,
    "wake threads": wake_publisher.wake_threads,
    "take armed": wake_publisher.take_armed,
    "write": wake_publisher.write,
    "dying": wake_publisher.dying,
    "look": wake_waiter.look,
    "arm itself": wake_waiter.arm_itself,
    "arm itself late": wake_waiter.arm_itself_late,
    "load": wake_waiter.load,
    "arm": wake_waiter.arm,
    "look again": wake_waiter.look_again,
    "wait": wake_waiter.wait,
    "asleep": wake_waiter.asleep,
}
