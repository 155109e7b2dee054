"""Columns in Arrow's layout become messages: the same bytes in both implementations, and those that msgspec writes."""

from __future__ import annotations

import struct
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import accumulate
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from filechannel._format.arrow.rows import KINDS, LEFT_OUT, REFUSED, WRITTEN
from tests.format.implementations import native_implementation, pure_implementation, why_no_native_core

pack = msgspec.msgpack.encode
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
WIDTHS = {1: "b", 2: "h", 4: "i", 8: "q"}


def shape(kind: str, number: int = 0, null: int = REFUSED, texts: Any = (), fields: Any = ()) -> Any:
    """Return a shape."""
    return kind, number, null, tuple(texts), tuple(fields)


def listed(item: Any, size: int = 0, null: int = REFUSED) -> Any:
    """Return the shape of a list."""
    return shape("list", size, null, (), ((b"", item),))


def mapped(key: Any, value: Any, null: int = REFUSED) -> Any:
    """Return the shape of a map."""
    return shape("map", 0, null, (), ((b"", key), (b"", value)))


def fielded(null: int = REFUSED, texts: Any = (), is_array: bool = False, **fields: Any) -> Any:
    """Return the shape of a struct whose fields are named on the wire as here."""
    named = [(b"" if is_array else pack(name), field) for name, field in fields.items()]
    return shape("struct", int(is_array), null, texts, named)


