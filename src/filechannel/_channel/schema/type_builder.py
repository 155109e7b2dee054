"""From a schema back to a type: messages can be read, checked and written without the user's classes.

What is built is the same on the wire, and nothing more: every record is a Struct of its own, whatever class it was, and
an Enum is the values that it has. Where the schema does not know what a value is, it may be anything.

A manifest may come from another user, so two kinds of constraints are left out. Matching a regular expression
(`pattern`) can take exponential time. And msgspec 0.22 corrupts memory when it decodes some unions with constraints,
such as those of a tuple and a str with a length, or of a dict and a str with a pattern; of a union only `X | None`
keeps them.
"""

from __future__ import annotations

import keyword
from collections.abc import Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import partial
from types import GenericAlias
from typing import Annotated, Any, Final, Literal, TypeAlias, Union, cast
from uuid import UUID

import msgspec
from msgspec import UNSET, Struct, UnsetType
from typing_extensions import TypeForm

from .tree import Field, Kind, Node, Record, Schema

__all__ = ["build_type"]

_Form: TypeAlias = Any
"""A type, or what stands for one in an annotation."""

_PLAIN: Final[Mapping[Kind, _Form]] = {
    "any": Any,
    "raw": Any,  # which goes on the wire as it came
    "custom": Any,  # what a codec's hook makes of it
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
_AS_IN_JSON: Final = ("none", "bool", "int", "float", "str")


def build_type(schema: Schema) -> TypeForm[object]:
    """Return a type whose messages are those of the schema: msgspec reads, checks and writes them by it.

    Some constraints are not checked: patterns, and those of the members of a union.

    ``ValueError`` for a schema that no type has: it may come from a manifest that was changed.
    """
    try:
        form = _Construction(schema).form(schema.root)
        msgspec.msgpack.Decoder(form)  # looks at every part of it
    except (TypeError, ValueError, OverflowError, NotImplementedError, RecursionError) as error:
        raise ValueError(f"schema: {error}") from error
    return cast("TypeForm[object]", form)


class _Construction:
    """Builds the types of one schema; records may contain themselves."""

    def __init__(self, schema: Schema) -> None:
        self._records: dict[str, type[Struct]] = {}
        # First the classes, then what their fields are, which msgspec looks at when somebody decodes.
        for key, record in schema.records.items():
            self._records[key] = self._declare(record)
        for key, record in schema.records.items():
            annotations = self._records[key].__annotations__
            for attribute, field in zip(annotations, record.fields, strict=True):
                annotations[attribute] = self._field_form(field)

    def form(self, node: Node) -> _Form:
        """Return what stands for a node in an annotation."""
        bare = self._bare(node)
        constraints: dict[str, Any] = {name: value for name, value in node.constraints.items() if name != "pattern"}
        return Annotated[bare, msgspec.Meta(**constraints)] if constraints and node.kind != "union" else bare

    def _bare(self, node: Node) -> _Form:
        if node.kind in _PLAIN:
            return _PLAIN[node.kind]
        if node.kind == "record":
            return self._records[node.name or ""]
        if node.kind in ("enum", "literal"):
            return Literal[node.values]
        if node.kind == "union":
            return Union[tuple(self._alternatives(node))]  # noqa: UP007 - of any number
        inside = [self.form(argument) for argument in node.arguments]
        more = [...] if node.kind == "vartuple" else []
        return GenericAlias(_COLLECTIONS[node.kind], (*inside, *more))

    def _alternatives(self, union: Node) -> list[_Form]:
        """Return the members of a union, with their constraints only where there is one member besides None."""
        is_optional = sum(argument.kind != "none" for argument in union.arguments) <= 1
        return [self.form(argument) if is_optional else self._bare(argument) for argument in union.arguments]

    def _declare(self, record: Record) -> type[Struct]:
        attributes = _attributes(record)
        names = {attribute: field.wire_name for attribute, field in zip(attributes, record.fields, strict=True)}
        fields = [
            (attribute, object) if field.required else (attribute, object, self._default(field))
            for attribute, field in zip(attributes, record.fields, strict=True)
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

    def _field_form(self, field: Field) -> _Form:
        form = self.form(field.type)
        return form if field.required or _has_default(field) else Union[form, UnsetType]  # noqa: UP007 - of what may be no class

    def _default(self, field: Field) -> object:
        if not _has_default(field):
            return UNSET
        if field.type.kind in _AS_IN_JSON or field.default is None:
            return field.default
        return msgspec.field(default_factory=partial(self._converted, field))

    def _converted(self, field: Field) -> object:
        """Return the default, which the schema keeps as JSON would, as what it is; a new one each time."""
        return msgspec.convert(field.default, self.form(field.type), strict=False)


def _has_default(field: Field) -> bool:
    # What a TypedDict leaves out stays out.
    return field.default is not UNSET


def _attributes(record: Record) -> list[str]:
    """Return what the fields are called in the class: what they are called anyway, where that can be."""
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
