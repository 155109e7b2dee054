"""Transactions and async calls that are interrupted by exceptions of signal handlers."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from pathlib import Path

import anyio
import pytest

import filechannel
from filechannel import AckError, AckReceiver, ChannelOptions, Durability
from filechannel._format import PURE
from filechannel.blocking import open_channel, transaction
from tests.blocking.interruptions import Attempt

pytestmark = pytest.mark.skipif(PURE, reason="the pure implementation promises nothing here; see mutex.py")

_LONGEST = 60  # seconds
_PACKAGE = str(Path(filechannel.__file__).parent)
_TRIES = 6  # a step takes different ways: only some of them are as long as the longest


@pytest.mark.parametrize("stride", [13, pytest.param(1, marks=pytest.mark.soak)])
@pytest.mark.parametrize("durability", [Durability.OS, Durability.FSYNC], ids=["os", "fsync"])
def test_an_interrupted_step_takes_effect_as_a_whole(
    path: Path, durability: Durability, stride: int, rng: random.Random
) -> None:
    """After Ctrl-C in a step either all outputs are sent and its input is acknowledged, or neither; the next step
    works.
    """
    options = ChannelOptions(segment_size=4096, durability=durability)
    with (
        open_channel(path / "in", int, options=options) as numbers,
        open_channel(path / "out", int, options=options) as results,
        numbers.sender() as subscription,
        numbers.ack_receiver() as rx,
        results.sender() as tx,
        results.receiver() as out,
    ):
        expected, found, sent = list[int](), list[int](), 0
        kept: list[object] = []

        def step() -> None:
            with transaction(rx, tx) as step:
                kept[:] = [step]  # as the name does in a loop
                number = step.receive(timeout=_LONGEST)
                step.send_many([number, number])

        number, missed = rng.randrange(1, stride + 1), 0
        while missed < _TRIES:
            subscription.send(sent)
            expected += [sent, sent]
            sent += 1
            attempt = Attempt(number, step)
            missed = 0 if attempt.where else missed + 1
            number += stride if attempt.where else 0
            subscription.send(sent)
            expected += [sent, sent]
            sent += 1
            while rx.unack_count or len(found) < len(expected):
                step()  # `AckError` if the interrupted step is still on
                found += out.receive_many(100, timeout=_LONGEST)
                assert found == expected[: len(found)], attempt.where
        assert found == expected
        assert number > stride


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("stride", [17, pytest.param(1, marks=pytest.mark.soak)])
@pytest.mark.parametrize("durability", [Durability.OS, Durability.FSYNC], ids=["os", "fsync"])
def test_async_calls_that_are_interrupted_leave_the_channel_usable(
    path: Path, durability: Durability, stride: int, rng: random.Random
) -> None:
    """After Ctrl-C in async calls tasks of the same loop send, receive and ack; nothing is lost, or redelivered after
    its ack.
    """
    with asyncio.Runner() as runner:
        options = ChannelOptions(segment_size=4096, durability=durability)
        channel = runner.run(_opened(path, options))
        try:
            tx, rx = channel.sender(), channel.ack_receiver()
            number, missed, sent = rng.randrange(1, stride + 1), 0, 0
            while missed < _TRIES:
                sent += 1
                stages: list[str] = []

                async def use(item: int = sent, stages: list[str] = stages) -> None:
                    await tx.send(item)
                    stages.append("sent")
                    assert await rx.receive() == item
                    rx.ack()
                    stages.append("acknowledged")

                attempt = Attempt(number, lambda: runner.run(use()), within=_PACKAGE)
                missed = 0 if attempt.where else missed + 1
                number += stride if attempt.where else 0
                found = runner.run(asyncio.wait_for(_next_ones(tx, rx, -sent), _LONGEST))
                assert found[-1] == -sent, attempt.where
                assert found[:-1] in ([], [sent]), attempt.where
                assert "acknowledged" not in stages or found == [-sent], attempt.where
            assert number > stride
        finally:
            runner.run(channel.aclose())


async def _opened(path: Path, options: ChannelOptions) -> filechannel.FileChannel[int]:
    return await filechannel.open_channel(path, int, options=options)


async def _next_ones(tx: filechannel.Sender[int], rx: AckReceiver[int], last: int) -> list[int]:
    """Send a number, then receive and acknowledge everything that is outstanding up to it."""
    await tx.send(last)
    with suppress(AckError):  # nothing is outstanding
        rx.nack()
    found: list[int] = []
    while last not in found:
        found.append(await rx.receive())
        rx.ack()
    with pytest.raises(anyio.WouldBlock):
        rx.receive_nowait()
    return found
