"""A channel as a table of Spark: read it, write it, feed it. Needs the extra `spark`."""

from __future__ import annotations

try:
    import pyarrow as _pyarrow  # noqa: F401
    import pyspark as _pyspark  # noqa: F401
except ImportError as error:
    raise ImportError(
        f"filechannel.spark needs the extra 'spark' ({error}): pip install 'filechannel[spark]'"
    ) from error

from pyspark.sql import SparkSession

from .schema import schema_of
from .source import ChannelSource

__all__ = ["ChannelSource", "register", "schema_of"]


def register(spark: SparkSession) -> None:
    """Make `format("filechannel")` known to a session."""
    spark.dataSource.register(ChannelSource)
