"""A group of processes that share the messages of a channel, with a handler that does nothing.

The time is the wall clock's for all members together, from the first receive to the last ack; the messages are there
before, and every member is up and warm.
"""

from __future__ import annotations

from time import perf_counter_ns as now

from filechannel.blocking import FileChannel, open_channel

from . import workers
from .crew import Child, Crew
from .harness import Bench, take_turns
from .in_turn import through_queue
from .messages import BATCH, ORDERS, Order
from .report import Finding

TITLE = "a group of processes, 5-field Struct"
_QUEUE_REPEAT = 3
_BATCHES = 20
_DISK_SPACE = 256 << 20
_STOP = Order(-1, "", 0, 0.0, "")


async def measure(bench: Bench) -> list[Finding]:
    with bench.scratch() as directory, Crew() as crew:
        with (
            open_channel(directory / "one", Order) as alone,
            open_channel(directory / "four", Order) as shared,
        ):
            single = [crew.start(workers.__name__, "member", directory / "one")]
            members = [crew.start(workers.__name__, "member", directory / "four") for _ in range(4)]

            async def one_member() -> float:
                return _share(alone, single)

            async def four_members() -> float:
                return _share(shared, members)

            contestants = {"queue": through_queue(ORDERS, _QUEUE_REPEAT, now), "one": one_member, "four": four_members}
            found = await take_turns(contestants, bench.rounds(60))

    q, one, four = found["queue"], found["one"], found["four"]
    return [
        Finding("asyncio.Queue in one process: await put, await get", q.per(q), "Q", time=q),
        Finding("receive, ack, a group of 1 process", one.per(q), "Q", time=one),
        Finding("receive, ack, a group of 4 processes", four.per(q), "Q", 4.0, time=four),
    ]


def _share(channel: FileChannel[Order], members: list[Child]) -> float:
    """Let the members receive and ack so many messages together; return the nanoseconds of each."""
    if channel.statistics().bytes_on_disk > _DISK_SPACE:
        channel.purge()
    with channel.sender() as tx:
        for _ in range(_BATCHES):
            tx.send_many(ORDERS)
        tx.send_many([_STOP] * len(members))
    for member in members:
        member.tell()
    heard = [member.hear() for member in members]
    assert sum(count for _, _, count in heard) == _BATCHES * BATCH
    return (max(ended for _, ended, _ in heard) - min(began for began, _, _ in heard)) / (_BATCHES * BATCH)
