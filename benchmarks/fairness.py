"""Fairness: how long another task of the same event loop sleeps for 5 ms while a channel runs at full speed.

The longest sleep is judged, so that rare events are not hidden: a new segment, an allocation, the garbage collector.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from time import perf_counter_ns
from typing import TypeAlias

from filechannel import open_channel

from .harness import Bench, run_interleaved, working_ns
from .messages import BATCH, ORDERS, Order
from .report import Finding

TITLE = "sleeps of 5 ms beside a busy channel"
_NAP = 0.005
_NAPS = 50
_SLICE_NS = 1_000_000
_DISK_SPACE = 256 << 20

Work: TypeAlias = Callable[[], Awaitable[None]]


async def measure(bench: Bench) -> list[Finding]:
    with bench.scratch() as directory:
        async with open_channel(directory / "orders", Order) as channel:
            async with channel.sender() as tx, channel.receiver() as rx:

                async def one_by_one() -> None:
                    for order in ORDERS:
                        await tx.send(order)
                        await rx.receive()

                async def batches() -> None:
                    await tx.send_many(ORDERS)
                    await rx.receive_many(BATCH)

                async def beside(work: Work) -> float:
                    busy = asyncio.create_task(_forever(work))
                    longest = await _longest_nap()
                    busy.cancel()
                    await asyncio.wait([busy])
                    if channel.statistics().bytes_on_disk > _DISK_SPACE:
                        await channel.purge()
                    return longest

                contestants = {
                    "spin": lambda: beside(_spin),
                    "one by one": lambda: beside(one_by_one),
                    "batches": lambda: beside(batches),
                }
                found = await run_interleaved(contestants, bench.rounds(18))
    return [
        Finding("beside a loop without a channel that yields every ms", found["spin"], "ms", worst=True),
        Finding("beside await send, await receive", found["one by one"], "ms", 20, worst=True),
        Finding("beside send_many, receive_many, 1,000 per batch", found["batches"], "ms", 20, worst=True),
    ]


async def _forever(work: Work) -> None:
    while True:
        await work()


async def _spin() -> None:
    end = perf_counter_ns() + _SLICE_NS
    while perf_counter_ns() < end:
        pass
    await asyncio.sleep(0)


async def _longest_nap() -> float:
    """Return the longest time from falling asleep to waking up, in milliseconds."""
    longest = 0
    for _ in range(_NAPS):
        began = working_ns()
        await asyncio.sleep(_NAP)
        longest = max(longest, working_ns() - began)
    return longest / 1e6
