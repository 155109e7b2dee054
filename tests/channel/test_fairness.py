"""Cooperative yielding: a task that works at full speed yields to the event loop, about every millisecond.

Nothing here is timed: the tests count how often another task runs while a given amount of work is done, or how much
work is done between two of its runs. A slow machine has more runs for the same work, never fewer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from itertools import pairwise
from pathlib import Path

import anyio
import pytest
from anyio.lowlevel import checkpoint

from filechannel import Sender, open_channel
from tests.channel.messages import Order

pytestmark = pytest.mark.anyio

ENOUGH = 3
"""Runs of another task beside work that takes many milliseconds on any machine."""


async def runs_beside(*busy: Callable[[], Awaitable[object]]) -> int:
    """Run the busy tasks to their end and return how often another task ran in between."""
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await checkpoint()
            turns += 1

    async with anyio.create_task_group() as group:
        group.start_soon(count)
        await checkpoint()
        turns = 0
        async with anyio.create_task_group() as workers:
            for task in busy:
                workers.start_soon(task)
        group.cancel_scope.cancel()
    return turns


async def test_a_sender_at_full_speed_yields(path: Path) -> None:
    """Another task runs while one sends message after message without ever having to wait."""
    async with open_channel(path, int) as channel, channel.sender() as tx:

        async def produce() -> None:
            for number in range(50_000):
                await tx.send(number)

        assert await runs_beside(produce) >= ENOUGH


async def test_a_receiver_at_full_speed_yields(path: Path) -> None:
    """Another task runs while one receives message after message without ever having to wait."""
    async with open_channel(path, int) as channel, channel.sender() as tx, channel.receiver() as rx:
        tx.send_many_nowait(range(50_000))

        async def consume() -> None:
            for _ in range(50_000):
                await rx.receive()

        assert await runs_beside(consume) >= ENOUGH


async def test_large_messages_yield_sooner(path: Path) -> None:
    """A task yields after few messages of 4 MiB, each of which takes a good part of a millisecond."""
    count, most = 40, 16
    async with open_channel(path, bytes) as channel, channel.sender() as tx:
        for _ in range(count):
            tx.send_nowait(bytes(4 << 20))
        await channel.seal()
        received, seen = 0, [0]

        async def read() -> None:
            nonlocal received
            with channel.replay() as rx:
                async for _ in rx:
                    received += 1

        async def look() -> None:
            while received < count:
                seen.append(received)
                await checkpoint()
            seen.append(received)

        async with anyio.create_task_group() as group:
            group.start_soon(look)
            group.start_soon(read)
    assert max(later - sooner for sooner, later in pairwise(seen)) <= most, seen


async def test_large_batches_yield(path: Path) -> None:
    """Another task runs during one `send_many` of 30,000 messages, and during `receive_many` of as many."""
    async with open_channel(path, Order) as orders, orders.sender() as tx, orders.receiver() as rx:
        batch = [Order(number) for number in range(30_000)]
        assert await runs_beside(lambda: tx.send_many(batch)) >= ENOUGH
        assert await runs_beside(lambda: rx.receive_many(30_000)) >= ENOUGH


async def test_an_async_for_gives_way(path: Path) -> None:
    """Reading a long history with `async for` yields to other tasks."""
    async with open_channel(path, int) as channel, channel.sender() as tx:
        tx.send_many_nowait(range(100_000))
        await channel.seal()

        async def read() -> None:
            with channel.replay() as rx:
                async for _ in rx:
                    pass

        assert await runs_beside(read) >= ENOUGH


async def test_two_at_full_speed_alternate(path: Path) -> None:
    """Two tasks that send at full speed alternate, rather than one after the other."""
    async with open_channel(path, int) as channel, channel.sender() as tx:

        async def produce(who: int, sender: Sender[int]) -> None:
            for _ in range(50_000):
                await sender.send(who)

        async with anyio.create_task_group() as group:
            group.start_soon(produce, 0, tx)
            group.start_soon(produce, 1, tx)
        with channel.replay() as rx:
            order = rx.receive_many_nowait(100_000)
    changes = sum(one != other for one, other in pairwise(order))
    assert changes >= ENOUGH


async def test_many_channels_share_one_time_slice(path: Path) -> None:
    """A task that reads from many channels has one time slice, which belongs to the thread."""
    async with AsyncExitStack() as stack:
        channels = [await stack.enter_async_context(open_channel(path / str(number), int)) for number in range(20)]
        for channel in channels:
            with channel.sender() as tx:
                tx.send_many_nowait(range(20))

        async def read_a_little_everywhere() -> None:
            for channel in channels * 50:
                with channel.replay() as rx:
                    for _ in range(20):
                        await rx.receive()

        assert await runs_beside(read_a_little_everywhere) >= ENOUGH
