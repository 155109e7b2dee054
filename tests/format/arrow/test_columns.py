"""Messages become columns in Arrow's layout: the same ones in both implementations, whole rows or none."""

from __future__ import annotations

import struct
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from filechannel._format.arrow.columns import KINDS
from tests.format.implementations import native_implementation, pure_implementation, why_no_native_core

pack = msgspec.msgpack.encode
INT = ("int", False, ())
STRING = ("string", False, ())
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def plan_of(**fields: Any) -> Any:
    """Return the plan of a struct whose fields are named on the wire as here."""
    return "struct", False, tuple((name, None, name, plan) for name, plan in fields.items())


def listed(plan: Any, nullable: bool = False) -> Any:
    """Return the plan of a list."""
    return "list", nullable, ((0, None, "item", plan),)


def mapped(key: Any, value: Any, nullable: bool = False) -> Any:
    """Return the plan of a map."""
    return "map", nullable, (("key", None, "key", key), ("value", None, "value", value))


def read(plan: Any, result: Any) -> list[Any]:
    """Return the values of a column, read as Arrow would."""
    kind, _, fields = plan
    length, nulls, validity, offsets, data, inner = result
    valid = [validity is None or bool(validity[index // 8] >> index % 8 & 1) for index in range(length)]
    assert valid.count(False) == nulls
    values = _values(kind, fields, length, offsets, data, inner)
    return [value if is_valid else None for value, is_valid in zip(values, valid, strict=True)]


def _values(kind: str, fields: Any, length: int, offsets: Any, data: Any, inner: Any) -> list[Any]:
    if kind == "struct":
        columns = [read(field[3], column) for field, column in zip(fields, inner, strict=True)]
        names = [field[2] for field in fields]
        return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)] if columns else [{}] * length
    if kind == "bool":
        assert len(data) == (length + 7) // 8
        return [bool(data[index // 8] >> index % 8 & 1) for index in range(length)]
    if kind in ("string", "binary", "list", "map"):
        ends = struct.unpack(f"<{length + 1}i", offsets)
        if kind in ("string", "binary"):
            assert len(data) == ends[-1]
            parts = [data[begin:end] for begin, end in pairwise(ends)]
            return [part.decode() for part in parts] if kind == "string" else parts
        columns = [read(field[3], column) for field, column in zip(fields, inner, strict=True)]
        items = columns[0] if kind == "list" else list(zip(*columns, strict=True))
        return [items[begin:end] for begin, end in pairwise(ends)]
    if kind == "decimal":
        assert len(data) == 16 * length
        scaled = [int.from_bytes(data[at : at + 16], "little", signed=True) for at in range(0, len(data), 16)]
        return [Decimal(f"{number}e-18") for number in scaled]
    code = {"int": "q", "float": "d", "timestamp": "q", "date": "i"}[kind]
    numbers = struct.unpack(f"<{length}{code}", data)
    if kind == "timestamp":
        return [EPOCH + timedelta(microseconds=number) for number in numbers]
    return [date(1970, 1, 1) + timedelta(days=number) for number in numbers] if kind == "date" else list(numbers)


def table(impl: SimpleNamespace, plan: Any, *messages: Any) -> list[Any]:
    """Return messages that went through columns."""
    columns = impl.Columns(plan)
    for number, message in enumerate(messages):
        columns.put(pack(message), number)
    result, offsets = columns.finish()
    assert struct.unpack(f"<{len(messages)}Q", offsets) == tuple(range(len(messages)))
    return read(plan, result)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("bool", True),
        ("int", 0),
        ("int", -33),
        ("int", 127),
        ("int", 128),
        ("int", (1 << 63) - 1),
        ("int", -(1 << 63)),
        ("float", 0.25),
        ("string", ""),
        ("string", "grüße, 世界 🙂"),
        ("string", "x" * 70000),
        ("binary", b""),
        ("binary", bytes(range(256)) * 300),
        ("timestamp", datetime(2024, 5, 17, 12, 30, 1, 999999, tzinfo=UTC)),
        ("timestamp", datetime(1901, 1, 1, tzinfo=UTC)),
        ("timestamp", datetime(2500, 1, 1, tzinfo=UTC)),
        ("timestamp", datetime(2024, 5, 17, 12, tzinfo=timezone(timedelta(hours=-5, minutes=-30)))),
        ("date", date(1, 1, 1)),
        ("date", date(2024, 2, 29)),
        ("date", date(9999, 12, 31)),
        ("decimal", Decimal(0)),
        ("decimal", Decimal("-12.340")),
        ("decimal", Decimal("99999999999999999999.999999999999999999")),
        ("decimal", Decimal("1E-18")),
        ("decimal", Decimal("1E+19")),
    ],
)
def test_a_value_comes_back(impl: SimpleNamespace, kind: str, value: Any) -> None:
    """A value that msgspec encodes comes back in its column."""
    plan = (kind, False, ())
    assert table(impl, plan, value, value) == [value, value]


def test_a_moment_without_a_zone_is_taken_as_it_stands(impl: SimpleNamespace) -> None:
    """A naive datetime, which is a text in a message, is that time in UTC."""
    naive = datetime(2024, 5, 17, 12, 30, 1, 5)  # noqa: DTZ001 - the point of it
    assert table(impl, ("timestamp", False, ()), naive) == [naive.replace(tzinfo=UTC)]


def test_whole_numbers_are_numbers(impl: SimpleNamespace) -> None:
    """An int in a column of floats, or of decimals, is that number."""
    assert table(impl, ("float", False, ()), 3, 1 << 63) == [3.0, float(1 << 63)]
    assert table(impl, ("decimal", False, ()), -7) == [Decimal(-7)]


def test_fields_are_identified_by_their_names(impl: SimpleNamespace) -> None:
    """Fields of an object are found by name in any order, and unknown ones are skipped."""
    plan = plan_of(id=INT, sku=STRING)
    more = {"deep": [{"a": [1, {"b": b"x"}]}] * 20, "when": EPOCH, "none": None}
    assert table(impl, plan, {"sku": "pen", **more, "id": 1}, {"id": 2, "sku": "ink"}) == [
        {"id": 1, "sku": "pen"},
        {"id": 2, "sku": "ink"},
    ]


def test_fields_are_identified_by_their_positions(impl: SimpleNamespace) -> None:
    """Fields of an array are found by position, and additional ones are skipped."""
    plan = ("struct", False, ((1, None, "id", INT), (3, pack("?"), "sku", STRING)))
    assert table(impl, plan, ["Tag", 1, [2, 3], "pen", "more"], ["Tag", 2]) == [
        {"id": 1, "sku": "pen"},
        {"id": 2, "sku": "?"},
    ]


def test_what_is_missing_has_its_default(impl: SimpleNamespace) -> None:
    """A missing field has its default, else null if that is allowed, else the message is refused."""
    plan = ("struct", False, (("a", pack([1, 2]), "a", listed(INT)), ("b", None, "b", ("int", True, ()))))
    assert table(impl, plan, {}, {"b": 5, "a": []}) == [{"a": [1, 2], "b": None}, {"a": [], "b": 5}]
    with pytest.raises(ValueError, match=r"^sku: it is missing$"):
        table(impl, plan_of(sku=STRING), {})


def test_nothing_is_null_until_something_is(impl: SimpleNamespace) -> None:
    """A column has no validity map before its first null; then it covers the rows before it."""
    columns = impl.Columns(("bool", True, ()))
    for value in (True, False):
        columns.put(pack(value), 0)
    assert columns.finish()[0] == (2, 0, None, None, b"\x01", ())
    for value in [True] * 9 + [None, True]:
        columns.put(pack(value), 0)
    assert columns.finish()[0] == (11, 1, b"\xff\x05", None, b"\xff\x05", ())


def test_a_null_fills_its_children(impl: SimpleNamespace) -> None:
    """A null struct has an entry in each child column, null or any value."""
    inner = ("struct", True, (("x", None, "x", INT), ("y", None, "y", ("string", True, ()))))
    plan = plan_of(point=inner, tags=listed(STRING, nullable=True))
    rows = [{"point": None, "tags": None}, {"point": {"x": 1, "y": "a"}, "tags": ["t"]}]
    assert table(impl, plan, *rows) == rows


@pytest.mark.parametrize(
    ("plan", "message", "reason"),
    [
        (plan_of(id=INT), {"id": "x"}, "id: it is of another type"),
        (plan_of(id=INT), {"id": 1 << 63}, "id: it is too large for a signed number of 64 bits"),
        (plan_of(id=INT), {"id": None}, "id: it is null, which is not allowed"),
        (plan_of(id=INT), {"id": True}, "id: it is of another type"),
        (plan_of(id=INT), [1], "it is of another type"),
        (plan_of(id=INT), {1: 2}, "a name in it is not text"),
        (plan_of(on=("date", False, ())), {"on": "2023-02-29"}, "on: it is not a date"),
        (plan_of(on=("date", False, ())), {"on": "2023-2-9"}, "on: it is not a date"),
        (plan_of(at=("timestamp", False, ())), {"at": "12:00"}, "at: it is not a date and time"),
        (plan_of(at=("timestamp", False, ())), {"at": msgspec.msgpack.Ext(5, b"")}, "at: it is not a date and time"),
        (plan_of(a=("decimal", False, ())), {"a": "1e-19"}, "a: it is not a decimal of at most 20 digits before"),
        (plan_of(a=("decimal", False, ())), {"a": "NaN"}, "a: it is not a decimal of at most 20 digits before"),
        (plan_of(a=listed(plan_of(b=INT))), {"a": [{"b": 1}, {"b": ""}]}, "b: it is of another type"),
        (plan_of(a=listed(INT)), {"a": [1, ""]}, "item: it is of another type"),
        (plan_of(a=mapped(STRING, INT)), {"a": {"x": ""}}, "value: it is of another type"),
    ],
)
def test_a_message_that_does_not_fit_is_refused(impl: SimpleNamespace, plan: Any, message: Any, reason: str) -> None:
    """A message that does not fit is refused with its innermost field, and leaves no row."""
    columns = impl.Columns(plan)
    with pytest.raises(ValueError, match=f"^{reason}"):
        columns.put(pack(message), 0)
    assert columns.length == 0
    assert read(plan, columns.finish()[0]) == []


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"", "it is not MessagePack"),
        (b"\xc1", "it is not MessagePack"),
        (b"\x81\xa2id", "id: it is not MessagePack"),
        (b"\x81\xa5id", "it is not MessagePack"),
        (b"\xdf\xff\xff\xff\xff", "it is not MessagePack"),
        (b"\x82\xa2id\x01\xa2id\x02", "id: it occurs twice"),
        (b"\x81\xa2id\x01\x00", "the message is followed by other bytes"),
        (b"\x82\xa2id\x01\xa1x\xdd\x00\x00\xff\xff", "it is not MessagePack"),
    ],
)
def test_bytes_that_are_not_a_message_are_refused(impl: SimpleNamespace, payload: bytes, reason: str) -> None:
    """Bytes that are not a message are refused with a reason, and leave no row."""
    columns = impl.Columns(plan_of(id=INT))
    with pytest.raises(ValueError, match=f"^{reason}$"):
        columns.put(payload, 0)
    assert columns.length == 0


