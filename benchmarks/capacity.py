"""A channel with a capacity: the cost of the limit while it is not reached, and the cost of waiting for capacity."""

from __future__ import annotations

from contextlib import AsyncExitStack

import anyio

from filechannel import Capacity, ChannelOptions, FanOutReceiver, Sender, open_channel

from .harness import Bench, Round, run_interleaved
from .harness import working_ns as now
from .in_turn import through_channel
from .messages import ORDERS, Order
from .report import Finding

TITLE = "A capacity that is never reached, and one that always is"
_REPEAT = 4
_FULL = 1000
_ROOMS = 1, 100
_PLENTY: dict[str, Capacity | None] = {
    "none": None,
    "wait": Capacity(max_bytes=1 << 30, max_messages=1 << 20),
    "drop_oldest": Capacity(max_bytes=1 << 30, on_full="drop_oldest"),
}


async def measure(bench: Bench) -> list[Finding]:
    with bench.scratch() as directory:
        async with AsyncExitStack() as stack:

            async def ends(name: str, capacity: Capacity | None) -> tuple[Sender[Order], FanOutReceiver[Order]]:
                options = ChannelOptions(capacity=capacity)
                channel = await stack.enter_async_context(open_channel(directory / name, Order, options=options))
                return channel.sender(), channel.receiver()

            contestants: dict[str, Round] = {}
            for name, capacity in _PLENTY.items():
                contestants[name] = through_channel(*await ends(name, capacity), ORDERS, _REPEAT)
            for room in _ROOMS:
                contestants[f"full {room}"] = _at_full(*await ends(f"full {room}", Capacity(max_messages=room)))
                tx, rx = anyio.create_memory_object_stream[Order](room)
                contestants[f"stream {room}"] = _at_full(stack.enter_context(tx), stack.enter_context(rx))
            found = await run_interleaved(contestants, bench.rounds(300))
    none = found["none"]
    at_full = [
        Finding(
            f"a capacity of {room:,}, one task sends, another receives (against an anyio memory stream)",
            found[f"full {room}"].per(found[f"stream {room}"]),
            "x",
            time=found[f"full {room}"],
        )
        for room in _ROOMS
    ]
    return [
        Finding("await send, await receive, without a capacity", none.per(none), "x", time=none),
        Finding('with a capacity, on_full="wait"', found["wait"].per(none), "x", 1.1, time=found["wait"]),
        Finding(
            'with a capacity, on_full="drop_oldest"',
            found["drop_oldest"].per(none),
            "x",
            1.05,
            time=found["drop_oldest"],
        ),
        *at_full,
    ]


def _at_full(tx: anyio.abc.ObjectSendStream[Order], rx: anyio.abc.ObjectReceiveStream[Order]) -> Round:
    async def send() -> None:
        for order in ORDERS[:_FULL]:
            await tx.send(order)

    async def run() -> float:
        began = now()
        async with anyio.create_task_group() as group:
            group.start_soon(send)
            for _ in range(_FULL):
                await rx.receive()
        return (now() - began) / _FULL

    return run
