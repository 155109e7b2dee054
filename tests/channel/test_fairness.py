"""Fairness: whoever works at full speed gives way, about every millisecond.

Measured is what the thread has worked between two turns of another task, not what the clock on the wall says: other
processes take their time too.
"""

from __future__ import annotations

import statistics
import time
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

_TRIES = 4
WORK = 0.25
"""Seconds that the busy tasks have to work for at least."""
LONGEST = 0.025
"""Seconds of work that a task which sleeps 5 ms may have to wait for; about 0.007 are meant."""


async def turns_beside(*busy: Callable[[], Awaitable[object]]) -> list[float]:
    """Measure what the thread works between turns of a task that sleeps, again where others had the machine."""
    for _ in range(_TRIES - 1):
        gaps = await _turns_beside(*busy)
        if in_time(gaps):
            return gaps
    return await _turns_beside(*busy)


async def _turns_beside(*busy: Callable[[], Awaitable[object]]) -> list[float]:
    """Run busy tasks again and again, and return what the thread worked between the turns of a task that sleeps."""
    gaps, began = list[float](), time.thread_time()

    async def again(task: Callable[[], Awaitable[object]]) -> None:
        while time.thread_time() - began < WORK:
            await task()

    async def sleeper() -> None:
        while True:
            before = time.thread_time()
            await anyio.sleep(0.005)
            gaps.append(time.thread_time() - before)

    async with anyio.create_task_group() as group:
        group.start_soon(sleeper)
        await checkpoint()
        async with anyio.create_task_group() as workers:
            for task in busy:
                workers.start_soon(again, task)
        group.cancel_scope.cancel()
    return gaps


def in_time(gaps: list[float]) -> bool:
    """Every turn came in time, but for hiccups such as a collection of garbage or a page that the kernel makes."""
    return len(gaps) > WORK / LONGEST / 2 and statistics.median(gaps) < LONGEST


def check(gaps: list[float]) -> None:
    """They came in time."""
    assert in_time(gaps), gaps


async def test_a_sender_and_a_receiver_at_full_speed_give_way(path: Path) -> None:
    """Beside a producer and a consumer at full speed a task that sleeps 5 ms keeps getting its turns."""
    async with open_channel(path, Order) as orders, orders.sender() as tx, orders.receiver() as rx:

        async def produce() -> None:
            for number in range(1000):
                await tx.send(Order(number))

        async def consume() -> None:
            for _ in range(1000):
                await rx.receive()

        check(await turns_beside(produce, lambda: either(consume)))


async def either(work: Callable[[], Awaitable[object]]) -> None:
    """Work, but not longer than there is something to do."""
    with anyio.move_on_after(0.05):
        await work()


async def test_large_messages_give_way_sooner(path: Path) -> None:
    """With messages of 64 KiB the turn is over after fewer of them."""
    async with open_channel(path, bytes) as channel, channel.sender() as tx:
        for _ in range(50):
            tx.send_nowait(bytes(65536))
        await channel.seal()

        async def read() -> None:
            with channel.replay() as rx:
                async for _ in rx:
                    pass

        check(await turns_beside(read))


async def test_large_batches_give_way(path: Path) -> None:
    """Another task has turns during one `send_many` of 30,000 messages, and during `receive_many` of as many."""
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await checkpoint()

    async with open_channel(path, Order) as orders, orders.sender() as tx, orders.receiver() as rx:
        batch = [Order(number) for number in range(30_000)]
        async with anyio.create_task_group() as group:
            group.start_soon(count)
            await checkpoint()
            before = turns
            await tx.send_many(batch)
            between = turns
            assert await rx.receive_many(30_000) == batch
            assert between - before >= 3
            assert turns - between >= 3
            group.cancel_scope.cancel()


async def test_an_async_for_gives_way(path: Path) -> None:
    """Reading a long history with `async for` gives way."""
    async with open_channel(path, int) as channel, channel.sender() as tx:
        tx.send_many_nowait(range(50_000))
        await channel.seal()

        async def read() -> None:
            with channel.replay() as rx:
                async for _ in rx:
                    pass

        check(await turns_beside(read))


async def test_two_at_full_speed_take_turns(path: Path) -> None:
    """Two tasks that send at full speed alternate, rather than one after the other."""
    async with open_channel(path, int) as channel, channel.sender() as tx:

        async def produce(who: int, sender: Sender[int]) -> None:
            began = time.thread_time()
            while time.thread_time() - began < 0.1:
                await sender.send(who)

        async with anyio.create_task_group() as group:
            group.start_soon(produce, 0, tx)
            group.start_soon(produce, 1, tx)
        with channel.replay() as rx:
            order = rx.receive_many_nowait(10**9)
    changes = sum(one != other for one, other in pairwise(order))
    assert changes >= 10


async def test_many_channels_share_one_turn(path: Path) -> None:
    """The turn belongs to the thread: a task that reads from many channels does not have one for each."""
    async with AsyncExitStack() as stack:
        channels = [await stack.enter_async_context(open_channel(path / str(number), int)) for number in range(20)]
        for channel in channels:
            with channel.sender() as tx:
                tx.send_many_nowait(range(20))

        async def read_a_little_everywhere() -> None:
            for channel in channels:
                with channel.replay() as rx:
                    for _ in range(20):
                        await rx.receive()

        check(await turns_beside(read_a_little_everywhere))
