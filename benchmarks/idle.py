"""A thousand open channels in one asyncio process, a receiver waiting in each, and nothing to do.

Their cost is measured over some seconds in which nothing is sent: threads, and CPU time. Then another process sends to
some of them, one at a time and with a pause before each, so that all receivers sleep. The latency is from before that
`send` until after the `await receive` that it wakes. One open channel is measured in the same way, alternately.
"""

from __future__ import annotations

import asyncio
import os
import resource
import statistics
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack
from time import perf_counter_ns as now

import filechannel
from filechannel import blocking

from .child_processes import Child, ChildProcesses, answer, orders, play
from .harness import Bench, Round, Series, run_interleaved
from .report import Finding

TITLE = "1,000 open channels, an idle receiver in each"
_CHANNELS = 1_000
_FILES_PER_CHANNEL = 12
"""Descriptors per channel, with a margin."""
_SENT_TO = 16
_SENDS = 16
_PAUSE = 0.002
_SETTLE = 1.5
"""Seconds until maintenance has visited every channel once: after that the load is steady."""
_SECONDS, _SECONDS_QUICK = 10, 3


async def measure(bench: Bench) -> list[Finding]:
    channels = _affordable(bench)
    with bench.scratch() as directory, ChildProcesses() as processes:
        many = processes.start(__name__, "receivers", directory / "many", channels)
        one = processes.start(__name__, "receivers", directory / "one", 1)
        send_to_many = processes.start(__name__, "sender", directory / "many", channels)
        send_to_one = processes.start(__name__, "sender", directory / "one", 1)
        many.send(_SECONDS_QUICK if bench.quick else _SECONDS)
        threads, busy = many.receive()

        def contestant(receivers: Child, sender: Child) -> Round:
            async def run() -> float:
                receivers.send(-_SENDS)
                receivers.receive()
                sender.send(_SENDS)
                sender.receive()
                return receivers.receive()[0]

            return run

        found = await run_interleaved(
            {"one": contestant(one, send_to_one), "many": contestant(many, send_to_many)}, bench.rounds(80)
        )

    latency = found["many"].per(found["one"])
    return [
        Finding(f"threads of the process, {channels:,} channels", Series((threads,)), "threads", 10),
        Finding(f"CPU time, {channels:,} channels", Series((busy * 100,)), "% of a core", 0.5),
        Finding("from send to receive, 1 channel", found["one"].per(found["one"]), "x 1 channel", time=found["one"]),
        Finding(f"from send to receive, {channels:,} channels", latency, "x 1 channel", 2, time=found["many"]),
    ]


def _affordable(bench: Bench) -> int:
    """Return how many channels the limit of open files allows, and add a note if these are fewer."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    channels = _CHANNELS if limit == resource.RLIM_INFINITY else min(_CHANNELS, limit // _FILES_PER_CHANNEL)
    if channels < _CHANNELS:
        bench.notes.append(
            f"'{TITLE}' was measured with {channels:,} channels: "
            f"a process may have only {limit:,} open files here (ulimit -Hn)."
        )
    return channels


def _raise_limit() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


# The roles of the child processes


def receivers(directory: str, count: str) -> None:
    """Command n > 0: idle for n seconds, and answer the threads and the share of a core.

    Command -n: receive n messages.
    """
    _raise_limit()

    async def run() -> None:
        arrived: asyncio.Queue[int] = asyncio.Queue()

        async def receive_on(rx: filechannel.FanOutReceiver[bytes]) -> None:
            async for message in rx:
                arrived.put_nowait(now() - int(message))

        async with AsyncExitStack() as stack:
            tasks = list[asyncio.Task[None]]()
            for number in range(int(count)):
                path = os.path.join(directory, str(number))
                channel = await stack.enter_async_context(filechannel.open_channel(path, bytes))
                rx = await stack.enter_async_context(channel.receiver())
                tasks.append(asyncio.create_task(receive_on(rx)))
            await asyncio.sleep(_SETTLE)
            given = orders()
            while (order := await asyncio.to_thread(next, given, None)) is not None:
                if order[0] > 0:
                    answer(*await _idle(order[0]))
                else:
                    answer()
                    answer(statistics.median([await arrived.get() for _ in range(-order[0])]))
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    asyncio.run(run())


async def _idle(seconds: int) -> tuple[int, float]:
    cpu, began, threads = time.process_time(), time.monotonic(), 0
    for _ in range(seconds):
        await asyncio.sleep(1)
        threads = max(threads, len(os.listdir("/proc/self/task")))
    return threads, (time.process_time() - cpu) / (time.monotonic() - began)


def sender(directory: str, count: str) -> None:
    """Command n: send n messages, alternating between some of the channels."""
    with ExitStack() as stack:
        numbers = sorted({int(count) * number // _SENT_TO for number in range(_SENT_TO)})
        senders = [
            stack.enter_context(stack.enter_context(blocking.open_channel(f"{directory}/{number}", bytes)).sender())
            for number in numbers
        ]
        for (times,) in orders():
            for number in range(times):
                time.sleep(_PAUSE)
                senders[number % len(senders)].send(b"%d" % now())
            answer()


ROLES: dict[str, Callable[..., None]] = {"receivers": receivers, "sender": sender}

if __name__ == "__main__":
    play(ROLES)
