"""Run as a program: read, stream and write on a cluster whose workers are processes of their own."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from filechannel.spark import read_archive, ship
from tests.spark.conftest import start_spark
from tests.spark.messages import Order, fill, orders, received

ONLY_HERE = "import msgspec\n\nclass Order(msgspec.Struct):\n    id: int\n    sku: str\n    qty: int = 1\n"


def main(directory: Path) -> None:
    """Copy a channel in a batch, go on with a stream, and read what was shipped; the source is found by itself."""
    # Found from where the driver is; the executors are elsewhere.
    os.chdir(directory)
    Path("modules").mkdir()
    Path("modules/only_here.py").write_text(ONLY_HERE)
    spark = start_spark("local-cluster[2,1,1024]", directory, modules=["modules"])
    source = directory / "source"
    fill(source, orders(500), segment_size=4096)
    copy(spark, source, directory / "target", directory / "checkpoint")
    archive(spark, source, f"file://{directory}/archive")
    miss_a_module(spark, directory / "target")
    spark.stop()


def copy(spark: SparkSession, source: Path, target: Path, checkpoint: Path) -> None:
    """Write what was read."""
    frame = spark.read.format("filechannel").option("numPartitions", "4").load(str(source))
    frame.write.format("filechannel").mode("append").option("type", "tests.spark.messages:Order").save(str(target))
    assert sorted(received(target), key=lambda order: order.id) == orders(500)
    query = (
        spark.readStream.format("filechannel")
        .load(str(source))
        .where("id < 100")
        .writeStream.format("filechannel")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start(str(target))
    )
    query.awaitTermination()
    assert len(received(target, Order)) == 600


def archive(spark: SparkSession, source: Path, uri: str) -> None:
    """Read what was shipped where nobody can see the channel any more."""
    shipped = ship(source, uri, spark=spark)
    assert shipped.segments > 3
    source.rename(source.with_name("out of sight"))
    frame = spark.read.format("filechannel").option("archive", uri).option("numPartitions", "4").load()
    found = sorted(row.id for row in frame.collect())
    assert found == list(range(len(found)))
    assert len(found) > 300
    assert sorted(row.id for row in read_archive(spark, uri, schema="id bigint").collect()) == found


def miss_a_module(spark: SparkSession, channel: Path) -> None:
    """A type that the driver knows and the workers do not: the error says what to do."""
    frame = spark.read.format("filechannel").option("type", "only_here:Order").load(str(channel))
    assert frame.columns == ["id", "sku", "qty"]
    expected = r"option type='only_here:Order' cannot be loaded \(No module named 'only_here'\): install its package"
    with pytest.raises(PySparkException, match=expected):
        frame.collect()
    without = spark.read.format("filechannel").load(str(channel))
    assert without.count() == 600


if __name__ == "__main__":
    main(Path(sys.argv[1]))
