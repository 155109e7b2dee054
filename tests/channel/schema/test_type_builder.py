"""From a schema back to a type: the same messages without the user's classes."""

from __future__ import annotations

import enum
import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, TypedDict

import msgspec
import pytest

from filechannel._channel.schema import Schema, build_type, describe, find_difference


class Size(enum.IntEnum):
    """Numbers with names."""

    SMALL = 1
    LARGE = 2


class Node(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True, rename="camel"):
    """Contains itself, and has defaults of all kinds."""

    first_value: Annotated[int, msgspec.Meta(ge=0, lt=100)]
    inside: list[Node] = []
    size: Size = Size.SMALL
    blob: bytes = b"\xff"
    when: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    price: Decimal = Decimal("1.50")
    note: str | msgspec.UnsetType = msgspec.UNSET


class Sale(msgspec.Struct, tag="sale", tag_field="kind"):
    """A message with a tag."""

    id: int


class Refund(msgspec.Struct, tag="refund", tag_field="kind"):
    """A message with another tag."""

    id: int
    why: str = ""


class Pair(msgspec.Struct, array_like=True, tag=7):
    """An array with a number in front."""

    left: int
    right: int = 0


class Spot(NamedTuple):
    """An array of its own."""

    x: int
    y: int = 0


@dataclass
class Item:
    """A message with a default that cannot be stored."""

    name: str
    id: uuid.UUID = field(default_factory=uuid.uuid4)


Odd = TypedDict("Odd", {"class": int, "a-b": NotRequired[str], "__x": int, "field_0": int})

TYPES: list[Any] = [
    Node,
    Sale | Refund,
    Pair,
    Spot,
    Item,
    Odd,
    int,
    bytes,
    msgspec.Raw,
    Any,
    None,
    list[Node | None],
    dict[int, tuple[int, ...]],
    tuple[int, str],
    tuple[()],
    frozenset[str],
    Literal[1, "a", None],
    Annotated[str, msgspec.Meta(min_length=1, max_length=3)],
    Annotated[datetime, msgspec.Meta(tz=True)],
    timedelta,
]


@pytest.mark.parametrize("message_type", TYPES, ids=str)
def test_what_is_built_reads_and_writes_the_same(message_type: Any) -> None:
    """A type built from a schema, also from a stored one, decodes what the original type encodes and vice versa."""
    schema = describe(message_type)
    assert find_difference(schema, describe(build_type(schema))) is None
    stored = Schema.from_json(msgspec.json.decode(msgspec.json.encode(schema.to_json())))
    assert find_difference(schema, describe(build_type(stored))) is None


@pytest.mark.parametrize(
    ("message_type", "message"),
    [
        (Node, Node(1)),
        (Node, Node(2, [Node(3, size=Size.LARGE)], blob=b"", note="x")),
        (Sale | Refund, Refund(1)),
        (Pair, Pair(1)),
        (Spot, Spot(1, 2)),
        (Item, Item("a", uuid.UUID(int=1))),
        (Odd, {"class": 1, "__x": 2, "field_0": 3}),
        (dict[int, tuple[int, ...]], {1: (2, 3)}),
    ],
    ids=str,
)
@pytest.mark.parametrize("codec", [msgspec.msgpack, msgspec.json], ids=["msgpack", "json"])
def test_a_round_trip(message_type: Any, message: Any, codec: Any) -> None:
    """A message that was encoded and decoded with the built type is the same message."""
    built = codec.decode(codec.encode(message), type=build_type(describe(message_type)))
    assert codec.decode(codec.encode(built), type=message_type) == message


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"firstValue": 100}', "<= 99"),
        ('{"firstValue": 1, "size": 3}', "Invalid enum value 3"),
        ('{"firstValue": 1, "other": 3}', "unknown field `other`"),
        ('{"firstValue": 1, "inside": [{"firstValue": "x"}]}', "got `str` - at `$.inside[0].firstValue`"),
        ("{}", "missing required field `firstValue`"),
    ],
)
def test_a_payload_that_is_not_a_message_is_refused(text: str, reason: str) -> None:
    """A built type checks constraints, Enum values and unknown fields, and the error names the field."""
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.json.decode(text, type=build_type(describe(Node)))
    assert reason in str(caught.value)


