"""Writing to a channel: every row is one message, once, however often a batch is tried."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from filechannel import Capacity, ChannelOptions, FileChannelError, Retention
from filechannel._maintenance.background import plan_reclaim
from filechannel._storage.log.batch_parts import Records
from filechannel._storage.producers.staging import Staging
from filechannel._storage.system.os_calls import Files
from filechannel.blocking import open_channel
from filechannel.spark import ChannelSource, schema_of
from filechannel.spark.source_options import WriteOptions
from filechannel.spark.write.sink import BatchWriter, StreamWriter, Written, prepare, publish, stage
from tests.spark.conftest import several_writers
from tests.spark.messages import EVERYTHING, Color, Everything, Older, Order, Pair, Point, fill, orders, received


def frame(spark: SparkSession, messages: list[Order]) -> DataFrame:
    """Return orders as a frame of two partitions, in order."""
    values = [(order.id, order.sku, order.qty, order.price, order.note) for order in messages]
    return spark.createDataFrame(values, schema_of(Order)).coalesce(1).repartitionByRange(2, "id")


def write(rows: DataFrame, path: Path, **options: object) -> None:
    """Append a frame to a channel."""
    given = {name: str(value) for name, value in options.items()}
    rows.write.format("filechannel").mode("append").options(**given).save(str(path))


def test_every_row_is_a_message(spark: SparkSession, path: Path) -> None:
    """Rows become typed messages in the order of the partitions, and leave no file behind."""
    fill(path, [])
    write(frame(spark, orders(300)), path)
    write(frame(spark, orders(10, 300)), path)
    assert sorted(received(path), key=lambda order: order.id) == orders(310)
    assert not (path / "staging").exists()


def test_a_channel_is_made_if_the_type_is_named(spark: SparkSession, path: Path) -> None:
    """A write with `type` creates the channel for messages of that type."""
    write(frame(spark, orders(5)), path, type="tests.spark.messages:Order")
    assert sorted(received(path), key=lambda order: order.id) == orders(5)
    with pytest.raises(PySparkException, match=r"there is no channel at .* name the type of its messages"):
        write(frame(spark, orders(5)), path / "other")


def test_a_round_trip_of_every_type(spark: SparkSession, tmp_path: Path) -> None:
    """Rows that were read from one channel can be written to another of the same type."""
    fill(tmp_path / "a", [EVERYTHING], Everything)
    fill(tmp_path / "b", [], Everything)
    write(spark.read.format("filechannel").load(str(tmp_path / "a")), tmp_path / "b")
    assert received(tmp_path / "b", Everything) == [EVERYTHING]


@pytest.mark.parametrize(
    ("message_type", "messages"),
    [(Point, [Point(1), Point(2, 3)]), (Pair, [Pair(1), Pair(2, "s")]), (int, [3, -4]), (bytes, [b"a", b""])],
    ids=["dataclass", "array-like", "int", "raw"],
)
def test_a_round_trip_of_other_message_types(
    spark: SparkSession, tmp_path: Path, message_type: Any, messages: list[Any]
) -> None:
    """Rows of any message type can be written again."""
    fill(tmp_path / "a", messages, message_type)
    fill(tmp_path / "b", [], message_type)
    write(spark.read.format("filechannel").load(str(tmp_path / "a")), tmp_path / "b")
    assert received(tmp_path / "b", message_type) == messages


def test_a_batch_with_a_number_is_written_once(spark: SparkSession, path: Path) -> None:
    """A batch with `txnId` and `batchId` is written once, and not after a later number."""
    fill(path, [])
    for _ in range(2):
        write(frame(spark, orders(10)), path, txnId="nightly", batchId=0)
    write(frame(spark, orders(10, 10)), path, txnId="nightly", batchId=1)
    write(frame(spark, orders(10)), path, txnId="nightly", batchId=0)
    write(frame(spark, orders(10, 20)), path, txnId="other", batchId=0)
    assert sorted(order.id for order in received(path)) == list(range(30))


def stream(spark: SparkSession, source: Path, target: Path, checkpoint: Path, **options: object) -> None:
    """Copy what is in one channel into another, in batches of ten, and end."""
    query = (
        spark.readStream.format("filechannel")
        .option("maxRecordsPerBatch", "10")
        .load(str(source))
        .writeStream.format("filechannel")
        .options(**{name: str(value) for name, value in options.items()})
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start(str(target))
    )
    query.awaitTermination()


def test_a_query_that_does_a_batch_again_writes_nothing_twice(spark: SparkSession, tmp_path: Path) -> None:
    """A batch that Spark repeats, as after its driver was killed, is not written again."""
    source, target, checkpoint = tmp_path / "a", tmp_path / "b", tmp_path / "checkpoint"
    fill(source, orders(30))
    fill(target, [])
    stream(spark, source, target, checkpoint)
    assert sorted(order.id for order in received(target)) == list(range(30))
    (checkpoint / "commits/2").unlink()
    (checkpoint / "commits/.2.crc").unlink(missing_ok=True)
    stream(spark, source, target, checkpoint)
    assert sorted(order.id for order in received(target)) == list(range(30))
    fill(source, orders(5, 30))
    stream(spark, source, target, checkpoint)
    assert sorted(order.id for order in received(target)) == list(range(35))
    assert not (target / "staging").exists()


def test_a_new_checkpoint_under_the_same_name_writes_nothing_twice(spark: SparkSession, tmp_path: Path) -> None:
    """A query with a new checkpoint and the same `txnId` writes no batch twice."""
    source, target = tmp_path / "a", tmp_path / "b"
    fill(source, orders(30))
    fill(target, [])
    for name in ("one", "two"):
        stream(spark, source, target, tmp_path / name, txnId="copy")
    assert sorted(order.id for order in received(target)) == list(range(30))


def test_a_failed_task_leaves_nothing(spark: SparkSession, path: Path) -> None:
    """A row that is not a message fails the job, publishes nothing, and the next commit deletes the staged files."""
    fill(path, [], Everything)
    rows = spark.createDataFrame([(1,), (2,)], "id bigint")
    fill(path.parent / "older", [], Older)
    with pytest.raises(PySparkException, match="'sku' is null in a row"):
        write(rows.selectExpr("id", "if(id = 2, null, 'x') as sku"), path.parent / "older")
    assert received(path.parent / "older", Older) == []
    assert not list((path.parent / "older").glob("staging/*/*"))


def test_an_abort_after_the_commit_takes_nothing_back(path: Path) -> None:
    """An abort after the commit, however often, does not remove the batch."""
    fill(path, [], int)
    columns = schema_of(int)
    batch = pa.RecordBatch.from_arrays([pa.array([7], pa.int64())], schema=pa.schema([("value", pa.int64())]))
    options = {"path": str(path), "txnId": "query"}
    once, stream = WriteOptions.of_batch({**options, "batchId": "0"}), WriteOptions.of_stream(options)
    for writer, number in (
        (BatchWriter(once, columns, prepare(once, columns)), ()),
        (StreamWriter(stream, columns, prepare(stream, columns)), (1,)),
    ):
        messages: list[Any] = [writer.write(iter([batch])), None]
        writer.commit(messages, *number)
        for _ in range(2):
            writer.abort(messages, *number)
    assert received(path, int) == [7, 7]


def test_what_failed_attempts_left_is_swept(path: Path) -> None:
    """The commit of a later batch deletes what earlier attempts of the same query staged."""
    fill(path, [])
    options = WriteOptions.of_stream({"path": str(path), "txnId": "q"})
    schema = StructType(schema_of(Order).fields[:2])
    batch = pa.RecordBatch.from_arrays(
        [pa.array([1], pa.int64()), pa.array(["a"])], schema=pa.schema([("id", pa.int64()), ("sku", pa.string())])
    )
    for number in range(3):
        staged = stage(options, schema, "query-q", iter([batch]))
        if number:
            publish(path, [Written(staged, "q")], number)
            assert not (path / "staging").exists()
    publish(path, [Written(staged, "q")], 2)  # the same commit again; its file is deleted
    assert received(path) == [Order(1, "a"), Order(1, "a")]


def test_a_channel_that_only_spark_writes_to_is_maintained(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each commit reclaims what retention allows, because no other process may open the channel."""
    monkeypatch.setattr(plan_reclaim, "_FLUSH_WAIT_SECONDS", 0.0)  # as if the commits were a second apart
    fill(path, [], bytes, segment_size=4096, retention=Retention(max_bytes=16384))
    for number in range(40):
        staged = Staging(Files(), path, "group", 0o600).write([Records.of([b"x" * 1000])])
        publish(path, [Written(staged, "query")], number)
    with open_channel(path, bytes) as channel:
        assert channel.statistics().oldest_offset > 0


