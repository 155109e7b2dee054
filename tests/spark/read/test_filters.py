"""Filters that are left to the source: the same rows as if Spark had looked at all of them, and fewer that are read."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from filechannel.spark import schema_of
from filechannel.spark.data_source import ChannelSource, FilteringReader
from filechannel.spark.read.filters import can_push, kept
from filechannel.spark.read.read_tasks import Task
from filechannel.spark.source_options import KEEPS_FILTERS_APART
from tests.spark.messages import Order, fill, orders

SETTING = "spark.sql.python.filterPushdown.enabled"
MOMENT = datetime(2026, 3, 4, tzinfo=UTC)
COLUMNS = pa.schema(
    [
        pa.field("n", pa.int64(), nullable=False),
        pa.field("x", pa.float64()),
        pa.field("s", pa.string()),
        pa.field("t", pa.timestamp("us", "UTC")),
        pa.field("d", pa.decimal128(38, 18)),
        pa.field("l", pa.list_(pa.int64())),
    ]
)
ROWS = [
    (0, 1.0, "a", MOMENT, Decimal(1), [1]),
    (1, math.nan, "ab", None, Decimal("1.5"), []),
    (2, None, None, MOMENT.replace(year=2027), None, None),
    (3, -0.0, "", MOMENT.replace(year=2025), Decimal(-1), [2, 3]),
    (4, math.inf, "ü", MOMENT, Decimal(0), [1]),
    (5, 0.0, "b%", None, Decimal(10**18), None),
]
PUSHED: list[tuple[str, Filter]] = [
    ("n = 3", EqualTo(("n",), 3)),
    ("n != 3", Not(EqualTo(("n",), 3))),
    ("n in (1, 4, null)", In(("n",), (1, 4, None))),
    ("n not in (1, 4)", Not(In(("n",), (1, 4)))),
    ("x = 0", EqualTo(("x",), 0.0)),
    ("x != 0", Not(EqualTo(("x",), 0.0))),
    ("x > 0.5", GreaterThan(("x",), 0.5)),
    ("not x > 0.5", Not(GreaterThan(("x",), 0.5))),
    ("x >= 1", GreaterThanOrEqual(("x",), 1.0)),
    ("x < 1", LessThan(("x",), 1.0)),
    ("x <= 1", LessThanOrEqual(("x",), 1.0)),
    ("s = 'a'", EqualTo(("s",), "a")),
    ("s > 'a'", GreaterThan(("s",), "a")),
    ("s <=> 'a'", EqualNullSafe(("s",), "a")),
    ("not s <=> 'a'", Not(EqualNullSafe(("s",), "a"))),
    ("s <=> null", EqualNullSafe(("s",), None)),
    ("s is null", IsNull(("s",))),
    ("s is not null", IsNotNull(("s",))),
    ("s not in ('a', '')", Not(In(("s",), ("a", "")))),
    ("startswith(s, 'a')", StringStartsWith(("s",), "a")),
    ("not startswith(s, 'a')", Not(StringStartsWith(("s",), "a"))),
    ("endswith(s, '%')", StringEndsWith(("s",), "%")),
    ("contains(s, 'b')", StringContains(("s",), "b")),
    ("t >= timestamp'2026-03-04 00:00:00Z'", GreaterThanOrEqual(("t",), MOMENT)),
    ("d > 1", GreaterThan(("d",), Decimal(1))),
    ("d in (0, 1.5)", In(("d",), (Decimal(0), Decimal("1.5")))),
]
LEFT: list[Filter] = [
    EqualTo(("x",), math.nan),
    In(("x",), (0.0, 1.0)),
    Not(In(("s",), ("a", None))),
    EqualTo(("l",), [1]),
    EqualTo(("s", "inner"), "a"),
    EqualTo(("n",), "a"),
    EqualTo(("d",), Decimal("1e30")),
]


@pytest.fixture
def pushing(spark: SparkSession) -> Iterator[SparkSession]:
    """Spark, set to ask sources about filters."""
    spark.conf.set(SETTING, "true")
    yield spark
    spark.conf.unset(SETTING)


def test_arrow_says_what_spark_says(spark: SparkSession) -> None:
    """For every filter that Arrow evaluates the rows are those that Spark would keep, with null, NaN and texts."""
    batch = pa.RecordBatch.from_arrays(
        [pa.array(column, field.type) for column, field in zip(zip(*ROWS, strict=True), COLUMNS, strict=True)],
        schema=COLUMNS,
    )
    frame = spark.createDataFrame(ROWS, "n bigint, x double, s string, t timestamp, d decimal(38,18), l array<bigint>")
    verdicts = frame.selectExpr(*(f"{condition} as c{number}" for number, (condition, _) in enumerate(PUSHED)))
    by_row = [tuple(row) for row in verdicts.collect()]
    for (condition, filter_), column in zip(PUSHED, zip(*by_row, strict=True), strict=True):
        assert can_push(filter_, COLUMNS), condition
        found = [number for each in kept([batch], [filter_]) for number in each.column("n").to_pylist()]
        assert found == [number for number, verdict in enumerate(column) if verdict], condition
        assert all(each.schema == COLUMNS for each in kept([batch], [filter_]))


@pytest.mark.parametrize("filter_", LEFT, ids=str)
def test_what_arrow_would_judge_otherwise_is_left_to_spark(filter_: Filter) -> None:
    """A filter that Arrow evaluates differently, or cannot evaluate, is left to Spark."""
    assert not can_push(filter_, COLUMNS)


def reader(path: Path) -> FilteringReader:
    """Return the reader that takes filters."""
    source = ChannelSource({"path": str(path), "pushFilters": "once", "includeMetadata": "true", "numPartitions": "4"})
    found = source.reader(source.schema())
    assert isinstance(found, FilteringReader)
    return found


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ([GreaterThanOrEqual(("sequence",), 700), LessThan(("sequence",), 710)], range(700, 710)),
        ([In(("sequence",), (3, 5, 9))], [3, 5, 9]),
        ([EqualTo(("sequence",), 999)], [999]),
        ([GreaterThan(("sequence",), 5000)], []),
        ([LessThan(("sequence",), -5)], []),
        ([GreaterThan(("offset",), 10**15)], []),
        ([LessThanOrEqual(("offset",), -1)], []),
        ([EqualTo(("sequence",), 5), EqualTo(("id",), 6)], []),
    ],
    ids=str,
)
def test_a_filter_on_positions_narrows_what_is_read(path: Path, filters: list[Filter], expected: list[int]) -> None:
    """A filter on sequences or offsets looks up its range, and segments outside it are not read."""
    fill(path, orders(1000), segment_size=4096)
    filtering = reader(path)
    assert filtering.pushFilters(filters) == []
    tasks = filtering.partitions()
    found = [number for task in tasks for batch in filtering.read(task) for number in batch.column("id").to_pylist()]
    assert found == list(expected)
    size = sum(task.span.stop - task.span.start for task in tasks if isinstance(task, Task))
    assert size < 1000


def test_offsets_narrow_what_is_read(path: Path) -> None:
    """A filter between the offsets of two rows reads only what is between them."""
    fill(path, orders(1000), segment_size=4096)
    everything = reader(path)
    offsets = [
        each
        for task in everything.partitions()
        for batch in everything.read(task)
        for each in batch.column("offset").to_pylist()
    ]
    filtering = reader(path)
    filtering.pushFilters([GreaterThan(("offset",), offsets[500]), LessThanOrEqual(("offset",), offsets[510])])
    tasks = filtering.partitions()
    found = [number for task in tasks for batch in filtering.read(task) for number in batch.column("id").to_pylist()]
    assert found == list(range(501, 511))


def test_spark_pushes_filters(pushing: SparkSession, path: Path) -> None:
    """With the option and the setting Spark filters only what Arrow cannot evaluate."""
    fill(path, orders(2000), segment_size=16384)
    reader = pushing.read.format("filechannel").options(pushFilters="once", includeMetadata="true")
    chosen = reader.load(str(path)).where(
        "sequence >= 500 and sequence < 900 and sku like 'sku-1%' and qty in (1, 3) and note is null"
    )
    assert "Filter (" not in chosen._jdf.queryExecution().executedPlan().toString()
    expected = [
        order.id
        for order in orders(2000)[500:900]
        if order.sku == "sku-1" and order.qty in (1, 3) and order.note is None
    ]
    assert sorted(row.id for row in chosen.collect()) == expected
    assert reader.load(str(path)).where("price = double('nan') or id = 7").count() == 1
    assert reader.load(str(path)).count() == 2000


def test_the_setting_is_named(spark: SparkSession, path: Path) -> None:
    """Without the setting the option raises an error that names it, and a stream refuses filters."""
    fill(path, orders(5))
    with pytest.raises(PySparkException, match=SETTING):
        spark.read.format("filechannel").option("pushFilters", "once").load(str(path)).where("id = 1").collect()
    with pytest.raises(ValueError, match="option 'pushFilters' is not known for a stream"):
        ChannelSource({"path": str(path), "pushFilters": "once"}).streamReader(schema_of(Order))


@pytest.mark.skipif(KEEPS_FILTERS_APART, reason="this Spark keeps the filters of queries apart")
def test_rows_never_go_missing(pushing: SparkSession, path: Path) -> None:
    """`true` is refused where Spark reuses the filters of one query for the next one of a frame."""
    fill(path, orders(20))
    with pytest.raises(PySparkException, match="which then misses rows; load a frame for each query"):
        pushing.read.format("filechannel").option("pushFilters", "true").load(str(path))
    frame = pushing.read.format("filechannel").option("pushFilters", "once").load(str(path))
    assert (frame.where("id < 5").count(), frame.count()) == (5, 5)
