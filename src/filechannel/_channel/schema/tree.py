"""The tree that describes a message type: plain JSON in the manifest, no classes of the user in it.

It describes the wire: class names in it are labels and decide nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import UnionType
from typing import Final, Literal, TypeAlias

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
    """Of an enum or custom type: its class. Of a record: its key in ``Schema.records``."""
    arguments: tuple[Node, ...] = ()
    """The item of a list, the items of a tuple, key and value of a dict, the members of a union."""
    values: tuple[Scalar, ...] = ()
    """Of an enum or literal: what is on the wire."""
    constraints: dict[str, int | float | str | bool] = {}
    """As in ``msgspec.Meta``: ge, gt, le, lt, multiple_of, pattern, min_length, max_length, tz."""


class Field(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One field of a record."""

    name: str
    """In Python."""
    wire_name: str
    """In a message."""
    type: Node
    required: bool = True
    """Whether a message without it is refused."""
    omittable: bool = False
    """Whether a writer may leave it out of a message."""
    default: object = UNSET
    """The default as JSON, where it is known and has such a form."""


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
    """Every record, also the recursive ones; nodes refer to them by key."""

    def to_json(self) -> dict[str, object]:
        """Return it as a JSON object."""
        builtins: dict[str, object] = msgspec.to_builtins(self)
        return builtins

    @staticmethod
    def from_json(value: object) -> Schema:
        """Undo ``to_json``; ``ValueError`` saying what is wrong if *value* is damaged."""
        try:
            schema = msgspec.convert(value, Schema)
        except (msgspec.ValidationError, RecursionError) as error:
            raise ValueError(f"schema: {error}") from error
        for node in schema.nodes():
            _check_node(node, schema.records)
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
        """Raise ``ValueError`` if types lie so deep inside of one another that recursion over them may fail."""
        inside = self._outermost()
        for _ in range(_DEEPEST):
            inside = [argument for node in inside for argument in node.arguments]
        if inside:
            raise ValueError(f"schema: more than {_DEEPEST} types inside of one another")

    def _outermost(self) -> list[Node]:
        return [self.root, *(field.type for record in self.records.values() for field in record.fields)]

    def nodes(self) -> Iterable[Node]:
        """Return every node, each once."""
        pending = self._outermost()
        while pending:
            node = pending.pop()
            yield node
            pending.extend(node.arguments)


_DEEPEST: Final = 64
_LARGEST_LIMIT: Final = 1.7976931348623157e308  # which neither infinity nor what is not a number reaches
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
        if not isinstance(value, _CONSTRAINTS.get(name, ())) or not _is_meant(node, name, value):
            raise ValueError(f"schema: {node.kind} with {name}={value!r}")


def _is_meant(node: Node, name: str, value: float | str) -> bool:
    """Return whether msgspec has such a constraint, so that comparing with it cannot fail."""
    if isinstance(value, str):
        return node.kind == "str"
    return abs(value) <= _LARGEST_LIMIT and (value > 0 or name != "multiple_of")
