"""From batches of Arrow to messages, without Spark: what was read is written as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql.types import IntegerType, StructField, StructType

from filechannel import MessageTooLargeError
from filechannel._channel.schema import describe
from filechannel._format import split_records
from filechannel._storage.log_spans import split, windows
from filechannel.spark import schema_of
from filechannel.spark.arrow_table import Table
from filechannel.spark.open_channels import channel_at, opened
from filechannel.spark.write.encode_rows import Rows
from tests.spark.messages import EVERYTHING, Cancel, Color, Everything, Inner, Order, Pair, Point, Refund, fill, orders


def batches(path: Path) -> list[pa.RecordBatch]:
    """Return what a channel has, as Arrow."""
    manifest, schema = channel_at(path, None)
    with opened(path) as store:
        (span,) = split(store, store.lookup.earliest(), store.lookup.latest(), 1)
        return list(Table.of(manifest.codec, schema).batches(windows(store, span), 0, 1000))


@pytest.mark.parametrize(
    ("message_type", "messages"),
    [
        (Order, [*orders(50), Order(51, "süß", -(2**62), float("inf"), "")]),
        (Everything, [EVERYTHING]),
        (Point, [Point(1), Point(2, 3)]),
        (Pair, [Pair(1), Pair(2, "s")]),
        (dict[str, list[int | None]], [{"a": [1, None]}, {}]),
    ],
    ids=["Struct", "everything", "dataclass", "array-like", "dict"],
)
def test_there_and_back(path: Path, message_type: Any, messages: list[Any]) -> None:
    """Messages that became columns become the same messages again, also those of a slice."""
    fill(path, messages, message_type)
    (batch,) = batches(path)
    rows = Rows("msgpack", describe(message_type), schema_of(message_type))
    decode = msgspec.msgpack.Decoder(message_type).decode
    assert [decode(payload) for payload in rows.encode(batch)] == messages
    middle = batch.slice(1, 3)  # type: ignore[attr-defined]
    assert [decode(payload) for payload in rows.encode(middle)] == messages[1:4]


@pytest.mark.parametrize(
    ("message_type", "messages"),
    [
        (Order, [*orders(50), Order(51, "süß", -(2**62), float("inf"), "")]),
        (Everything, [EVERYTHING, msgspec.structs.replace(EVERYTHING, maybe=Inner("m"), tags=[], sizes={})]),
        (Point, [Point(1), Point(2, 3)]),
        (Pair, [Pair(1), Pair(2, "s")]),
        (Cancel, [Cancel(1), Cancel(2)]),
        (dict[str, list[int | None]], [{"a": [1, None]}, {}]),
        (bytes, [b"", b"abc"]),
    ],
    ids=["Struct", "everything", "dataclass", "array-like", "tagged", "dict", "raw"],
)
def test_the_short_way_is_the_long_way(path: Path, message_type: Any, messages: list[Any]) -> None:
    """The fast path writes the bytes that msgspec writes for the same rows, also for a slice."""
    fill(path, messages, message_type)
    (batch,) = batches(path)
    manifest, schema = channel_at(path, None)
    rows = Rows(manifest.codec, schema, Table.of(manifest.codec, schema).spark)
    encoder = rows._encoder(batch.schema)  # pyright: ignore[reportPrivateUsage]
    assert encoder is not None
    for part in (batch, batch.slice(1, 3)):  # type: ignore[attr-defined]
        records, longest = encoder.encode(part)
        assert split_records(records.content) == rows.encode(part)
        assert (records.count, longest) == (part.num_rows, max(map(len, rows.encode(part))))


def staged(message_type: Any, arrow: pa.DataType, values: list[Any], limit: int = 100) -> list[Any]:
    """Return what rows of one column become."""
    batch = pa.RecordBatch.from_arrays([pa.array(values, arrow)], names=["value"])  # type: ignore[call-arg]
    rows = Rows("msgpack", describe(message_type), schema_of(message_type))
    decode = msgspec.msgpack.Decoder(message_type).decode
    parts = rows.records(iter([batch, batch.slice(0, 0)]), limit)  # type: ignore[attr-defined]
    return [decode(payload) for part in parts for payload in split_records(part.content)]


def test_values_that_only_the_slow_path_encodes() -> None:
    """Other notations of UUIDs, duplicate keys, float keys and wide offsets are encoded by the slow path."""
    key = UUID(int=5)
    assert staged(UUID, pa.string(), [key.hex, str(key), f"{{{key}}}"]) == [key] * 3
    pairs = pa.map_(pa.string(), pa.int64())
    assert staged(dict[str, int], pairs, [[("a", 1), ("a", 2)]]) == [{"a": 2}]
    assert staged(dict[float, int], pa.map_(pa.float64(), pa.int64()), [[(0.5, 1)]]) == [{0.5: 1}]
    assert staged(str, pa.large_string(), ["a", "b"]) == ["a", "b"]  # type: ignore[attr-defined]
    many = {str(number): number for number in range(100)}
    assert staged(dict[str, int], pairs, [list(many.items())], 1000) == [many]


def test_rows_that_are_no_messages() -> None:
    """A row that is not a message raises an error that names the field, on either path."""
    with pytest.raises(ValueError, match="column 'value' is 'x' in a row, which is not a UUID"):
        staged(UUID, pa.string(), [str(UUID(int=5)), "x"])
    with pytest.raises(ValueError, match="column 'value' is 'green' in a row; the field is one of"):
        staged(Color, pa.string(), ["red", "green"])
    with pytest.raises(ValueError, match="column 'value' is null in a row, but the field does not allow null"):
        staged(int, pa.int64(), [1, None])
    with pytest.raises(MessageTooLargeError):
        staged(str, pa.string(), ["a", "b" * 101])


def test_narrower_numbers_and_fewer_columns() -> None:
    """Integers of 32 bits are encoded like wider ones, and fields with a default may be missing."""
    given = StructType([StructField("qty", IntegerType()), *schema_of(Order).fields[:2]])
    columns = {"qty": pa.array([7], pa.int32()), "id": pa.array([1], pa.int64()), "sku": pa.array(["a"])}
    batch = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))  # type: ignore[call-arg]
    (payload,) = Rows("msgpack", describe(Order), given).encode(batch)
    assert msgspec.msgpack.decode(payload) == {"id": 1, "sku": "a", "qty": 7}
    (payload,) = Rows("json", describe(Order), given).encode(batch)
    assert msgspec.json.decode(payload, type=Order) == Order(1, "a", 7)


def test_what_rows_cannot_be() -> None:
    """A union, and an array without one of its fields, cannot be encoded from rows."""
    with pytest.raises(ValueError, match=r"messages are Cancel \| Refund, which cannot be distinguished in rows"):
        Rows("msgpack", describe(Cancel | Refund), StructType([]))
    with pytest.raises(ValueError, match="messages are arrays, which need every field, and there is no column 'right'"):
        Rows("msgpack", describe(Pair), StructType(schema_of(Pair).fields[:1]))
