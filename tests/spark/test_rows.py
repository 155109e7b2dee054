"""From batches of Arrow to messages, without Spark: what was read is written as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql.types import IntegerType, StructField, StructType

from filechannel._channel.schema import describe
from filechannel._storage.spans import split, windows
from filechannel.spark import schema_of
from filechannel.spark.channels import channel_at, opened
from filechannel.spark.rows import Rows
from filechannel.spark.table import Table
from tests.spark.messages import EVERYTHING, Cancel, Everything, Order, Pair, Point, Refund, fill, orders


def batches(path: Path) -> list[pa.RecordBatch]:
    """Return what a channel has, as Arrow."""
    manifest, schema = channel_at(path, None)
    with opened(path) as store:
        (span,) = split(store, store.places.earliest(), store.places.latest(), 1)
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


def test_narrower_numbers_and_fewer_columns() -> None:
    """Integers of 32 bits are numbers like others; fields with a default may be missing."""
    given = StructType([StructField("qty", IntegerType()), *schema_of(Order).fields[:2]])
    columns = {"qty": pa.array([7], pa.int32()), "id": pa.array([1], pa.int64()), "sku": pa.array(["a"])}
    batch = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))  # type: ignore[call-arg]
    (payload,) = Rows("msgpack", describe(Order), given).encode(batch)
    assert msgspec.msgpack.decode(payload) == {"id": 1, "sku": "a", "qty": 7}
    (payload,) = Rows("json", describe(Order), given).encode(batch)
    assert msgspec.json.decode(payload, type=Order) == Order(1, "a", 7)


def test_what_rows_cannot_be() -> None:
    """A union, and an array that lacks a field."""
    with pytest.raises(ValueError, match=r"messages are Cancel \| Refund, which rows cannot tell apart"):
        Rows("msgpack", describe(Cancel | Refund), StructType([]))
    with pytest.raises(ValueError, match="messages are arrays, which need every field, and there is no column 'right'"):
        Rows("msgpack", describe(Pair), StructType(schema_of(Pair).fields[:1]))