def test_without_a_plan_messages_are_taken_as_they_are(impl: SimpleNamespace) -> None:
    """Without a plan each message is one value of one column, whatever it contains."""
    columns = impl.Columns(None)
    for payload in (b"", b"\xc1", pack({"id": 1})):
        columns.put(payload, 5)
    result, _ = columns.finish()
    assert read(("binary", False, ()), result) == [b"", b"\xc1", pack({"id": 1})]


def test_a_text_is_utf_8(impl: SimpleNamespace) -> None:
    """Surrogates, overlong encodings and cut characters in texts are refused, as Arrow refuses them."""
    for text in (b"\xed\xa0\x80", b"\xc0\xaf", b"\xe2\x82", b"\xf4\x90\x80\x80", b"\x80", b"abcdefgh\xff"):
        columns = impl.Columns(STRING)
        with pytest.raises(ValueError, match="it is not UTF-8"):
            columns.put(bytes([0xA0 | len(text)]) + text, 0)


def _records(impl: SimpleNamespace, payloads: list[tuple[int, bytes]], offset: int) -> bytearray:
    buffer = bytearray(sum(8 + len(payload) for _, payload in payloads))
    position = 0
    for flags, payload in payloads:
        position = impl.write_record(buffer, position, offset + position, flags, payload)
    return buffer


