"""`MessageCheck`: whether a value is a message. A fast check of its outermost type only.

Types that are encoded alike are accepted for each other: a tuple for a list, an int for a float. Types that Python
treats alike but that are encoded differently are not: a bool is not an int, a datetime is not a date.
"""

from __future__ import annotations

import datetime as dt
import decimal
import typing
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import NoneType
from typing import Final, final

import msgspec
from msgspec import inspect
from typing_extensions import TypeForm

from . import describe, reads

__all__ = ["MessageCheck"]


@final
@dataclass(frozen=True, slots=True)
class _Alternative:
    """Instances of some classes, but not of others, and only some values if *values* is given."""

    classes: tuple[type, ...]
    without: tuple[type, ...] = ()
    values: tuple[object, ...] | None = None

    def accepts(self, value: object) -> bool:
        if not isinstance(value, self.classes) or isinstance(value, self.without):
            return False
        return self.values is None or any(value == own and type(value) is type(own) for own in self.values)


@final
class MessageCheck:
    """The check for one message type."""

    __slots__ = ("_alternatives", "_message_type", "_subclasses", "exact_types")

    exact_types: frozenset[type]
    """Types whose direct instances are messages: ``type(value) in exact_types`` is enough to accept."""

    def __init__(self, message_type: TypeForm[object]) -> None:
        self._message_type = message_type
        self._alternatives = tuple(_alternatives(_type_info(message_type)))
        self._subclasses: dict[type, bool] = {}
        self.exact_types = frozenset(
            cls for alternative in self._alternatives if alternative.values is None for cls in alternative.classes
        )

    def accepts(self, value: object) -> bool:
        """Return whether *value* is a message, judging by its outermost type."""
        if type(value) in self.exact_types:
            return True
        if not any(alternative.accepts(value) for alternative in self._alternatives):
            return False
        return not _is_record(type(value)) or self._accepts_subclass(type(value))

    def _accepts_subclass(self, cls: type) -> bool:
        """Return whether instances of a subclass decode as the message type: its tag or encoding may differ."""
        accepted = self._subclasses.get(cls)
        if accepted is None:
            accepted = self._subclasses[cls] = _decodes_as(cls, self._message_type)
        return accepted


_ARRAY: Final = _Alternative((list, tuple))
_SET: Final = _Alternative((set, frozenset))

_SIMPLE: Final[Mapping[type[inspect.Type], _Alternative]] = {
    inspect.AnyType: _Alternative((object,)),
    inspect.RawType: _Alternative((msgspec.Raw,)),
    inspect.ExtType: _Alternative((msgspec.msgpack.Ext,)),
    inspect.NoneType: _Alternative((NoneType,)),
    inspect.BoolType: _Alternative((bool,)),
    inspect.IntType: _Alternative((int,), without=(bool,)),
    inspect.FloatType: _Alternative((float, int), without=(bool,)),
    inspect.StrType: _Alternative((str,)),
    inspect.BytesType: _Alternative((bytes,)),
    inspect.ByteArrayType: _Alternative((bytearray,)),
    inspect.MemoryViewType: _Alternative((memoryview,)),
    inspect.DateTimeType: _Alternative((dt.datetime,)),
    inspect.TimeType: _Alternative((dt.time,)),
    inspect.DateType: _Alternative((dt.date,), without=(dt.datetime,)),
    inspect.TimeDeltaType: _Alternative((dt.timedelta,)),
    inspect.UUIDType: _Alternative((uuid.UUID,)),
    inspect.DecimalType: _Alternative((decimal.Decimal,)),
    inspect.ListType: _ARRAY,
    inspect.VarTupleType: _ARRAY,
    inspect.TupleType: _ARRAY,
    inspect.SetType: _SET,
    inspect.FrozenSetType: _SET,
    inspect.DictType: _Alternative((dict,)),
    inspect.TypedDictType: _Alternative((dict,)),
}


def _is_record(cls: type) -> bool:
    """Return whether the encoding follows the fields of a class: a Struct, dataclass, attrs class or NamedTuple."""
    marks = ("__struct_fields__", "__dataclass_fields__", "__attrs_attrs__", "_fields")
    return any(hasattr(cls, mark) for mark in marks)


def _decodes_as(cls: type, message_type: TypeForm[object]) -> bool:
    try:
        return reads(describe(message_type), describe(cls))
    except TypeError:
        # Only a custom codec knows how they are encoded.
        return True


def _type_info(message_type: TypeForm[object]) -> inspect.Type:
    try:
        return inspect.type_info(message_type)
    except (TypeError, NameError):
        # Only a custom codec can handle such a type: check the class, if it is one.
        return inspect.CustomType(message_type) if isinstance(message_type, type) else inspect.AnyType()


def _alternatives(info: inspect.Type) -> Iterator[_Alternative]:
    if isinstance(info, inspect.Metadata):
        yield from _alternatives(info.type)
    elif isinstance(info, inspect.UnionType):
        for member in info.types:
            yield from _alternatives(member)
    elif isinstance(info, inspect.LiteralType):
        yield _Alternative(tuple({type(value) for value in info.values}), values=info.values)
    else:
        yield _SIMPLE.get(type(info)) or _Alternative((_class_of(info),))


def _class_of(info: inspect.Type) -> type:
    """Return the class of a Struct, dataclass, NamedTuple, enum or custom type, without its parameters."""
    cls: object = getattr(info, "cls", object)
    origin = typing.get_origin(cls) or cls
    return origin if isinstance(origin, type) else object
