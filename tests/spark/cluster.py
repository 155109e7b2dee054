"""Run as a program: read, stream and write on a cluster whose workers are separate processes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from filechannel._storage.manifest import Manifest
from filechannel._storage.system.os_calls import Files
from filechannel.spark import read_archive, ship
from tests.spark.conftest import start_spark
from tests.spark.messages import Order, fill, orders, received

ELSEWHERE = "another-host"
FOREIGN = 1_000_000
SETTINGS = {
    "spark.task.maxFailures": "1",  # tried again, it might come to the other host
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
}
ONLY_HERE = "import msgspec\n\nclass Order(msgspec.Struct):\n    id: int\n    sku: str\n    qty: int = 1\n"


def main(directory: Path) -> None:
    """Copy a channel in a batch, continue with a stream, and read the archive; Spark finds the data source
    automatically.
    """
    # Found from where the driver is; the executors are elsewhere.
    os.chdir(directory)
    Path("modules").mkdir()
    Path("modules/only_here.py").write_text(ONLY_HERE)
    two = two_hosts(directory)
    spark = start_spark("local-cluster[2,1,1024]", directory, modules=["modules"], around=two, **SETTINGS)
    source = directory / "source"
    fill(source, orders(500), segment_size=4096)
    copy(spark, source, directory / "target", directory / "checkpoint")
    archive(spark, source, f"file://{directory}/archive")
    miss_a_module(spark, directory / "target")
    if two:
        refuse_another_host(spark, directory)
    spark.stop()


def two_hosts(directory: Path) -> str:
    """Return what a worker of the second executor begins with: other channels at `there`, and another name of the host.

    Nothing if this process may not mount, or change the name.
    """
    may = subprocess.run(["unshare", "-mu", "hostname", ELSEWHERE], check=False, capture_output=True).returncode == 0
    for name in ("there", "elsewhere"):
        (directory / name).mkdir()
    # A new mount namespace holds on to what other tests have mounted, which they could not unmount then.
    release = r"grep -o '[^ ]*\.mounted' /proc/mounts | xargs -r umount -l"
    mount = f"mount --bind {directory}/elsewhere {directory}/there && hostname {ELSEWHERE} && {{ {release}; true; }}"
    return f'case "$PWD" in */1) exec unshare -mu sh -c "{mount} && exec \\"\\$0\\" \\"\\$@\\""' if may else ""


def refuse_another_host(spark: SparkSession, directory: Path) -> None:
    """Read and write where one of two hosts has another channel, a copy, or nothing at the path."""
    here, there = directory / "there", directory / "elsewhere"
    for name in ("other", "written", "missing"):
        fill(here / name, orders(4000), segment_size=65536)
    fill(here / "copied", orders(10), segment_size=65536)
    fill(there / "other", orders(4000, FOREIGN), segment_size=65536)
    shutil.copytree(here / "copied", there / "copied")
    fill(here / "copied", orders(4000, 10))
    fill(there / "copied", orders(4000, FOREIGN))
    fill(there / "written", [])
    ids = {name: Manifest.read(Files(), here / name).id for name in ("other", "copied", "written")}
    other_ids = {name: Manifest.read(Files(), there / name).id for name in ids}
    assert ids["copied"] == other_ids["copied"]
    for name in ("other", "copied"):
        frame = spark.read.format("filechannel").option("numPartitions", "8").load(str(here / name))
        expected = ["ChannelMismatchError", ELSEWHERE, str(here / name), ids[name], other_ids[name]]
        refused(frame.collect, expected if name == "other" else [ELSEWHERE])
        query = (
            spark.readStream.format("filechannel")
            .option("numPartitions", "8")
            .load(str(here / name))
            .writeStream.format("noop")
            .option("checkpointLocation", str(directory / f"checkpoint-{name}"))
            .trigger(availableNow=True)
            .start()
        )
        refused(query.awaitTermination, expected if name == "other" else [ELSEWHERE])
    missing = spark.read.format("filechannel").option("numPartitions", "8").load(str(here / "missing"))
    refused(missing.collect, ["ChannelNotFoundError", f"This is on host {ELSEWHERE}"])
    rows = spark.range(1000).repartition(8).selectExpr("id", "'pen' as sku")
    write = rows.write.format("filechannel").mode("append")
    refused(lambda: write.save(str(here / "written")), ["ChannelMismatchError", ELSEWHERE, ids["written"]])
    assert len(received(here / "written")) == 4000
    assert received(there / "written") == []


def refused(action: Callable[[], object], expected: list[str]) -> None:
    """Make sure that something fails with an error that says all of this."""
    with pytest.raises(PySparkException) as caught:
        action()
    assert all(each in str(caught.value) for each in expected), str(caught.value)


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
    """Read the archive where the channel is no longer visible."""
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
