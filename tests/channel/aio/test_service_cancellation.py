"""Services cancelled, stopped and paused at random moments: nothing is lost, and in order nothing is doubled."""

from __future__ import annotations

import random
from pathlib import Path

import anyio
import pytest
from anyio.lowlevel import checkpoint

from filechannel import RetryPolicy, open_channel
from tests.channel.aio.test_ack_receiver import SMALL, fill, stored
from tests.channel.base.test_dead_letter import graveyard, letters

pytestmark = pytest.mark.anyio

MESSAGES = 600
LIVES = 5000


class Worker:
    """A handler that takes its time, and fails: on some messages always, on others now and then."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.done: list[int] = []

    async def __call__(self, number: int) -> None:
        """Do something that can be interrupted."""
        for _ in range(self._rng.randrange(3)):
            await checkpoint()
        if number % 7 == 0 or self._rng.random() < 0.1:
            raise ValueError
        self.done.append(number)


@pytest.mark.parametrize("concurrency", [1, 5])
async def test_random_lives(path: Path, rng: random.Random, concurrency: int) -> None:
    """A service that is cancelled, paused and left at random handles each message once, or dead-letters it."""
    async with open_channel(path, int, options=SMALL) as channel, graveyard(path) as (dead, box):
        await fill(channel, MESSAGES)
        worker = Worker(rng)
        for _ in range(LIVES):
            retry = RetryPolicy(max_attempts=20, delay=rng.choice((0, 0, 1e-5, 1e-3)), max_delay=1e-3)
            service = channel.serve(
                worker, ordered=concurrency == 1, concurrency=concurrency, retry=retry, dead_letter=box
            )
            with anyio.move_on_after(rng.uniform(0, 0.005)):
                async with service:
                    for _ in range(rng.randrange(20)):
                        rng.choice((service.pause, service.resume, service.resume))()
                        await anyio.sleep(rng.choice((0, 1e-4)))
                    service.resume()
                    if rng.random() < 0.7:
                        await anyio.sleep(1)
            if stored(channel) == MESSAGES:
                break
        buried = [letter.sequence for letter in await letters(dead)]
        assert stored(channel) == MESSAGES
        expected = [number for number in range(MESSAGES) if number % 7]
        if concurrency == 1:
            assert worker.done == expected
            assert buried == list(range(0, MESSAGES, 7))
        else:
            assert set(worker.done) == set(expected)
            assert set(buried) >= set(range(0, MESSAGES, 7))
