"""Filters pushed down by Spark: rows are dropped in Arrow, or not read at all, before they reach the JVM.

A filter is accepted only if Arrow and Spark give the same result for every value: null is neither equal nor unequal,
and NaN is larger than any number. Spark evaluates the other filters itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Final, TypeAlias, cast

import pyarrow as pa
import pyarrow.compute as pc
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

from ..._offset import LogPosition
from ..._storage.store import Store
from ..arrow_table import OFFSET, SEQUENCE

_Comparison: TypeAlias = EqualTo | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual
_TEXTS: Final[dict[type[Filter], Callable[[pc.Expression, str], pc.Expression]]] = {
    StringStartsWith: pc.starts_with,
    StringEndsWith: pc.ends_with,
    StringContains: pc.match_substring,
}
_PLAIN: Final = (bool, int, float, str, bytes, date, datetime, Decimal)


def can_push(filter: Filter, columns: pa.Schema) -> bool:
    """Return whether Arrow can evaluate a filter with the same result as Spark."""
    try:
        return _expression(filter, columns) is not None
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return False  # the column cannot contain this value


def kept(batches: Iterable[pa.RecordBatch], filters: Sequence[Filter]) -> Iterator[pa.RecordBatch]:
    """Return the rows that pass all filters. `can_push` holds for each filter."""
    for batch in batches:
        for each in filters:
            expression = _expression(each, batch.schema)
            assert expression is not None
            # Arrow's filter drops the non-null flags of the schema, which Spark compares.
            batch = pa.RecordBatch.from_arrays(batch.filter(expression).columns, schema=batch.schema)  # noqa: PLW2901
        if batch.num_rows:
            yield batch


def _expression(filter: Filter, columns: pa.Schema) -> pc.Expression | None:
    """Return the filter as an Arrow expression; None if Arrow cannot give the same result as Spark."""
    match filter:
        case Not(In() as inner):
            # A null value is neither in a list nor outside of it.
            found = None if None in inner.value else _in(inner, columns)
            return None if found is None else ~found & pc.field(inner.attribute[0]).is_valid()
        case Not(inner):
            found = _expression(inner, columns)
            return None if found is None else ~found
        case IsNull(attribute=(name,)):
            return pc.field(name).is_null()
        case IsNotNull(attribute=(name,)):
            return pc.field(name).is_valid()
        case In():
            return _in(filter, columns)
        case EqualNullSafe(attribute=(name,), value=None):
            return pc.field(name).is_null()
        case EqualNullSafe():
            found = _comparison(EqualTo(filter.attribute, filter.value), columns)
            return None if found is None else found & pc.field(filter.attribute[0]).is_valid()
        case EqualTo() | GreaterThan() | GreaterThanOrEqual() | LessThan() | LessThanOrEqual():
            return _comparison(filter, columns)
        case StringStartsWith() | StringEndsWith() | StringContains() if len(filter.attribute) == 1:
            return _TEXTS[type(filter)](pc.field(filter.attribute[0]), filter.value)
        case _:
            return None


def _in(filter: In, columns: pa.Schema) -> pc.Expression | None:
    if len(filter.attribute) != 1 or not all(each is None or _is_plain(each) for each in filter.value):
        return None
    kind = columns.field(filter.attribute[0]).type
    if kind == pa.float64():
        return None  # Arrow distinguishes 0.0 and -0.0 here
    values = pa.array([each for each in filter.value if each is not None], kind)
    field = pc.field(filter.attribute[0])
    return field.isin(values) & field.is_valid()


def _comparison(filter: _Comparison, columns: pa.Schema) -> pc.Expression | None:
    value: object = filter.value
    if len(filter.attribute) != 1 or not _is_plain(value):
        return None
    kind = columns.field(filter.attribute[0]).type
    field = pc.field(filter.attribute[0])
    scalar, larger = pa.scalar(value, kind), field.is_nan() if kind == pa.float64() else None
    match filter:
        case EqualTo():
            return field == scalar
        case LessThan():
            return field < scalar
        case LessThanOrEqual():
            return field <= scalar
        case GreaterThan():
            return field > scalar if larger is None else (field > scalar) | larger
        case GreaterThanOrEqual():
            return field >= scalar if larger is None else (field >= scalar) | larger


def _is_plain(value: object) -> bool:
    return isinstance(value, _PLAIN) and not (isinstance(value, float) and math.isnan(value))


# Filters on offset and sequence


def narrowed(
    store: Store, start: LogPosition, stop: LogPosition, filters: Sequence[Filter]
) -> tuple[LogPosition, LogPosition]:
    """Narrow the range to read to what filters on offset and sequence let pass."""
    low, high = _range(filters, OFFSET)
    if low is not None and low > start.offset:
        start = store.lookup.at_or_after(min(low, stop.offset))
    if high is not None and high + 1 < stop.offset:
        stop = store.lookup.at_or_after(max(high + 1, start.offset))
    low, high = _range(filters, SEQUENCE)
    if low is not None and low > start.sequence:
        start = store.lookup.numbered(min(low, stop.sequence))
    if high is not None and high + 1 < stop.sequence:
        stop = store.lookup.numbered(max(high + 1, start.sequence))
    return start, stop


def _range(filters: Iterable[Filter], name: str) -> tuple[int | None, int | None]:
    """Return the smallest and largest number that the filters allow for a column; None where there is no limit."""
    lows, highs = list[int](), list[int]()
    for each in filters:
        match each:
            case EqualTo((found,), int(value)) | EqualNullSafe((found,), int(value)) if found == name:
                lows.append(value)
                highs.append(value)
            case GreaterThan((found,), int(value)) if found == name:
                lows.append(value + 1)
            case GreaterThanOrEqual((found,), int(value)) if found == name:
                lows.append(value)
            case LessThan((found,), int(value)) if found == name:
                highs.append(value - 1)
            case LessThanOrEqual((found,), int(value)) if found == name:
                highs.append(value)
            case In((found,), values) if found == name:
                numbers = [value for value in cast("tuple[object, ...]", values) if isinstance(value, int)]
                lows.append(min(numbers, default=0))
                highs.append(max(numbers, default=-1))
            case _:
                pass
    return max(lows, default=None), min(highs, default=None)
