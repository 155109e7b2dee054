"""Reading a channel as a stream: from where it stopped, in batches as large as wanted, under a consumer's name."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming import StreamingQuery

from filechannel import ConsumerBusyError, FileChannelError, Retention
from filechannel._storage.manifest import MANIFEST
from filechannel.blocking import open_channel
from filechannel.spark import ChannelSource, schema_of
from filechannel.spark.read.stream import StreamReader
from tests.processes.hooked_files import HookedFiles
from tests.spark.conftest import several_writers
from tests.spark.messages import Order, fill, orders


def drain(spark: SparkSession, path: object, target: Path, **options: object) -> StreamingQuery:
    """Read everything that is there into Parquet files, and end."""
    given = {name: str(value) for name, value in options.items()}
    return (
        spark.readStream.format("filechannel")
        .options(**given)
        .load(str(path))
        .writeStream.format("parquet")
        .option("checkpointLocation", str(target / "checkpoint"))
        .option("path", str(target / "found"))
        .trigger(availableNow=True)
        .start()
    )


def drained(spark: SparkSession, path: object, target: Path, **options: object) -> list[int]:
    """Drain a channel; return the ids that were found so far."""
    drain(spark, path, target, **options).awaitTermination()
    return found(spark, target)


def found(spark: SparkSession, target: Path) -> list[int]:
    """Return the ids that were found so far."""
    return sorted(row.id for row in spark.read.parquet(str(target / "found")).select("id").collect())


def batches(target: Path) -> list[Any]:
    """Return the offsets of a query, batch by batch."""
    files = sorted((target / "checkpoint/offsets").iterdir(), key=lambda file: file.name.zfill(9))
    return [json.loads(file.read_text().splitlines()[-1]) for file in files if file.name.isdigit()]


def test_a_query_resumes_where_it_stopped(spark: SparkSession, path: Path, tmp_path: Path) -> None:
    """A query reads every stored message once, and after a restart those sent since then."""
    fill(path, orders(300), segment_size=4096)
    assert drained(spark, path, tmp_path) == list(range(300))
    assert drained(spark, path, tmp_path) == list(range(300))
    fill(path, orders(50, 300))
    assert drained(spark, path, tmp_path) == list(range(350))


def test_batches_have_at_most_so_many_records(spark: SparkSession, path: Path, tmp_path: Path) -> None:
    """With `maxRecordsPerBatch` a query reads batches of at most that size."""
    fill(path, orders(25))
    assert drained(spark, path, tmp_path, maxRecordsPerBatch=10) == list(range(25))
    sequences = [next(iter(batch.values()))["sequence"] for batch in batches(tmp_path)]
    assert sequences == [10, 20, 25]


def test_batches_have_about_so_many_bytes(spark: SparkSession, path: Path, tmp_path: Path) -> None:
    """With `maxBytesPerBatch` a batch ends with the record that reaches the size."""
    fill(path, orders(60))
    with open_channel(path, Order) as channel:
        size = channel.statistics().write_offset
    assert drained(spark, path, tmp_path, maxBytesPerBatch=size // 3) == list(range(60))
    ends = [next(iter(batch.values()))["offset"] for batch in batches(tmp_path)]
    assert len(ends) == 3
    assert all(end - begin < size // 3 + 200 for begin, end in zip([0, *ends], ends, strict=False))


def test_a_consumer_shows_how_far_the_query_is_and_holds_the_data(
    spark: SparkSession, path: Path, tmp_path: Path
) -> None:
    """The consumer of a query is registered at once, keeps unread data, and follows one batch behind."""
    fill(path, orders(200), segment_size=4096, retention=Retention(after_consumed="delete"))
    assert drained(spark, path, tmp_path, consumer="spark", maxRecordsPerBatch=100) == list(range(200))
    with open_channel(path, Order) as channel:
        (consumer,) = channel.consumers()
        assert (consumer.name, consumer.owner) == ("spark", None)
        assert consumer.lag_messages in (0, 100)
    fill(path, orders(10, 200), retention=Retention(after_consumed="delete"))
    assert drained(spark, path, tmp_path, consumer="spark") == list(range(210))


def test_a_new_query_begins_at_the_consumers_position(spark: SparkSession, path: Path, tmp_path: Path) -> None:
    """Without a checkpoint a query begins at the position of its consumer, unless an option sets another start."""
    fill(path, orders(10))
    with open_channel(path, Order) as channel, channel.receiver("spark") as receiver:
        receiver.receive_many(4)
    assert drained(spark, path, tmp_path / "a", consumer="spark") == list(range(4, 10))
    assert drained(spark, path, tmp_path / "b", consumer="spark", startingOffset="earliest") == list(range(10))


@several_writers
def test_a_live_owner_is_not_robbed(spark: SparkSession, path: Path, tmp_path: Path) -> None:
    """A consumer name that another process owns is refused, and keeps its owner."""
    fill(path, orders(10))
    with open_channel(path, Order) as channel, channel.receiver("spark") as receiver:
        query = drain(spark, path, tmp_path, consumer="spark")
        with pytest.raises(PySparkException, match=ConsumerBusyError.__name__):
            query.awaitTermination()
        assert receiver.receive() == orders(1)[0]


def test_many_channels_have_their_own_offsets(spark: SparkSession, tmp_path: Path) -> None:
    """A query over a glob keeps an offset for each channel, and reads a new one from its oldest message."""
    fill(tmp_path / "orders-a", orders(10))
    fill(tmp_path / "orders-b", orders(10, 10))
    assert drained(spark, tmp_path / "orders-*", tmp_path, maxRecordsPerBatch=6) == list(range(20))
    assert {len(batch) for batch in batches(tmp_path)} == {2}
    fill(tmp_path / "orders-c", orders(10, 20))
    fill(tmp_path / "orders-a", orders(5, 30))
    assert drained(spark, tmp_path / "orders-*", tmp_path, maxRecordsPerBatch=6) == list(range(35))


def test_a_channel_created_later_is_read(spark: SparkSession, tmp_path: Path) -> None:
    """A channel that is created while a query runs, and matches its glob, is read from the next batch on."""
    fill(tmp_path / "orders-a", orders(5))
    checkpoint = tmp_path / "checkpoint"
    found = set[int]()

    def collect(frame: DataFrame, _: int) -> None:
        found.update(row.id for row in frame.collect())

    frame = spark.readStream.format("filechannel").option("consumer", "spark").load(str(tmp_path / "orders-*"))
    query = frame.writeStream.foreachBatch(collect).option("checkpointLocation", str(checkpoint)).start()
    try:
        wait_until(query, lambda: found == set(range(5)))
        fill(tmp_path / "orders-b", [])
        wait_until(query, lambda: len(batches(tmp_path)[-1]) == 2)  # a batch in which there is nothing to read
        fill(tmp_path / "orders-b", orders(5, 5))
        wait_until(query, lambda: found == set(range(10)))
        fill(tmp_path / "orders-b", orders(5, 10))
        fill(tmp_path / "orders-a", orders(5, 15))
        wait_until(query, lambda: found == set(range(20)))
    finally:
        query.stop()


def wait_until(query: StreamingQuery, is_so: Callable[[], bool]) -> None:
    """Wait for what a query does; fail as it does."""
    while not is_so():
        assert not query.awaitTermination(0.05), "the query has ended"


def test_a_channel_is_read_as_soon_as_it_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A channel that is being created is skipped at each step until it is complete."""
    path = tmp_path / "orders-b"
    monkeypatch.setattr("filechannel.spark.read.stream._SEARCH_SECONDS", 0.0)
    fill(tmp_path / "orders-a", orders(5))
    reader = ChannelSource({"path": str(tmp_path / "orders-*")}).streamReader(schema_of(Order))
    limit, looks = reader.getDefaultReadLimit(), set[str]()
    start = reader.latestOffset(reader.initialOffset(), limit)

    def look(call: str, name: str) -> None:
        if not (path / MANIFEST).exists():
            assert reader.latestOffset(start, limit) == start
            looks.add(f"{call} {name}")

    with monkeypatch.context() as patch:
        patch.setattr("filechannel._storage.open_stores.Files", lambda: HookedFiles(look))
        fill(path, [])
    assert {"make_directory orders-b", "open control", "make_directory segments", f"replace {MANIFEST}.new"} <= looks
    empty = reader.latestOffset(start, limit)
    assert len(empty) == 2
    assert reader.partitions(start, empty) == []
    fill(path, orders(5, 5))
    end = reader.latestOffset(empty, limit)
    assert [row for task in reader.partitions(empty, end) for row in ids(reader, task)] == list(range(5, 10))
    reader.stop()


