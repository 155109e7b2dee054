"""A Spark data source for channels: read a channel as a table, write to it, feed it. Needs the extra `spark`."""

from __future__ import annotations

try:
    from pyspark.sql import SparkSession

    from .._maintenance.ship import Shipped
    from .archive_source import read_archive, ship
    from .data_source import ChannelSource
    from .feeder import ChannelFeeder, feed
    from .spark_schema import schema_of
except ImportError as _missing:
    if (_missing.name or "").partition(".")[0] not in ("pyarrow", "pyspark", "py4j"):
        raise
    raise ImportError(
        f"filechannel.spark needs the extra 'spark' ({_missing}): pip install 'filechannel[spark]'"
    ) from _missing

__all__ = [
    "ChannelFeeder",
    "ChannelSource",
    "Shipped",
    "feed",
    "read_archive",
    "register",
    "schema_of",
    "ship",
]


def register(spark: SparkSession) -> None:
    """Register `format("filechannel")` with a Spark session."""
    spark.dataSource.register(ChannelSource)
