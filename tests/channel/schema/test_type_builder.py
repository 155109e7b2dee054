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
    """Told by a tag."""

    id: int


class Refund(msgspec.Struct, tag="refund", tag_field="kind"):
    """Told by another."""

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
    """With a default that nobody knows."""

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
    """Each decodes what the other writes, by the schema's own judgement; also of a schema that was stored."""
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
def test_there_and_back(message_type: Any, message: Any, codec: Any) -> None:
    """A message that went through what is built is the same message."""
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
def test_what_is_no_message_is_refused(text: str, reason: str) -> None:
    """Constraints, values of an Enum and unknown fields are looked at, and the field is named."""
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.json.decode(text, type=build_type(describe(Node)))
    assert reason in str(caught.value)


def test_patterns_are_left_out() -> None:
    """A text need not match the pattern of a schema, whose author may be another user; its other limits count."""
    built = build_type(describe(Annotated[str, msgspec.Meta(pattern="^a", max_length=3)] | None))
    assert msgspec.json.decode('"xyz"', type=built) == "xyz"
    with pytest.raises(msgspec.ValidationError, match="length <= 3"):
        msgspec.json.decode('"abcd"', type=built)


@pytest.mark.parametrize(
    "other", [{"kind": "dict", "arguments": [{"kind": "str"}, {"kind": "int"}]}, {"kind": "tuple"}]
)
def test_constraints_in_a_union_are_left_out(other: dict[str, Any]) -> None:
    """With some of them msgspec would read memory that is not its own."""
    text = {"kind": "str", "constraints": {"max_length": 3, "pattern": "^a"}}
    built = build_type(Schema.from_json({"root": {"kind": "union", "arguments": [text, other]}}))
    assert msgspec.json.decode('"abcd"', type=built) == "abcd"


def test_defaults_are_what_they_are() -> None:
    """Those that JSON has nothing like are made from what it has, anew for each message."""
    built = build_type(describe(Node))
    one, other = (msgspec.json.decode('{"firstValue": 1}', type=built) for _ in range(2))
    assert one.blob == b"\xff"  # type: ignore[attr-defined]
    assert one.when == datetime(2026, 1, 1, tzinfo=UTC)  # type: ignore[attr-defined]
    assert one.price == Decimal("1.50")  # type: ignore[attr-defined]
    assert one.inside == []  # type: ignore[attr-defined]
    assert one.inside is not other.inside  # type: ignore[attr-defined]