def bits(values: list[bool]) -> bytes:
    """Return a bitmap, the first one lowest."""
    return sum(value << index for index, value in enumerate(values)).to_bytes((len(values) + 7) // 8, "little")


def column(how: Any, values: list[Any], skip: int = 0) -> Any:
    """Lay values out as Arrow does, behind some others that do not count."""
    kind, number, _, _, fields = how
    if kind == "struct":
        inner = tuple(column(field, [None if row is None else row[key] for row in values]) for key, field in fields)
    elif kind == "list":
        inner = (column(fields[0][1], [item for row in values for item in row or ()]),)
    elif kind == "map":
        pairs = [pair for row in values for pair in row or ()]
        inner = tuple(column(field, [pair[index] for pair in pairs]) for index, (_, field) in enumerate(fields))
    else:
        inner = ()
    filled = [None] * skip + values
    validity = bits([value is not None for value in filled]) if None in filled else None
    return len(values), skip, validity, _offsets(kind, filled), _data(kind, number, filled), inner


def _offsets(kind: str, values: list[Any]) -> bytes | None:
    if kind not in ("string", "uuid", "binary", "list", "map"):
        return None
    sizes = [len(value.encode() if isinstance(value, str) else value or b"") for value in values]
    return struct.pack(f"<{len(values) + 1}i", *accumulate(sizes, initial=0))


def _data(kind: str, number: int, values: list[Any]) -> bytes | None:
    match kind:
        case "bool":
            return bits([bool(value) for value in values])
        case "int":
            return struct.pack(f"<{len(values)}{WIDTHS[number]}", *(value or 0 for value in values))
        case "float":
            return struct.pack(f"<{len(values)}{'f' if number == 4 else 'd'}", *(value or 0.0 for value in values))
        case "string" | "uuid" | "binary":
            return b"".join(value.encode() if isinstance(value, str) else value or b"" for value in values)
        case "timestamp" | "moment":
            return struct.pack(f"<{len(values)}q", *(0 if value is None else _micros(value) for value in values))
        case "date":
            return struct.pack(
                f"<{len(values)}i", *((value or date(1970, 1, 1)).toordinal() - 719163 for value in values)
            )
        case "decimal":
            return b"".join(_digits(value or Decimal(0)).to_bytes(16, "little", signed=True) for value in values)
        case _:
            return None


def _digits(value: Decimal) -> int:
    """Return what is left without the point; arithmetic would round."""
    sign, digits, _ = value.as_tuple()
    return int("".join(map(str, digits))) * (-1 if sign else 1)


def _micros(moment: datetime) -> int:
    return (moment.replace(tzinfo=UTC) - EPOCH) // timedelta(microseconds=1)


def messages(impl: SimpleNamespace, how: Any, values: list[Any], skip: int = 0) -> list[bytes]:
    """Return what rows have become."""
    records, longest = impl.RowEncoder(how).encode(column(how, values, skip))
    found = impl.split_records(records)
    assert longest == max(map(len, found), default=0)
    return found


@pytest.mark.parametrize(
    ("how", "values"),
    [
        (shape("bool"), [True, False]),
        *((shape("int", width), [0, 1, -1, 2 ** (8 * width - 1) - 1, -(2 ** (8 * width - 1))]) for width in WIDTHS),
        (shape("int", 8), [s * 2**p + d for p in (5, 7, 8, 15, 16, 31, 32, 62) for s in (1, -1) for d in (-1, 0, 1)]),
        (shape("float", 8), [0.0, -0.25, 1e300, float("inf")]),
        (shape("float", 4), [0.5, -2.0]),
        (shape("string"), ["", "süß 🙂", "x" * 31, "x" * 32, "x" * 255, "x" * 256, "x" * 70000]),
        (shape("binary"), [b"", b"\0\xff", bytes(255), bytes(256), bytes(70000)]),
        (shape("uuid"), [str(UUID(int=2**127 + 5))]),
        (shape("timestamp"), [datetime(1, 1, 1, tzinfo=UTC), datetime(1969, 12, 31, 23, 59, 59, 999999, UTC), EPOCH]),
        (
            shape("timestamp"),
            [EPOCH + timedelta(seconds=s, microseconds=m) for s in (2**32 - 1, 2**32, 2**34) for m in (0, 1)],
        ),
        (shape("timestamp"), [datetime(2026, 3, 4, 5, 6, 7, 8, UTC), datetime(9999, 12, 31, 23, 59, 59, 999999, UTC)]),
        (shape("moment"), [datetime(1, 1, 1), datetime(2024, 2, 29, 1, 2, 3, 40), datetime(9999, 12, 31, 23)]),  # noqa: DTZ001
        (shape("date"), [date(1, 1, 1), date(1970, 1, 1), date(2000, 2, 29), date(2100, 3, 1), date(9999, 12, 31)]),
        (listed(shape("int", 4, WRITTEN)), [[], [1, None, 300], list(range(20)), [7] * 70000]),
        (listed(shape("bool"), 2), [[True, False]]),
        (listed(listed(shape("string"))), [[["a"], []], []]),
    ],
)
def test_values_are_what_msgspec_writes(impl: SimpleNamespace, how: Any, values: list[Any]) -> None:
    """Each kind of value is encoded as msgspec does, wherever its column begins in the buffers."""
    for skip in (0, 1, 9):
        assert messages(impl, how, values, skip) == [pack(value) for value in values]


@pytest.mark.parametrize("scale", [0, 1, 6, 7, 18, 38])
def test_decimals_are_written_as_python_writes_them(impl: SimpleNamespace, scale: int) -> None:
    """Decimals are encoded as Python prints them, with all digits of their scale or an exponent."""
    numbers = [0, 1, -1, 10, 999999, -1234567, 10**18, 10**38 - 1, -(10**38) + 1]
    values = [Decimal((number < 0, tuple(map(int, str(abs(number)))), -scale)) for number in numbers]
    data = b"".join(number.to_bytes(16, "little", signed=True) for number in numbers)
    records, _ = impl.RowEncoder(shape("decimal", scale)).encode((len(numbers), 0, None, None, data, ()))
    assert impl.split_records(records) == [pack(value) for value in values]


def test_maps_and_structs(impl: SimpleNamespace) -> None:
    """Maps and structs are encoded in the order of their columns, tagged or not, as objects or arrays."""
    how = mapped(shape("string"), shape("int", 8, WRITTEN))
    rows = [[("a", 1), ("b", None)], [], [(f"k{index}", index) for index in range(40)]]
    assert messages(impl, how, rows) == [pack(dict(row)) for row in rows]
    inner = fielded(WRITTEN, x=shape("int", 8), y=shape("string", 0, LEFT_OUT))
    how = fielded(texts=[pack("type") + pack("t")], a=shape("int", 8), b=inner)
    x, y, a, b = map(pack, ("x", "y", "a", "b"))
    given_rows = [{a: 1, b: {x: 2, y: "z"}}, {a: 3, b: None}, {a: 4, b: {x: 5, y: None}}]
    expected = [
        {"type": "t", "a": 1, "b": {"x": 2, "y": "z"}},
        {"type": "t", "a": 3, "b": None},
        {"type": "t", "a": 4, "b": {"x": 5}},
    ]
    assert messages(impl, how, given_rows) == list(map(pack, expected))
    how = shape("struct", 1, REFUSED, [pack("t")], [(b"", shape("int", 8)), (b"", shape("bool", 0, WRITTEN))])
    columns = tuple(column(field, values) for (_, field), values in zip(how[4], ([1, 2], [None, True]), strict=True))
    records, _ = impl.RowEncoder(how).encode((2, 0, None, None, None, columns))
    assert impl.split_records(records) == [pack(["t", 1, None]), pack(["t", 2, True])]


def test_struct_of_many_fields(impl: SimpleNamespace) -> None:
    """A struct with more fields than a short header can count is encoded, with some fields left out."""
    names = [f"f{index}" for index in range(20)]
    how = fielded(**{name: shape("int", 8, LEFT_OUT) for name in names})
    full = {pack(name): index for index, name in enumerate(names)}
    some = {pack(name): index if index % 2 else None for index, name in enumerate(names)}
    expected = [
        {name: index for index, name in enumerate(names)},
        {name: index for index, name in enumerate(names) if index % 2},
    ]
    assert messages(impl, how, [full, some]) == list(map(pack, expected))


def test_whole_messages(impl: SimpleNamespace) -> None:
    """Without a shape the bytes of a row are the message, and a null row is refused."""
    values = [b"", b"abc", bytes(100000)]
    records, longest = impl.RowEncoder(None).encode(column(shape("binary"), values, 3))
    assert (impl.split_records(records), longest) == (values, 100000)
    with pytest.raises(ValueError, match="row 1: it is null"):
        impl.RowEncoder(None).encode(column(shape("binary"), [b"a", None]))
    assert impl.RowEncoder(None).encode((0, 0, None, None, None, ())) == (b"", 0)


@pytest.mark.parametrize(
    ("how", "values", "reason"),
    [
        (shape("int", 8), [1, None], "row 1: it is null, which is not allowed"),
        (shape("int", 8, LEFT_OUT), [None], "row 0: it is null, which is not allowed"),
        (shape("int", 8, texts=[pack(1), pack(2)]), [1, 2, 3], "row 2: it is not one of the allowed values"),
        (shape("string", texts=[pack("a")]), ["a", "ab"], "row 1: it is not one of the allowed values"),
        (shape("string"), [b"\xff"], "row 0: it is not UTF-8"),
        (shape("uuid"), [UUID(int=5).hex], "row 0: it is not a UUID in the usual form"),
        (shape("uuid"), [str(UUID(int=5)).replace("-", "0")], "row 0: it is not a UUID in the usual form"),
        (shape("uuid"), ["g" + str(UUID(int=5))[1:]], "row 0: it is not a UUID in the usual form"),
        (listed(shape("int", 8), 2), [[1, 2], [1]], "row 1: it has another number of items"),
        (mapped(shape("int", 8), shape("int", 8)), [[(1, 2), (2, 2), (1, 3)]], "row 0: it has a key twice"),
        (
            mapped(shape("int", 8), shape("bool")),
            [[(n, True) for n in range(65)]],
            "row 0: it has too many keys to compare",
        ),
        (mapped(shape("int", 8, REFUSED), shape("bool")), [[(None, True)]], "row 0: it is null"),
        (fielded(x=listed(shape("int", 8))), [{pack("x"): [None]}], "row 0: it is null"),
    ],
)
def test_rows_that_are_not_messages(impl: SimpleNamespace, how: Any, values: list[Any], reason: str) -> None:
    """The first row that a receiver would refuse is named, and the encoder remains usable."""
    encoder = impl.RowEncoder(how)
    for _ in range(2):
        with pytest.raises(ValueError, match=reason):
            encoder.encode(column(how, values))
    assert encoder.encode(column(how, [])) == (b"", 0)


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("date", struct.pack("<i", -719163)),
        ("date", struct.pack("<i", 2932897)),
        ("timestamp", struct.pack("<q", 253402300800000000)),
        ("timestamp", struct.pack("<q", -62135596800000001)),
        ("moment", struct.pack("<q", 2**63 - 1)),
        ("moment", struct.pack("<q", -(2**63))),
    ],
)
def test_times_that_python_has_not(impl: SimpleNamespace, kind: str, data: bytes) -> None:
    """A year before 1 or after 9999 is refused."""
    with pytest.raises(ValueError, match="row 0: it is beyond the years 1 to 9999"):
        impl.RowEncoder(shape(kind)).encode((1, 0, None, None, data, ()))


