"""Two schemas are compatible exactly if msgspec decodes with each what was encoded with the other.

Nothing here says what is compatible: values of every type are really encoded and really decoded as every other type,
and the answer of ``find_difference`` must agree.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import itertools
import uuid
from collections.abc import Iterator
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, TypedDict

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET, Meta, UnsetType, defstruct, inspect

from filechannel._channel.schema import Schema, describe, find_difference

# Types. Their fields share a few names, so that every pair of them has something to disagree about.


def struct(*fields: Any, **config: Any) -> Any:
    """Return a Struct called Order."""
    return defstruct("Order", fields, **config)


def list_of(item: Any) -> Any:
    """Return a list of a type that was made here."""
    return list.__class_getitem__(item)


class Tree(msgspec.Struct):
    """A recursive type."""

    a: int
    b: list[Tree] = []


class TreeOfTexts(msgspec.Struct):
    """The same with another leaf."""

    a: str
    b: list[TreeOfTexts] = []


class LongerTree(msgspec.Struct):
    """The first with one more field."""

    a: int
    b: list[LongerTree] = []
    c: LongerTree | None = None


class Data(msgspec.Struct):
    """A Struct like the dataclass, TypedDict and NamedTuple below."""

    a: int
    b: str = ""


@dataclasses.dataclass
class DataClass:
    """A dataclass like the Struct above."""

    a: int
    b: str = ""


class DataDict(TypedDict):
    """A TypedDict whose keys are required."""

    a: int
    b: str


class PartialDict(TypedDict):
    """A TypedDict with a key that may be missing."""

    a: int
    b: NotRequired[str]


class DataTuple(NamedTuple):
    """A NamedTuple."""

    a: int
    b: str = ""


class LongerTuple(NamedTuple):
    """A NamedTuple with one more field."""

    a: int
    b: str = ""
    c: int = 0


class Colour(enum.Enum):
    """An enum of texts."""

    A = "a"
    B = "b"


class MoreColours(enum.Enum):
    """An enum with one more member."""

    A = "a"
    B = "b"
    C = "c"


class Level(enum.IntEnum):
    """An enum of numbers."""

    LOW = 1
    HIGH = 2


order = defstruct("Order", [("a", int)], tag=True)
longer_order = defstruct("Order", [("a", int), ("b", int, 0)], tag=True)
other_order = defstruct("Order", [("a", str)], tag=True)
cancel = defstruct("Cancel", [("a", int)], tag=True)
refund = defstruct("Refund", [("a", int)], tag=True)
array_order = defstruct("Order", [("a", int)], tag=True, array_like=True)
array_cancel = defstruct("Cancel", [("a", int)], tag=True, array_like=True)
kind_order = defstruct("Order", [("a", int)], tag="o", tag_field="kind")
number_order = defstruct("Order", [("a", int)], tag=1)

TYPES: dict[str, Any] = {
    "None": None,
    "bool": bool,
    "int": int,
    "float": float,
    "str": str,
    "bytes": bytes,
    "bytearray": bytearray,
    "datetime": dt.datetime,
    "aware": Annotated[dt.datetime, Meta(tz=True)],
    "naive": Annotated[dt.datetime, Meta(tz=False)],
    "date": dt.date,
    "time": dt.time,
    "timedelta": dt.timedelta,
    "uuid": uuid.UUID,
    "decimal": decimal.Decimal,
    "any": Any,
    "raw": msgspec.Raw,
    "ext": msgspec.msgpack.Ext,
    # Limits
    "int>=0": Annotated[int, Meta(ge=0)],
    "int>-1": Annotated[int, Meta(gt=-1)],
    "int>0": Annotated[int, Meta(gt=0)],
    "int<=5": Annotated[int, Meta(le=5)],
    "int*2": Annotated[int, Meta(multiple_of=2)],
    "int*4": Annotated[int, Meta(multiple_of=4)],
    "float>=0": Annotated[float, Meta(ge=0)],
    "float>0": Annotated[float, Meta(gt=0)],
    "float<1": Annotated[float, Meta(lt=1)],
    "str..3": Annotated[str, Meta(max_length=3)],
    "str1..": Annotated[str, Meta(min_length=1)],
    "str~a": Annotated[str, Meta(pattern="a")],
    "described": Annotated[int, Meta(description="just a number")],
    "list1..": Annotated[list[int], Meta(min_length=1)],
    "dict..1": Annotated[dict[str, int], Meta(max_length=1)],
    # Choices
    "colour": Colour,
    "more colours": MoreColours,
    "literal ab": Literal["a", "b"],
    "literal a": Literal["a"],
    "literal 1": Literal[1],
    "literal 12": Literal[1, 2],
    "literal 1a": Literal[1, "a"],
    "literal True": Literal[True],
    "literal a or None": Literal["a", None],
    "level": Level,
    # Unions
    "int or None": int | None,
    "str or None": str | None,
    "int or str": int | str,
    "int or float": int | float,
    "int or float or None": int | float | None,
    "int or bool": int | bool,
    "decimal or int": decimal.Decimal | int,
    "datetime or int": dt.datetime | int,
    "literal a or str": Literal["a"] | str,
    "list or dict": list[int] | dict[str, int],
    # Collections
    "list": list[int],
    "list of floats": list[float],
    "list of options": list[int | None],
    "list of lists": list[list[int]],
    "set": set[int],
    "frozenset": frozenset[int],
    "vartuple": tuple[int, ...],
    "tuple": tuple[int, int],
    "tuple of 3": tuple[int, int, int],
    "tuple int str": tuple[int, str],
    "empty tuple": tuple[()],
    "dict": dict[str, int],
    "dict of options": dict[str, int | None],
    "dict by int": dict[int, int],
    "dict by literal": dict[Literal["a", "b"], int],
    "dict of any": dict[str, Any],
    # Records
    "a": struct(("a", int)),
    "a float": struct(("a", float)),
    "a str": struct(("a", str)),
    "a option": struct(("a", int | None)),
    "a option None": struct(("a", int | None, None)),
    "a default": struct(("a", int, 0)),
    "a default omitted": struct(("a", int, 0), omit_defaults=True),
    "a unset": struct(("a", int | UnsetType, UNSET)),
    "a forbid": struct(("a", int), forbid_unknown_fields=True),
    "a array": struct(("a", int), array_like=True),
    "a array forbid": struct(("a", int), array_like=True, forbid_unknown_fields=True),
    "ab": struct(("a", int), ("b", int)),
    "ab default": struct(("a", int), ("b", int, 0)),
    "ab default forbid": struct(("a", int), ("b", int, 0), forbid_unknown_fields=True),
    "ab default omitted": struct(("a", int), ("b", int, 0), omit_defaults=True),
    "ab array": struct(("a", int), ("b", int), array_like=True),
    "ab array default": struct(("a", int), ("b", int, 0), array_like=True),
    "ab array default forbid": struct(("a", int), ("b", int, 0), array_like=True, forbid_unknown_fields=True),
    "ab array str": struct(("a", int), ("b", str, ""), array_like=True),
    "a renamed": struct(("a", int), rename="upper"),
    "empty": struct(),
    "empty forbid": struct(forbid_unknown_fields=True),
    "all default": struct(("a", int, 0), ("b", int, 0)),
    "nested": struct(("a", struct(("b", int)))),
    "nested default": struct(("a", struct(("b", int), ("c", int, 0)))),
    "nested str": struct(("a", struct(("b", str)))),
    "nested list": struct(("a", list_of(struct(("b", int))))),
    "struct data": Data,
    "dataclass": DataClass,
    "typeddict": DataDict,
    "partial typeddict": PartialDict,
    "namedtuple": DataTuple,
    "longer namedtuple": LongerTuple,
    "tree": Tree,
    "tree of texts": TreeOfTexts,
    "longer tree": LongerTree,
    # Tags
    "order": order,
    "longer order": longer_order,
    "other order": other_order,
    "cancel": cancel,
    "order or None": order | None,
    "order or cancel": order | cancel,
    "cancel or order": cancel | order,
    "longer order or cancel": longer_order | cancel,
    "other order or cancel": other_order | cancel,
    "order or cancel or refund": order | cancel | refund,
    "array order": array_order,
    "array order or cancel": array_order | array_cancel,
    "kind order": kind_order,
    "number order": number_order,
}

# Values

NAMES = ("a", "b", "c", "A", "type", "kind")
SCALARS: dict[type, list[Any]] = {
    inspect.NoneType: [None],
    inspect.BoolType: [True, False],
    inspect.IntType: [0, 1, 2, 3, 4, 8, -1, -4, 7, 2**63],
    inspect.FloatType: [0.0, 0.5, 1.0, -0.5, 7.5, 1],
    inspect.StrType: ["", "a", "b", "zzz", "long text", "long tale"],
    inspect.BytesType: [b"", b"abc", bytes(16)],
    inspect.ByteArrayType: [bytearray(b"abc")],
    inspect.DateType: [dt.date(2026, 1, 2)],
    inspect.TimeType: [dt.time(1, 2), dt.time(1, 2, tzinfo=dt.UTC)],
    inspect.TimeDeltaType: [dt.timedelta(seconds=1.5)],
    inspect.UUIDType: [uuid.UUID(int=5)],
    inspect.DecimalType: [decimal.Decimal("1.5")],
    inspect.DateTimeType: [dt.datetime(2026, 1, 2, tzinfo=dt.UTC), dt.datetime(2026, 1, 2)],  # noqa: DTZ001
    inspect.ExtType: [msgspec.msgpack.Ext(5, b"x")],
}


def samples(message_type: Any) -> list[Any]:
    """Return values of a type that between them show everything that it may write."""
    decoder = msgspec.msgpack.Decoder(message_type)
    found: list[Any] = []
    for value in _values(inspect.type_info(message_type), depth=3):
        try:
            decoder.decode(msgspec.msgpack.encode(value))
        except msgspec.ValidationError:
            continue  # Outside its own limits.
        found.append(value)
    assert found
    return found


def _values(info: inspect.Type, depth: int) -> Iterator[Any]:
    if isinstance(info, inspect.Metadata):
        yield from _values(info.type, depth)
    elif isinstance(info, inspect.AnyType | inspect.RawType):
        anything = [*itertools.chain(*SCALARS.values()), [1, "a"], {"a": 1}, {"b": [None]}, {1: 2}]
        wrap = msgspec.Raw if isinstance(info, inspect.RawType) else msgspec.msgpack.decode
        yield from (wrap(msgspec.msgpack.encode(value)) for value in anything)
    elif isinstance(info, inspect.UnionType):
        yield from itertools.chain(*(_values(member, depth) for member in info.types))
    elif isinstance(info, inspect.LiteralType):
        yield from info.values
    elif isinstance(info, inspect.EnumType):
        yield from info.cls
    elif isinstance(info, inspect.CollectionType | inspect.TupleType | inspect.DictType):
        yield from _collections(info, depth)
    elif hasattr(info, "fields"):
        yield from _records(info, depth)
    else:
        yield from SCALARS[type(info)]


def _collections(info: Any, depth: int) -> Iterator[Any]:
    if isinstance(info, inspect.TupleType):
        yield from _one_at_a_time([list(_values(item, depth - 1)) for item in info.item_types])
        return
    values = list(_values(info.value_type if isinstance(info, inspect.DictType) else info.item_type, depth - 1))
    yield {} if isinstance(info, inspect.DictType) else []
    if depth > 0:
        if isinstance(info, inspect.DictType):
            keys = [key for key in _values(info.key_type, depth - 1) if isinstance(key, int)] or NAMES
            yield from ({key: value} for key in keys for value in values)
            yield from ({keys[0]: value, keys[1]: value} for value in values)
        else:
            yield from ([value] * count for value in values for count in (1, 2, 3))


def _records(info: Any, depth: int) -> Iterator[Any]:
    if depth < 0:
        return
    optional = [field.name for field in info.fields if not field.required]
    choices = [list(_values(field.type, depth - 1)) for field in info.fields]
    if all(choices):
        for values in _one_at_a_time(choices):
            fields = dict(zip((field.name for field in info.fields), values, strict=True))
            yield info.cls(**fields)
            for name in optional:
                yield info.cls(**{key: value for key, value in fields.items() if key != name})


def _one_at_a_time(choices: list[list[Any]]) -> Iterator[tuple[Any, ...]]:
    """Vary one position while the others stay at their first value."""
    yield tuple(values[0] for values in choices)
    for place, values in enumerate(choices):
        for value in values[1:]:
            yield tuple(value if other == place else choices[other][0] for other in range(len(choices)))


SAMPLES = {name: samples(message_type) for name, message_type in TYPES.items()}
SCHEMAS = {name: describe(message_type) for name, message_type in TYPES.items()}


def decodes(values: list[Any], message_type: Any, module: Any = msgspec.msgpack) -> bool:
    """Return whether all values decode as a type, by decoding them."""
    decoder = module.Decoder(message_type)
    try:
        for value in values:
            decoder.decode(module.encode(value))
    except (msgspec.ValidationError, TypeError):
        return False
    return True


def positions_have_other_names(stored: Schema, given_schema: Schema) -> bool:
    """Return whether two array-like records name a position differently: read without an error, but wrongly."""
    pairs = zip(stored.records.values(), given_schema.records.values(), strict=False)
    both = [(mine, other) for mine, other in pairs if mine.array_like and other.array_like]
    return any(a.name != b.name for mine, other in both for a, b in zip(mine.fields, other.fields, strict=False))


def decode_each_other(first: str, second: str, module: Any = msgspec.msgpack) -> bool:
    """Return whether two types decode each other's values, by decoding them."""
    there = decodes(SAMPLES[first], TYPES[second], module)
    return there and decodes(SAMPLES[second], TYPES[first], module)


