"""Durability.FSYNC on a real disk, compared with appending to a file by hand."""

from __future__ import annotations

import asyncio
import os
from time import perf_counter_ns as now

import msgspec

from filechannel import ChannelOptions, Durability, Sender, open_channel

from .harness import Bench, run_interleaved
from .messages import ORDERS, Order
from .report import Finding

TITLE = "5-field Struct under FSYNC, on a disk"
_ALONE = 40
_SENDERS = 64
_EACH = 10


async def measure(bench: Bench) -> list[Finding]:
    payloads = [msgspec.msgpack.encode(order) for order in ORDERS[:_ALONE]]

    async def send_some(tx: Sender[Order], count: int) -> None:
        for order in ORDERS[:count]:
            await tx.send(order)

    with bench.scratch(disk=True) as directory:
        file = os.open(directory / "bare", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        options = ChannelOptions(durability=Durability.FSYNC)
        async with open_channel(directory / "orders", Order, options=options) as channel:
            async with channel.sender() as tx, channel.receiver() as rx:

                async def bare() -> float:
                    began = now()
                    for payload in payloads:
                        os.write(file, payload)
                        os.fdatasync(file)
                    return (now() - began) / _ALONE

                async def alone() -> float:
                    began = now()
                    await send_some(tx, _ALONE)
                    return (now() - began) / _ALONE

                async def together() -> float:
                    began = now()
                    async with asyncio.TaskGroup() as tasks:
                        for _ in range(_SENDERS):
                            tasks.create_task(send_some(tx, _EACH))
                    elapsed = now() - began
                    sent = _ALONE + _SENDERS * _EACH
                    assert len(rx.receive_many_nowait(2 * sent)) == sent
                    return elapsed / (_SENDERS * _EACH)

                contestants = {"bare": bare, "alone": alone, "together": together}
                found = await run_interleaved(contestants, bench.rounds(60))
        os.close(file)

    floor, one, many = found["bare"], found["alone"], found["together"]
    return [
        Finding("bare write + fdatasync, appending", floor.per(floor), "x bare rate", time=floor),
        Finding("one sender", floor.per(one), "x bare rate", 0.5, at_least=True, time=one),
        Finding("64 concurrent senders", one.per(many), "x one sender", 20, at_least=True, time=many),
    ]