@pytest.mark.parametrize(
    ("how", "values", "reason"),
    [
        (shape("int", 8), (2, 0, None, None, bytes(15), ()), "shorter than it says"),
        (shape("int", 8), (1, 1, None, None, bytes(15), ()), "shorter than it says"),
        (shape("int", 8), (1, 0, None, None, None, ()), "shorter than it says"),
        (shape("int", 1), (9, 0, b"\xff", None, bytes(9), ()), "shorter than it says"),
        (shape("bool"), (9, 0, None, None, b"\0", ()), "shorter than it says"),
        (shape("decimal", 2), (1, 0, None, None, bytes(15), ()), "shorter than it says"),
        (shape("string"), (1, 0, None, bytes(7), b"", ()), "shorter than it says"),
        (shape("int", 8), (1 << 60, 1 << 60, None, None, b"", ()), "shorter than it says"),
        (shape("int", 8), (-1, 0, None, None, b"", ()), "shorter than it says"),
        (shape("string"), (1, 0, None, struct.pack("<2i", 0, 2), b"a", ()), "row 0: it reaches beyond its column"),
        (shape("string"), (1, 0, None, struct.pack("<2i", 1, 0), b"a", ()), "row 0: it reaches beyond its column"),
        (shape("binary"), (1, 0, None, struct.pack("<2i", -1, 0), b"a", ()), "row 0: it reaches beyond its column"),
        (
            listed(shape("int", 1)),
            (1, 0, None, struct.pack("<2i", 0, 2), None, ((1, 0, None, None, b"a", ()),)),
            "row 0: it reaches beyond its column",
        ),
        (fielded(a=shape("int", 1)), (2, 0, None, None, None, ((1, 0, None, None, b"a", ()),)), "shorter than it says"),
        (fielded(a=shape("int", 1)), (1, 0, None, None, None, ()), "other columns inside"),
        (shape("int", 8), (1, 0, None, None, b""), r"a column is \(length, start"),
        (shape("int", 8), [1], r"a column is \(length, start"),
        (shape("int", 8), (1, "0", None, None, b"", ()), r"a column is \(length, start"),
    ],
)
def test_columns_that_lie(impl: SimpleNamespace, how: Any, values: Any, reason: str) -> None:
    """Columns with wrong lengths or offsets are refused, and nothing outside a buffer is read."""
    with pytest.raises(ValueError, match=reason):
        impl.RowEncoder(how).encode(values)


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        (("int", 8, 0, ()), "a shape is"),
        (["int", 8, 0, (), ()], "a shape is"),
        (("int", "8", 0, (), ()), "a shape is"),
        (("int", 8, 0, [], ()), "a shape is"),
        (shape("number"), "no kind of value is called number"),
        (shape("int", 3), "int has no number 3"),
        (shape("float", 2), "float has no number 2"),
        (shape("bool", 1), "bool has no number 1"),
        (shape("decimal", 39), "decimal has no number 39"),
        (shape("struct", 2), "struct has no number 2"),
        (shape("int", 8, 3), "null is refused, written or left out"),
        (shape("int", 8, -1), "null is refused, written or left out"),
        (shape("int", 8, 0, ("a",)), "texts and keys are bytes"),
        (shape("int", 8, 0, (), ((b"", shape("bool")),)), "int has 1 fields, not 0"),
        (shape("list"), "list has 0 fields, not 1"),
        (shape("map", 0, 0, (), ((b"", shape("bool")),)), "map has 1 fields, not 2"),
        (shape("struct", 0, 0, (), ((b"",),)), "a field is"),
        (shape("struct", 0, 0, (), (("a", shape("bool")),)), "texts and keys are bytes"),
    ],
)
def test_shapes_that_are_none(impl: SimpleNamespace, how: Any, reason: str) -> None:
    """A malformed shape is refused when the encoder is created."""
    with pytest.raises(ValueError, match=reason):
        impl.RowEncoder(how)