def test_patterns_are_left_out() -> None:
    """A built type has no patterns, whose author may be another user; the other limits of a text apply."""
    built = build_type(describe(Annotated[str, msgspec.Meta(pattern="^a", max_length=3)] | None))
    assert msgspec.json.decode('"xyz"', type=built) == "xyz"
    with pytest.raises(msgspec.ValidationError, match="length <= 3"):
        msgspec.json.decode('"abcd"', type=built)


@pytest.mark.parametrize(
    "other", [{"kind": "dict", "arguments": [{"kind": "str"}, {"kind": "int"}]}, {"kind": "tuple"}]
)
def test_constraints_in_a_union_are_left_out(other: dict[str, Any]) -> None:
    """Constraints inside a union are left out, because with some of them msgspec reads foreign memory."""
    text = {"kind": "str", "constraints": {"max_length": 3, "pattern": "^a"}}
    built = build_type(Schema.from_json({"root": {"kind": "union", "arguments": [text, other]}}))
    assert msgspec.json.decode('"abcd"', type=built) == "abcd"


def test_defaults_are_what_they_are() -> None:
    """Defaults that JSON cannot represent are built for each message from their stored form."""
    built = build_type(describe(Node))
    one, other = (msgspec.json.decode('{"firstValue": 1}', type=built) for _ in range(2))
    assert one.blob == b"\xff"  # type: ignore[attr-defined]
    assert one.when == datetime(2026, 1, 1, tzinfo=UTC)  # type: ignore[attr-defined]
    assert one.price == Decimal("1.50")  # type: ignore[attr-defined]
    assert one.inside == []  # type: ignore[attr-defined]
    assert one.inside is not other.inside  # type: ignore[attr-defined]


def _with_default(kind: dict[str, Any], default: object, **records: object) -> Schema:
    fields = [
        {"name": "a", "wire_name": "a", "type": kind, "required": False, "default": default},
        {"name": "b", "wire_name": "b", "type": {"kind": "int"}, "required": False, "default": 7},
    ]
    own = {"name": "R", "form": "struct", "fields": fields}
    return Schema.from_json({"root": {"kind": "record", "name": "R"}, "records": {"R": own, **records}})


LIST = {"kind": "list", "arguments": [{"kind": "int"}]}


@pytest.mark.parametrize(("count", "expected"), [(1000, [1] * 1000), (2000, msgspec.UNSET)])
def test_a_large_default_is_left_out(count: int, expected: object) -> None:
    """A large default is left out, because it would be built for each message; other fields keep theirs."""
    message: Any = msgspec.json.decode("{}", type=build_type(_with_default(LIST, [1] * count)))
    assert (message.a, message.b) == (expected, 7)


def test_many_defaults_are_left_out() -> None:
    """The defaults of a record have a common limit; those beyond it are left out."""
    fields = [
        {"name": f"a{number}", "wire_name": f"a{number}", "type": LIST, "required": False, "default": [1] * 500}
        for number in range(100)
    ]
    records = {"R": {"name": "R", "form": "struct", "fields": fields}}
    built = build_type(Schema.from_json({"root": {"kind": "record", "name": "R"}, "records": records}))
    assert len(msgspec.json.encode(msgspec.json.decode("{}", type=built))) < 8192


def test_defaults_that_multiply_each_other_are_left_out() -> None:
    """Defaults of a hundred records that each contain a default of a hundred records are left out."""
    records = {
        f"R{level}": {
            "name": "R",
            "form": "struct",
            "fields": [
                {
                    "name": "a",
                    "wire_name": "a",
                    "type": {"kind": "list", "arguments": [{"kind": "record", "name": f"R{level + 1}"}]},
                    "required": False,
                    "default": [{}] * 100,
                }
            ],
        }
        for level in range(9)
    }
    last = {"name": "R", "form": "struct", "fields": []}
    kind = {"kind": "list", "arguments": [{"kind": "record", "name": "R0"}]}
    built = build_type(_with_default(kind, [{}] * 100, **records, R9=last))
    assert msgspec.json.encode(msgspec.json.decode("{}", type=built)) == b'{"b":7}'


