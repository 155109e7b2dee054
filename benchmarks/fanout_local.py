"""Eight receivers with different names in one event loop, each of which receives all messages.

The cost of one receiver per message, compared with a single receiver: when there is something to read, and when all of
them wait for it.
"""

from __future__ import annotations

from collections.abc import Sequence

import anyio

from filechannel import FanOutReceiver, Sender, open_channel

from .harness import Bench, Round, run_interleaved
from .harness import working_ns as now
from .messages import BATCH, ORDERS, Order
from .report import Finding

TITLE = "fan-out in one process, 5-field Struct"
_RECEIVERS = 8
_REPEAT = 4
_LIVE = 50


async def measure(bench: Bench) -> list[Finding]:
    with bench.scratch() as directory:
        async with open_channel(directory / "one", Order) as alone, open_channel(directory / "many", Order) as shared:
            one = [alone.receiver("0")]
            many = [shared.receiver(str(number)) for number in range(_RECEIVERS)]
            to_one, to_many = alone.sender(), shared.sender()
            contestants = {
                "one": _one_by_one(to_one, one),
                "many": _one_by_one(to_many, many),
                "one, batched": _batched(to_one, one),
                "many, batched": _batched(to_many, many),
                "one, live": _live(to_one, one),
                "many, live": _live(to_many, many),
            }
            found = await run_interleaved(contestants, bench.rounds(200))
    findings = list[Finding]()
    for suffix, work, target in (
        ("", "await receive", 1.3),
        (", batched", "receive_many", 1.3),
        (", live", "wake", None),
    ):
        own, each = found[f"one{suffix}"], found[f"many{suffix}"]
        findings += [
            Finding(f"{work}, 1 receiver", own.per(own), "x 1 receiver", time=own),
            Finding(f"{work}, each of {_RECEIVERS}", each.per(own), "x 1 receiver", target, time=each),
        ]
    return findings


def _one_by_one(tx: Sender[Order], receivers: Sequence[FanOutReceiver[Order]]) -> Round:
    async def receive(rx: FanOutReceiver[Order]) -> None:
        for _ in range(_REPEAT * BATCH):
            await rx.receive()

    async def run() -> float:
        for _ in range(_REPEAT):
            await tx.send_many(ORDERS)
        began = now()
        async with anyio.create_task_group() as group:
            for rx in receivers:
                group.start_soon(receive, rx)
        return (now() - began) / (_REPEAT * BATCH * len(receivers))

    return run


def _batched(tx: Sender[Order], receivers: Sequence[FanOutReceiver[Order]]) -> Round:
    async def run() -> float:
        for _ in range(_REPEAT):
            await tx.send_many(ORDERS)
        began = now()
        for _ in range(_REPEAT):
            for rx in receivers:
                assert len(await rx.receive_many(BATCH)) == BATCH
        return (now() - began) / (_REPEAT * BATCH * len(receivers))

    return run


def _live(tx: Sender[Order], receivers: Sequence[FanOutReceiver[Order]]) -> Round:
    async def receive(rx: FanOutReceiver[Order]) -> None:
        for _ in range(_LIVE):
            await rx.receive()

    async def run() -> float:
        began = now()
        async with anyio.create_task_group() as group:
            for rx in receivers:
                group.start_soon(receive, rx)
            for _ in range(_LIVE):
                await anyio.lowlevel.checkpoint()  # all receivers are asleep
                await tx.send(ORDERS[0])
                await anyio.lowlevel.checkpoint()
        return (now() - began) / (_LIVE * len(receivers))

    return run
