"""Spark beside an event loop: rows become messages while the loop keeps running."""

from __future__ import annotations

import asyncio
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from threading import get_ident

import pytest
from blockbuster import BlockBuster
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from filechannel import Capacity, ChannelOptions, open_channel
from filechannel.spark import ChannelFeeder, feed
from tests.spark.conftest import several_writers
from tests.spark.messages import Older, fill, orders, received

pytestmark = pytest.mark.asyncio


class Watch:
    """Sees how much of the loop's own time each callback takes, however busy the machine is with other things."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.longest = 0.0
        self.callbacks = 0
        run, thread = asyncio.Handle._run, get_ident()

        def timed(handle: asyncio.Handle) -> None:
            before = time.thread_time()
            run(handle)
            if get_ident() == thread:
                self.longest = max(self.longest, time.thread_time() - before)
                self.callbacks += 1

        patch.setattr(asyncio.Handle, "_run", timed)


async def until(is_so: Callable[[], bool]) -> None:
    """Wait for what Spark does in its own threads and does not report."""
    while not is_so():  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def test_every_row_is_sent(spark: SparkSession, path: Path) -> None:
    """`feed` sends a frame of several partitions in order, and returns the number of messages."""
    frame = spark.range(0, 5000, 1, 3).selectExpr("id", "concat('sku-', id) as sku")
    async with open_channel(path, Older) as channel, channel.sender() as sender:
        assert await feed(sender, frame) == 5000
    assert await asyncio.to_thread(received, path, Older) == [Older(number, f"sku-{number}") for number in range(5000)]


async def test_the_loop_is_not_held_up(
    spark: SparkSession, path: Path, monkeypatch: pytest.MonkeyPatch, blockbuster: BlockBuster
) -> None:
    """While a large frame is sent no callback of the event loop computes for 50 ms or waits for a file."""
    frame = spark.range(0, 300_000, 1, 2).selectExpr("id", "concat('sku-', id) as sku")
    async with open_channel(path, Older) as channel, channel.sender() as sender:
        watch = Watch(monkeypatch)
        blockbuster.activate()
        try:
            assert await feed(sender, frame) == 300_000
        finally:
            blockbuster.deactivate()
    assert watch.callbacks > 300
    assert watch.longest < 0.05


async def test_memory_stays_bounded(spark: SparkSession, path: Path) -> None:
    """`feed` never holds a whole frame, or all of its messages, in memory."""
    frame = spark.range(0, 100_000, 1, 2).selectExpr("id", "repeat(cast(id as string), 100) as sku")
    async with open_channel(path, Older) as channel, channel.sender() as sender:
        tracemalloc.start()
        try:
            assert await feed(sender, frame) == 100_000
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < channel.statistics().bytes_on_disk / 2 > 20_000_000


async def test_a_small_channel_takes_a_large_frame(spark: SparkSession, path: Path) -> None:
    """`feed` waits for capacity, and sends batches that fit into it."""
    frame = spark.range(0, 500, 1, 1).selectExpr("id", "concat('sku-', id) as sku")
    options = ChannelOptions(capacity=Capacity(max_messages=100))
    async with (
        open_channel(path, Older, options=options) as channel,
        channel.receiver("reader") as receiver,
        channel.sender() as sender,
        asyncio.TaskGroup() as tasks,
    ):
        fed = tasks.create_task(feed(sender, frame))
        assert [(await receiver.receive()).id for _ in range(500)] == list(range(500))
        assert await fed == 500


async def test_a_frame_that_does_not_fit_is_refused(spark: SparkSession, path: Path) -> None:
    """`feed` raises for wrong columns at once, and for a row that is not a message when it reads it."""
    async with open_channel(path, Older) as channel, channel.sender() as sender:
        with pytest.raises(ValueError, match="a field 'sku', and there is no column"):
            await feed(sender, spark.range(3))
        with pytest.raises(PySparkException, match="'sku' is null in a row"):
            await feed(sender, spark.range(3).selectExpr("id", "cast(null as string) as sku"))
    assert received(path, Older) == []


async def test_cancelling_stops_the_job(spark: SparkSession, path: Path) -> None:
    """Cancelling `feed` cancels its Spark job and leaves nothing behind."""
    frame = spark.range(0, 10**12, 1, 1000).selectExpr("id", "sha2(string(id), 512) as sku").where("sku < '0000000'")
    tracker = spark.sparkContext.statusTracker()
    async with open_channel(path, Older) as channel, channel.sender() as sender:
        task = asyncio.create_task(feed(sender, frame))
        await until(lambda: bool(tracker.getActiveJobsIds()))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: not tracker.getActiveJobsIds())  # it has ended; Spark counts a moment later
    assert received(path, Older) == []
    assert not (path / "staging").exists()


@several_writers
async def test_a_query_runs_beside_the_loop(spark: SparkSession, tmp_path: Path) -> None:
    """A feeder copies a stream beside the event loop until it is stopped, and shows its progress."""
    source, target = tmp_path / "source", tmp_path / "target"
    await asyncio.to_thread(fill, source, orders(50))
    frame = spark.readStream.format("filechannel").load(str(source)).select("id", "sku")
    options = {"type": "tests.spark.messages:Older"}
    async with ChannelFeeder(frame, target, checkpoint=tmp_path / "checkpoint", options=options) as feeder:
        async with open_channel(target, Older) as channel, channel.receiver() as receiver:
            found = [await receiver.receive() for _ in range(50)]
            await asyncio.to_thread(fill, source, orders(10, 50))
            found += [await receiver.receive() for _ in range(10)]
        assert feeder.is_running
        await until(lambda: feeder.progress() is not None)
        assert (feeder.progress() or {})["sources"]
    assert not feeder.is_running
    assert sorted(order.id for order in found) == list(range(60))


async def test_what_a_query_fails_with_is_raised(spark: SparkSession, tmp_path: Path) -> None:
    """The task that waits for a feeder gets the error of its query, or returns when that ends."""
    source, target = tmp_path / "source", tmp_path / "target"
    await asyncio.to_thread(fill, source, orders(5))
    await asyncio.to_thread(fill, target, [], Older)
    frame = spark.readStream.format("filechannel").load(str(source))
    good = ChannelFeeder(frame.select("id", "sku"), target, checkpoint=tmp_path / "good", available_now=True)
    async with good:
        await good.wait()
    assert len(await asyncio.to_thread(received, target, Older)) == 5
    rows = frame.selectExpr("id", "note as sku")
    bad = ChannelFeeder(rows, target, checkpoint=tmp_path / "bad", available_now=True)
    await bad.start()
    with pytest.raises(PySparkException, match="'sku' is null in a row"):
        await bad.wait()
    with pytest.raises(PySparkException, match="'sku' is null in a row"):
        async with ChannelFeeder(rows, target, checkpoint=tmp_path / "bad", available_now=True) as feeder:
            await until(lambda: not feeder.is_running)
    with pytest.raises(ValueError, match="column 'qty' is not a field"):
        await ChannelFeeder(frame, target, checkpoint=tmp_path / "wrong").start()


async def test_cancelling_stops_the_query(spark: SparkSession, tmp_path: Path) -> None:
    """Cancelling the task that waits for a feeder stops its query."""
    source, target = tmp_path / "source", tmp_path / "target"
    await asyncio.to_thread(fill, source, orders(5))
    await asyncio.to_thread(fill, target, [], Older)
    frame = spark.readStream.format("filechannel").load(str(source)).select("id", "sku")
    feeder = ChannelFeeder(frame, target, checkpoint=tmp_path / "checkpoint")
    await feeder.start()
    task = asyncio.create_task(feeder.wait())
    await until(lambda: feeder.progress() is not None)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not feeder.is_running