def ids(reader: StreamReader, task: InputPartition) -> list[int]:
    """Return the ids that a task finds."""
    return [row for batch in reader.read(task) for row in batch.column("id").to_pylist()]


def test_a_reader_is_asked_in_its_own_way(path: Path) -> None:
    """Whatever Spark asks, commits or stops twice, late or never, the next batch begins where it asks for it."""
    fill(path, orders(20), segment_size=4096)
    source = ChannelSource({"path": str(path), "consumer": "spark", "maxRecordsPerBatch": "10"})
    reader = pickle.loads(pickle.dumps(source.streamReader(schema_of(Order))))
    start = reader.initialOffset()
    assert reader.initialOffset() == start
    middle = reader.latestOffset(start, reader.getDefaultReadLimit())
    end = reader.latestOffset(middle, reader.getDefaultReadLimit())
    reader.commit(middle)
    with open_channel(path, Order) as channel:
        assert [each.lag_messages for each in channel.consumers()] == [10]
    tasks = pickle.loads(pickle.dumps(list(reader.partitions(middle, end))))
    worker = pickle.loads(pickle.dumps(reader))
    assert [row for task in tasks for row in ids(worker, task)] == list(range(10, 20))
    reader.stop()
    reader.stop()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"endingOffset": "latest"}, "option 'endingoffset' is not known for a stream"),
        ({"archive": "file:///x"}, "option 'archive' is not known for a stream"),
        ({"maxRecordsPerBatch": "0"}, "option maxRecordsPerBatch='0': must be a number, 1 or more"),
        ({"maxBytesPerBatch": "1 MB"}, "option maxBytesPerBatch='1 MB': must be a number, 1 or more"),
        ({"type": "tests.spark.messages:Point"}, "correct the option type"),
    ],
)
def test_wrong_options_are_refused(path: Path, options: dict[str, str], expected: str) -> None:
    """Wrong options of a query are refused when it is planned, with the option and what to do."""
    fill(path, orders(1))
    source = ChannelSource({"path": str(path), **{name.lower(): value for name, value in options.items()}})
    with pytest.raises((FileChannelError, ValueError), match=expected):
        source.streamReader(schema_of(Order))


def test_a_replaced_channel_is_noticed(spark: SparkSession, path: Path, tmp_path: Path) -> None:
    """A checkpoint continues with a channel that was moved, and refuses one that replaced it."""
    fill(path, orders(10))
    assert drained(spark, path, tmp_path) == list(range(10))
    path.rename(tmp_path / "moved")
    fill(tmp_path / "moved", orders(5, 10))
    assert drained(spark, tmp_path / "moved", tmp_path) == list(range(15))
    fill(path, orders(10))
    query = drain(spark, path, tmp_path)
    with pytest.raises(PySparkException, match=r"the checkpoint refers to channel .* another checkpointLocation"):
        query.awaitTermination()


def test_reclaimed_messages_are_an_error(spark: SparkSession, path: Path, tmp_path: Path) -> None:
    """Messages that were reclaimed before the query read them raise an error."""
    fill(path, orders(10))
    assert drained(spark, path, tmp_path) == list(range(10))
    with open_channel(path, Order) as channel, channel.sender() as sender:
        sender.send_many(orders(10, 10))
        channel.purge()
        sender.send_many(orders(10, 20))
    query = drain(spark, path, tmp_path)
    with pytest.raises(PySparkException, match="DataExpiredError"):
        query.awaitTermination()
