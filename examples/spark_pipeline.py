"""A pipeline to look at: an asyncio producer, a channel, Spark, another channel, and an asyncio consumer.

    producer (a process of its own) -> views -> Structured Streaming, windows of a second -> counts -> live table

The producer is killed with SIGKILL once, in the middle of sending, and started again. At the end the views that it was
told were accepted are compared with what the table says: none may be lost, none counted twice.

Exits with 0 if that is so, and with 1 if not. Needs the extra `spark` and Java.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import sys
import tempfile
from collections.abc import Awaitable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from filechannel import open_channel

PAGES = ("/", "/pens", "/paper", "/basket")
SECONDS = 4.0
END = "(end)"  # a view far in the future: it lets the last windows close


class View(msgspec.Struct):
    """Somebody has looked at a page."""

    page: str
    at: datetime


class Count(msgspec.Struct):
    """How many have looked at a page within a second."""

    start: datetime
    page: str
    views: int


# The producer: a request handler would do the same


async def produce(path: Path) -> None:
    """Send views until killed, or told to stop; say after each how many were accepted."""
    async with open_channel(path, View) as views, views.sender() as tx:
        stopped = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
        while not stopped.is_set():
            for _ in range(random.randrange(40)):
                await tx.send(View(random.choice(PAGES), datetime.now(UTC)))
                os.write(1, b".")
            await asyncio.sleep(0.005)


class Producer:
    """The process that produces, and how many views it was told were accepted."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.accepted = 0

    async def run(self, long_enough: Awaitable[object], how_to_stop: signal.Signals) -> None:
        """Let it produce for long enough."""
        command = [sys.executable, __file__, "produce", str(self._path)]
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        assert process.stdout is not None
        self.accepted += len(await process.stdout.read(1))  # it is at work
        rest = asyncio.create_task(process.stdout.read())
        await long_enough
        process.send_signal(how_to_stop)
        self.accepted += len(await rest)
        await process.wait()


# The pipeline


async def consume(path: Path, table: dict[str, int], shown: asyncio.Event) -> None:
    """Show what comes out, second by second, until the end comes."""
    async with open_channel(path, Count) as counts, counts.receiver("table") as rx:
        is_over = False
        while not is_over:
            # A batch of Spark becomes visible at once: whoever sees one row of it sees all.
            batch = await rx.receive_many(10_000)
            is_over = any(count.page == END for count in batch)
            for count in sorted(batch, key=lambda count: count.start):
                table[count.page] = table.get(count.page, 0) + count.views * (count.page != END)
            cells = "  ".join(f"{page} {table.get(page, 0):5}" for page in PAGES)
            print(f"  {cells}")
            shown.set()


async def main(directory: Path) -> int:
    """Run everything; return what to exit with."""
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as f

    from filechannel.spark import ChannelFeeder, register

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.getenv("PYTHONPATH")]))
    views_path, counts_path = directory / "views", directory / "counts"
    for path, message_type in ((views_path, View), (counts_path, Count)):
        async with open_channel(path, message_type):
            pass
    print("Starting Spark")
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.sql.shuffle.partitions", "2").config("spark.driver.host", "127.0.0.1")
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    spark = await asyncio.to_thread(builder.getOrCreate)
    spark.sparkContext.setLogLevel("OFF")
    register(spark)
    views = spark.readStream.format("filechannel").option("consumer", "spark").load(str(views_path))
    counts = (
        views.withWatermark("at", "1 second")
        .groupBy(f.window("at", "1 second"), "page")
        .agg(f.count("*").alias("views"))
        .select("window.start", "page", "views")
    )
    producer, table, shown = Producer(views_path), dict[str, int](), asyncio.Event()
    async with ChannelFeeder(counts, counts_path, checkpoint=directory / "checkpoint"):
        consumer = asyncio.create_task(consume(counts_path, table, shown))
        await producer.run(shown.wait(), signal.SIGKILL)
        print(f"  killed the producer after {producer.accepted} views, and starting it again")
        await producer.run(asyncio.sleep(SECONDS), signal.SIGTERM)
        async with open_channel(views_path, View) as channel, channel.sender() as tx:
            sent = channel.statistics().messages
            for minutes in (1, 2, 3):
                await tx.send(View(END, datetime.now(UTC) + timedelta(minutes=minutes)))
        await consumer
    counted = sum(table.values())
    # Killed between a send and saying so, the producer may have sent one that it did not tell of.
    kept = counted == sent and producer.accepted <= sent <= producer.accepted + 1
    print(f"{producer.accepted} views accepted, {sent} in the channel, {counted} in the table")
    print("nothing was lost, and nothing counted twice" if kept else "the promise was broken")
    return 0 if kept else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["produce"]:
        asyncio.run(produce(Path(sys.argv[2])))
    elif shutil.which("java") is None and not os.environ.get("JAVA_HOME"):
        print("Spark needs Java 17 or newer: this part of the demo is left out")
    else:
        with tempfile.TemporaryDirectory(prefix="filechannel-") as name:
            sys.exit(asyncio.run(main(Path(name))))
