"""Processes that make, open, recover or roll the same channel at the same instant."""

from __future__ import annotations

import json
from pathlib import Path

import anyio
import pytest

from filechannel import open_channel
from tests.processes.order_checker import Accepted, Message, OrderChecker
from tests.processes.tasks import SMALL, act_at, create, obey, open_together, roll_together, write
from tests.processes.test_changes import order
from tests.processes.test_killed import add_all
from tests.processes.workers import Child, Workers
from tests.storage.channels import opened

ROUNDS = 25


def checker_of(path: Path) -> OrderChecker:
    """Check everything that a channel stores."""
    checker = OrderChecker()
    with opened(path, create=False) as store:
        add_all(store, checker)
    return checker


def start_together(children: list[Child]) -> None:
    """Start them at the same moment."""
    for child in children:
        child.meet()
    for number, child in enumerate(children):
        child.send(number)


@pytest.mark.parametrize("crowd", [2, 4])
def test_a_channel_is_made_once(workers: Workers, memory: Path, crowd: int) -> None:
    """Processes that create a channel at the same instant share one."""
    children = [workers.start(open_together, memory, ROUNDS) for _ in range(crowd)]
    for number in range(ROUNDS):
        start_together(children)
        if number:
            assert checker_of(memory / f"{number - 1}").counts == dict.fromkeys(range(crowd), 3)
    for child in children:
        child.result()
    ids = [json.loads((memory / f"{number}" / "channel.json").read_text())["id"] for number in range(ROUNDS)]
    assert len(set(ids)) == ROUNDS


def test_rolling_at_the_same_instant(workers: Workers, path: Path) -> None:
    """Two processes that roll at the same instant create each segment once."""
    anyio.run(create, path)
    children = [workers.start(roll_together, path, number, ROUNDS) for number in range(2)]
    for _ in range(ROUNDS):
        start_together(children)
    for child in children:
        child.result()
    assert checker_of(path).counts == {0: 3 * ROUNDS, 1: 3 * ROUNDS}
    assert len(list((path / "segments").glob("*.seg"))) == 6 * ROUNDS


@pytest.mark.parametrize("fate", ["killed", "resumes"])
@pytest.mark.parametrize("damage", [False, True], ids=["unclean end", "recovery"])
def test_opening_while_another_opens(workers: Workers, path: Path, fate: str, damage: bool) -> None:
    """A process that opens a channel waits for another one that is opening or recovering it, or takes over."""
    steps = 0
    while opening_stops(workers, path / f"{steps}", steps, fate, damage):
        steps += 3 if steps < 20 else 11
    assert steps > 20


def opening_stops(workers: Workers, path: Path, step: int, fate: str, damage: bool) -> bool:
    """Let one process stop at a step of opening a channel while another opens it; return whether
    there is such a step.
    """
    anyio.run(create, path)
    accepted = path.with_name("accepted") / path.name
    unclean = workers.start(act_at, path, accepted, 1, "roll", 12 + step % 20, "die")
    unclean.meet()
    unclean.send("go")
    unclean.wait()
    if damage:
        with (path / "control").open("r+b") as control:
            control.write(bytes(64))
    first = workers.start(act_at, path, accepted, 2, "open", step, "stop")
    if not stops(first):
        return False
    second = workers.start(obey, path)
    if fate == "killed":
        workers.dismiss(first)
    else:
        first.resume()
    second.meet()
    order(second, "send", Message(3, 0, 0, 1).pack())
    if fate == "resumes":
        first.result()
    second.send(("end",))
    second.result()
    found = checker_of(path).counts
    assert found[1] >= Accepted(accepted, 1).count > 0
    assert found.get(2, 0) == Accepted(accepted, 2).count
    assert found[3] == 1
    return True


def stops(child: Child) -> bool:
    """Return whether a child stops, and does not come to its end."""
    while not child.has_message:
        if child.is_stopped:
            return True
    return False


def test_opening_while_the_last_one_closes(workers: Workers, path: Path) -> None:
    """Processes that open and close a channel all the time never find it incomplete, and lose nothing."""

    async def run() -> None:
        async with open_channel(path, bytes, options=SMALL) as channel, channel.sender() as tx:
            await tx.send(Message(9, 0, 0, 1).pack())

    anyio.run(run)
    for number in range(8):
        children = [workers.start(write, path, 10 * number + index + 10, 5, number) for index in range(3)]
        start_together(children)
        for child in children:
            child.result()
    assert sum(checker_of(path).counts.values()) == 1 + 8 * 3 * 5