def test_an_endlessly_nested_shape(impl: SimpleNamespace) -> None:
    """A shape that is nested too deeply is refused."""
    how = shape("bool")
    for _ in range(64):
        how = listed(how)
    impl.RowEncoder(how)
    with pytest.raises(ValueError, match="nested too deeply"):
        impl.RowEncoder(listed(how))


# Anything


SCALARS: dict[str, Any] = {
    "bool": st.booleans(),
    "int": st.integers(-(1 << 63), (1 << 63) - 1),
    "float": st.floats(allow_nan=False),
    "string": st.text(st.characters(exclude_categories=["Cs"]), max_size=40),
    "binary": st.binary(max_size=300),
    "uuid": st.uuids().map(str),
    "timestamp": st.datetimes(timezones=st.just(UTC)),
    "moment": st.datetimes(),
    "date": st.dates(),
}


@st.composite
def shapes(draw: st.DrawFn, depth: int = 3, nulls: tuple[int, ...] = (REFUSED, WRITTEN)) -> Any:
    """Draw a shape."""
    kinds = [*SCALARS, "decimal"] + (["list", "map", "struct"] if depth else [])
    kind, null = draw(st.sampled_from(kinds)), draw(st.sampled_from(nulls))
    if kind == "list":
        return listed(draw(shapes(depth - 1)), 0, null)
    if kind == "map":
        return mapped(draw(st.sampled_from([shape("string"), shape("int", 8)])), draw(shapes(depth - 1)), null)
    if kind == "struct":
        names = draw(st.lists(st.text("abcü", min_size=1, max_size=20), max_size=4, unique=True))
        return fielded(null, **{name: draw(shapes(depth - 1, (REFUSED, WRITTEN, LEFT_OUT))) for name in names})
    number = {"int": 8, "float": 8, "decimal": draw(st.integers(0, 20))}.get(kind, 0)
    return shape(kind, number, null)


