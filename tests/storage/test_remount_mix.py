"""The disk comes back within one boot, and each page of every file is an old or a new one: groups and transactions.

`test_power_cut.py` has the same for messages and single consumers. A seed that failed is run alone with
`FILECHANNEL_SEED=123`.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest
from anyio import WouldBlock

from filechannel import ChannelOptions, Durability
from filechannel._format import PURE
from filechannel.blocking import AckReceiver, FileChannel, GroupReceiver, Sender, open_channel, transaction
from tests.storage.background import Background
from tests.storage.power import Image, PowerFiles

SEED = os.environ.get("FILECHANNEL_SEED")
ROUNDS = 4 if PURE else 10
MOMENTS = 3
GROUP = "group"


@dataclass(frozen=True)
class Story:
    """What was done with the channels up to an image."""

    sent: int
    """How many numbers were sent, and the sends returned."""
    settled: frozenset[int]
    """What members of the group have acknowledged."""


@dataclass(frozen=True)
class Channels:
    """An input of numbers, which a group and a transaction read, and the output of the transaction."""

    numbers: FileChannel[int]
    output: FileChannel[int]
    group: GroupReceiver[int]
    rx: AckReceiver[int]
    tx: Sender[int]


@contextmanager
def _opened(root: Path, durability: Durability) -> Iterator[Channels]:
    options = ChannelOptions(durability=durability, segment_size=4096)
    with (
        open_channel(root / "numbers", int, options=options) as numbers,
        open_channel(root / "output", int, options=options) as output,
        numbers.group(GROUP) as group,
        numbers.ack_receiver() as rx,
        output.sender() as tx,
    ):
        yield Channels(numbers, output, group, rx, tx)


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture, background: Background) -> None:
    """No threads, and no reports of what is recovered."""
    caplog.set_level(logging.CRITICAL, "filechannel")


@pytest.fixture(autouse=True)
def _no_maintenance(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread of its own would change files while they are looked at."""
    monkeypatch.setattr("filechannel._maintenance.background.maintenance_thread.Maintenance.register", lambda *_: None)


def _use(channels: Channels, files: PowerFiles, random: Random) -> list[tuple[Image, Story]]:
    """Send, receive in a group and in transactions at random, and take images."""
    sent, passed, settled, moments = 0, 0, set[int](), list[tuple[Image, Story]]()
    with channels.numbers.sender() as sender:
        for _ in range(random.randint(5, 30)):
            action = random.choice(("send", "send", "share", "pass"))
            for _ in range(random.choice((1, 1, 5, 100)) if action == "send" else 0):
                sender.send(sent)
                sent += 1
            for _ in range(random.randint(1, 10) if action == "share" else 0):
                if len(settled) < sent:
                    with channels.group.processing() as number:
                        settled.add(number)
            if action == "pass" and passed < sent:
                passed += _step(channels, random.randint(1, 20))
            files.observe()
            if random.random() < 0.3:
                moments.append((files.image(), Story(sent, frozenset(settled))))
    moments.append((files.image(), Story(sent, frozenset(settled))))
    return random.sample(moments, min(MOMENTS, len(moments)))


def _step(channels: Channels, most: int) -> int:
    """Pass some numbers on to the output, and return how many."""
    with transaction(channels.rx, channels.tx) as step:
        numbers = step.receive_many(most)
        step.send_many(numbers)
    return len(numbers)


def _check(channels: Channels, story: Story, durability: Durability) -> None:
    """Compare what is there with what was done."""
    found = list(channels.numbers.replay())
    assert found == list(range(len(found))), "not a prefix of what was sent"
    if durability == Durability.FSYNC:
        assert len(found) >= story.sent, "messages were lost"
    shared = set[int]()
    while (number := _next(channels.group)) is not None:
        shared.add(number)
    assert shared | story.settled >= set(found), "the group has skipped messages"
    if durability == Durability.FSYNC:
        output = list(channels.output.replay())
        assert output == list(range(len(output))), "a transaction took effect twice"
        while len(output) < len(found):
            passed = _step(channels, 20)
            output += range(len(output), len(output) + passed)
        assert list(channels.output.replay()) == found, "a transaction took effect twice, or not at all"


def _next(group: GroupReceiver[int]) -> int | None:
    """Return what the group hands out next; None if there is nothing."""
    try:
        return group.receive_nowait()
    except WouldBlock:
        return None


@pytest.mark.parametrize("durability", [Durability.OS, Durability.FSYNC], ids=["os", "fsync"])
@pytest.mark.parametrize("group", range(2))
def test_groups_and_transactions_survive_that_the_disk_comes_back(
    memory: Path, monkeypatch: pytest.MonkeyPatch, durability: Durability, group: int
) -> None:
    """After a remount with any old pages groups skip no message, and transactions take effect once."""
    for seed in [int(SEED)] if SEED else range(group * ROUNDS, (group + 1) * ROUNDS):
        try:
            _run(memory / str(seed), monkeypatch, durability, Random(seed))
        except BaseException as error:
            error.add_note(f"FILECHANNEL_SEED={seed}")
            raise


def _run(root: Path, monkeypatch: pytest.MonkeyPatch, durability: Durability, random: Random) -> None:
    first = root / "first"
    first.mkdir(parents=True)
    with _watching(monkeypatch, PowerFiles(first)) as files, _opened(first, durability) as channels:
        moments = _use(channels, files, random)
    for number, (image, story) in enumerate(moments):
        again = root / str(number)
        tree = image.cut_power(again, random)
        with _watching(monkeypatch, PowerFiles(again, tree)) as files:
            files.mounted = 2
            with _opened(again, durability) as channels:
                _check(channels, story, durability)
    shutil.rmtree(root)


@contextmanager
def _watching(monkeypatch: pytest.MonkeyPatch, files: PowerFiles) -> Iterator[PowerFiles]:
    """Let channels be opened through these files."""
    monkeypatch.setattr("filechannel._storage.open_stores.Files", lambda: files)
    try:
        yield files
    finally:
        files.stop_watching()