def test_messages_are_taken_from_records(impl: SimpleNamespace) -> None:
    """As many messages as requested are read from records, each with its offset; control records are skipped."""
    control, continues = 1 << 30, 1 << 31
    buffer = _records(impl, [(0, pack(1)), (control, b"seal"), (continues, pack(2)), (0, pack(3))], 1000)
    columns = impl.Columns(INT)
    position, taken = columns.take(buffer, 0, len(buffer), 1000, 2)
    assert (position, taken) == (30, 2)
    assert columns.take(buffer, position, len(buffer), 1000 + position, 9) == (len(buffer), 1)
    result, offsets = columns.finish()
    assert read(INT, result) == [1, 2, 3]
    assert struct.unpack("<3Q", offsets) == (1000, 1021, 1030)


def test_an_unusable_message_waits_for_those_before_it(impl: SimpleNamespace) -> None:
    """A message that does not fit, or a damaged record, is reported when it is the first one of a call."""
    for spoil, reason in ((False, "it is of another type"), (True, "checksum mismatch")):
        buffer = _records(impl, [(0, pack(1)), (0, pack("x")), (0, pack(3))], 0)
        buffer[18] ^= spoil
        columns = impl.Columns(INT)
        position, taken = columns.take(buffer, 0, len(buffer), 0, 9)
        assert (position, taken) == (9, 1)
        with pytest.raises(ValueError, match=reason):
            columns.take(buffer, position, len(buffer), position, 9)
        assert columns.take(buffer, 19, len(buffer), 19, 9) == (len(buffer), 1)
        assert read(INT, columns.finish()[0]) == [1, 3]


