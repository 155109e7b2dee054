"""Steps in several processes: the next owner of a consumer knows what the last one did, however that ended."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from random import Random
from threading import Event

import pytest

from filechannel import ChannelOptions, ConsumerBusyError, Durability
from filechannel._storage.log.append_and_roll_back import Appender
from filechannel.blocking import FileChannel, Sender, open_channel, transaction
from tests.processes.workers import Child, Link, Workers

DURABILITIES = pytest.mark.parametrize("durability", [Durability.OS, Durability.FSYNC], ids=["os", "fsync"])


def open_both(path: Path, durability: Durability) -> tuple[FileChannel[int], FileChannel[str]]:
    """Open an input of numbers and an output of texts."""
    options = ChannelOptions(durability=durability, segment_size=4096)
    return (
        open_channel(path / "numbers", int, options=options),
        open_channel(path / "texts", str, options=options),
    )


def step_and_die(link: Link, path: Path, durability: Durability, when: str) -> None:
    """Do one step, and in the next one die when the batch is about to be appended, is appended, or is on disk."""
    numbers, texts = open_both(path, durability)
    rx, tx = numbers.ack_receiver(), texts.sender()
    with transaction(rx, tx) as step:
        step.send(str(step.receive()))

    def die(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    if when == "before":
        Appender._write = die  # type: ignore[method-assign]
    elif when == "appended":
        Sender._flush_now = die  # type: ignore[method-assign]
    else:
        rx.transaction_input.acknowledge_before = die  # type: ignore[method-assign]
    with transaction(rx, tx) as step:
        step.send(str(step.receive()))


@DURABILITIES
@pytest.mark.parametrize("when", ["before", "appended", "visible"])
def test_a_new_owner_knows_what_a_dead_one_has_appended(
    workers: Workers, path: Path, durability: Durability, when: str
) -> None:
    """A new owner knows the batch that a dead one appended, also if it was not flushed under FSYNC."""
    numbers, texts = open_both(path, durability)
    with numbers, texts:
        numbers.sender().send_many([1, 2, 3])
        child = workers.start(step_and_die, path, durability, when)
        assert child.wait() == -signal.SIGKILL
        with numbers.ack_receiver() as rx, texts.sender() as tx:
            while rx.peek():
                with transaction(rx, tx) as step:
                    step.send_many(str(number) for number in rx.receive_many_nowait(1))
        assert list(texts.replay()) == ["1", "2", "3"]


def step_for_ever(link: Link, path: Path, durability: Durability, seed: int) -> None:
    """Own the consumer as soon as it can be had, and take steps."""
    random = Random(seed)
    numbers, texts = open_both(path, durability)
    while True:
        try:
            rx = numbers.ack_receiver()
            break
        except ConsumerBusyError:
            Event().wait(0.001)
    tx = texts.sender()
    link.send("ready")
    while True:
        with transaction(rx, tx) as step:
            for number in step.receive_many(random.randint(1, 5)):
                step.send_many([str(number)] * (number % 3))


@DURABILITIES
def test_owners_are_killed_one_after_the_other(
    workers: Workers, path: Path, rng: Random, durability: Durability
) -> None:
    """After each of many killed owners the next one continues, and every input has its outputs once."""
    numbers, texts = open_both(path, durability)
    with numbers, texts, numbers.sender() as tx, texts.sender() as other:
        sent = 0
        waiting: list[Child] = []
        for _ in range(25):
            while len(waiting) < 2:
                waiting.append(workers.start(step_for_ever, path, durability, rng.getrandbits(32)))
            heard = [child for child in waiting if child.has_message]
            for child in heard:
                child.meet()
            for _ in range(rng.randint(0, 40)):
                tx.send(sent)
                sent += 1
                other.send("other")
            Event().wait(rng.uniform(0, 0.02))
            victim = rng.choice(waiting)
            waiting.remove(victim)
            workers.dismiss(victim)
        for child in waiting:
            workers.dismiss(child)
        with numbers.ack_receiver() as rx:
            while rx.peek():
                with transaction(rx, other) as step:
                    for number in step.receive_many(100):
                        step.send_many([str(number)] * (number % 3))
        found = [text for text in texts.replay() if text != "other"]
        assert found == [str(number) for number in range(sent) for _ in range(number % 3)]
