"""Run as a program: let a query copy one channel into another, in small batches, until all is there or it is killed."""

from __future__ import annotations

import sys
from pathlib import Path

import filechannel.spark
from tests.spark.conftest import start_spark


def main(directory: Path) -> None:
    """Resume where the last run stopped."""
    spark = start_spark("local[2]", directory)
    filechannel.spark.register(spark)
    query = (
        spark.readStream.format("filechannel")
        .option("maxRecordsPerBatch", "50")
        .load(str(directory / "source"))
        .writeStream.format("filechannel")
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(directory / "target"))
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