@pytest.mark.parametrize("first", TYPES)
def test_compatible_means_each_decodes_what_the_other_writes(first: str) -> None:
    """Two types are compatible exactly if each really decodes what the other encodes."""
    answers = {second: find_difference(SCHEMAS[first], SCHEMAS[second]) is None for second in TYPES}
    assert answers == {second: decode_each_other(first, second) for second in TYPES}


# JSON has no word for an extension type, and what is raw there is not what is raw in msgpack.
IN_JSON = [name for name in TYPES if name not in {"any", "raw", "ext", "dict of any"}]


@pytest.mark.parametrize("first", IN_JSON)
def test_compatible_types_are_so_in_json_too(first: str) -> None:
    """Types that are compatible in MessagePack are compatible in JSON."""
    compatible = [second for second in IN_JSON if find_difference(SCHEMAS[first], SCHEMAS[second]) is None]
    assert [second for second in compatible if decode_each_other(first, second, msgspec.json)] == compatible


@pytest.mark.parametrize("first", TYPES)
def test_differences_are_symmetric_and_informative(first: str) -> None:
    """The order of two types does not matter, and a difference names two different things."""
    for second in TYPES:
        difference = find_difference(SCHEMAS[first], SCHEMAS[second])
        back = find_difference(SCHEMAS[second], SCHEMAS[first])
        assert (difference is None) == (back is None)
        assert difference is None or difference.expected != difference.found, (second, difference)


