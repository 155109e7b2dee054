"""Which channel a task belongs to: other channels and copies at the same path are refused before the first row."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

import filechannel
from filechannel import ChannelMismatchError, CorruptRecordError, Durability
from filechannel._maintenance.repair.repair import repair
from filechannel._storage.manifest import Manifest
from filechannel._storage.segments.segment import read_header, segment_name
from filechannel._storage.system.os_calls import Files
from filechannel.blocking import open_channel
from filechannel.spark import feed, schema_of, ship
from filechannel.spark.data_source import ChannelSource
from filechannel.spark.open_channels import opened_to_write
from filechannel.spark.read.read_tasks import Task
from filechannel.spark.read.stream import StreamReader
from tests.spark.messages import Order, fill, orders, received
from tests.storage.compressing import compress_all

FOREIGN = 1_000_000
"""Where the numbers of messages begin that must not be seen."""


def id_of(path: Path) -> str:
    """Return the id of the channel at a path."""
    return Manifest.read(Files(), path).id


def swap(path: Path) -> None:
    """Replace the channel at a path by the one beside it."""
    path.rename(path.with_name("before"))
    path.with_name("other").rename(path)


def names_both(error: BaseException, path: Path, *ids: str) -> bool:
    """Return whether the text of an error names this host, the path and all ids."""
    text = str(error)
    return all(each in text for each in (socket.gethostname(), str(path), *ids))


def two_channels(path: Path) -> tuple[str, str]:
    """Make a channel, and one beside it with records of the same lengths at the same positions; return their ids."""
    fill(path, orders(400), segment_size=4096)
    other = path.with_name("other")
    fill(other, [Order(FOREIGN + each.id, each.sku, each.qty, each.price, each.note) for each in orders(400)])
    return id_of(path), id_of(other)


def diverged_copies(path: Path, common: int, **options: Any) -> None:
    """Make a channel and a copy of it beside it, with so many messages in common and others behind them."""
    fill(path, orders(common), segment_size=4096, **options)
    other = path.with_name("other")
    shutil.copytree(path, other)
    fill(path, orders(400, common))
    fill(other, orders(400, FOREIGN))


def rows(reader: Any, tasks: Any) -> list[int]:
    """Return the numbers of all messages that tasks read."""
    return [id_ for task in tasks for batch in reader.read(task) for id_ in batch.column("id").to_pylist()]


def batch_tasks(path: Path, parts: int = 4) -> tuple[Any, list[Task]]:
    """Plan a batch."""
    reader = ChannelSource({"path": str(path), "numpartitions": str(parts)}).reader(schema_of(Order))
    return reader, list(reader.partitions())


def stream_tasks(path: Path, parts: int = 4) -> tuple[Any, list[Task]]:
    """Plan a batch of a stream, and leave the reader to a task."""
    planner = ChannelSource({"path": str(path), "numpartitions": str(parts)}).streamReader(schema_of(Order))
    start = planner.initialOffset()
    tasks = list(planner.partitions(start, planner.latestOffset(start, planner.getDefaultReadLimit())))
    planner.stop()
    return planner, tasks


@pytest.mark.parametrize("planned", [batch_tasks, stream_tasks])
def test_a_task_refuses_another_channel(planned: Callable[[Path], tuple[Any, list[Task]]], path: Path) -> None:
    """Each task refuses another channel before its first row, and the error has host, path and both ids."""
    ids = two_channels(path)
    reader, tasks = planned(path)
    assert len(tasks) == 4
    swap(path)
    for task in tasks:
        with pytest.raises(ChannelMismatchError) as caught:
            next(iter(reader.read(task)))
        assert names_both(caught.value, path, *ids)


@pytest.mark.parametrize("durability", [Durability.OS, Durability.FSYNC])
@pytest.mark.parametrize("parts", [1, 4, 40])
@pytest.mark.parametrize("planned", [batch_tasks, stream_tasks])
@pytest.mark.parametrize("common", [1, 40, 100])
def test_a_task_reads_no_row_of_a_copy_that_was_written_to(
    planned: Callable[[Path, int], tuple[Any, list[Task]]],
    common: int,
    parts: int,
    durability: Durability,
    path: Path,
) -> None:
    """A task reads the messages that a copy shares with the channel, and refuses any other row."""
    diverged_copies(path, common, durability=durability)
    for _ in range(2):  # planned in the one and read in the other, and the other way round
        reader, tasks = planned(path, parts)
        wanted = [rows(reader, [task]) for task in tasks]
        swap(path)
        refused = 0
        for task, its_rows in zip(tasks, wanted, strict=True):
            try:
                assert rows(reader, [task]) == its_rows
            except (ChannelMismatchError, CorruptRecordError):
                refused += 1
        assert refused
        path.with_name("before").rename(path.with_name("other"))


@pytest.mark.parametrize("planned", [batch_tasks, stream_tasks])
def test_a_channel_that_grows_is_the_same(planned: Callable[[Path], tuple[Any, list[Task]]], path: Path) -> None:
    """A channel that grows, is compressed, or is moved away and back is the same for a task."""
    fill(path, orders(400), segment_size=4096)
    reader, tasks = planned(path)
    fill(path, orders(400, 400))
    with opened_to_write(path) as store:
        assert compress_all(store, block_size=1000)
    path.rename(path.with_name("moved"))
    path.with_name("moved").rename(path)
    assert rows(reader, tasks) == list(range(400))


def test_a_frame_that_is_read_again_refuses_another_channel(spark: SparkSession, path: Path) -> None:
    """The second action on a frame of a real session refuses a directory that was replaced."""
    ids = two_channels(path)
    frame = spark.read.format("filechannel").option("numPartitions", "4").load(str(path))
    assert frame.count() == 400
    swap(path)
    with pytest.raises(PySparkException, match="ChannelMismatchError") as caught:
        frame.count()
    assert names_both(caught.value, path, *ids)


def test_a_stream_refuses_another_channel(spark: SparkSession, path: Path, tmp_path: Path) -> None:
    """The tasks of a stream refuse a directory that was replaced during a batch."""
    ids = two_channels(path)
    seen: list[int] = []

    def take(batch: DataFrame, number: int) -> None:
        if number == 1:
            swap(path)
        seen.extend(row.id for row in batch.collect())

    query = (
        spark.readStream.format("filechannel")
        .option("maxRecordsPerBatch", "100")
        .load(str(path))
        .writeStream.foreachBatch(take)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    with pytest.raises(PySparkException, match="ChannelMismatchError") as caught:
        query.awaitTermination()
    assert names_both(caught.value, path, *ids)
    assert seen == list(range(100))


def test_a_checkpoint_belongs_to_one_of_two_copies(path: Path) -> None:
    """A stream that restarts on a copy of its channel continues only where both are the same."""
    diverged_copies(path, 20)
    planner = stream(path)
    start = planner.initialOffset()
    places = [start]
    while places[-1] != (end := planner.latestOffset(places[-1], planner.getDefaultReadLimit())):
        places.append(end)
    planner.stop()
    assert len(places) == 6
    swap(path)
    for place in places:
        restarted = stream(path)
        try:
            if place is start:
                restarted.latestOffset(place, restarted.getDefaultReadLimit())
            else:
                with pytest.raises((ChannelMismatchError, ValueError), match=r"on host|does not belong"):
                    restarted.latestOffset(place, restarted.getDefaultReadLimit())
        finally:
            restarted.stop()


def test_a_checkpoint_names_the_segment(path: Path) -> None:
    """Two copies that continue at the same offset are distinguished by the random id of their segment."""
    fill(path, orders(20), segment_size=4096)
    for name in ("first", "other"):
        shutil.copytree(path, path.with_name(name))  # opened to write, both continue at the same offset
        fill(path.with_name(name), orders(20, 100))
    shutil.rmtree(path)
    path.with_name("first").rename(path)
    planner = stream(path)
    end = planner.latestOffset(planner.initialOffset(), planner.getDefaultReadLimit())
    planner.stop()
    keys = ["offset", "sequence", "segment", "segment_id", "segment_created"]
    assert list(next(iter(end.values()))) == keys
    swap(path)
    restarted = stream(path)
    with pytest.raises(ChannelMismatchError) as caught:
        restarted.latestOffset(end, restarted.getDefaultReadLimit())
    restarted.stop()
    assert names_both(caught.value, path, id_of(path), f"{next(iter(end.values()))['segment_id']:08x}")


def test_a_checkpoint_survives_a_repair(path: Path) -> None:
    """A stream continues in a segment that was repaired after it was read, and got another id."""
    fill(path, orders(400), segment_size=4096)
    planner = stream(path)
    end = planner.latestOffset(planner.initialOffset(), planner.getDefaultReadLimit())
    planner.stop()
    [place] = end.values()
    segment = path / "segments" / segment_name(place["segment"])
    content = bytearray(segment.read_bytes())
    content[200] ^= 1  # in a record that was read already
    segment.write_bytes(content)
    repair(path)
    assert read_header(Files(), segment).id != place["segment_id"]
    restarted = stream(path)
    assert restarted.latestOffset(end, restarted.getDefaultReadLimit()) != end
    restarted.stop()


def stream(path: Path) -> StreamReader:
    """Return what plans a stream of at most a hundred messages a batch."""
    return ChannelSource({"path": str(path), "maxrecordsperbatch": "100"}).streamReader(schema_of(Order))


def test_a_stream_does_not_take_two_copies_for_one(path: Path) -> None:
    """A stream refuses two paths with the same channel."""
    fill(path, orders(10))
    copy = path.with_name("other")
    shutil.copytree(path, copy)
    reader = ChannelSource({"paths": f'["{path}", "{copy}"]'}).streamReader(schema_of(Order))
    with pytest.raises(ValueError, match="are the same channel") as caught:
        reader.initialOffset()
    assert str(path) in str(caught.value)
    assert str(copy) in str(caught.value)
    reader.stop()


def test_many_channels_are_compared_one_by_one(path: Path) -> None:
    """Tasks of a channel that is still in its directory read it, and those of a replaced one do not."""
    ids = two_channels(path)
    fill(path.with_name("stays"), orders(100, 5000))
    options = {"paths": f'["{path}", "{path.with_name("stays")}"]', "numpartitions": "4"}
    reader = ChannelSource(options).reader(schema_of(Order))
    tasks = [task for task in reader.partitions() if isinstance(task, Task)]
    swap(path)
    replaced = [task for task in tasks if task.path == path]
    assert 0 < len(replaced) < len(tasks)
    assert rows(reader, [task for task in tasks if task not in replaced]) == list(range(5000, 5100))
    for task in replaced:
        with pytest.raises(ChannelMismatchError) as caught:
            rows(reader, [task])
        assert names_both(caught.value, path, *ids)


# Writing


BATCH = pa.RecordBatch.from_arrays(
    [pa.array([1], pa.int64()), pa.array(["a"])], schema=pa.schema([("id", pa.int64()), ("sku", pa.string())])
)


def writers(path: Path) -> list[tuple[Any, list[int]]]:
    """Return both kinds of writers for a channel, with what their commits take besides."""
    given = StructType(schema_of(Order).fields[:2])
    source = ChannelSource({"path": str(path)})
    stream_source = ChannelSource({"path": str(path), "txnid": "q"})
    return [(source.writer(given, False), []), (stream_source.streamWriter(given, False), [0])]


@pytest.mark.parametrize("kind", [0, 1], ids=["batch", "stream"])
def test_a_task_stages_nothing_in_another_channel(kind: int, path: Path) -> None:
    """Neither a task, the commit nor an abort of a write changes a channel that replaced another."""
    ids = two_channels(path)
    writer, number = writers(path)[kind]
    staged = writer.write(iter([BATCH]))
    swap(path)
    with pytest.raises(ChannelMismatchError) as caught:
        writer.write(iter([BATCH]))
    assert names_both(caught.value, path, *ids)
    assert not (path / "staging").exists()
    with pytest.raises(ChannelMismatchError) as caught:
        writer.commit([staged], *number)
    assert names_both(caught.value, path, *ids)
    (path / "staging" / staged.staged.group).mkdir(parents=True)
    writer.abort([staged], *number)
    assert (path / "staging" / staged.staged.group).exists()
    assert len(received(path)) == 400


@pytest.mark.parametrize("kind", [0, 1], ids=["batch", "stream"])
def test_what_was_staged_in_a_copy_is_not_published(kind: int, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit does not find files that were staged in a copy on another host, and names both hosts."""
    fill(path, orders(10))
    shutil.copytree(path, path.with_name("other"))
    writer, number = writers(path)[kind]
    swap(path)
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(socket, "gethostname", lambda: "elsewhere")
        staged = writer.write(iter([BATCH]))
    path.rename(path.with_name("other"))
    path.with_name("before").rename(path)
    with pytest.raises(ChannelMismatchError, match="elsewhere") as caught:
        writer.commit([staged], *number)
    assert names_both(caught.value, path, id_of(path))
    assert len(received(path)) == 10


