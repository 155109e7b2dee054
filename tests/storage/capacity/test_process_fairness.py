"""Fairness between processes that wait for capacity, and that no process waits for a dead one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from filechannel._format import load_u32
from filechannel._format.layout import CAPACITY_TURN, LOCK_SLOT_SHIFT
from filechannel._storage.capacity.backlog import SMALLEST, Batch
from filechannel._storage.capacity.process_fairness import Fairness
from filechannel._storage.control.control_page import Control
from filechannel._storage.control.live_processes import Processes
from filechannel._storage.system.kernel_locks import KernelLocks
from filechannel._storage.system.os_calls import Files
from tests.storage.forks import Fork

files = Files()


class Member:
    """A process that has a channel open, as far as fairness is concerned."""

    def __init__(self, path: Path) -> None:
        descriptor = files.open(path, create=True)
        self.control = Control(files, descriptor)
        files.close(descriptor)
        self.locks = KernelLocks(files, path)
        self.processes = Processes(self.control.map, self.locks)
        self.processes.join()
        self.turns = Fairness(self.control, self.processes)

    @property
    def turn(self) -> int:
        """The slot of the process that is next, or 0."""
        return load_u32(self.control.map, CAPACITY_TURN) >> LOCK_SLOT_SHIFT

    def wait(self) -> None:
        """Wait, and find no capacity."""
        self.turns.set_waiting(True)
        self.turns.become_next(SMALLEST)

    def may_send(self) -> bool:
        """Return whether this process may use the free capacity."""
        return self.turns.is_ours(_everything_fits, 0)


def _everything_fits(_: Batch) -> bool:
    return True


@pytest.fixture
def member(tmp_path: Path) -> Iterator[Callable[[], Member]]:
    """How to be one more process."""
    members: list[Member] = []

    def join() -> Member:
        members.append(Member(tmp_path / "control"))
        return members[-1]

    yield join
    for each in members:
        each.locks.close()


@pytest.fixture
def waiting(tmp_path: Path) -> Callable[[], Fork]:
    """How to start a process that waits."""

    def wait() -> Member:
        member = Member(tmp_path / "control")
        member.wait()
        return member

    return lambda: Fork(wait)


def test_the_turn_rotates(member: Callable[[], Member]) -> None:
    """The turn passes from each waiting process to the next one, and back to the first."""
    members = [member() for _ in range(3)]
    for each in members:
        each.wait()
    seen = []
    for _ in range(6):
        holder = members[members[0].turn - 1]
        seen.append(holder.turn)
        holder.turns.pass_on()
        holder.wait()
    assert seen == [1, 2, 3, 1, 2, 3]


def test_a_dead_process_is_not_served(member: Callable[[], Member], waiting: Callable[[], Fork]) -> None:
    """Waiting processes that were killed are skipped and do not wait any more."""
    us = member()
    children = [waiting() for _ in range(3)]
    dead = us.processes.others()
    for child in children:
        child.kill()
    us.wait()
    assert us.turn == us.processes.slot
    us.turns.pass_on()
    assert us.turn == us.processes.slot
    assert not any(map(us.processes.is_queued, dead))


def test_a_process_that_was_found_dead_does_not_wait_for_any_other(
    member: Callable[[], Member], waiting: Callable[[], Fork]
) -> None:
    """When one process finds another one dead every process sees that it does not wait."""
    us, another = member(), member()
    child = waiting()
    assert not us.may_send()
    child.kill()
    assert not another.turns.may_be_ours
    assert us.may_send()
    assert another.turns.may_be_ours


def test_the_next_process_in_a_slot_keeps_waiting(member: Callable[[], Member], waiting: Callable[[], Fork]) -> None:
    """The waiting flag of a dead process is not that of the next process in its slot."""
    us = member()
    waiting().kill()
    following = member()
    assert us.turn == following.processes.slot
    following.turns.set_waiting(True)
    assert us.may_send()
    assert us.processes.is_queued(following.processes.slot)
