"""Spark beside an event loop: rows become messages while the loop goes on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from filechannel import Capacity, ChannelOptions, open_channel
from filechannel.spark import ChannelFeeder, feed
from tests.spark.conftest import several_writers
from tests.spark.messages import Older, fill, orders, received

pytestmark = pytest.mark.asyncio


class Watch:
    """Sees how long the loop was held up at most."""

    def __init__(self) -> None:
        self.longest = 0.0

    async def __aenter__(self) -> Watch:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()

    async def _run(self) -> None:
        while True:
            before = time.monotonic()
            await asyncio.sleep(0.001)
            self.longest = max(self.longest, time.monotonic() - before - 0.001)


async def until(is_so: Callable[[], bool]) -> None:
    """Wait for what Spark does in threads of its own, and tells nobody."""
    while not is_so():  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def test_every_row_is_sent(spark: SparkSession, path: Path) -> None:
    """`feed` sends a frame of several partitions in order, and says how many messages that were."""
    frame = spark.range(0, 5000, 1, 3).selectExpr("id", "concat('sku-', id) as sku")
    async with open_channel(path, Older) as channel, channel.sender() as sender, Watch() as watch:
        assert await feed(sender, frame) == 5000
    assert watch.longest < 1, "a generous limit: the machine may be busy with other things"
    assert received(path, Older) == [Older(number, f"sku-{number}") for number in range(5000)]


async def test_a_small_channel_takes_a_large_frame(spark: SparkSession, path: Path) -> None:
    """`feed` waits for room, and sends no more together than the capacity takes."""
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
    """Errors come out of the awaiting task: wrong columns at once, a row that is no message when it comes."""
    async with open_channel(path, Older) as channel, channel.sender() as sender:
        with pytest.raises(ValueError, match="a field 'sku', and there is no column"):
            await feed(sender, spark.range(3))
        with pytest.raises(PySparkException, match="'sku' is null in a row"):
            await feed(sender, spark.range(3).selectExpr("id", "cast(null as string) as sku"))
    assert received(path, Older) == []


async def test_cancelling_stops_the_job(spark: SparkSession, path: Path) -> None:
    """A cancelled `feed` takes its Spark job along, and leaves nothing behind."""
    frame = spark.range(0, 10**12, 1, 1000).selectExpr("id", "sha2(string(id), 512) as sku").where("sku < '0000000'")
    tracker = spark.sparkContext.statusTracker()
    async with open_channel(path, Older) as channel, channel.sender() as sender:
        task = asyncio.create_task(feed(sender, frame))
        await until(lambda: bool(tracker.getActiveJobsIds()))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: not tracker.getActiveJobsIds())
    assert received(path, Older) == []


@several_writers
async def test_a_query_runs_beside_the_loop(spark: SparkSession, tmp_path: Path) -> None:
    """A feeder copies a stream until it is stopped; its progress can be seen."""
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
    """Whoever waits gets the error; a query that is done ends the wait."""
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
