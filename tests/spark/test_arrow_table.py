"""From records to batches of Arrow, without Spark: whole rows, in order, in batches that are not too large."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from filechannel import CorruptRecordError, DecodeError
from filechannel._channel.schema import describe
from filechannel._storage.log_spans import split, windows
from filechannel._storage.segments.segment import Segment
from filechannel.spark import schema_of
from filechannel.spark.arrow_table import Table
from filechannel.spark.open_channels import channel_at, find_channels, opened, opened_to_write
from filechannel.spark.read.read_tasks import plan
from filechannel.spark.read.read_tasks import read as read_task
from filechannel.spark.source_options import ReadOptions
from filechannel.spark.spark_schema import NoColumnError
from tests.spark.messages import Mixed, Order, fill, orders
from tests.storage.compressing import compress_all, compressed_file


def read(path: Path, most: int = 10**9, **limits: int) -> list[list[dict[str, Any]]]:
    """Return the rows of every batch."""
    manifest, schema = channel_at(path, None)
    table = Table.of(manifest.codec, schema, metadata=True)
    with opened(path) as store:
        (span,) = split(store, store.lookup.earliest(), store.lookup.latest(), 1)
        found = table.batches(windows(store, span), span.sequence, most, **limits)
        return [batch.to_pylist() for batch in found]  # type: ignore[attr-defined]


def test_batches_have_at_most_so_many_messages(path: Path) -> None:
    """A batch has at most the given number of messages, across segments, and sequences continue in the next one."""
    fill(path, orders(100), segment_size=4096)
    found = read(path, 30)
    assert [len(batch) for batch in found] == [30, 30, 30, 10]
    rows = [row for batch in found for row in batch]
    assert [(row["id"], row["sequence"]) for row in rows] == [(number, number) for number in range(100)]


@pytest.mark.parametrize("size", [1, 50, 300, 5000])
def test_batches_have_at_most_so_many_bytes(path: Path, size: int) -> None:
    """A batch has at most the given number of bytes, except for one message that is larger."""
    messages = [Order(number, "x" * (number * 37 % 700)) for number in range(60)]
    fill(path, messages, segment_size=4096)
    found = read(path, size=size)
    rows = [row for batch in found for row in batch]
    assert [(row["sku"], row["sequence"]) for row in rows] == [
        (order.sku, number) for number, order in enumerate(messages)
    ]
    for batch, following in pairwise(found):
        assert len(batch) == 1 or following[0]["offset"] - batch[0]["offset"] <= size


def test_what_comes_before_damage_is_read(path: Path) -> None:
    """Messages before damage are read, and the error has the offset of the damage."""
    fill(path, orders(50))
    (segment,) = (path / "segments").glob("*.seg")
    rows = [row for batch in read(path) for row in batch]
    content = bytearray(segment.read_bytes())
    content[64 + rows[20]["offset"] + 9] ^= 1
    segment.write_bytes(content)
    manifest, schema = channel_at(path, None)
    with opened(path) as store:
        (span,) = split(store, store.lookup.earliest(), store.lookup.latest(), 1)
        batches = Table.of(manifest.codec, schema).batches(windows(store, span), 0, 1000)
        assert next(batches).column("id").to_pylist() == list(range(20))
        with pytest.raises(CorruptRecordError) as caught:
            next(batches)
    assert caught.value.offset == rows[20]["offset"]


def test_compressed_segments_have_the_same_rows(path: Path) -> None:
    """A compressed segment has the rows of the plain one, for any message and batch size."""
    fill(path, [Order(number, "x" * (number * 37 % 700)) for number in range(200)], segment_size=4096)
    plain = read(path, 30, size=3000)
    with opened_to_write(path) as store:
        assert compress_all(store)
    assert read(path, 30, size=3000) == plain


def test_what_comes_before_damage_in_a_compressed_segment_is_read(path: Path) -> None:
    """Messages before a damaged block are read, and the error says what is wrong with the block."""
    fill(path, orders(300), segment_size=4096)
    rows = [row for batch in read(path) for row in batch]
    manifest, schema = channel_at(path, None)
    with opened_to_write(path) as store:
        begins = compress_all(store)
        file = compressed_file(store, begins[1])
    content = bytearray(file.read_bytes())
    content[-1] ^= 1  # in its last block
    file.write_bytes(content)
    with opened(path) as store:
        (span,) = split(store, store.lookup.earliest(), store.lookup.latest(), 1)
        batches = Table.of(manifest.codec, schema).batches(windows(store, span), 0, 1000)
        found = next(batches).num_rows
        with pytest.raises(CorruptRecordError, match=r"block \d+ does not match its checksum") as caught:
            next(batches)
    assert caught.value.offset == rows[found]["offset"]
    assert begins[1] < rows[found]["offset"] < begins[2]


def test_a_task_continues_when_its_segment_is_compressed(path: Path) -> None:
    """A task continues in the compressed segment when its plain file is compressed and recycled halfway."""
    fill(path, orders(300), segment_size=4096)
    options = ReadOptions.of_batch({"path": str(path), "arrowBatchRecords": "10", "includeMetadata": "true"})
    columns = find_channels(options)[0].table.spark
    with opened(path) as store:
        (task,) = plan(store, store.lookup.earliest(), store.lookup.latest(), 1)
    found = read_task(options, columns, task)
    first = next(found)
    with opened_to_write(path) as store:
        segment = store.segments.get(store.segments.begins[0])
        assert isinstance(segment, Segment)
        assert compress_all(store)
        segment.wipe(segment.begin, segment.limit)
    rows = [row for batch in (first, *found) for row in batch.to_pylist()]  # type: ignore[attr-defined]
    assert [(row["id"], row["sequence"]) for row in rows] == [(number, number) for number in range(300)]


def test_a_message_that_is_none_of_the_type(path: Path) -> None:
    """A record that does not fit the columns raises an error with its field and payload."""
    fill(path, [{"id": 1}, {"id": "a"}], dict[str, int | str])
    schema = channel_at(path, None)[1]
    assert schema.root.kind == "dict"
    order = Table.of("msgpack", describe(Order))
    with opened(path) as store:
        (span,) = split(store, store.lookup.earliest(), store.lookup.latest(), 1)
        with pytest.raises(DecodeError, match="sku: it is missing"):
            list(order.batches(windows(store, span), 0, 1000))


def test_schema_of_types() -> None:
    """The columns of a type are known without a channel, and an error names a field that has none."""
    assert schema_of(Order).simpleString() == "struct<id:bigint,sku:string,qty:bigint,price:double,note:string>"
    assert schema_of(dict[str, list[int]]).simpleString() == "struct<value:map<string,array<bigint>>>"
    assert schema_of(int | str).simpleString() == "struct<payload:binary>"
    with pytest.raises(NoColumnError, match=r"field 'what' is int \| str"):
        schema_of(Mixed)
