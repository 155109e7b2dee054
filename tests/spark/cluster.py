"""Run as a program: read, stream and write on a cluster whose workers are processes of their own."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.spark.conftest import start_spark
from tests.spark.messages import Order, fill, orders, received


def main(directory: Path) -> None:
    """Copy a channel in a batch, and go on with a stream; the source is found by itself."""
    source, target = directory / "source", directory / "target"
    fill(source, orders(500), segment_size=4096)
    spark = start_spark("local-cluster[2,1,1024]", directory)
    frame = spark.read.format("filechannel").option("numPartitions", "4").load(str(source))
    (frame.write.format("filechannel").mode("append").option("type", "tests.spark.messages:Order").save(str(target)))
    assert sorted(received(target), key=lambda order: order.id) == orders(500)
    query = (
        spark.readStream.format("filechannel")
        .load(str(source))
        .where("id < 100")
        .writeStream.format("filechannel")
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(target))
    )
    query.awaitTermination()
    assert len(received(target, Order)) == 600
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
