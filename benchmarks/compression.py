"""Compressed segments: reading them compared with plain ones, and sending while segments are being compressed.

All messages are different, with numbers and words as in a real program: a few messages repeated over and over would be
compressed to almost nothing. Sending is measured by the wall clock, because the point is what the compressing thread
takes away, a core or the interpreter lock. That thread always has more work than it can do.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from threading import Event, Thread
from time import perf_counter_ns

from filechannel import ChannelOptions, Compression, FileChannel, Offset, open_channel
from filechannel._maintenance.background.compress_segment import compress
from filechannel._maintenance.background.compression_thread import JOBS, compress_step
from filechannel._policies import CompressionMethod

from .harness import Bench, Round, run_interleaved
from .harness import working_ns as now
from .messages import BATCH, Order
from .report import Finding

TITLE = "5-field Struct, compressed segments"
_MESSAGES = 200_000
_SEGMENT = 4 << 20
_SENT = 100  # batches per round
_WORDS = ("north", "south", "blue", "green", "red", "fast", "slow", "small", "large", "old", "new", "left", "right")


async def measure(bench: Bench) -> list[Finding]:
    chance = random.Random(1)
    orders = [_order(chance, number) for number in range(_MESSAGES)]
    with bench.scratch() as directory:
        return [*await _reading(bench, directory, orders), *await _sending(bench, directory, orders)]


def _order(chance: random.Random, number: int) -> Order:
    words = " ".join(chance.choices(_WORDS, k=chance.randrange(2, 6)))
    price = chance.randrange(10**6) / 100
    return Order(number, f"SKU-{chance.randrange(5000):05}", chance.randrange(1, 9), price, words)


# Reading


async def _reading(bench: Bench, directory: Path, orders: list[Order]) -> list[Finding]:
    methods: tuple[CompressionMethod, ...] = ("none", "zstd", "lz4", "gzip")
    contestants, sizes = dict[str, Round](), dict[str, float]()
    for method in methods:
        end, count = await _fill(directory / method, orders)
        if method != "none":
            report = compress(directory / method, Compression(method=method))
            sizes[method] = report.bytes_after / report.bytes_before
        contestants[method] = _replaying(directory / method, end, count)
    found = await run_interleaved(contestants, bench.rounds(40))
    plain = found["none"]
    findings = [Finding("replay plain segments", plain.per(plain), "x plain rate", time=plain)]
    for method, size in sizes.items():
        target = 0.5 if method == "zstd" else None
        work = f"replay {method} segments, {size:.0%} of the size"
        rate = plain.per(found[method])
        findings.append(Finding(work, rate, "x plain rate", target, at_least=True, time=found[method]))
    return findings


async def _fill(path: Path, orders: list[Order]) -> tuple[Offset, int]:
    """Return where the last finished segment ends, and how many messages there are up to there."""
    async with open_channel(path, Order, options=ChannelOptions(segment_size=_SEGMENT)) as channel:
        async with channel.sender() as tx:
            for first in range(0, len(orders), BATCH):
                await tx.send_many(orders[first : first + BATCH])
        segments = channel._store.segments
        last = segments.begins[-1]
        return last, segments.header(last).first_sequence


def _replaying(path: Path, end: Offset, count: int) -> Round:
    async def replay() -> float:
        async with open_channel(path, Order) as channel:
            with channel.replay(stop=end) as rx:
                seen, began = 0, now()
                while seen < count:
                    seen += len(await rx.receive_many(BATCH))
                return (now() - began) / count

    return replay


# Sending


async def _sending(bench: Bench, directory: Path, orders: list[Order]) -> list[Finding]:
    async with _channel(directory / "alone", "none") as alone, _channel(directory / "beside", "zstd") as beside:
        contestants = {"alone": _burst(alone, orders), "beside": _compressing(beside, _burst(beside, orders))}
        found = await run_interleaved(contestants, bench.rounds(40))
        assert beside.statistics().compressed_segments > 0
    alone_time, beside_time = found["alone"], found["beside"]
    return [
        Finding("await send_many", alone_time.per(alone_time), "x rate alone", time=alone_time),
        Finding(
            "the same while zstd compresses earlier segments",
            alone_time.per(beside_time),
            "x rate alone",
            0.8,
            at_least=True,
            time=beside_time,
        ),
    ]


@asynccontextmanager
async def _channel(path: Path, method: CompressionMethod) -> AsyncIterator[FileChannel[Order]]:
    options = ChannelOptions(segment_size=_SEGMENT, compression=Compression(method=method, after=0.0))
    async with open_channel(path, Order, options=options) as channel:
        yield channel


def _burst(channel: FileChannel[Order], orders: list[Order]) -> Round:
    async def send() -> float:
        async with channel.sender() as tx:
            began = perf_counter_ns()
            for first in range(0, _SENT * BATCH, BATCH):
                await tx.send_many(orders[first : first + BATCH])
            return (perf_counter_ns() - began) / (_SENT * BATCH)

    return send


def _compressing(channel: FileChannel[Order], send: Round) -> Round:
    """Run a thread that compresses like the maintenance thread, from before the first message until after the last."""
    store = channel._store

    async def both() -> float:
        stopped, started = Event(), Event()

        def maintain() -> None:
            while not stopped.is_set():
                compress_step(store)
                started.set()
                stopped.wait(0.01)

        thread = Thread(target=maintain, daemon=True)
        thread.start()
        started.wait()
        elapsed = await send()
        stopped.set()
        thread.join()
        JOBS.of(store).idle.wait()
        return elapsed

    return both
