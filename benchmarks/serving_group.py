"""Four processes that serve one group with a handler that does nothing, by the wall clock.

A round lasts until the position of the group is behind the last message: what is handled twice, or waited for, counts.
"""

from __future__ import annotations

from time import perf_counter_ns as now

from filechannel import open_channel

from . import members
from .consumers import fill
from .crew import Crew
from .harness import Bench, take_turns
from .in_turn import through_queue
from .messages import BATCH, ORDERS, Order
from .report import Finding

TITLE = "handlers of a group in 4 processes, 5-field Struct"
_MEMBERS = 4
_BATCHES = 40


async def measure(bench: Bench) -> list[Finding]:
    with bench.scratch() as directory, Crew() as crew:
        async with open_channel(directory / "orders", Order) as channel:
            channel.group(members.GROUP).close()
            crowd = [crew.start(members.__name__, "member", channel.path) for _ in range(_MEMBERS)]

            async def serve() -> float:
                await fill(channel, _BATCHES)
                began = now()
                for member in crowd:
                    member.tell(1)
                await channel.join(members.GROUP)
                elapsed = now() - began
                for member in crowd:
                    member.tell(0)
                for member in crowd:
                    member.hear()
                return elapsed / (_BATCHES * BATCH)

            found = await take_turns({"Q": through_queue(ORDERS, 1, now), "serve": serve}, bench.rounds(80))

    queued, served = found["Q"], found["serve"]
    return [
        Finding("asyncio.Queue: await put, await get", queued.per(queued), "Q", time=queued),
        Finding("serve, all members together", served.per(queued), "Q", 4, time=served),
    ]
