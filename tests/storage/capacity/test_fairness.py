"""Whose turn it is to be given room, and that the dead are not waited for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from filechannel._format import load_u32
from filechannel._format.layout import LOCK_SLOT_SHIFT, ROOM_TURN
from filechannel._storage.backlog import SMALLEST, Batch
from filechannel._storage.control import Control
from filechannel._storage.files import Files
from filechannel._storage.kernel_locks import KernelLocks
from filechannel._storage.processes import Processes
from filechannel._storage.turns import Turns
from tests.storage.forks import Fork

files = Files()


class Member:
    """A process that has a channel open, as far as turns go."""

    def __init__(self, path: Path) -> None:
        descriptor = files.open(path, create=True)
        self.control = Control(files, descriptor)
        files.close(descriptor)
        self.locks = KernelLocks(files, path)
        self.processes = Processes(self.control.map, self.locks)
        self.processes.join()
        self.turns = Turns(self.control, self.processes)

    @property
    def turn(self) -> int:
        """Whose turn it is: the slot, or 0."""
        return load_u32(self.control.map, ROOM_TURN) >> LOCK_SLOT_SHIFT

    def wait(self) -> None:
        """Stand in line, and find no room."""
        self.turns.stand_in_line(True)
        self.turns.take(SMALLEST)

    def may_send(self) -> bool:
        """Tell whether the room that there is may be ours."""
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


def test_the_turn_goes_round(member: Callable[[], Member]) -> None:
    """From each process that waits to the next one, and back to the first."""
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


def test_the_turn_is_not_given_to_the_dead(member: Callable[[], Member], waiting: Callable[[], Fork]) -> None:
    """However many were killed while they waited: they are passed over, and have left the line."""
    us = member()
    children = [waiting() for _ in range(3)]
    dead = us.processes.others()
    for child in children:
        child.kill()
    us.wait()
    assert us.turn == us.processes.slot
    us.turns.pass_on()
    assert us.turn == us.processes.slot
    assert not any(map(us.processes.is_in_line, dead))


def test_a_process_that_was_found_dead_is_no_longer_in_line_for_anybody(
    member: Callable[[], Member], waiting: Callable[[], Fork]
) -> None:
    """Everybody sees from then on that the dead does not stand in line."""
    us, another = member(), member()
    child = waiting()
    assert not us.may_send()
    child.kill()
    assert not another.turns.may_be_ours
    assert us.may_send()
    assert another.turns.may_be_ours


def test_whoever_has_the_slot_of_the_dead_stays_in_line(
    member: Callable[[], Member], waiting: Callable[[], Fork]
) -> None:
    """The turn names the dead, and what the slot says is not about it."""
    us = member()
    waiting().kill()
    following = member()
    assert us.turn == following.processes.slot
    following.turns.stand_in_line(True)
    assert us.may_send()
    assert us.processes.is_in_line(following.processes.slot)
