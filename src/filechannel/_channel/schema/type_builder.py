"""Building a type from a schema, to read, check and write messages without the user's classes.

The type has the same encoding, and nothing more: every record becomes a Struct, whatever its class was, and an
Enum becomes its values. If the schema does not say what a value is, any value is accepted.

A manifest may come from another user, so parts of it are left out:

- patterns, because matching a regular expression can take exponential time;
- the constraints of the members of a union other than `X | None`: msgspec 0.22 corrupts memory when it decodes some
  unions with constraints, such as those of a tuple and a str with a length, or of a dict and a str with a pattern;
- the values of an enum or a literal that has many of them: they would be the keys of hash tables, and values can be
  chosen so that a table takes quadratic time;
- defaults that are large (see `defaults`).
"""

from __future__ import annotations

import keyword
from collections.abc import Container, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import partial
from types import GenericAlias
from typing import Annotated, Any, Final, Literal, TypeAlias, Union, cast
from uuid import UUID

import msgspec
from msgspec import UNSET, Struct, UnsetType
from typing_extensions import TypeForm

from .defaults import affordable_defaults
from .tree import Field, Kind, Node, Record, Scalar, Schema

__all__ = ["MOST_VALUES", "build_type"]

_Form: TypeAlias = Any
"""A type, or anything else that an annotation may contain."""

_PLAIN: Final[Mapping[Kind, _Form]] = {
    "any": Any,
    "raw": Any,  # encoded as it was received
    "custom": Any,  # whatever the hook of a codec encodes it as
    "ext": msgspec.msgpack.Ext,
    "none": None,
    "bool": bool,
    "int": int,
    "float": float,
    "str": str,
    "bytes": bytes,
    "bytearray": bytearray,
    "memoryview": memoryview,
    "datetime": datetime,
    "time": time,
    "date": date,
    "timedelta": timedelta,
    "uuid": UUID,
    "decimal": Decimal,
}
_COLLECTIONS: Final[Mapping[Kind, type]] = {
    "list": list,
    "set": set,
    "frozenset": frozenset,
    "vartuple": tuple,
    "tuple": tuple,
    "dict": dict,
}
MOST_VALUES: Final = 1000
"""An enum or a literal with more values is read as any value of their types."""
_DEEPEST: Final = 300  # about two calls each: msgspec allows fewer than a thousand, including those of the caller
_AS_IN_JSON: Final = ("none", "bool", "int", "float", "str")


def build_type(schema: Schema) -> TypeForm[object]:
    """Return a type whose messages are those of the schema: msgspec reads, checks and writes them with it.

    Some constraints are not checked: patterns, those of the members of a union, and the values of an enum or a literal
    with more than `MOST_VALUES`. A field that is missing takes its default unless that is large; then it stays missing.

    Raises ``ValueError`` for a schema that no type can have: the manifest may have been changed.
    """
    _check_depth(schema)
    try:
        form = _Construction(schema).form(schema.root)
        msgspec.msgpack.Decoder(form)  # validates every part of it
    except (TypeError, ValueError, OverflowError, NotImplementedError, RecursionError) as error:
        raise ValueError(f"schema: {error}") from error
    return cast("TypeForm[object]", form)


def _check_depth(schema: Schema) -> None:
    """Raise ``ValueError`` if records are nested so deeply that msgspec, which inspects types recursively, may fail."""
    seen = set[str]()
    waiting = [iter((schema.root,))]
    while waiting:
        node = next(waiting[-1], None)
        if node is None:
            waiting.pop()
            continue
        inside = node.arguments
        if node.kind == "record" and node.name is not None and node.name not in seen:
            seen.add(node.name)
            inside = tuple(field.type for field in schema.records[node.name].fields)
        waiting.append(iter(inside))
        if len(waiting) > _DEEPEST:
            raise ValueError(f"schema: more than {_DEEPEST} nested types and records")


