"""A channel as a table of Spark: read it, write it, feed it. Needs the extra `spark`."""

from __future__ import annotations

try:
    from pyspark.sql import SparkSession

    from .._maintenance.shipping import Shipped
    from .archive import read_archive, ship
    from .feeder import ChannelFeeder, feed
    from .schema import schema_of
    from .source import ChannelSource
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
    """Make `format("filechannel")` known to a session."""
    spark.dataSource.register(ChannelSource)
