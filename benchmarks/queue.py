"""One message at a time: a 5-field Struct through `await send` and `await receive`."""

from __future__ import annotations

import asyncio

import anyio

from filechannel import open_channel

from .harness import Bench, run_interleaved
from .harness import working_ns as now
from .in_turn import through_channel, through_queue
from .messages import BATCH, ORDERS, Order
from .report import Finding

TITLE = "5-field Struct, one at a time"
_REPEAT = 4
_REPEAT_SLOW = 1


async def measure(bench: Bench) -> list[Finding]:
    queue: asyncio.Queue[Order] = asyncio.Queue()
    stream_in, stream_out = anyio.create_memory_object_stream[Order](BATCH)

    async def queue_in_phases() -> float:
        began = now()
        for _ in range(_REPEAT):
            for order in ORDERS:
                await queue.put(order)
            for _ in ORDERS:
                await queue.get()
        return (now() - began) / (_REPEAT * BATCH)

    async def stream_in_turn() -> float:
        began = now()
        for _ in range(_REPEAT_SLOW):
            for order in ORDERS:
                await stream_in.send(order)
                await stream_out.receive()
        return (now() - began) / (_REPEAT_SLOW * BATCH)

    with bench.scratch() as directory:
        async with stream_in, stream_out, open_channel(directory / "orders", Order) as channel:
            async with channel.sender() as tx, channel.receiver() as rx:

                async def channel_in_phases() -> float:
                    began = now()
                    for _ in range(_REPEAT):
                        for order in ORDERS:
                            await tx.send(order)
                        for _ in ORDERS:
                            await rx.receive()
                    return (now() - began) / (_REPEAT * BATCH)

                contestants = {
                    "queue": through_queue(ORDERS, _REPEAT),
                    "channel": through_channel(tx, rx, ORDERS, _REPEAT),
                    "stream": stream_in_turn,
                    "queue, phases": queue_in_phases,
                    "channel, phases": channel_in_phases,
                }
                found = await run_interleaved(contestants, bench.rounds(600))

    q, stream, own = found["queue"], found["stream"], found["channel"]
    q_phases, own_phases = found["queue, phases"], found["channel, phases"]
    return [
        Finding("asyncio.Queue: await put, await get", q.per(q), "Q", time=q),
        Finding("anyio memory stream: await send, await receive", stream.per(q), "Q", time=stream),
        Finding("await send, await receive", own.per(q), "Q", 1.0, time=own),
        Finding("the same against the memory stream", own.per(stream), "x", 0.15, time=own),
        Finding(
            "1,000 sends, then 1,000 receives (the same for the queue)", own_phases.per(q_phases), "Q", time=own_phases
        ),
    ]