def test_a_batch_waits_for_capacity(path: Path) -> None:
    """With the policy "wait" a commit waits until a consumer frees capacity."""
    with (
        open_channel(path, int, options=ChannelOptions(capacity=Capacity(max_messages=3))) as channel,
        channel.receiver("slow") as receiver,
        channel.sender() as sender,
        ThreadPoolExecutor(1) as thread,
    ):
        sender.send_many([0, 1, 2])
        staged = Staging(Files(), path, "group", 0o600).write([Records.of([b"\x03"]), Records.of([b"\x04"])])
        done = thread.submit(publish, path, [Written(staged, "query")], 0)
        while (room := channel.statistics().room) is not None and not room.waiting_senders:
            time.sleep(0.001)
        assert not done.done()
        assert [receiver.receive(30) for _ in range(5)] == list(range(5))
        done.result(30)


def test_a_batch_waits_only_so_long(path: Path) -> None:
    """A commit whose wait exceeds `roomTimeout` publishes nothing, and the error names the option and the channel."""
    options = ChannelOptions(capacity=Capacity(max_messages=3))
    with (
        open_channel(path, int, options=options) as channel,
        channel.receiver("slow") as receiver,
        channel.sender() as sender,
    ):
        sender.send_many([0, 1, 2])
        staged = Staging(Files(), path, "group", 0o600).write([Records.of([b"\x03"])])
        with pytest.raises(TimeoutError, match=r"option roomTimeout=0.05: after this time .* is full: no capacity"):
            publish(path, [Written(staged, "query")], 0, 0.05)
        with pytest.raises(TimeoutError, match=r"option roomTimeout=0\.0"):
            publish(path, [Written(staged, "query")], 0, 0.0)
        assert receiver.receive_many(10) == [0, 1, 2]
        publish(path, [Written(staged, "query")], 0, 30.0)
        assert receiver.receive_many(10) == [3]
    with pytest.raises(ValueError, match="option roomTimeout='soon': must be a number of seconds, 0 or more"):
        WriteOptions.of_batch({"path": "x", "roomTimeout": "soon"})


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"txnId": "a" * 300}, "option txnId='aaa"),
        ({"type": "Order"}, "option type='Order': must be 'package.module:Name'"),
        ({"type": "tests.spark.messages:Point"}, "correct the option type"),
        ({"batchId": "-1"}, "option batchId='-1': must be a number, 0 or more"),
        ({"batchId": "1"}, "options 'txnId' and 'batchId' must be used together"),
        ({"codec": "json"}, "option 'codec' is not known for writing; there are path, type, roomTimeout, txnId"),
    ],
)
def test_wrong_options_are_refused(path: Path, options: dict[str, str], expected: str) -> None:
    """Wrong options of a write are refused before a task starts, with the valid values."""
    fill(path, [])
    with pytest.raises((FileChannelError, ValueError), match=expected):
        ChannelSource({"path": str(path), **options}).writer(schema_of(Order), overwrite=False)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ("1L as id", "messages have a field 'sku', and there is no column of that name"),
        ("1L as id, 'a' as sku, 2 as more", "column 'more' is not a field of the channel's messages"),
        ("'1' as id, 'a' as sku", "column 'id' is string, but messages have bigint: cast it"),
    ],
)
def test_wrong_columns_are_refused_on_the_driver(spark: SparkSession, path: Path, rows: str, expected: str) -> None:
    """A frame without the fields of a message is refused before a job starts."""
    fill(path, [])
    with pytest.raises(PySparkException, match=expected):
        write(spark.sql(f"select {rows}"), path)