def test_a_row_that_was_rolled_back_leaves_no_bits(impl: SimpleNamespace) -> None:
    """After a row is rolled back, the unused bits of values and validity are zero."""
    plan = plan_of(flag=("bool", True, ()), number=INT)
    columns = impl.Columns(plan)
    columns.put(pack({"flag": None, "number": 1}), 0)
    with pytest.raises(ValueError, match="number"):
        columns.put(pack({"flag": True, "number": "x"}), 1)
    *_, fields = columns.finish()[0]
    assert fields[0][:5] == (1, 1, b"\0", None, b"\0")


def test_a_record_that_reaches_beyond_the_end_is_refused(impl: SimpleNamespace) -> None:
    """A record that reaches beyond the end of its range is refused, and a range must lie inside the buffer."""
    buffer = _records(impl, [(0, pack("x" * 20))], 0)
    columns = impl.Columns(STRING)
    for stop in (4, 8, len(buffer) - 1):
        with pytest.raises(ValueError, match="record reaches beyond the end"):
            columns.take(buffer, 0, stop, 0, 1)
    with pytest.raises(ValueError, match="range is not inside the buffer"):
        columns.take(buffer, 0, len(buffer) + 1, 0, 1)


@pytest.mark.parametrize(
    "plan",
    [
        ("colour", False, ()),
        ("int", False, ((0, None, "x", INT),)),
        ("list", False, ()),
        ("struct", False, (("a", None, "a", INT), (1, None, "b", INT))),
        "int",
    ],
)
def test_a_plan_that_is_none_is_refused(impl: SimpleNamespace, plan: Any) -> None:
    """A plan with an unknown kind, a wrong number of fields, or names and positions mixed, is refused."""
    with pytest.raises(ValueError, match=r"kind|fields|tuple"):
        impl.Columns(plan)


def test_a_plan_is_not_nested_without_end(impl: SimpleNamespace) -> None:
    """Beyond 64 levels a plan is refused."""
    plan = INT
    for _ in range(65):
        plan = listed(plan)
    with pytest.raises(ValueError, match="too deeply"):
        impl.Columns(plan)


# Both implementations at once

SCALARS = {
    "bool": st.booleans(),
    "int": st.integers(-(1 << 63), (1 << 63) - 1),
    "float": st.floats(allow_nan=False),
    "string": st.text(),
    "binary": st.binary(),
    "timestamp": st.datetimes(timezones=st.just(UTC)),
    "date": st.dates(),
    "decimal": st.decimals(allow_nan=False, allow_infinity=False, places=18, min_value=-(10**19), max_value=10**19),
}