def test_a_default_that_contains_itself_is_left_out() -> None:
    """A default that contains itself is left out, because building it would not end."""
    built = build_type(_with_default({"kind": "record", "name": "R"}, {}))
    assert msgspec.json.encode(msgspec.json.decode("{}", type=built)) == b'{"b":7}'


@pytest.mark.parametrize(("first", "other"), [(0, "x"), ("a", 1)])
def test_many_values_are_any_of_their_types(first: int | str, other: object) -> None:
    """A Literal with many values is built as their types, because values chosen to collide take quadratic time."""
    values = [first + number if isinstance(first, int) else f"a{number}" for number in range(1001)]
    built = build_type(Schema.from_json({"root": {"kind": "literal", "values": values}}))
    beyond = -1 if isinstance(first, int) else "beyond"
    assert msgspec.json.decode(msgspec.json.encode(beyond), type=built) == beyond
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(msgspec.json.encode(other), type=built)


@pytest.mark.parametrize("where", ["literal", "tag"])
@pytest.mark.parametrize("value", [2**63, -(2**63) - 1])
def test_integers_beyond_64_bits_are_damage(where: str, value: int) -> None:
    """A schema with integers beyond 64 bits is damage: no type has them, and their hashes can be made equal."""
    tagged = {"name": "R", "form": "struct", "fields": [], "tag_field": "t", "tag": value}
    schema = {
        "literal": {"root": {"kind": "literal", "values": [1, value]}},
        "tag": {"root": {"kind": "record", "name": "R"}, "records": {"R": tagged}},
    }
    with pytest.raises(ValueError, match="beyond 64 bits"):
        Schema.from_json(schema[where])


def test_many_types_are_damage() -> None:
    """A schema with more types than a manifest of this library can contain is damage."""
    with pytest.raises(ValueError, match="more than 100,000 types"):
        Schema.from_json({"root": {"kind": "tuple", "arguments": [{"kind": "int"}] * 100_000}})


def test_a_deep_default_is_damage() -> None:
    """A deeply nested default is damage, because it is written and converted by recursion."""
    default: object = 1
    for _ in range(70):
        default = [default]
    with pytest.raises(ValueError, match="a default of R has more than 64 nested values"):
        _with_default({"kind": "any"}, default)


@pytest.mark.parametrize("count", [100, 200, 1000])
def test_deeply_nested_records_are_built_or_refused(count: int) -> None:
    """Deeply nested records are built only as deep as later code can walk them inside other calls."""
    fields = [
        {"kind": "list", "arguments": [{"kind": "record", "name": f"R{(number + 1) % count}"}]}
        for number in range(count)
    ]
    records = {
        f"R{number}": {"name": "R", "form": "struct", "fields": [{"name": "a", "wire_name": "a", "type": kind}]}
        for number, kind in enumerate(fields)
    }
    schema = Schema.from_json({"root": {"kind": "record", "name": "R0"}, "records": records})
    if count == 100:
        assert find_difference(schema, describe(build_type(schema))) is None
    else:
        with pytest.raises(ValueError, match="more than 300 nested types and records"):
            build_type(schema)


def test_many_records_of_one_name_are_numbered_at_once() -> None:
    """Numbering many records of one name does not start from the beginning for each."""
    tagged = {"form": "struct", "fields": [], "tag_field": "t"}
    names = [f"R{number}" for number in range(3000)]
    records = {name: {"name": "R", "tag": name, **tagged} for name in names}
    root = {"kind": "union", "arguments": [{"kind": "record", "name": name} for name in names]}
    described = describe(build_type(Schema.from_json({"root": root, "records": records})))
    assert list(described.records) == ["R", *(f"R#{number}" for number in range(2, 3001))]
