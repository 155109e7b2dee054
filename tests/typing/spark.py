"""What Spark and the event loop give each other."""

# pyright: reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from typing import assert_type

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from filechannel import Sender
from filechannel.blocking import Sender as BlockingSender
from filechannel.spark import ChannelFeeder, Shipped, feed, read_archive, register, schema_of, ship
from tests.typing.messages import Cancel, Order


def schemas(spark: SparkSession) -> None:
    """Classes and unions have columns."""
    assert_type(register(spark), None)
    assert_type(schema_of(Order), StructType)
    assert_type(schema_of(Order | Cancel), StructType)


async def feeding(sender: Sender[Order], frame: DataFrame) -> None:
    """A frame is fed to an async sender of any type."""
    assert_type(await feed(sender, frame), int)


async def wrong_sender(sender: BlockingSender[Order], frame: DataFrame) -> None:
    """A blocking sender is not for an event loop."""
    await feed(sender, frame)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def query(frame: DataFrame) -> None:
    """A query runs as long as a block."""
    async with ChannelFeeder(frame, "path", checkpoint="checkpoint", every="5 seconds") as feeder:
        assert_type(feeder, ChannelFeeder)
        assert_type(feeder.progress(), dict[str, object] | None)
        assert_type(feeder.is_running, bool)
        assert_type(await feeder.wait(), None)


def archives(spark: SparkSession) -> None:
    """Segments are shipped by Arrow or by Spark, and read as a frame."""
    assert_type(ship("path", "s3://bucket/orders"), Shipped)
    assert_type(ship("path", "viewfs://x/orders", spark=spark, consumer="archive", verify=True).gaps, int)
    assert_type(read_archive(spark, "s3://bucket/orders", schema="id bigint", options={"type": "a:B"}), DataFrame)
    ship("path", 5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
