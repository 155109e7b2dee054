"""Reading a channel as a batch: every message once, as the columns that its type has."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructType

from filechannel import FileChannelError
from filechannel.blocking import open_channel
from filechannel.spark import ChannelSource
from filechannel.spark.open_channels import opened_to_write
from tests.spark.messages import (
    EVERYTHING,
    Cancel,
    Everything,
    Line,
    Mixed,
    Older,
    Order,
    Pair,
    Point,
    Refund,
    fill,
    orders,
)
from tests.storage.compressing import compress_all


def load(spark: SparkSession, path: object, **options: object) -> DataFrame:
    """Read a channel."""
    reader = spark.read.format("filechannel").options(**{name: str(value) for name, value in options.items()})
    return reader.load(path if isinstance(path, list) else str(path))


def rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    """Return the rows as plain tuples."""
    return [tuple(row) for row in frame.collect()]


def as_row(order: Order) -> tuple[Any, ...]:
    """Return the row that an order is."""
    return order.id, order.sku, order.qty, order.price, order.note


def test_every_message_is_a_row_in_order(spark: SparkSession, path: Path) -> None:
    """Each message is a row, in order and across segments, if one task reads them."""
    fill(path, orders(3000), segment_size=16384)
    frame = load(spark, path, numPartitions=1)
    assert frame.schema.simpleString() == "struct<id:bigint,sku:string,qty:bigint,price:double,note:string>"
    assert [field.nullable for field in frame.schema] == [False, False, False, False, True]
    assert rows(frame) == [as_row(order) for order in orders(3000)]


def test_compressed_segments_are_read_as_others(spark: SparkSession, path: Path) -> None:
    """Several tasks read compressed segments, with spans that begin and end inside blocks."""
    fill(path, orders(3000), segment_size=16384)
    with opened_to_write(path) as store:
        assert compress_all(store, block_size=1000)
    assert rows(load(spark, path, numPartitions=3).orderBy("id")) == [as_row(order) for order in orders(3000)]


@pytest.mark.parametrize("parts", [2, 20])
def test_partitions_share_the_messages(spark: SparkSession, path: Path, parts: int) -> None:
    """Each message is read by one of any number of tasks, which have about the same size."""
    fill(path, orders(3000), segment_size=16384)
    frame = load(spark, path, numPartitions=parts)
    sizes = frame.rdd.mapPartitions(lambda found: [sum(1 for _ in found)]).collect()
    assert len(sizes) == parts
    assert sum(sizes) == 3000
    assert max(sizes) - min(sizes) < 3000 / parts
    assert sorted(row[0] for row in rows(frame)) == list(range(3000))


def test_what_a_channel_has_now_is_read(spark: SparkSession, path: Path) -> None:
    """A frame keeps the messages of its first read, and a new load has those sent since."""
    fill(path, orders(10))
    frame = load(spark, path)
    assert frame.count() == 10
    fill(path, orders(5, 10))
    assert (frame.count(), load(spark, path).count()) == (10, 15)


def test_an_empty_channel_is_an_empty_table(spark: SparkSession, path: Path) -> None:
    """An empty channel is an empty table with columns."""
    fill(path, [])
    frame = load(spark, path)
    assert frame.columns == ["id", "sku", "qty", "price", "note"]
    assert rows(frame) == []


def test_every_type_that_has_a_column(spark: SparkSession, path: Path) -> None:
    """Nested, optional, list, map, time and decimal values are read as they were sent, under their Python names."""
    fill(path, [EVERYTHING], Everything)
    (row,) = load(spark, path).collect()
    assert row.asDict(recursive=True) == {
        "the_id": 7,
        "ok": True,
        "ratio": 0.25,
        "name": "süß",
        "blob": bytearray(b"\0\1"),
        "at": datetime(2026, 3, 4, 5, 6, 7, 890),  # noqa: DTZ001 - as Spark hands it out, in the session's zone
        "day": EVERYTHING.day,
        "amount": Decimal("12.50"),
        "key": str(EVERYTHING.key),
        "color": "blue",
        "inner": {"some_name": "x", "weight": 1.5},
        "maybe": None,
        "tags": ["a", "b"],
        "sizes": {"s": 1, "m": None},
        "inners": [{"some_name": "y", "weight": None}, {"some_name": "z", "weight": 2.0}],
    }


@pytest.mark.parametrize(
    ("message_type", "messages", "expected"),
    [
        (Point, [Point(1), Point(2, 3)], [(1, None), (2, 3)]),
        (Line, [{"start": 1, "text": "a"}], [(1, "a")]),
        (Pair, [Pair(1), Pair(2, "s")], [(1, "r"), (2, "s")]),
        (int, [3, -4], [(3,), (-4,)]),
        (list[str], [["a"], []], [(["a"],), ([],)]),
    ],
    ids=["dataclass", "TypedDict", "array-like", "int", "list"],
)
def test_other_kinds_of_messages(
    spark: SparkSession, path: Path, message_type: Any, messages: list[Any], expected: list[Any]
) -> None:
    """A message of any type is a row, and one without fields has a column `value`."""
    fill(path, messages, message_type)
    assert rows(load(spark, path)) == expected


def test_a_union_is_a_payload(spark: SparkSession, path: Path) -> None:
    """A union, which has no Spark type, is read as its bytes."""
    import msgspec

    messages = [Cancel(1), Refund(2, "late")]
    fill(path, messages, Cancel | Refund)
    payloads = [bytes(row.payload) for row in load(spark, path).collect()]
    assert msgspec.msgpack.Decoder(Cancel | Refund).decode(payloads[1]) == messages[1]
    assert payloads == [msgspec.msgpack.encode(message) for message in messages]


def test_raw_and_json_channels(spark: SparkSession, tmp_path: Path) -> None:
    """Raw bytes are a column `payload`, and JSON messages have the columns of MessagePack ones."""
    fill(tmp_path / "raw", [b"a", b""], bytes)
    assert [bytes(row.payload) for row in load(spark, tmp_path / "raw").collect()] == [b"a", b""]
    with open_channel(tmp_path / "json", Order, codec="json") as channel, channel.sender() as sender:
        sender.send_many(orders(20))
    assert rows(load(spark, tmp_path / "json", numPartitions=1)) == [as_row(order) for order in orders(20)]


def test_fewer_columns(spark: SparkSession, path: Path) -> None:
    """A narrower schema reads only its columns, in its order, and may declare them nullable."""
    fill(path, orders(5))
    frame = spark.read.format("filechannel").schema("note string, id bigint").load(str(path))
    assert rows(frame) == [(order.note, order.id) for order in orders(5)]
    frame = spark.read.format("filechannel").schema("payload binary").load(str(path))
    assert all(bytes(row.payload)[0] == 0x85 for row in frame.collect())


def test_a_field_without_a_column_can_be_left_out(spark: SparkSession, path: Path) -> None:
    """A field without a Spark type raises an error that names it and says how to leave it out."""
    fill(path, [Mixed(1, "a"), Mixed(2, 3)], Mixed)
    with pytest.raises(PySparkException, match=r"field 'what' is int \| str.*leave the field out of"):
        load(spark, path)
    assert rows(spark.read.format("filechannel").schema("id bigint").load(str(path))) == [(1,), (2,)]


def test_metadata_columns(spark: SparkSession, path: Path) -> None:
    """The columns `offset` and `sequence` have the position of a message, at which reading can begin."""
    fill(path, orders(500), segment_size=4096)
    frame = load(spark, path, includeMetadata=True, numPartitions=3)
    found = sorted((row.sequence, row.offset, row.id) for row in frame.collect())
    assert [(sequence, number) for sequence, _, number in found] == [(number, number) for number in range(500)]
    later = load(spark, path, startingOffset=found[321][1], numPartitions=1)
    assert rows(later)[0][0] == 321


def test_reading_between_two_bounds(spark: SparkSession, path: Path) -> None:
    """Offsets and times as bounds limit the rows."""
    fill(path, orders(10))
    with open_channel(path, Order) as channel:
        middle = channel.statistics().write_offset
    fill(path, orders(10, 10))
    assert [row[0] for row in rows(load(spark, path, startingOffset=middle, numPartitions=1))] == list(range(10, 20))
    assert [row[0] for row in rows(load(spark, path, endingOffset=middle, numPartitions=1))] == list(range(10))
    assert load(spark, path, startingOffset="latest").count() == 0
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    assert load(spark, path, endingOffset=tomorrow.isoformat()).count() == 20
    assert load(spark, path, endingOffset="2020-01-01T00:00Z").count() == 0


def test_reading_from_a_consumers_position(spark: SparkSession, path: Path) -> None:
    """A batch can begin at the position of a consumer, and does not move it."""
    fill(path, orders(10))
    with open_channel(path, Order) as channel, channel.receiver("audit") as receiver:
        assert len(receiver.receive_many(4)) == 4
    for _ in range(2):
        assert [row[0] for row in rows(load(spark, path, consumer="audit", numPartitions=1))] == list(range(4, 10))


def test_many_channels(spark: SparkSession, tmp_path: Path) -> None:
    """A glob or a list of paths is read as one table with a column for the channel."""
    for name in ("a", "b", "c"):
        fill(tmp_path / f"orders-{name}", orders(5, ord(name)))
    (tmp_path / "orders-not").mkdir()
    assert load(spark, str(tmp_path / "orders-*")).count() == 15
    frame = load(spark, [str(tmp_path / "orders-a"), str(tmp_path / "orders-c")], includeMetadata=True)
    assert {(row.channel, row.id) for row in frame.collect()} == {
        (str(tmp_path / f"orders-{name}"), ord(name) + number) for name in "ac" for number in range(5)
    }


def test_a_type_that_fits(spark: SparkSession, path: Path) -> None:
    """With `type` messages are decoded as that type, with its defaults."""
    fill(path, [Older(5, "a")], Older)
    assert rows(load(spark, path, type="tests.spark.messages:Newer")) == [(5, "a", 9)]


def refused(expected: str, columns: str | None = None, **options: object) -> None:
    """Plan a read as Spark does, in this process, and expect an error."""
    source = ChannelSource({name.lower(): str(value) for name, value in options.items()})
    with pytest.raises((FileChannelError, TypeError, ValueError), match=expected):
        source.reader(source.schema() if columns is None else as_struct(columns)).partitions()


KINDS = {"string": StringType(), "int": IntegerType(), "bigint": LongType(), "binary": BinaryType()}


def as_struct(columns: str) -> StructType:
    """Return columns from names and types."""
    found = StructType()
    for column in columns.split(", "):
        name, kind, *never = column.split(" ", 2)
        found.add(name, KINDS[kind], not never)
    return found


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            {"type": "tests.spark.messages:Point"},
            r"correct the option type='tests.spark.messages:Point', or leave it out",
        ),
        ({"type": "no_such_module:Order"}, r"option type='no_such_module:Order' cannot be loaded .*addArtifacts"),
        ({"type": "tests.spark.messages:Nothing"}, r"option type='.*:Nothing' cannot be loaded \(.*no attribute"),
        ({"type": "Order"}, "option type='Order': must be 'package.module:Name'"),
        ({"startingOffset": "3"}, "option startingOffset=3: no record begins at offset 3: the next one begins at"),
        ({"endingOffset": "3"}, "option endingOffset=3: no record begins at offset 3"),
        ({"startingOffset": "-3"}, "option startingOffset='-3': must be 'earliest', 'latest', an offset or"),
        ({"startingOffset": "soon"}, "option startingOffset='soon': must be 'earliest', 'latest', an offset or"),
        ({"startingOffset": "99999999"}, "option startingOffset=99999999: offset 99999999 is not in the channel"),
        ({"endingOffset": "99999999"}, "option endingOffset=99999999: offset 99999999 is not in the channel"),
        ({"startingOffset": "2020-01-01"}, "has no time zone: add one, as in '2020-01-01T00:00:00.00:00'"),
        ({"endingOffset": "2020-01-01T10:00"}, "option endingOffset='2020-01-01T10:00' has no time zone: add one"),
        ({"startingOffset": "2999-01-01T00:00Z"}, "option startingOffset=.* lies in the future: use 'latest'"),
        ({"startingOffset": "latest", "endingOffset": "earliest"}, "option endingOffset=earliest lies before"),
        ({"numPartitions": "0"}, "option numPartitions='0': must be a number, 1 or more"),
        ({"numPartitions": "two"}, "option numPartitions='two': must be a number, 1 or more"),
        ({"arrowBatchRecords": "-1"}, "option arrowBatchRecords='-1': must be a number, 1 or more"),
        ({"includeMetadata": "yes"}, "option includeMetadata='yes': must be 'true' or 'false'"),
        ({"pushFilters": "1"}, "option pushFilters='1': must be 'true', 'false' or 'once'"),
        ({"maxRecords": "5"}, "option 'maxrecords' is not known for reading; there are path, "),
        ({"maxRecordsPerBatch": "5"}, "option 'maxrecordsperbatch' is not known for a batch read"),
        ({"consumer": "nobody"}, "'nobody'.*no such consumer"),
        ({"consumer": "a" * 300}, "option consumer='aaa"),
    ],
)
def test_wrong_options_are_refused(path: Path, options: dict[str, str], expected: str) -> None:
    """Wrong options of a read are refused when it is planned, with the option and what to do."""
    fill(path, orders(5))
    refused(expected, path=path, **options)


def test_wrong_paths_are_refused(tmp_path: Path) -> None:
    """A missing path, a path of something else, and no path at all each raise an error of their own."""
    (tmp_path / "other").mkdir()
    (tmp_path / "file").write_text("")
    fill(tmp_path / "orders", orders(1))
    fill(tmp_path / "points", [], Point)
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged/channel.json").write_text("{")
    for place, expected in (
        ("nothing", "there is no channel at"),
        ("other", "is not a channel: it has no channel.json"),
        ("file", "is not a channel: it is a file"),
        ("damaged", "channel.json is damaged"),
        ("none-*", "option path=.*: this cannot be the name of a channel"),
        ("[op]*", "option path: .* has other columns than"),
    ):
        refused(expected, path=tmp_path / place)
    refused("option 'path' is missing")
    refused("is a directory of this machine, not of hdfs", path="hdfs://host/orders")
    refused("option paths=.*must be a list of paths", paths="[]")


def test_wrong_columns_are_refused(path: Path) -> None:
    """A schema with an unknown column, or with another type, is refused."""
    fill(path, orders(5))
    for columns, expected in (
        ("name string", "messages have no field 'name'; there are id, sku, qty, price, note"),
        ("id int", r"field 'id' is bigint, but .schema\(...\) has int"),
        ("note string never", "field 'note' is string or null, but .* has string, not null"),
        ("offset bigint", "needs the option includeMetadata=true"),
        ("payload binary, id bigint", "cannot be read together with 'id'"),
    ):
        refused(expected, columns, path=path)


def test_errors_come_before_a_job_begins(spark: SparkSession, path: Path) -> None:
    """An error is raised when a frame is created or planned, before a job begins."""
    with pytest.raises(PySparkException, match="there is no channel at"):
        load(spark, path)
    fill(path, orders(5))
    jobs = len(spark.sparkContext.statusTracker().getJobIdsForGroup(None))
    with pytest.raises(PySparkException, match="option numPartitions='0': must be a number"):
        load(spark, path, numPartitions=0)
    with pytest.raises(PySparkException, match="option startingOffset=3: no record begins at offset 3"):
        load(spark, path, startingOffset=3).collect()
    with pytest.raises(PySparkException, match="messages have no field 'name'"):
        spark.read.format("filechannel").schema("name string").load(str(path)).collect()
    assert len(spark.sparkContext.statusTracker().getJobIdsForGroup(None)) == jobs
    assert load(spark, f"file://{path}").count() == 5


def test_damage_is_an_error_that_names_the_offset(spark: SparkSession, path: Path) -> None:
    """A task that reads damaged bytes raises an error with their offset."""
    fill(path, orders(50))
    (segment,) = (path / "segments").glob("*.seg")
    content = bytearray(segment.read_bytes())
    content[500] ^= 1
    segment.write_bytes(content)
    with pytest.raises(PySparkException, match="CorruptRecordError"):
        load(spark, path).collect()


@pytest.mark.parametrize("missing", ["pyspark", "pyarrow"])
def test_without_the_extra_it_is_named(missing: str) -> None:
    """Without the extra importing `filechannel.spark` says what to install, and the module that Spark looks for
    imports.
    """
    program = f"""if True:
        import sys
        sys.modules[{missing!r}] = None
        import pyspark_filechannel
        assert pyspark_filechannel.__all__ == []
        import filechannel.spark"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "ImportError: filechannel.spark needs the extra 'spark'" in done.stderr


def test_spark_finds_the_source_by_itself() -> None:
    """Spark finds the data source in the package that it looks for."""
    import filechannel.spark
    import pyspark_filechannel

    assert pyspark_filechannel.DefaultSource is filechannel.spark.ChannelSource
