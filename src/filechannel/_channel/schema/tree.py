"""The tree that describes a message type: plain JSON in the manifest, without classes of the user.

It describes the encoded messages: class names in it are labels and decide nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import UnionType
from typing import Final, Literal, TypeAlias, cast

import msgspec
from msgspec import UNSET, Struct

__all__ = ["Field", "Kind", "Node", "Record", "Scalar", "Schema"]

Scalar: TypeAlias = bool | int | str | None
# fmt: off
Kind: TypeAlias = Literal[
    "any", "raw", "ext", "none", "bool", "int", "float", "str", "bytes", "bytearray", "memoryview",
    "datetime", "time", "date", "timedelta", "uuid", "decimal", "enum", "literal", "custom",
    "list", "set", "frozenset", "vartuple", "tuple", "dict", "union", "record",
]
# fmt: on


class Node(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One type. Which attributes have a meaning depends on *kind*."""

    kind: Kind
    name: str | None = None
    """For an enum or custom type: its class. For a record: its key in ``Schema.records``."""
    arguments: tuple[Node, ...] = ()
    """The item of a list, the items of a tuple, key and value of a dict, the members of a union."""
    values: tuple[Scalar, ...] = ()
    """For an enum or literal: the encoded values."""
    constraints: dict[str, int | float | str | bool] = {}
    """As in ``msgspec.Meta``: ge, gt, le, lt, multiple_of, pattern, min_length, max_length, tz."""


class Field(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One field of a record."""

    name: str
    """The name in Python."""
    wire_name: str
    """The name in a message."""
    type: Node
    required: bool = True
    """Whether a message without it is refused."""
    omittable: bool = False
    """Whether a writer may omit it from a message."""
    default: object = UNSET
    """The default as JSON, if it is known and can be expressed that way."""


class Record(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A type with named fields."""

    name: str
    form: Literal["struct", "dataclass", "typeddict", "namedtuple"]
    fields: tuple[Field, ...]
    tag_field: str | None = None
    tag: int | str | None = None
    array_like: bool = False
    """Whether a message is an array of the fields instead of an object. Always so for a namedtuple."""
    forbid_unknown_fields: bool = False


class Schema(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The message type of a channel."""

    root: Node
    records: dict[str, Record] = {}
    """All records, including recursive ones; nodes refer to them by key."""

    def to_json(self) -> dict[str, object]:
        """Return the schema as a JSON object."""
        builtins: dict[str, object] = msgspec.to_builtins(self)
        return builtins

    @staticmethod
    def from_json(value: object) -> Schema:
        """Reverse ``to_json``. Raise ``ValueError`` that says what is wrong if *value* is damaged."""
        try:
            schema = msgspec.convert(value, Schema)
        except (msgspec.ValidationError, RecursionError) as error:
            raise ValueError(f"schema: {error}") from error
        for number, node in enumerate(schema.nodes()):
            if number >= _MOST_NODES:
                raise ValueError(f"schema: more than {_MOST_NODES:,} types")
            _check_node(node, schema.records)
        for record in schema.records.values():
            _check_record(record)
        schema.check_depth()
        return schema

    def text(self, node: Node) -> str:
        """Return *node* as a Python programmer writes it: ``str | None``, ``list[Order]``, ``int (ge=0)``."""
        limits = ", ".join(f"{name}={value!r}" for name, value in node.constraints.items())
        return f"{self._bare_text(node)} ({limits})" if limits else self._bare_text(node)

    def _bare_text(self, node: Node) -> str:
        if node.kind == "record":
            return self.records[node.name or ""].name
        if node.kind in {"literal", "enum"}:
            return f"{node.name or 'Literal'}[{', '.join(map(repr, node.values))}]"
        arguments = [self.text(argument) for argument in node.arguments]
        if node.kind == "union":
            return " | ".join(arguments)
        name = node.name or _NAMES.get(node.kind, node.kind)
        ending = ", ..." if node.kind == "vartuple" else ""
        return f"{name}[{', '.join(arguments)}{ending}]" if arguments else name

    def check_depth(self) -> None:
        """Raise ``ValueError`` if types are nested so deeply that recursion over them may fail."""
        inside = self._outermost()
        for _ in range(_DEEPEST):
            inside = [argument for node in inside for argument in node.arguments]
        if inside:
            raise ValueError(f"schema: more than {_DEEPEST} nested types")

    def _outermost(self) -> list[Node]:
        return [self.root, *(field.type for record in self.records.values() for field in record.fields)]

    def nodes(self) -> Iterable[Node]:
        """Yield every node, each once."""
        pending = self._outermost()
        while pending:
            node = pending.pop()
            yield node
            pending.extend(node.arguments)


_DEEPEST: Final = 64
_MOST_NODES: Final = 100_000  # more than in any manifest that this library writes
_SMALLEST, _LARGEST = -(2**63), 2**63 - 1  # of the integers that msgspec accepts in an enum, a literal or a tag
_LARGEST_LIMIT: Final = 1.7976931348623157e308  # excludes infinity and NaN
_NAMES: Final[Mapping[Kind, str]] = {
    "any": "Any",
    "raw": "Raw",
    "ext": "Ext",
    "none": "None",
    "uuid": "UUID",
    "decimal": "Decimal",
    "vartuple": "tuple",
}
_CONSTRAINTS: Final[Mapping[str, type | UnionType]] = {
    **dict.fromkeys(("ge", "gt", "le", "lt", "multiple_of"), int | float),
    **dict.fromkeys(("min_length", "max_length"), int),
    "pattern": str,
    "tz": bool,
}
_ARGUMENTS: Final[Mapping[Kind, int]] = {"list": 1, "set": 1, "frozenset": 1, "vartuple": 1, "dict": 2}


def _check_node(node: Node, records: Mapping[str, Record]) -> None:
    if node.kind == "record" and node.name not in records:
        raise ValueError(f"schema: no record {node.name!r}")
    count = len(node.arguments)
    if count != _ARGUMENTS.get(node.kind, count) or (node.kind == "union" and not count):
        raise ValueError(f"schema: {node.kind} with {count} arguments")
    for name, value in node.constraints.items():
        if not isinstance(value, _CONSTRAINTS.get(name, ())) or not _is_supported(node, name, value):
            raise ValueError(f"schema: {node.kind} with {name}={value!r}")

    for member in node.values:
        _check_integer(member, node.kind)


def _check_record(record: Record) -> None:
    _check_integer(record.tag, "tag")
    inside: list[object] = [field.default for field in record.fields]
    for _ in range(_DEEPEST):
        inside = [part for value in inside for part in _parts(value)]
    if inside:
        raise ValueError(f"schema: a default of {record.name} has more than {_DEEPEST} nested values")


def _parts(value: object) -> Iterable[object]:
    """Return the values directly inside of what was JSON."""
    if isinstance(value, dict):
        return cast("dict[str, object]", value).values()
    return cast("list[object]", value) if isinstance(value, list) else ()


def _check_integer(value: Scalar, where: str) -> None:
    if isinstance(value, int) and not _SMALLEST <= value <= _LARGEST:
        raise ValueError(f"schema: {where} with a value beyond 64 bits")


def _is_supported(node: Node, name: str, value: float | str) -> bool:
    """Return whether msgspec has such a constraint, so that comparing with it cannot fail."""
    if isinstance(value, str):
        return node.kind == "str"
    return abs(value) <= _LARGEST_LIMIT and (value > 0 or name != "multiple_of")
