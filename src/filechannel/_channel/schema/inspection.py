"""Describing a message type by its schema."""

from __future__ import annotations

import enum
import math
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final, Literal, TypeAlias, Union

import msgspec
from msgspec import NODEFAULT, UNSET, inspect
from typing_extensions import TypeForm

from .tree import Field, Kind, Node, Record, Schema

__all__ = ["describe", "describe_opaque", "type_name"]


def describe(message_type: TypeForm[object]) -> Schema:
    """Return the schema of *message_type*. Raise ``TypeError`` naming it if msgspec cannot handle it."""
    try:
        info = inspect.type_info(message_type)
    except (TypeError, NameError) as error:
        given: object = message_type
        name = repr(given) if isinstance(given, str) else type_name(given)
        why = f"pass the class {type(given).__name__}, not an instance" if _is_value(given) else error
        raise TypeError(f"{name} cannot be a message type: {why}") from error
    builder = _Builder()
    root = builder.node(info)
    builder.finish()
    return Schema(root, builder.records)


def _is_value(given: object) -> bool:
    """Return whether this is a value whose class would be a message type. A str may be meant as the name of a type."""
    if isinstance(given, type | str):
        return False
    try:
        return not isinstance(inspect.type_info(type(given)), inspect.CustomType)
    except TypeError:
        return False


def describe_opaque(message_type: TypeForm[object]) -> Schema:
    """Return a schema that only names *message_type*, for a codec that does not follow msgspec's rules."""
    return Schema(Node("custom", name=_qualified_name(message_type)))


def type_name(message_type: object) -> str:
    """Return the type as a user writes it: ``Order``, ``Order | Cancel``, ``dict[str, float]``."""
    if message_type is None or message_type is types.NoneType:
        return "None"
    origin, arguments = typing.get_origin(message_type), typing.get_args(message_type)
    if origin is Annotated:
        return type_name(arguments[0])
    if origin is Literal:
        return f"Literal[{', '.join(map(repr, arguments))}]"
    if origin in {Union, types.UnionType}:
        return " | ".join(map(type_name, arguments))
    if arguments:
        return f"{type_name(origin)}[{', '.join(map(type_name, arguments))}]"
    return "..." if message_type is ... else getattr(message_type, "__name__", str(message_type))


_SIMPLE: Final[Mapping[type[inspect.Type], Kind]] = {
    inspect.AnyType: "any",
    inspect.RawType: "raw",
    inspect.ExtType: "ext",
    inspect.NoneType: "none",
    inspect.BoolType: "bool",
    inspect.IntType: "int",
    inspect.FloatType: "float",
    inspect.StrType: "str",
    inspect.BytesType: "bytes",
    inspect.ByteArrayType: "bytearray",
    inspect.MemoryViewType: "memoryview",
    inspect.DateTimeType: "datetime",
    inspect.TimeType: "time",
    inspect.DateType: "date",
    inspect.TimeDeltaType: "timedelta",
    inspect.UUIDType: "uuid",
    inspect.DecimalType: "decimal",
}
_COLLECTIONS: Final[Mapping[type[inspect.Type], Kind]] = {
    inspect.ListType: "list",
    inspect.SetType: "set",
    inspect.FrozenSetType: "frozenset",
    inspect.VarTupleType: "vartuple",
}
_CONSTRAINTS: Final = ("ge", "gt", "le", "lt", "multiple_of", "pattern", "min_length", "max_length", "tz")

_RecordInfo: TypeAlias = inspect.StructType | inspect.DataclassType | inspect.TypedDictType | inspect.NamedTupleType


