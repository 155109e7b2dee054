"""`make bench-spark`: a channel as a table of Spark, beside JSON lines and Parquet, in one interleaved run.

Not one of the groups of `python -m benchmarks`: it needs Java, and minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import msgspec
from pyspark.sql import DataFrame, SparkSession

import filechannel.spark
from filechannel import open_channel
from filechannel.spark import feed

ROOT = Path(__file__).parent.parent
ROUNDS = 3
TARGETS = {
    ("read", "json"): 2.0,
    ("read", "parquet"): 0.35,
    ("write", "json"): 1.0,
    ("stream", "json"): 1.0,
    ("feed", "read"): 0.35,
}


class Order(msgspec.Struct):
    """Five fields."""

    id: int
    sku: str
    qty: int
    price: float
    note: str | None = None


def start_spark(directory: Path) -> SparkSession:
    """Start Spark on two cores, with workers that run this Python."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    for name, value in {
        "spark.driver.memory": "4g",
        "spark.driver.host": "127.0.0.1",
        # As the guide recommends for programs that write much: otherwise Spark measures each batch again for every row.
        "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
        "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
        "spark.local.dir": str(directory / "local"),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    filechannel.spark.register(spark)
    return spark


class Comparison:
    """The same rows as a channel, as JSON lines and as Parquet."""

    def __init__(self, spark: SparkSession, directory: Path, rows: int) -> None:
        self._spark = spark
        self._directory = directory
        self._count = 0
        self.rows = rows

    def prepare(self) -> None:
        """Create the rows, and write them in each of the three formats, for the measurements of reading."""
        note = "if(id % 3 = 0, 'hello', null)"
        columns = ("id", "concat('sku-', id % 1000) as sku", "id % 7 as qty", "id * 0.5D as price", f"{note} as note")
        frame = self._spark.range(0, self.rows, 1, 4).selectExpr(*columns)
        frame.write.parquet(str(self._directory / "parquet"))
        self._frame = self._spark.read.parquet(str(self._directory / "parquet"))
        self._frame.write.json(str(self._directory / "json"))
        self._frame.write.format("filechannel").mode("append").option("type", "benchmarks.spark:Order").save(
            str(self._directory / "channel")
        )

    def measures(self) -> dict[tuple[str, str], Callable[[], float]]:
        """Return what to measure. Each function returns the seconds it took."""
        return {
            ("read", "channel"): lambda: self._read(self._load("channel")),
            ("read", "json"): lambda: self._read(self._load("json")),
            ("read", "parquet"): lambda: self._read(self._load("parquet")),
            ("write", "channel"): lambda: self._write("channel"),
            ("write", "json"): lambda: self._write("json"),
            ("write", "parquet"): lambda: self._write("parquet"),
            ("stream", "channel"): lambda: self._stream("channel"),
            ("stream", "json"): lambda: self._stream("json"),
            ("stream", "parquet"): lambda: self._stream("parquet"),
            ("feed", "channel"): self._feed,
        }

    def _load(self, kind: str) -> DataFrame:
        reader = self._spark.read.format("filechannel" if kind == "channel" else kind)
        if kind == "json":
            reader = reader.schema(self._frame.schema)
        return reader.load(str(self._directory / kind))

    def _fresh(self) -> Path:
        self._count += 1
        return self._directory / f"scratch-{self._count}"

    def _read(self, frame: DataFrame) -> float:
        begin = perf_counter()
        frame.write.format("noop").mode("overwrite").save()
        return perf_counter() - begin

    def _write(self, kind: str) -> float:
        target = self._fresh()
        writer = self._frame.write.mode("append")
        if kind == "channel":
            writer = writer.format("filechannel").option("type", "benchmarks.spark:Order")
        else:
            writer = writer.format(kind)
        begin = perf_counter()
        writer.save(str(target))
        seconds = perf_counter() - begin
        shutil.rmtree(target)
        return seconds

    def _stream(self, kind: str) -> float:
        checkpoint = self._fresh()
        reader = self._spark.readStream.format("filechannel" if kind == "channel" else kind)
        if kind != "channel":
            reader = reader.schema(self._frame.schema)
        frame = reader.load(str(self._directory / kind))
        begin = perf_counter()
        query = (
            frame.writeStream.format("noop")
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        seconds = perf_counter() - begin
        shutil.rmtree(checkpoint)
        return seconds

    def _feed(self) -> float:
        target = self._fresh()

        async def run() -> float:
            async with open_channel(target, Order) as channel, channel.sender() as sender:
                begin = perf_counter()
                count = await feed(sender, self._frame)
                assert count == self.rows
                return perf_counter() - begin

        seconds = asyncio.run(run())
        shutil.rmtree(target)
        return seconds


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.spark", description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="filechannel-bench-") as name:
        directory = Path(name)
        spark = start_spark(directory)
        comparison = Comparison(spark, directory, arguments.rows)
        comparison.prepare()
        seconds: dict[tuple[str, str], list[float]] = {}
        for turn in range(arguments.rounds + 1):
            for what, measure in comparison.measures().items():
                taken = measure()
                if turn:  # the first round warms up caches, compilers, workers
                    seconds.setdefault(what, []).append(taken)
                print(f"{'warm-up' if not turn else f'round {turn}'}: {' '.join(what)} {taken:.2f} s", file=sys.stderr)
        spark.stop()
    report(arguments.rows, {what: statistics.median(taken) for what, taken in seconds.items()})


def report(rows: int, median: dict[tuple[str, str], float]) -> None:
    print(f"\n{rows} rows of 5 fields, thousand rows a second (median):\n")
    print("| | channel | JSON lines | Parquet |\n| --- | --- | --- | --- |")
    for job in ("read", "write", "stream", "feed"):
        cells = [median.get((job, kind)) for kind in ("channel", "json", "parquet")]
        print(f"| {job} | " + " | ".join("" if cell is None else f"{rows / cell / 1000:.0f}" for cell in cells) + " |")
    print()
    for (job, other), target in TARGETS.items():
        reference = median["read", "channel"] if job == "feed" else median[job, other]
        ratio = reference / median[job, "channel"]
        verdict = "met" if ratio >= target else "MISSED"
        print(f"{job}: {ratio:.2f} times {'the batch read' if job == 'feed' else other}, wanted {target}: {verdict}")


if __name__ == "__main__":
    main()
