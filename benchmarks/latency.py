"""Ping-pong between two processes: the time until the other process has received a message and has answered.

A figure is the median of the round trips of one round, between two processes that do nothing else. The bare variants do
the minimum that can wake a process: a futex, or an eventfd that an asyncio loop watches with `add_reader`, each in
Python and without checking for a message before going to sleep.

The judged figure is with the placement that the scheduler chooses. Whether it puts the two on one core changes a round
trip by more than what is measured, so asyncio is also shown on one core and on two, for information.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter_ns as now

import filechannel
from filechannel import ChannelOptions, blocking
from filechannel._format import load_u32, store_u32, wait_word, wake_word

from .child_processes import TIMEOUT, Child, ChildProcesses, answer, orders, play
from .harness import Bench, Round, run_interleaved
from .messages import RAW
from .report import Finding

TITLE = "ping-pong between 2 processes, round trip, 12 bytes raw"
_TRIPS = 300
_SPIN = 0.001
_CACHE_LINE = 64


class Pair:
    """A process that pings and one that answers."""

    def __init__(
        self, processes: ChildProcesses, role: str, *arguments: object, cores: int = 0, inherited: tuple[int, ...] = ()
    ) -> None:
        """Pin the two to one core or to two; 0 leaves the choice to the scheduler."""
        self._pong = processes.start(__name__, role, 1, *arguments, cores, inherited=inherited)
        self._ping = processes.start(__name__, role, 0, *arguments, cores, inherited=inherited)

    def play(self) -> float:
        """Return the median of some round trips in nanoseconds."""
        children: tuple[Child, ...] = self._pong, self._ping
        for child in children:
            child.send(_TRIPS)
        return [child.receive() for child in children][1][0]


async def measure(bench: Bench) -> list[Finding]:
    with bench.scratch() as directory, _eventfds(6) as (first, second, third), ChildProcesses() as processes:
        (directory / "words").write_bytes(bytes(mmap.PAGESIZE))
        pairs = {
            "futex": Pair(processes, "bare_futex", directory / "words"),
            "blocking": Pair(processes, "blocking", directory / "blocking", 0),
            "spin": Pair(processes, "blocking", directory / "spin", _SPIN),
            "eventfd": Pair(processes, "bare_eventfd", *first, inherited=first),
            "asyncio": Pair(processes, "asyncio", directory / "asyncio"),
            "eventfd, 1 core": Pair(processes, "bare_eventfd", *second, cores=1, inherited=second),
            "asyncio, 1 core": Pair(processes, "asyncio", directory / "asyncio-1", cores=1),
            "eventfd, 2 cores": Pair(processes, "bare_eventfd", *third, cores=2, inherited=third),
            "asyncio, 2 cores": Pair(processes, "asyncio", directory / "asyncio-2", cores=2),
        }

        def contestant(pair: Pair) -> Round:
            async def run() -> float:
                return pair.play()

            return run

        found = await run_interleaved({name: contestant(pair) for name, pair in pairs.items()}, bench.rounds(120))

    futex, eventfd = found["futex"], found["eventfd"]
    return [
        Finding("bare futex", futex.per(futex), "x futex", time=futex),
        Finding("blocking send, receive", found["blocking"].per(futex), "x futex", 1.5, time=found["blocking"]),
        Finding("the same with spin=0.001", found["spin"].per(futex), "x futex", 0.3, time=found["spin"]),
        Finding("bare eventfd + add_reader in asyncio", eventfd.per(eventfd), "x eventfd", time=eventfd),
        Finding("await send, await receive", found["asyncio"].per(eventfd), "x eventfd", 1.5, time=found["asyncio"]),
        *(
            Finding(
                f"the same, both pinned to {place}",
                found[f"asyncio, {place}"].per(found[f"eventfd, {place}"]),
                "x eventfd there",
                time=found[f"asyncio, {place}"],
            )
            for place in ("1 core", "2 cores")
        ),
    ]


@contextmanager
def _eventfds(count: int) -> Iterator[list[tuple[int, int]]]:
    """Yield pairs of eventfds."""
    descriptors = [os.eventfd(0, os.EFD_NONBLOCK) for _ in range(count)]
    try:
        yield list(zip(descriptors[::2], descriptors[1::2], strict=True))
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


# The roles of the child processes. Side 0 pings, side 1 answers; both measure, and the trips of side 0 count.


def bare_futex(side: str, path: str, cores: str) -> None:
    _keep_to(int(cores), int(side))
    own, other = int(side) * _CACHE_LINE, (1 - int(side)) * _CACHE_LINE
    with Path(path).open("r+b") as file, mmap.mmap(file.fileno(), mmap.PAGESIZE) as words:

        def send(number: int) -> None:
            store_u32(words, other, number)
            wake_word(words, other, 1)

        def receive(number: int) -> None:
            while (seen := load_u32(words, own)) != number:
                wait_word(words, own, seen, TIMEOUT)

        _play_on(int(side), send, receive)


def through_channel(side: str, path: str, spin: str, cores: str) -> None:
    _keep_to(int(cores), int(side))
    options = ChannelOptions(spin=float(spin))
    there, back = (f"{path}-{way}" for way in _ways(side))
    with (
        blocking.open_channel(there, bytes, options=options) as out,
        blocking.open_channel(back, bytes, options=options) as into,
        out.sender() as tx,
        into.receiver() as rx,
    ):
        send, receive = tx.send, rx.receive
        _play_on(int(side), lambda number: send(RAW[number]), lambda _: receive(TIMEOUT))


def _play_on(side: int, send: Callable[[int], object], receive: Callable[[int], object]) -> None:
    for (trips,) in orders():
        times = list[int]()
        for number in range(1, trips + 1):
            began = now()
            if side:
                receive(number)
                send(number)
            else:
                send(number)
                receive(number)
            times.append(now() - began)
        answer(statistics.median(times))


def _keep_to(cores: int, side: int) -> None:
    """Pin this process to the first core, or to the core of its side."""
    if cores:
        allowed = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {allowed[side * (cores - 1) % len(allowed)]})


def _ways(side: str) -> tuple[str, str]:
    return ("back", "there") if int(side) else ("there", "back")


def bare_eventfd(side: str, first: str, second: str, cores: str) -> None:
    _keep_to(int(cores), int(side))
    own, other = (int(second), int(first)) if int(side) else (int(first), int(second))

    async def run() -> None:
        loop = asyncio.get_running_loop()
        rung = loop.create_future()

        def answered() -> None:
            os.eventfd_read(own)
            rung.set_result(None)

        async def receive() -> None:
            nonlocal rung
            await rung
            rung = loop.create_future()

        async def send() -> None:
            os.eventfd_write(other, 1)

        loop.add_reader(own, answered)
        await _play_in_loop(int(side), send, receive)

    asyncio.run(run())


def in_asyncio(side: str, path: str, cores: str) -> None:
    _keep_to(int(cores), int(side))

    async def run() -> None:
        there, back = (f"{path}-{way}" for way in _ways(side))
        async with (
            filechannel.open_channel(there, bytes) as out,
            filechannel.open_channel(back, bytes) as into,
            out.sender() as tx,
            into.receiver() as rx,
        ):
            await _play_in_loop(int(side), lambda: tx.send(RAW[0]), rx.receive)

    asyncio.run(run())


async def _play_in_loop(side: int, send: Callable[[], object], receive: Callable[[], object]) -> None:
    for (trips,) in orders():
        times = list[int]()
        for _ in range(trips):
            began = now()
            if side:
                await receive()
                await send()
            else:
                await send()
                await receive()
            times.append(now() - began)
        answer(statistics.median(times))


ROLES: dict[str, Callable[..., None]] = {
    "bare_futex": bare_futex,
    "blocking": through_channel,
    "bare_eventfd": bare_eventfd,
    "asyncio": in_asyncio,
}

if __name__ == "__main__":
    play(ROLES)
