"""Many writers, many readers, one order."""

from __future__ import annotations

from pathlib import Path
from random import Random

import anyio
import pytest

from filechannel import ChannelOptions, Durability, open_channel
from tests.processes.tasks import create, pass_on, read, write
from tests.processes.workers import Workers

MINUTES = 900


def in_one_order(
    workers: Workers, path: Path, rng: Random, writers: int, count: int, readers: int, options: ChannelOptions
) -> None:
    """Let writers send so many messages each, and see that every reader gets all of them in the same order."""
    anyio.run(create, path, options)
    reading = [workers.start(read, path, writers * count) for _ in range(readers)]
    writing = [workers.start(write, path, number, count, rng.getrandbits(32)) for number in range(writers)]
    children = [*reading, *writing]
    for child in children:
        child.meet()
    for child in children:
        child.send("go")
    for child in writing:
        child.result(MINUTES)
    late = workers.start(read, path, writers * count)
    late.meet()
    late.send("go")
    results = [child.result(MINUTES) for child in (*reading, late)]
    digests = {digest for digest, _ in results}
    assert len(digests) == 1, "different orders"
    assert results[0][1] == dict.fromkeys(range(writers), count)


@pytest.mark.parametrize("durability", [Durability.OS, Durability.FSYNC], ids=["os", "fsync"])
def test_every_reader_sees_the_same_order(workers: Workers, path: Path, rng: Random, durability: Durability) -> None:
    """Readers in eight processes see one order of four rolling writers, with whole batches."""
    count = 2000 if durability == Durability.OS else 300
    in_one_order(workers, path, rng, 4, count, 8, ChannelOptions(segment_size=8192, durability=durability))


def test_nine_writers(workers: Workers, path: Path, rng: Random) -> None:
    """Messages of nine writers at once are neither lost nor duplicated, and keep their order."""
    in_one_order(workers, path, rng, 9, 1000, 1, ChannelOptions(segment_size=65536))


def test_segments_as_large_as_usual(workers: Workers, path: Path, rng: Random) -> None:
    """In large segments, where no writer rolls, readers of other processes see one order."""
    in_one_order(workers, path, rng, 4, 20000, 2, ChannelOptions())


@pytest.mark.soak
def test_millions_in_one_order(workers: Workers, path: Path, rng: Random) -> None:
    """Eight readers see one order of 4 writers with 300,000 messages each."""
    in_one_order(workers, path, rng, 4, 300_000, 8, ChannelOptions(segment_size=65536))


@pytest.mark.soak
def test_nine_writers_of_ten_thousand(workers: Workers, path: Path, rng: Random) -> None:
    """Readers see one order of 9 writers with 10,000 messages each."""
    in_one_order(workers, path, rng, 9, 10_000, 3, ChannelOptions(segment_size=16384))


def pass_round(workers: Workers, path: Path, rounds: int) -> None:
    """Let 3 processes pass a token round."""

    async def begin() -> None:
        async with open_channel(path, int, options=ChannelOptions(segment_size=65536)) as channel:
            ring = [workers.start(pass_on, path, place, 3, rounds) for place in range(3)]
            for child in ring:
                child.meet()
            for child in ring:
                child.send("go")
            with channel.sender() as tx:
                await tx.send(0)
            assert sum(child.result(MINUTES) for child in ring) == rounds
            with channel.replay() as rx:
                assert await rx.receive_many(rounds + 10) == list(range(rounds + 1))

    anyio.run(begin)


def test_a_token_is_passed_around(workers: Workers, path: Path) -> None:
    """Three processes pass a token around: each time the right one is woken, and only that one sends."""
    pass_round(workers, path, 3000)


@pytest.mark.soak
def test_a_token_is_passed_around_a_hundred_thousand_times(workers: Workers, path: Path) -> None:
    """A token is passed around a hundred thousand times."""
    pass_round(workers, path, 100_000)
