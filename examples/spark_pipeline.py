"""A complete pipeline: an asyncio producer, a channel, Spark, another channel, and an asyncio consumer.

    producer (a process of its own) -> views -> Structured Streaming, windows of a second -> counts -> live table

The producer is killed with SIGKILL once, while it sends, and started again. At the end the number of views that were
accepted from it is compared with the table: no view may be lost or counted twice.

Exits with 0 if that holds, and with 1 if not. Needs the extras `spark` and `cli`, and Java.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import tempfile
from collections.abc import Awaitable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from rich.console import Console
from rich.live import Live
from rich.table import Table

from filechannel import open_channel
from filechannel.spark import ChannelFeeder, register

PAGES = ("/", "/pens", "/paper", "/basket")
SECONDS = 4.0
END = "(end)"  # a view far in the future, which closes the last windows


class View(msgspec.Struct):
    """A view of a page."""

    page: str
    at: datetime


class Count(msgspec.Struct):
    """The number of views of a page within a second."""

    start: datetime
    page: str
    views: int


# The producer. A request handler would do the same.


async def produce(path: Path) -> None:
    """Send views until the process is killed or stopped. Report each one that was accepted."""
    async with open_channel(path, View) as views, views.sender() as tx:
        stopped = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
        while not stopped.is_set():
            for _ in range(random.randrange(40)):
                await tx.send(View(random.choice(PAGES), datetime.now(UTC)))
                os.write(1, b".")
            await asyncio.sleep(0.005)


class Producer:
    """The producer process, and the number of views it has reported as accepted."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.accepted = 0

    async def run(self, long_enough: Awaitable[object], how_to_stop: signal.Signals) -> None:
        """Run the producer until *long_enough* completes, and stop it with the given signal."""
        command = [sys.executable, __file__, "produce", str(self._path)]
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        assert process.stdout is not None
        self.accepted += len(await process.stdout.read(1))  # it has started sending
        rest = asyncio.create_task(process.stdout.read())
        await long_enough
        process.send_signal(how_to_stop)
        self.accepted += len(await rest)
        await process.wait()


# The consumer


class Board:
    """The number of views of each page: in total, and in the last seconds."""

    def __init__(self) -> None:
        self.total = dict.fromkeys(PAGES, 0)
        self._seconds: dict[datetime, dict[str, int]] = {}

    def add(self, count: Count) -> None:
        """Add the views of a page within a second."""
        self.total[count.page] += count.views
        self._seconds.setdefault(count.start, {})[count.page] = count.views

    def __rich__(self) -> Table:
        latest = sorted(self._seconds)[-5:]
        headings = [f"{second.astimezone():%H:%M:%S}" for second in latest]
        picture = Table("page", *headings, "total", box=None, pad_edge=False)
        for column in picture.columns[1:]:
            column.justify = "right"
        for page, views in self.total.items():
            picture.add_row(page, *(f"{self._seconds[second].get(page, 0):,}" for second in latest), f"{views:,}")
        return picture


async def consume(path: Path, board: Board, live: Live, shown: asyncio.Event) -> None:
    """Show the counts, second by second, until the end marker arrives."""
    async with open_channel(path, Count) as counts, counts.receiver("board") as rx:
        is_over = False
        while not is_over:
            # A batch of Spark becomes visible as a whole: a receiver that sees one row of it sees all.
            batch = await rx.receive_many(10_000)
            is_over = any(count.page == END for count in batch)
            for count in batch:
                if count.page != END:
                    board.add(count)
            live.update(board)
            shown.set()


# The pipeline


def start_spark() -> SparkSession:
    """Start Spark in a JVM of this process, with little output."""
    os.environ |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.sql.shuffle.partitions", "2")
    spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    register(spark)
    return spark


def count_views(spark: SparkSession, path: Path) -> DataFrame:
    """Count the views of each page, second by second. A second is complete when no older view can arrive any more."""
    views = spark.readStream.format("filechannel").option("consumer", "spark").load(str(path))
    return (
        views.withWatermark("at", "1 second")
        .groupBy(f.window("at", "1 second"), "page")
        .agg(f.count("*").alias("views"))
        .select("window.start", "page", "views")
    )


async def end_stream(path: Path) -> int:
    """Close the last windows. Return how many views were sent before."""
    async with open_channel(path, View) as views, views.sender() as tx:
        sent = views.statistics().messages
        for minutes in (1, 2, 3):
            await tx.send(View(END, datetime.now(UTC) + timedelta(minutes=minutes)))
    return sent


async def main(directory: Path) -> int:
    """Run the pipeline. Return the exit code."""
    views_path, counts_path = directory / "views", directory / "counts"
    for path, message_type in ((views_path, View), (counts_path, Count)):
        async with open_channel(path, message_type):
            pass
    console = Console(highlight=False)
    console.print("Starting Spark")
    spark = await asyncio.to_thread(start_spark)
    producer, board, shown = Producer(views_path), Board(), asyncio.Event()
    feeder = ChannelFeeder(count_views(spark, views_path), counts_path, checkpoint=directory / "checkpoint")
    with Live(board, console=console, refresh_per_second=10) as live:
        async with feeder, asyncio.TaskGroup() as tasks:
            tasks.create_task(consume(counts_path, board, live, shown))
            await producer.run(shown.wait(), signal.SIGKILL)
            console.print(f"Killed the producer after {producer.accepted:,} views; starting it again")
            await producer.run(asyncio.sleep(SECONDS), signal.SIGTERM)
            sent = await end_stream(views_path)
    counted = sum(board.total.values())
    # If the producer was killed between a send and its report, there is one view that it did not report.
    kept = counted == sent and producer.accepted <= sent <= producer.accepted + 1
    console.print(f"\n{producer.accepted:,} views accepted, {sent:,} in the channel, {counted:,} on the board")
    console.print("No view was lost, and none was counted twice." if kept else "VIEWS WERE LOST OR COUNTED TWICE.")
    return 0 if kept else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["produce"]:
        asyncio.run(produce(Path(sys.argv[2])))
    else:
        with tempfile.TemporaryDirectory(prefix="filechannel-") as name:
            sys.exit(asyncio.run(main(Path(name))))