def test_overwrite_is_refused(spark: SparkSession, path: Path) -> None:
    """Overwriting a channel is refused, because it can only be appended to."""
    fill(path, orders(1))
    with pytest.raises(PySparkException, match=r"only appended to: use .mode\('append'\)"):
        frame(spark, orders(1)).write.format("filechannel").mode("overwrite").save(str(path))
    assert received(path) == orders(1)


@pytest.mark.parametrize(("mode", "expected"), [("complete", "only appended to"), ("update", "(?i)update")])
def test_other_output_modes_are_refused(spark: SparkSession, tmp_path: Path, mode: str, expected: str) -> None:
    """A query whose output mode changes rows fails, and nothing is written."""
    source, target = tmp_path / "a", tmp_path / "b"
    fill(source, orders(5))
    fill(target, [], Older)
    counts = spark.readStream.format("filechannel").load(str(source)).groupBy("sku").count()
    rows = counts.selectExpr("count as id", "sku").writeStream.format("filechannel").outputMode(mode)
    with pytest.raises(PySparkException, match=expected):
        rows.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start(
            str(target)
        ).awaitTermination()
    assert received(target, Older) == []


def test_values_that_a_receiver_would_refuse(spark: SparkSession, path: Path) -> None:
    """An unknown Enum name, and text that is not a UUID, are refused before anything is published."""
    fill(path, [EVERYTHING], Everything)
    rows = spark.read.format("filechannel").load(str(path))
    for column, expected in (
        ("color", r"'green' in a row; the field is one of \['red', 'blue'\]"),
        ("key", "not a UUID"),
    ):
        with pytest.raises(PySparkException, match=expected):
            write(rows.selectExpr("*").withColumn(column, rows.name.substr(0, 0)).replace("", "green", [column]), path)
    assert received(path, Everything) == [EVERYTHING]
    assert EVERYTHING.color is Color.BLUE


@several_writers
def test_a_waiting_receiver_is_woken(spark: SparkSession, path: Path) -> None:
    """A write wakes a receiver of another process that waits."""
    with open_channel(path, Order) as channel, channel.receiver() as receiver:
        write(frame(spark, orders(3)), path)
        assert sorted(order.id for order in receiver.receive_many(3)) == [0, 1, 2]