def test_a_write_refuses_another_channel(spark: SparkSession, path: Path) -> None:
    """A write refuses a directory that is replaced while the rows are sent."""
    ids = two_channels(path)
    source = path.with_name("source")
    fill(source, orders(1))
    place = str(path)

    def replace(id_: int) -> int:
        swap(Path(place))
        return id_

    frame = spark.read.format("filechannel").load(str(source)).coalesce(1)
    spark.udf.register("replace_the_directory", replace, "bigint")
    frame = frame.selectExpr("replace_the_directory(id) as id", "sku")
    with pytest.raises(PySparkException, match="ChannelMismatchError") as caught:
        frame.write.format("filechannel").mode("append").save(place)
    assert names_both(caught.value, path, *ids)
    assert len(received(path)) == len(received(path.with_name("before"))) == 400


def test_feed_refuses_another_channel(spark: SparkSession, path: Path) -> None:
    """`feed` refuses a path whose channel is not that of the sender."""
    ids = two_channels(path)
    frame = spark.createDataFrame([(1, "a")], "id bigint, sku string")

    async def main() -> None:
        async with filechannel.open_channel(path, Order) as channel, channel.sender() as sender:
            swap(path)
            await feed(sender, frame)

    with pytest.raises(ChannelMismatchError) as caught:
        anyio.run(main)
    assert names_both(caught.value, path, *ids)
    assert len(received(path)) == 400


# Archives


def test_an_archive_that_was_replaced_is_noticed(path: Path) -> None:
    """The tasks of a batch refuse an archive that was replaced."""
    ids = two_channels(path)
    for name in (path, path.with_name("other")):
        with open_channel(name, Order) as channel:
            channel.seal()
        ship(name, f"{name}-archive")
    archive = path.with_name(f"{path.name}-archive")
    reader = ChannelSource({"archive": archive.as_uri(), "numpartitions": "4"}).reader(schema_of(Order))
    tasks = list(reader.partitions())
    archive.rename(archive.with_name("before"))
    path.with_name("other-archive").rename(archive)
    for task in tasks:
        with pytest.raises(ChannelMismatchError) as caught:
            rows(reader, [task])
        assert names_both(caught.value, archive, *ids)
