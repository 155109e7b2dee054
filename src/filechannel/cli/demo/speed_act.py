"""The last act: how long sending and receiving takes on this machine, compared with an `asyncio.Queue`."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from statistics import median
from typing import Final

from ... import ChannelOptions, Durability, blocking, open_channel
from ..._format import PURE
from .children import started
from .messages import Order, make_batch

_ROUNDS: Final = 7
_MESSAGES: Final = 10_000
_BATCH: Final = 1_000
_FLUSHES: Final = 100

YARDSTICK: Final = "asyncio.Queue: in memory, lost with the process"


def measure(directory: Path) -> dict[str, float]:
    """Return the nanoseconds per message for each measurement; the yardstick comes first."""
    figures = asyncio.run(_within_a_process(directory / "speed"))
    if not PURE:
        figures["filechannel, to another process, batches"] = _between_processes(directory / "across")
    figures["filechannel, each flushed to disk"] = _flushed(directory / "flushed")
    return figures


async def _within_a_process(path: Path) -> dict[str, float]:
    """Measure alternately, and take medians, so that other work on the machine affects all alike."""
    queue: asyncio.Queue[Order] = asyncio.Queue()
    orders = make_batch(0, _MESSAGES)
    times: dict[str, list[float]] = {}

    def note(name: str, began: int) -> None:
        times.setdefault(name, []).append((time.perf_counter_ns() - began) / _MESSAGES)

    async with open_channel(path, Order) as channel, channel.sender() as tx, channel.receiver() as rx:
        for _ in range(_ROUNDS):
            began = time.perf_counter_ns()
            for order in orders:
                await queue.put(order)
                await queue.get()
            note(YARDSTICK, began)

            began = time.perf_counter_ns()
            for order in orders:
                await tx.send(order)
                await rx.receive()
            note("filechannel, one by one", began)

            began = time.perf_counter_ns()
            for start in range(0, _MESSAGES, _BATCH):
                await tx.send_many(orders[start : start + _BATCH])
                await rx.receive_many(_BATCH)
            note("filechannel, batches of 1,000", began)
    return {name: median(rounds) for name, rounds in times.items()}


def _between_processes(path: Path) -> float:
    """Measure the time from the first to the last message of a child process, as they arrive here."""
    total = _ROUNDS * _MESSAGES
    with blocking.open_channel(path, Order) as channel, channel.receiver() as rx, started(__name__, path, total):
        received = len(rx.receive_many(1))  # the child has started
        began = time.perf_counter_ns()
        while received < total:
            received += len(rx.receive_many(_BATCH))
        return (time.perf_counter_ns() - began) / total


def _flushed(path: Path) -> float:
    options = ChannelOptions(durability=Durability.FSYNC)
    with blocking.open_channel(path, Order, options=options) as channel, channel.sender() as tx:
        orders = make_batch(0, _FLUSHES)
        began = time.perf_counter_ns()
        for order in orders:
            tx.send(order)
        return (time.perf_counter_ns() - began) / _FLUSHES


# The child


def _send(path: Path, total: int) -> None:
    batch = make_batch(0, _BATCH)
    with blocking.open_channel(path, Order) as channel, channel.sender() as tx:
        for _ in range(total // _BATCH):
            tx.send_many(batch)


if __name__ == "__main__":
    _send(Path(sys.argv[1]), int(sys.argv[2]))