def values_of(how: Any) -> Any:
    """Return a strategy for pairs: a value as `column` takes it, and as msgspec does."""
    kind, number, null, _, fields = how
    if kind == "decimal":
        exponent = st.integers(-(10**38) + 1, 10**38 - 1)
        found = exponent.map(lambda n: Decimal((n < 0, tuple(map(int, str(abs(n)))), -number))).map(lambda d: (d, d))
    elif kind == "list":
        found = st.lists(values_of(fields[0][1]), max_size=4).map(
            lambda rows: tuple(map(list, zip(*rows, strict=True))) or ([], [])
        )
    elif kind == "map":
        pairs = st.lists(
            st.tuples(values_of(fields[0][1]), values_of(fields[1][1])), max_size=4, unique_by=lambda p: p[0][0]
        )
        found = pairs.map(lambda rows: ([(k[0], v[0]) for k, v in rows], {k[1]: v[1] for k, v in rows}))
    elif kind == "struct":
        found = st.tuples(*(values_of(field) for _, field in fields)).map(lambda row: _struct(fields, row))
    else:
        found = SCALARS[kind].map(lambda value: (value, value))
    return found if null == REFUSED else st.none().map(lambda _: (None, None)) | found


def _struct(fields: Any, row: Any) -> tuple[Any, Any]:
    given_row = {key: value for (key, _), (value, _) in zip(fields, row, strict=True)}
    written = {
        msgspec.msgpack.decode(key): value
        for (key, field), (_, value) in zip(fields, row, strict=True)
        if value is not None or field[2] != LEFT_OUT
    }
    return given_row, written


@st.composite
def tables(draw: st.DrawFn) -> Any:
    """Draw a shape and rows of it."""
    how = draw(shapes())
    return how, draw(st.lists(values_of(how), max_size=5)), draw(st.integers(0, 9))


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(tables())
@example((shape("decimal", 18), [(Decimal("0E-18"), Decimal("0E-18"))], 0))
def test_anything_is_what_msgspec_writes(table: Any) -> None:
    """For random types and values both implementations write the bytes that msgspec writes."""
    how, rows, skip = table
    skip = 0 if how[0] in ("struct", "list", "map") else skip
    implementations = (
        [pure_implementation()] if why_no_native_core() else [pure_implementation(), native_implementation()]
    )
    for impl in implementations:
        assert messages(impl, how, [row[0] for row in rows], skip) == [pack(row[1]) for row in rows]


def test_the_implementations_know_the_same_kinds(impl: SimpleNamespace) -> None:
    """Both implementations can create every kind of the reference."""
    fields = {"list": 1, "map": 2}
    for kind in KINDS:
        impl.RowEncoder(
            shape(kind, {"int": 8, "float": 8}.get(kind, 0), 0, (), [(b"", shape("bool"))] * fields.get(kind, 0))
        )
