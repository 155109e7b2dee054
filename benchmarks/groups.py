"""A group of processes that share the messages of a channel, with a handler that does nothing.

The time is wall-clock time for all members together, from the first receive to the last ack. The messages are sent
before, and every member is started and warm.
"""

from __future__ import annotations

from time import perf_counter_ns as now

from filechannel.blocking import FileChannel, open_channel

from . import workers
from .child_processes import Child, ChildProcesses
from .harness import Bench, run_interleaved
from .in_turn import through_queue
from .messages import BATCH, ORDERS, Order
from .report import Finding

TITLE = "a group of processes, 5-field Struct"
_QUEUE_REPEAT = 3
_BATCHES = 20
_DISK_SPACE = 256 << 20
_STOP = Order(-1, "", 0, 0.0, "")


async def measure(bench: Bench) -> list[Finding]:
    with bench.scratch() as directory, ChildProcesses() as processes:
        with (
            open_channel(directory / "one", Order) as alone,
            open_channel(directory / "four", Order) as shared,
        ):
            single = [processes.start(workers.__name__, "member", directory / "one")]
            members = [processes.start(workers.__name__, "member", directory / "four") for _ in range(4)]

            async def one_member() -> float:
                return _share(alone, single)

            async def four_members() -> float:
                return _share(shared, members)

            contestants = {"queue": through_queue(ORDERS, _QUEUE_REPEAT, now), "one": one_member, "four": four_members}
            found = await run_interleaved(contestants, bench.rounds(60))

    q, one, four = found["queue"], found["one"], found["four"]
    return [
        Finding("asyncio.Queue in one process: await put, await get", q.per(q), "Q", time=q),
        Finding("receive, ack, a group of 1 process", one.per(q), "Q", time=one),
        Finding("receive, ack, a group of 4 processes", four.per(q), "Q", 4.0, time=four),
    ]


def _share(channel: FileChannel[Order], members: list[Child]) -> float:
    """Let the members receive and ack all messages together. Return the nanoseconds per message."""
    if channel.statistics().bytes_on_disk > _DISK_SPACE:
        channel.purge()
    with channel.sender() as tx:
        for _ in range(_BATCHES):
            tx.send_many(ORDERS)
        tx.send_many([_STOP] * len(members))
    for member in members:
        member.send()
    answers = [member.receive() for member in members]
    assert sum(count for _, _, count in answers) == _BATCHES * BATCH
    return (max(ended for _, ended, _ in answers) - min(began for began, _, _ in answers)) / (_BATCHES * BATCH)