@pytest.mark.parametrize("name", TYPES)
def test_the_stored_schema_is_equal(name: str) -> None:
    """A schema that was stored in the manifest equals the one it was."""
    stored = Schema.from_json(msgspec.json.decode(msgspec.json.encode(SCHEMAS[name].to_json())))
    assert stored == SCHEMAS[name]
    assert find_difference(stored, describe(TYPES[name])) is None


# Random evolutions of a record

leaves = st.sampled_from([int, float, str, int | None, list[int], dict[str, int], Literal["a", "b"], Any])
fields = st.lists(st.tuples(st.sampled_from(["a", "b", "c"]), leaves, st.booleans()), unique_by=lambda field: field[0])
configs = st.fixed_dictionaries(
    {}, optional={"forbid_unknown_fields": st.booleans(), "array_like": st.booleans(), "omit_defaults": st.booleans()}
)


@st.composite
def structs(draw: st.DrawFn) -> Any:
    """Return a random Struct; optional fields have a default of their type."""
    drawn = sorted(draw(fields), key=lambda field: field[2])
    specs = [
        (name, kind, samples(kind)[0]) if optional and not isinstance(samples(kind)[0], dict | list) else (name, kind)
        for name, kind, optional in drawn
    ]
    return struct(*sorted(specs, key=len), **draw(configs))


@settings(max_examples=300, deadline=None)
@given(structs(), structs())
def test_random_records_are_judged_right(first: Any, second: Any) -> None:
    """For random versions of a record, compatibility is exactly what encoding and decoding really do."""
    stored, other = describe(first), describe(second)
    really = decodes(samples(first), second) and decodes(samples(second), first)
    if positions_have_other_names(stored, other):
        assert find_difference(stored, other) is not None
    else:
        assert (find_difference(stored, other) is None) == really