@st.composite
def plans_with_values(draw: Any, depth: int = 3) -> Any:
    """A plan and what makes values of it."""
    kinds = list(SCALARS) if not depth else list(KINDS)
    kind, nullable = draw(st.sampled_from(kinds)), draw(st.booleans())
    if kind in SCALARS:
        plan, values = (kind, nullable, ()), SCALARS[kind]
    elif kind == "list":
        inner, items = draw(plans_with_values(depth=depth - 1))
        plan, values = listed(inner, nullable), st.lists(items, max_size=3)
    elif kind == "map":
        inner, items = draw(plans_with_values(depth=depth - 1))
        values = st.dictionaries(st.text(max_size=3), items, max_size=3)
        plan = mapped(STRING, inner, nullable)
    else:
        fields = [draw(plans_with_values(depth=depth - 1)) for _ in range(draw(st.integers(0, 3)))]
        named = tuple((f"f{number}", None, f"f{number}", inner) for number, (inner, _) in enumerate(fields))
        plan, values = (kind, nullable, named), st.fixed_dictionaries({f"f{n}": v for n, (_, v) in enumerate(fields)})
    return plan, (st.none() | values if nullable else values)


def as_read(plan: Any, value: Any) -> Any:
    """Return a value as `read` shows it: a map as pairs."""
    if value is None:
        return None
    kind, _, fields = plan
    if kind == "list":
        return [as_read(fields[0][3], item) for item in value]
    if kind == "map":
        return [(key, as_read(fields[1][3], item)) for key, item in value.items()]
    if kind == "struct":
        return {name: as_read(inner, value[name]) for name, _, _, inner in fields}
    return value


@settings(suppress_health_check=[HealthCheck.too_slow])  # on a machine that is busy
@given(st.data())
def test_any_table_is_the_same_from_both_implementations(data: Any) -> None:
    """Random tables of both implementations are what was sent, and identical to the byte."""
    plan, values = data.draw(plans_with_values())
    rows = data.draw(st.lists(values, max_size=12))
    results = []
    for impl in [pure_implementation()] + [native_implementation()] * (why_no_native_core() is None):
        columns = impl.Columns(plan)
        for number, row in enumerate(rows):
            columns.put(pack(row), number)
        results.append(columns.finish())
    assert read(plan, results[0][0]) == [as_read(plan, row) for row in rows]
    assert all(result == results[0] for result in results)


@pytest.mark.skipif(why_no_native_core() is not None, reason="there is nothing to compare with")
@settings(max_examples=300)
@given(st.data())
@example(None)
def test_both_implementations_agree_on_garbage(data: Any) -> None:
    """Both implementations accept or refuse the same random bytes, for the same reason."""
    if data is None:
        return
    plan, values = data.draw(plans_with_values())
    payload = bytearray(pack(data.draw(values)))
    for _ in range(data.draw(st.integers(0, 3))):
        if payload:
            payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    payload = payload[: data.draw(st.integers(0, len(payload)))] + data.draw(st.binary(max_size=2))
    outcomes = []
    for impl in (pure_implementation(), native_implementation()):
        columns = impl.Columns(plan)
        try:
            columns.put(payload, 0)
            outcomes.append(columns.finish())
        except ValueError as error:
            outcomes.append(str(error))
            assert columns.length == 0
    assert repr(outcomes[0]) == repr(outcomes[1])


def test_names_of_any_length_in_any_order(impl: SimpleNamespace) -> None:
    """A field is found by its whole name, whatever its length, order, and common beginnings with others."""
    names = ["n" * length for length in (1, 2, 6, 7, 8, 9, 15, 31, 32, 300)] + ["nnnnnnnx", "nnnnnnnnx"]
    plan = plan_of(**dict.fromkeys(names, ("int", True, ())))
    row = {name: number * 50 for number, name in enumerate(names)}
    backwards, last = dict(reversed(row.items())), {"other": 1, names[-1]: None}
    assert table(impl, plan, row, backwards, last, {}) == [row, row, dict.fromkeys(names), dict.fromkeys(names)]


def test_short_texts_are_checked(impl: SimpleNamespace) -> None:
    """Texts of up to eight bytes and beyond are checked at the end of a message and before another value."""
    plan = plan_of(a=("string", False, ()), b=("string", True, ()))
    for size in range(12):
        for text in ("x" * size, "ü" * (size // 2)):
            rows = [{"a": text, "b": text * 9}, {"a": text, "b": text}, {"b": None, "a": text}]
            assert table(impl, plan, *rows) == rows
        wrong = impl.Columns(plan)
        with pytest.raises(ValueError, match="it is not UTF-8"):
            wrong.put(b"\x82\xa1a" + bytes([0xA0 + size + 1]) + b"x" * size + b"\xff" + b"\xa1b\xa8abcdefgh", 0)