class _Builder:
    """Converts the results of ``msgspec.inspect`` into nodes, and collects the records."""

    def __init__(self) -> None:
        self.records: dict[str, Record] = {}
        self._keys: dict[object, str] = {}
        self._used: set[str] = set()
        self._numbers: dict[str, int] = {}
        """The last number that was tried for each name: thousands of records may have the same one."""
        self._pending: list[tuple[str, _RecordInfo]] = []
        """Records that nodes refer to. Each is described on its own, because a chain of references may be long."""

    def node(self, info: inspect.Type) -> Node:
        if isinstance(info, inspect.Metadata):
            return self.node(info.type)
        if (kind := _SIMPLE.get(type(info))) is not None:
            return Node(kind, constraints=_constraints(info))
        if isinstance(info, inspect.CustomType | inspect.EnumType):
            return _class_node(info.cls)
        if isinstance(info, inspect.LiteralType):
            return Node("literal", values=info.values)
        if isinstance(info, _RecordInfo):
            return Node("record", name=self._record_key(info))
        return self._compound_node(info)

    def _compound_node(self, info: inspect.Type) -> Node:
        if isinstance(info, inspect.UnionType):
            return Node("union", arguments=self._nodes(info.types))
        if isinstance(info, inspect.TupleType):
            return Node("tuple", arguments=self._nodes(info.item_types))
        if isinstance(info, inspect.DictType):
            arguments = self._nodes([info.key_type, info.value_type])
            return Node("dict", arguments=arguments, constraints=_constraints(info))
        if isinstance(info, inspect.CollectionType):
            arguments = self._nodes([info.item_type])
            return Node(_COLLECTIONS[type(info)], arguments=arguments, constraints=_constraints(info))
        raise TypeError(f"{type(info).__name__} has no schema")

    def _nodes(self, infos: Iterable[inspect.Type]) -> tuple[Node, ...]:
        return tuple(self.node(info) for info in infos)

    def _record_key(self, info: _RecordInfo) -> str:
        key = self._keys.get(info.cls)
        if key is None:
            key = self._keys[info.cls] = self._unused_key(type_name(info.cls))
            self._pending.append((key, info))
        return key

    def finish(self) -> None:
        """Describe the records that nodes refer to."""
        for key, info in self._pending:  # which grows meanwhile
            self.records[key] = self._record(info)

    def _unused_key(self, name: str) -> str:
        key = name
        while key in self._used:
            self._numbers[name] = self._numbers.get(name, 1) + 1
            key = f"{name}#{self._numbers[name]}"
        self._used.add(key)
        return key

    def _record(self, info: _RecordInfo) -> Record:
        name = type_name(info.cls)
        if isinstance(info, inspect.TypedDictType):
            return Record(name, "typeddict", self._fields(info, omit_optional=True))
        if isinstance(info, inspect.DataclassType):
            return Record(name, "dataclass", self._fields(info))
        if isinstance(info, inspect.NamedTupleType):
            return Record(name, "namedtuple", self._fields(info), array_like=True, forbid_unknown_fields=True)
        # A generic Struct with parameters is an alias: its origin has the configuration.
        cls: type[msgspec.Struct] = typing.get_origin(info.cls) or info.cls
        omits = cls.__struct_config__.omit_defaults and not info.array_like
        return Record(
            name,
            "struct",
            self._fields(info, omit_optional=omits),
            tag_field=info.tag_field,
            tag=info.tag,
            array_like=info.array_like,
            forbid_unknown_fields=info.forbid_unknown_fields,
        )

    def _fields(self, info: _RecordInfo, *, omit_optional: bool = False) -> tuple[Field, ...]:
        return tuple(self._field(field, omit_optional=omit_optional) for field in info.fields)

    def _field(self, info: inspect.Field, *, omit_optional: bool) -> Field:
        # An optional field without a default has the default msgspec.UNSET, which is never written.
        unset = info.default is NODEFAULT and info.default_factory is NODEFAULT
        return Field(
            name=info.name,
            wire_name=info.encode_name,
            type=self.node(info.type),
            required=info.required,
            omittable=not info.required and (omit_optional or unset),
            default=_default(info),
        )


def _constraints(info: inspect.Type) -> dict[str, int | float | str | bool]:
    values = {name: getattr(info, name, None) for name in _CONSTRAINTS}
    return {name: value for name, value in values.items() if value is not None}


def _class_node(cls: type[Any]) -> Node:
    if issubclass(cls, enum.Enum):
        return Node("enum", name=cls.__name__, values=tuple(member.value for member in cls))
    return Node("any") if cls is object else Node("custom", name=_qualified_name(cls))


def _default(info: inspect.Field) -> object:
    if info.default_factory in {list, dict, set, frozenset, tuple}:
        return {} if info.default_factory is dict else []
    if info.default is NODEFAULT or (isinstance(info.default, float) and not math.isfinite(info.default)):
        return UNSET
    try:
        return msgspec.json.decode(msgspec.json.encode(info.default))
    except Exception:  # A default of a type that only a codec's hook can encode.
        return UNSET


def _qualified_name(message_type: object) -> str:
    module = getattr(message_type, "__module__", None)
    name = getattr(message_type, "__qualname__", None)
    return f"{module}.{name}" if module and name else type_name(message_type)
