"""A schema describes a message type as plain JSON, and a difference names the field and both sides."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import json
import uuid
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, NotRequired, TypedDict, TypeVar

import msgspec
import pytest
from msgspec import UNSET, Meta, UnsetType

from filechannel._channel.schema import Difference, Schema, describe, describe_opaque, find_difference, reads

T = TypeVar("T")
Sku = NewType("Sku", str)


class Colour(enum.Enum):
    """An enum."""

    RED = "red"
    BLUE = "blue"


class SendQueue(msgspec.Struct, array_like=True):
    """A part of an order."""

    sku: Sku
    price: Annotated[decimal.Decimal, Meta(description="in euro")] = decimal.Decimal("0.5")


class Order(msgspec.Struct, tag=True, rename="camel", forbid_unknown_fields=True):
    """A Struct with everything."""

    order_id: Annotated[int, Meta(ge=1)]
    lines: list[SendQueue] = []
    colour: Colour | None = None
    parent: Order | None = None
    paid_at: dt.datetime | UnsetType = UNSET


class Page(msgspec.Struct, Generic[T]):
    """A generic Struct."""

    items: list[T]


def _json(message_type: Any) -> Any:
    """Return the schema as another process reads it."""
    return json.loads(json.dumps(describe(message_type).to_json()))


def _struct(name: str, *fields: Any, **config: Any) -> Any:
    return msgspec.defstruct(name, fields, **config)


def _list_of(item: Any) -> Any:
    return list.__class_getitem__(item)


def _dict_of(value: Any) -> Any:
    return dict.__class_getitem__((str, value))


def test_a_struct_is_described_completely() -> None:
    """The schema of a Struct has names, encoded names, types, defaults, tag and layout, as plain JSON."""
    assert _json(Order) == {
        "root": {"kind": "record", "name": "Order"},
        "records": {
            "Order": {
                "name": "Order",
                "form": "struct",
                "tag_field": "type",
                "tag": "Order",
                "forbid_unknown_fields": True,
                "fields": [
                    {
                        "name": "order_id",
                        "wire_name": "orderId",
                        "type": {"kind": "int", "constraints": {"ge": 1}},
                    },
                    {
                        "name": "lines",
                        "wire_name": "lines",
                        "type": {"kind": "list", "arguments": [{"kind": "record", "name": "SendQueue"}]},
                        "required": False,
                        "default": [],
                    },
                    {
                        "name": "colour",
                        "wire_name": "colour",
                        "type": {
                            "kind": "union",
                            "arguments": [
                                {"kind": "enum", "name": "Colour", "values": ["red", "blue"]},
                                {"kind": "none"},
                            ],
                        },
                        "required": False,
                        "default": None,
                    },
                    {
                        "name": "parent",
                        "wire_name": "parent",
                        "type": {"kind": "union", "arguments": [{"kind": "record", "name": "Order"}, {"kind": "none"}]},
                        "required": False,
                        "default": None,
                    },
                    {
                        "name": "paid_at",
                        "wire_name": "paidAt",
                        "type": {"kind": "datetime"},
                        "required": False,
                        "omittable": True,
                    },
                ],
            },
            "SendQueue": {
                "name": "SendQueue",
                "form": "struct",
                "array_like": True,
                "fields": [
                    {"name": "sku", "wire_name": "sku", "type": {"kind": "str"}},
                    {
                        "name": "price",
                        "wire_name": "price",
                        "type": {"kind": "decimal"},
                        "required": False,
                        "default": "0.5",
                    },
                ],
            },
        },
    }


class Row(TypedDict):
    """A TypedDict."""

    id: int
    note: NotRequired[str]


@dataclasses.dataclass
class Point:
    """A dataclass."""

    x: int
    y: list[int] = dataclasses.field(default_factory=list[int])


class Pair(NamedTuple):
    """A NamedTuple."""

    left: int
    right: str = ""


@pytest.mark.parametrize(
    ("message_type", "form", "fields"),
    [
        (Row, "typeddict", [("id", True, False), ("note", False, True)]),
        (Point, "dataclass", [("x", True, False), ("y", False, False)]),
        (Pair, "namedtuple", [("left", True, False), ("right", False, False)]),
    ],
)
def test_other_records_are_described_alike(message_type: Any, form: str, fields: list[Any]) -> None:
    """The schemas of a dataclass, a TypedDict and a NamedTuple say which fields are required."""
    (record,) = describe(message_type).records.values()
    assert record.form == form
    assert [(field.name, field.required, field.omittable) for field in record.fields] == fields


@pytest.mark.parametrize(
    ("message_type", "text"),
    [
        (int, "int"),
        (None, "None"),
        (Any, "Any"),
        (object, "Any"),
        (str | None, "str | None"),
        (Annotated[int, Meta(ge=0, lt=5)], "int (ge=0, lt=5)"),
        (Sku, "str"),
        (Literal["a", 1], "Literal[1, 'a']"),
        (Colour, "Colour['red', 'blue']"),
        (list[int], "list[int]"),
        (tuple[int, ...], "tuple[int, ...]"),
        (tuple[int, str], "tuple[int, str]"),
        (dict[str, list[SendQueue]], "dict[str, list[SendQueue]]"),
        (SendQueue, "SendQueue"),
        (Page[SendQueue], "Page[SendQueue]"),
        (uuid.UUID, "UUID"),
        (decimal.Decimal, "Decimal"),
        (dt.datetime, "datetime"),
        (set[bytes], "set[bytes]"),
        (complex, "builtins.complex"),
    ],
)
def test_a_node_reads_like_python(message_type: Any, text: str) -> None:
    """Types appear in messages as they are written."""
    schema = describe(message_type)
    assert schema.text(schema.root) == text


def test_records_of_one_name_are_kept_apart() -> None:
    """Two classes of the same name are two records."""
    first, second = _struct("Part", ("a", int)), _struct("Part", ("b", int))
    pair: Any = tuple.__class_getitem__((first, second))
    schema = describe(pair)
    assert list(schema.records) == ["Part", "Part#2"]
    assert [node.name for node in schema.root.arguments] == ["Part", "Part#2"]


def test_generic_structs_have_their_parameters() -> None:
    """A parameter of a generic Struct is part of its schema."""
    assert describe(Page[int]).records["Page[int]"].fields[0].type.arguments[0].kind == "int"
    assert find_difference(describe(Page[int]), describe(Page[str])) == Difference("Page[str].items[]", "int", "str")


def test_defaults_that_json_cannot_express_are_left_out() -> None:
    """Such a default only makes the field optional."""
    cls = _struct(
        "Odd",
        ("a", float, float("nan")),
        ("b", Any, object()),
        ("c", str, msgspec.field(default_factory=lambda: "new")),
    )
    for field in describe(cls).records["Odd"].fields:
        assert (field.required, field.default) == (False, UNSET)


@pytest.mark.parametrize("message_type", ["Order", Order | Point, Literal[b"x"]])
def test_a_type_that_msgspec_refuses_is_a_type_error(message_type: Any) -> None:
    """The error says that it cannot be a message type, and why."""
    with pytest.raises(TypeError, match=r"cannot be a message type: .*support"):
        describe(message_type)


def test_a_type_with_an_unknown_name_is_a_type_error() -> None:
    """An unresolvable forward reference is reported with the type."""
    cls = _struct("Lost", ("a", "Nowhere"))
    with pytest.raises(TypeError, match=r"Lost cannot be a message type: .*Nowhere"):
        describe(cls)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "Expected `object`"),
        ({}, "root"),
        ({"root": {"kind": "number"}}, "number"),
        ({"root": {"kind": "int", "colour": "red"}}, "colour"),
        ({"root": {"kind": "record", "name": "Order"}}, "no record 'Order'"),
        ({"root": {"kind": "record"}}, "no record None"),
        ({"root": {"kind": "dict", "arguments": [{"kind": "int"}]}}, "dict with 1 arguments"),
        ({"root": {"kind": "union"}}, "union with 0 arguments"),
        ({"root": {"kind": "int", "constraints": {"ge": "0"}}}, "int with ge='0'"),
        ({"root": {"kind": "int", "constraints": {"odd": 1}}}, "int with odd=1"),
        ({"root": {"kind": "list", "arguments": [{"kind": "record", "name": "X"}]}}, "no record 'X'"),
        ({"root": {"kind": "int"}, "records": {"X": {"name": "X"}}}, "form"),
    ],
)
def test_a_damaged_schema_is_a_value_error(content: object, reason: str) -> None:
    """The error says what is wrong with a stored schema."""
    with pytest.raises(ValueError, match=f"schema: .*{reason}"):
        Schema.from_json(content)


# Differences

ORDER = _struct("Order", ("id", int), ("sku", str), ("qty", int))
LINES = _struct("Order", ("lines", _list_of(_struct("SendQueue", ("sku", str)))))
CANCEL = _struct("Cancel", ("id", int), tag=True)


@pytest.mark.parametrize(
    ("stored", "given", "difference"),
    [
        pytest.param(
            ORDER,
            _struct("Order", ("id", int), ("sku", str), ("qty", str)),
            Difference("Order.qty", "int", "str"),
            id="another type",
        ),
        pytest.param(
            ORDER,
            _struct("Order", ("id", int), ("sku", str | None), ("qty", int)),
            Difference("Order.sku", "str", "str | None"),
            id="optional",
        ),
        pytest.param(
            ORDER,
            _struct("Order", ("id", int), ("sku", str), ("qty", float)),
            Difference("Order.qty", "int", "float"),
            id="int to float",
        ),
        pytest.param(
            ORDER,
            _struct("Order", ("id", int), ("sku", str)),
            Difference("Order.qty", "required field", "no such field"),
            id="removed",
        ),
        pytest.param(
            ORDER,
            _struct("Order", ("id", int), ("sku", str), ("qty", int), ("note", str)),
            Difference("Order.note", "no such field", "required field"),
            id="added",
        ),
        pytest.param(
            ORDER,
            _struct("Order", ("id", int), ("sku", str), ("qty", int, 0), omit_defaults=True),
            Difference("Order.qty", "required field", "field that may be left out"),
            id="left out",
        ),
        pytest.param(
            _struct("Order", ("id", int), forbid_unknown_fields=True),
            _struct("Order", ("id", int), ("note", str, "")),
            Difference("Order.note", "no such field", "str"),
            id="added where unknown fields are forbidden",
        ),
        pytest.param(
            LINES,
            _struct("Order", ("lines", _list_of(_struct("SendQueue", ("sku", int))))),
            Difference("Order.lines[].sku", "str", "int"),
            id="deep in a list",
        ),
        pytest.param(
            _dict_of(ORDER),
            _dict_of(_struct("Order", ("id", str), ("sku", str), ("qty", int))),
            Difference("message[].id", "int", "str"),
            id="deep in a dict",
        ),
        pytest.param(dict[str, int], dict[int, int], Difference("message[key]", "str", "int"), id="key of a dict"),
        pytest.param(tuple[int, str], tuple[int, int], Difference("message[1]", "str", "int"), id="place in a tuple"),
        pytest.param(
            tuple[int], tuple[int, int], Difference("message", "tuple[int]", "tuple[int, int]"), id="length of a tuple"
        ),
        pytest.param(ORDER, bytes, Difference("message", "Order", "bytes"), id="something else"),
        pytest.param(int, Annotated[int, Meta(ge=0)], Difference("message", "int", "int (ge=0)"), id="a limit"),
        pytest.param(
            Colour, Literal["red"], Difference("message", "Colour['red', 'blue']", "Literal['red']"), id="fewer values"
        ),
        pytest.param(
            _struct("Order", ("id", int), ("qty", int), array_like=True),
            _struct("Order", ("note", int, 0), ("id", int, 0), ("qty", int, 0), array_like=True),
            Difference("Order[0]", "field 'id'", "field 'note'"),
            id="in front of an array",
        ),
        pytest.param(
            _struct("Order", ("id", int), array_like=True, forbid_unknown_fields=True),
            _struct("Order", ("id", int), ("qty", int, 0), array_like=True),
            Difference("Order.qty", "no such field", "int"),
            id="behind an array where unknown fields are forbidden",
        ),
        pytest.param(
            _struct("Order", ("id", int), array_like=True),
            _struct("Order", ("id", int)),
            Difference("message", "Order as an array", "Order as an object"),
            id="an array and an object",
        ),
        pytest.param(
            _struct("Order", ("id", int), tag=True),
            _struct("Order", ("id", int), tag="order"),
            Difference("Order.type", "Literal['Order']", "Literal['order']"),
            id="another tag",
        ),
        pytest.param(
            _struct("Order", ("id", int), tag=True) | CANCEL,
            _struct("Order", ("id", str), tag=True) | CANCEL,
            Difference("Order.id", "int", "str"),
            id="in a member of a union",
        ),
        pytest.param(
            _struct("Order", ("id", int), tag=True) | CANCEL,
            CANCEL,
            Difference("message", "Order | Cancel", "Cancel"),
            id="a member less",
        ),
        pytest.param(
            CANCEL,
            _struct("Order", ("id", int), tag=True) | CANCEL,
            Difference("message", "Cancel", "Order | Cancel"),
            id="a member more",
        ),
        pytest.param(
            _struct("Order", ("item_id", int), rename="camel"),
            _struct("Order", ("item_id", int)),
            Difference("Order.item_id", "no such field", "required field"),
            id="another name on the wire",
        ),
    ],
)
def test_a_difference_names_the_field_and_both_sides(stored: Any, given: Any, difference: Difference) -> None:
    """Where two types disagree is a path into the message, with what is stored and what was given there."""
    assert find_difference(describe(stored), describe(given)) == difference


@pytest.mark.parametrize(
    ("stored", "given"),
    [
        pytest.param(ORDER, ORDER, id="the same"),
        pytest.param(
            ORDER,
            _struct("Bestellung", ("qty", int), ("id", int), ("sku", str), ("note", str, "")),
            id="renamed class, other order, a new field with a default",
        ),
        pytest.param(
            _struct("Order", ("id", int), array_like=True),
            _struct("Order", ("id", int), ("qty", int, 0), array_like=True),
            id="a new field at the end of an array",
        ),
        pytest.param(
            _struct("Order", ("item_id", int), rename="camel"),
            _struct("Order", ("itemId", int)),
            id="another name in Python",
        ),
        pytest.param(
            _struct("Order", ("id", int), tag=True) | CANCEL,
            CANCEL | _struct("Order", ("id", int), ("note", str, ""), tag=True),
            id="a union in another order, with a new field",
        ),
        pytest.param(Colour, Literal["blue", "red"], id="the same values"),
        pytest.param(list[int], set[int], id="collections that look the same"),
        pytest.param(Annotated[int, Meta(ge=1)], Annotated[int, Meta(gt=0)], id="the same limit"),
        pytest.param(Annotated[int, Meta(description="number")], int, id="a description"),
    ],
)
def test_compatible_changes_are_not_a_difference(stored: Any, given: Any) -> None:
    """What both sides read without loss is compatible."""
    assert find_difference(describe(stored), describe(given)) is None
    assert find_difference(describe(given), describe(stored)) is None


def test_a_recursive_type_is_compared_to_its_end() -> None:
    """A type that contains itself is compared once, and its differences are found."""
    assert find_difference(describe(Order), describe(Order)) is None
    changed = json.dumps(_json(Order)).replace('"kind": "decimal"', '"kind": "str"')
    stored = Schema.from_json(json.loads(changed))
    assert find_difference(stored, describe(Order)) == Difference("Order.lines[].price", "str", "Decimal")


def test_one_direction_alone_can_be_asked() -> None:
    """An int is read as a float, and not the other way round."""
    assert reads(describe(float), describe(int))
    assert not reads(describe(int), describe(float))


def test_an_opaque_schema_is_its_name() -> None:
    """For a codec of the user's own only the name of the type counts."""
    stored = Schema.from_json(json.loads(json.dumps(describe_opaque(Point).to_json())))
    assert find_difference(stored, describe_opaque(Point)) is None
    difference = find_difference(stored, describe_opaque(Pair))
    assert difference is not None
    assert difference.expected.endswith(".Point")
    assert difference.found.endswith(".Pair")
    assert find_difference(stored, describe(Point)) is not None


@dataclasses.dataclass
class Box:
    """A message type."""

    id: int


@pytest.mark.parametrize(("value", "name"), [(Order(1), "Order"), (Box(1), "Box"), (5, "int"), ({}, "dict")])
def test_a_value_instead_of_a_type_is_refused(value: Any, name: str) -> None:
    """The error says to pass the class."""
    with pytest.raises(TypeError, match=f"cannot be a message type: pass the class {name}, not an instance"):
        describe(value)
