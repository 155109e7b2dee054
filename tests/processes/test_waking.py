"""Event loops of one process are woken by another one, whatever they are."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from filechannel import open_channel
from tests.backends import BACKENDS
from tests.processes.tasks import (
    answer,
    answer_in_threads,
    ask,
    create,
    wait_for_one,
    wait_in_the_slot_of_a_dead_waiter,
)
from tests.processes.test_killed import is_armed
from tests.processes.workers import Child, Workers, until

SOON = 60.0


def play(*children: Child) -> None:
    """Let them play, and see them end."""
    for child in children:
        child.meet()
    for child in children:
        child.send("go")
    for child in children:
        child.result()


@pytest.mark.parametrize("one", list(BACKENDS))
@pytest.mark.parametrize("other", list(BACKENDS))
def test_ping_pong(workers: Workers, path: Path, one: str, other: str) -> None:
    """Two processes wake each other hundreds of times without rescanning, and no wakeup is lost."""
    play(workers.start(answer, path, backend=one), workers.start(ask, path, 300, backend=other))


@pytest.mark.parametrize("polls", ["one", "both"])
def test_polling(workers: Workers, path: Path, polls: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With FILECHANNEL_POLL=1 a process polls, and others may wait without polling."""
    other = workers.start(answer, path) if polls == "one" else None
    monkeypatch.setenv("FILECHANNEL_POLL", "1")
    other = other or workers.start(answer, path, True, method="spawn")
    play(other, workers.start(ask, path, 50, True, method="spawn"))


def test_several_loops_in_several_threads(workers: Workers, path: Path) -> None:
    """A message of another process wakes every event loop of a process, in threads of their own."""
    names = [*BACKENDS, *BACKENDS]

    async def run() -> None:
        async with open_channel(path / "ping", int) as ping, open_channel(path / "pong", int) as pong:
            other = workers.start(answer_in_threads, path, names)
            other.meet()
            with ping.sender() as tx, pong.replay(stop=None) as rx:
                for number in range(100):
                    await tx.send(number)
                    for _ in names:
                        with anyio.fail_after(SOON):
                            assert await rx.receive() == number
            await ping.seal()
            other.result()

    anyio.run(run)


def test_in_the_slot_of_a_waiter_that_died(workers: Workers, path: Path) -> None:
    """A process that gets the slot of a dead waiter is woken, also by a wakeup that came while it joined."""

    async def run() -> None:
        async with open_channel(path, bytes) as channel, channel.sender() as tx:
            victim = workers.start(wait_for_one, path)
            victim.meet()
            until(lambda: is_armed(channel._store), "it waits")
            workers.dismiss(victim)
            successor = workers.start(wait_in_the_slot_of_a_dead_waiter, path, "2")
            successor.meet()
            await tx.send(b"for the dead")
            successor.send("go")
            assert successor.receive() == "opened"
            until(lambda: is_armed(channel._store), "it waits")
            await tx.send(b"for the living")
            assert successor.result(SOON) == b"for the living"

    anyio.run(create, path)
    anyio.run(run)
