"""Four processes that serve one group with a handler that does nothing, by the wall clock.

A round lasts until the position of the group is behind the last message: messages that are handled twice, and waiting,
count.
"""

from __future__ import annotations

from time import perf_counter_ns as now

from filechannel import open_channel

from . import members
from .child_processes import ChildProcesses
from .consumers import fill
from .harness import Bench, run_interleaved
from .in_turn import through_queue
from .messages import BATCH, ORDERS, Order
from .report import Finding

TITLE = "handlers of a group in 4 processes, 5-field Struct"
_MEMBERS = 4
_BATCHES = 40


async def measure(bench: Bench) -> list[Finding]:
    with bench.scratch() as directory, ChildProcesses() as processes:
        async with open_channel(directory / "orders", Order) as channel:
            channel.group(members.GROUP).close()
            crowd = [processes.start(members.__name__, "member", channel.path) for _ in range(_MEMBERS)]

            async def serve() -> float:
                await fill(channel, _BATCHES)
                began = now()
                for member in crowd:
                    member.send(1)
                await channel.join(members.GROUP)
                elapsed = now() - began
                for member in crowd:
                    member.send(0)
                for member in crowd:
                    member.receive()
                return elapsed / (_BATCHES * BATCH)

            found = await run_interleaved({"Q": through_queue(ORDERS, 1, now), "serve": serve}, bench.rounds(80))

    queued, served = found["Q"], found["serve"]
    return [
        Finding("asyncio.Queue: await put, await get", queued.per(queued), "Q", time=queued),
        Finding("serve, all members together", served.per(queued), "Q", 4, time=served),
    ]