class _Construction:
    """Builds the types of one schema; records may contain themselves."""

    def __init__(self, schema: Schema) -> None:
        self._records: dict[str, type[Struct]] = {}
        affordable = affordable_defaults(schema)
        # First the classes, then the types of their fields, which msgspec reads when a message is first decoded.
        for key, record in schema.records.items():
            self._records[key] = self._declare(record, affordable[key])
        for key, record in schema.records.items():
            annotations = self._records[key].__annotations__
            for position, (attribute, field) in enumerate(zip(annotations, record.fields, strict=True)):
                annotations[attribute] = self._field_form(field, is_filled=position in affordable[key])

    def form(self, node: Node) -> _Form:
        """Return the annotation for a node."""
        bare = self._bare(node)
        constraints: dict[str, Any] = {name: value for name, value in node.constraints.items() if name != "pattern"}
        return Annotated[bare, msgspec.Meta(**constraints)] if constraints and node.kind != "union" else bare

    def _bare(self, node: Node) -> _Form:
        if node.kind in _PLAIN:
            return _PLAIN[node.kind]
        if node.kind == "record":
            return self._records[node.name or ""]
        if node.kind in ("enum", "literal"):
            return Literal[node.values] if len(node.values) <= MOST_VALUES else _type_of(node.values)
        if node.kind == "union":
            return Union[tuple(self._alternatives(node))]  # noqa: UP007 - of any number
        inside = [self.form(argument) for argument in node.arguments]
        more = [...] if node.kind == "vartuple" else []
        return GenericAlias(_COLLECTIONS[node.kind], (*inside, *more))

    def _alternatives(self, union: Node) -> list[_Form]:
        """Return the members of a union, with their constraints only if there is one member besides None."""
        is_optional = sum(argument.kind != "none" for argument in union.arguments) <= 1
        return [self.form(argument) if is_optional else self._bare(argument) for argument in union.arguments]

    def _declare(self, record: Record, filled: Container[int]) -> type[Struct]:
        attributes = _attributes(record)
        names = {attribute: field.wire_name for attribute, field in zip(attributes, record.fields, strict=True)}
        fields = [
            (attribute, object)
            if field.required
            else (attribute, object, self._default(field) if position in filled else UNSET)
            for position, (attribute, field) in enumerate(zip(attributes, record.fields, strict=True))
        ]
        return msgspec.defstruct(
            record.name,
            fields,
            rename=names,
            tag=record.tag,
            tag_field=record.tag_field,
            array_like=record.array_like,
            forbid_unknown_fields=record.forbid_unknown_fields,
            omit_defaults=any(field.omittable for field in record.fields),
            kw_only=True,
        )

    def _field_form(self, field: Field, *, is_filled: bool) -> _Form:
        form = self.form(field.type)
        # A field that a TypedDict leaves out stays missing.
        return form if field.required or is_filled else Union[form, UnsetType]  # noqa: UP007 - it may not be a class

    def _default(self, field: Field) -> object:
        if field.type.kind in _AS_IN_JSON or field.default is None:
            return field.default
        return msgspec.field(default_factory=partial(self._converted, field))

    def _converted(self, field: Field) -> object:
        """Return the default, which the schema stores as JSON, in its own type; a new object each time."""
        return msgspec.convert(field.default, self.form(field.type), strict=False)


def _type_of(values: tuple[Scalar, ...]) -> _Form:
    """Return the type that has these values and others."""
    return Union[tuple({type(value) for value in values})]  # noqa: UP007 - of any number


def _attributes(record: Record) -> list[str]:
    """Return the names of the fields in the class: their own names where they are valid."""
    taken = {field.name for field in record.fields}
    found: list[str] = []
    for number, field in enumerate(record.fields):
        name = field.name
        if not name.isidentifier() or keyword.iskeyword(name) or name.startswith("__"):
            name = f"field_{number}"
            while name in taken:
                name += "_"
        found.append(name)
    return found
