"""Converting messages to columns in the Arrow layout: the pure-Python implementation of columns.c.

A plan describes the columns: `(kind, nullable, fields)`, with a field `(key, fallback, label, plan)` for the item of a
list, for key and value of a map, and for each wanted field of a struct. The key of a struct field is its name in the
message or, where messages are arrays, its position. The fallback is the value, in MessagePack, for a message that lacks
the field.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from itertools import accumulate
from typing import Any, Final, TypeAlias, cast

from typing_extensions import Buffer

from ..layout import CONTROL_RECORD, RECORD_HEADER_SIZE
from ..memory.arguments import readable, unsigned
from ..records import read_record
from .msgpack import Input, Wire

Plan: TypeAlias = tuple[str, bool, tuple["FieldPlan", ...]]
FieldPlan: TypeAlias = tuple[str | int, bytes | None, str, Plan]
Result: TypeAlias = tuple[int, int, bytes | None, bytes | None, bytes | None, tuple["Result", ...]]
"""Length, nulls, validity, offsets, data, and the columns inside."""

KINDS: Final = (
    "bool", "int", "float", "string", "binary", "timestamp", "date", "decimal", "list", "map", "struct",
)  # fmt: skip
DECIMAL_SCALE: Final = 18
_MOST_DIGITS: Final = 38
_DEEPEST: Final = 64
_EPOCH: Final = date(1970, 1, 1).toordinal()
_LARGEST: Final = (1 << 63) - 1
_OTHER_TYPE: Final = "it is of another type"
_DATE: Final = re.compile(rb"\d{4}-\d\d-\d\d")
_MOMENT: Final = re.compile(rb"(\d{4}-\d\d-\d\d)[Tt ](\d\d):(\d\d):(\d\d)(?:\.(\d+))?(?:[Zz]|([+-])(\d\d):?(\d\d))?")
_DECIMAL: Final = re.compile(rb"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,4})?")


class _Refused(ValueError):  # noqa: N818 - it is never shown under this name
    """A value that cannot be converted, and in which field."""

    def __init__(self, reason: str, label: str | None = None) -> None:
        super().__init__(reason if label is None else f"{label}: {reason}")
        self.reason = reason
        self.label = label


@dataclass(slots=True)
class _Field:
    key: str | int
    fallback: bytes | None
    label: str
    column: _Column


@dataclass(slots=True)
class _Column:
    kind: str
    nullable: bool
    fields: list[_Field] = field(default_factory=list[_Field])
    values: list[Any] = field(default_factory=list[Any])
    """The values as `_value` returns them, None for null. For lists and maps their lengths; for structs `()`."""


class Columns:
    """Columns of messages; without a plan (None), one binary column of whole messages."""

    def __init__(self, plan: Plan | None, /) -> None:
        self._is_whole = plan is None
        self._root = _Column("binary", False) if plan is None else _column(plan, 0)
        self._offsets = array("Q")

    @property
    def length(self) -> int:
        """How many messages there are."""
        return len(self._offsets)

    def take(self, buffer: Buffer, position: int, stop: int, offset: int, most: int, /) -> tuple[int, int]:
        """Take up to *most* messages from the records in a range; return (position reached, messages taken).

        `ValueError` if the first record cannot be converted; records before one that cannot are taken.
        """
        position, stop, offset, most = unsigned(position), unsigned(stop), unsigned(offset), unsigned(most)
        view, first, before = readable(buffer), position, self.length
        if not position <= stop <= view.nbytes:
            raise ValueError("range is not inside the buffer")
        while position < stop and self.length - before < most:
            try:
                word, payload = read_record(view, position, stop, offset + position - first)
                if not word & CONTROL_RECORD:
                    self.put(payload, offset + position - first)
            except ValueError:
                if position == first:
                    raise
                break
            position += RECORD_HEADER_SIZE + len(payload)
        return position, self.length - before

    def put(self, payload: Buffer, offset: int, /) -> None:
        """Take one message."""
        offset = unsigned(offset)
        content = bytes(readable(payload))
        _append(self._root, content if self._is_whole else self._message(content))
        self._offsets.append(offset)

    def _message(self, content: bytes) -> object:
        given = Input(content)
        value = _value(self._root, given)
        if given.left:
            raise ValueError("the message is followed by other bytes")
        return value

    def finish(self) -> tuple[Result, bytes]:
        """Return the columns and the offset of each message, and start over."""
        result, offsets = _result(self._root), self._offsets.tobytes()
        _clear(self._root)
        self._offsets = array("Q")
        return result, offsets


# Plans


def _column(plan: object, depth: int) -> _Column:
    parts = cast("tuple[object, ...]", plan) if isinstance(plan, tuple) else ()
    if len(parts) != 3 or not isinstance(parts[0], str) or not isinstance(parts[2], tuple):
        raise ValueError("a plan is (kind, nullable, fields)")
    kind, nullable, fields = parts[0], bool(parts[1]), cast("tuple[object, ...]", parts[2])
    if depth > _DEEPEST:
        raise ValueError("the type is nested too deeply")
    if kind not in KINDS:
        raise ValueError(f"no kind of column is called {kind}")
    wanted = {"list": 1, "map": 2, "struct": len(fields)}.get(kind, 0)
    if len(fields) != wanted:
        raise ValueError(f"{kind} has {len(fields)} fields, not {wanted}")
    column = _Column(kind, nullable, [_field(each, depth) for each in fields])
    if len({isinstance(each.key, str) for each in column.fields}) > 1:
        raise ValueError("fields have names or positions, not some of each")
    return column


def _field(plan: object, depth: int) -> _Field:
    parts = cast("tuple[object, ...]", plan) if isinstance(plan, tuple) else ()
    if len(parts) == 4:
        key, fallback, label, inner = parts
        if isinstance(key, str | int) and isinstance(fallback, bytes | None) and isinstance(label, str):
            return _Field(key, fallback, label, _column(inner, depth + 1))
    raise ValueError("a field is (key, fallback, label, plan)")


# From a message to checked values. Only a complete message is appended: all of it or nothing


def _value(column: _Column, given: Input) -> object:
    """Return the next value in the representation of its column; None for null."""
    wire, content = given.next_token()
    if wire is Wire.NIL:
        if not column.nullable:
            raise _Refused("it is null, which is not allowed")
        return None
    if column.kind == "struct":
        return _struct(column, wire, content, given)
    if column.kind in ("list", "map"):
        if wire is not (Wire.ARRAY if column.kind == "list" else Wire.MAP):
            raise _Refused(_OTHER_TYPE)
        return [[_value_in(each, given) for each in column.fields] for _ in range(content)]
    return _SCALARS[column.kind](wire, content)


def _value_in(inner: _Field, given: Input) -> object:
    try:
        return _value(inner.column, given)
    except ValueError as error:
        label = error.label if isinstance(error, _Refused) else None
        reason = error.reason if isinstance(error, _Refused) else str(error)
        raise _Refused(reason, label or inner.label) from None


def _struct(column: _Column, wire: Wire, count: int, given: Input) -> list[object]:
    by_position = bool(column.fields) and isinstance(column.fields[0].key, int)
    if wire is not (Wire.ARRAY if by_position else Wire.MAP):
        raise _Refused(_OTHER_TYPE)
    wanted, found = {each.key: each for each in column.fields}, dict[str | int, object]()
    for position in range(count):
        key = position if by_position else _name(given)
        each = wanted.get(key)
        if each is None:
            given.skip_value()
        elif key in found:
            raise _Refused("it occurs twice", each.label)
        else:
            found[key] = _value_in(each, given)
    return [found[each.key] if each.key in found else _missing(each) for each in column.fields]


def _name(given: Input) -> str:
    wire, content = given.next_token()
    if wire is not Wire.STR:
        raise _Refused("a name in it is not text")
    return cast("bytes", content).decode(errors="surrogateescape")


def _missing(inner: _Field) -> object:
    if inner.fallback is not None:
        return _value_in(inner, Input(inner.fallback))
    if inner.column.nullable:
        return None
    raise _Refused("it is missing", inner.label)


def _bool(wire: Wire, content: bool) -> bool:
    if wire is not Wire.BOOL:
        raise _Refused(_OTHER_TYPE)
    return content


def _int(wire: Wire, content: int) -> int:
    if wire is not Wire.INT:
        raise _Refused(_OTHER_TYPE)
    if content > _LARGEST:
        raise _Refused("it is too large for a signed number of 64 bits")
    return content


def _float(wire: Wire, content: float) -> float:
    if wire not in (Wire.FLOAT, Wire.INT):
        raise _Refused(_OTHER_TYPE)
    return float(content)


def _string(wire: Wire, content: bytes) -> bytes:
    if wire is not Wire.STR:
        raise _Refused(_OTHER_TYPE)
    try:
        content.decode()
    except UnicodeDecodeError:
        raise _Refused("it is not UTF-8") from None
    return content


def _binary(wire: Wire, content: bytes) -> bytes:
    if wire is not Wire.BIN:
        raise _Refused(_OTHER_TYPE)
    return content


def _timestamp(wire: Wire, content: Any) -> int:
    """Return microseconds since the epoch; a value without a time zone is not converted."""
    if wire is Wire.EXT and content[0] == -1:
        found = _timestamp_extension(content[1])
    elif wire is Wire.STR:
        found = _moment(content)
    elif wire is Wire.EXT:
        found = None
    else:
        raise _Refused(_OTHER_TYPE)
    if found is None or not -_LARGEST - 1 <= found <= _LARGEST:
        raise _Refused("it is not a date and time")
    return found


def _timestamp_extension(body: bytes) -> int | None:
    """Read MessagePack's timestamp extension: seconds in the low bits, nanoseconds above them."""
    if len(body) == 4:
        nanoseconds, seconds = 0, int.from_bytes(body, "big")
    elif len(body) == 8:
        nanoseconds, seconds = divmod(int.from_bytes(body, "big"), 1 << 34)
    elif len(body) == 12:
        nanoseconds, seconds = int.from_bytes(body[:4], "big"), int.from_bytes(body[4:], "big", signed=True)
    else:
        return None
    return seconds * 1_000_000 + nanoseconds // 1000 if nanoseconds < 1_000_000_000 else None


def _moment(text: bytes) -> int | None:
    match = _MOMENT.fullmatch(text)
    if match is None:
        return None
    day, hour, minute, second, fraction, sign, zone_hour, zone_minute = match.groups()
    days, zone = _days_of(day), 60 * int(zone_hour or 0) + int(zone_minute or 0)
    if days is None or int(hour) > 23 or int(minute) > 59 or int(second) > 59:
        return None
    if int(zone_hour or 0) > 23 or int(zone_minute or 0) > 59:
        return None
    minutes = (days * 24 + int(hour)) * 60 + int(minute) + (zone if sign == b"-" else -zone)
    return (minutes * 60 + int(second)) * 1_000_000 + int((fraction or b"").ljust(6, b"0")[:6])


def _date(wire: Wire, content: bytes) -> int:
    if wire is not Wire.STR:
        raise _Refused(_OTHER_TYPE)
    days = _days_of(content)
    if days is None:
        raise _Refused("it is not a date")
    return days


def _days_of(text: bytes) -> int | None:
    if not _DATE.fullmatch(text):
        return None
    try:
        return date.fromisoformat(text.decode()).toordinal() - _EPOCH
    except ValueError:
        return None


def _decimal(wire: Wire, content: Any) -> int:
    """Convert exactly or not at all: a number with too many digits is rejected rather than rounded."""
    if wire is Wire.INT and content <= _LARGEST:
        return cast("int", content) * 10**DECIMAL_SCALE
    if wire is not Wire.STR:
        raise _Refused(_OTHER_TYPE)
    if _DECIMAL.fullmatch(content):
        sign, digits, exponent = Decimal(content.decode()).as_tuple()
        significant = "".join(map(str, digits)).lstrip("0")
        number = significant.rstrip("0")
        shift = cast("int", exponent) + DECIMAL_SCALE + len(significant) - len(number)
        if not number:
            return 0
        if shift >= 0 and len(number) + shift <= _MOST_DIGITS:
            scaled = int(number.ljust(len(number) + shift, "0"))
            return -scaled if sign else scaled
    raise _Refused(
        f"it is not a decimal of at most {_MOST_DIGITS - DECIMAL_SCALE} digits before the point "
        f"and {DECIMAL_SCALE} after"
    )


_SCALARS: Final[dict[str, Callable[[Wire, Any], object]]] = {
    "bool": _bool,
    "int": _int,
    "float": _float,
    "string": _string,
    "binary": _binary,
    "timestamp": _timestamp,
    "date": _date,
    "decimal": _decimal,
}


# From values to columns


def _append(column: _Column, value: Any) -> None:
    """Append a value; in a null struct, its fields are null or have an arbitrary value."""
    if column.kind == "struct":
        for index, each in enumerate(column.fields):
            _append(each.column, None if value is None else value[index])
        value = None if value is None else ()
    elif column.kind in ("list", "map"):
        for item in value or ():
            for each, inner in zip(column.fields, item, strict=True):
                _append(each.column, inner)
        value = None if value is None else len(value)
    column.values.append(value)


def _clear(column: _Column) -> None:
    column.values = []
    for each in column.fields:
        _clear(each.column)


def _result(column: _Column) -> Result:
    values = column.values
    # A field that is not nullable has no value only where the value that contains it is null.
    nulls = values.count(None) if column.nullable else 0
    validity = _bits([value is not None for value in values]) if nulls else None
    inner = tuple(_result(each.column) for each in column.fields)
    return len(values), nulls, validity, _offsets(column), _data(column), inner


def _offsets(column: _Column) -> bytes | None:
    if column.kind in ("string", "binary"):
        sizes = [len(value or b"") for value in column.values]
    elif column.kind in ("list", "map"):
        sizes = [value or 0 for value in column.values]
    else:
        return None
    return array("i", accumulate(sizes, initial=0)).tobytes()


def _data(column: _Column) -> bytes | None:
    values = column.values
    match column.kind:
        case "bool":
            return _bits([bool(value) for value in values])
        case "int" | "timestamp":
            return array("q", [value or 0 for value in values]).tobytes()
        case "float":
            return array("d", [value or 0.0 for value in values]).tobytes()
        case "date":
            return array("i", [value or 0 for value in values]).tobytes()
        case "decimal":
            return b"".join((value or 0).to_bytes(16, "little", signed=True) for value in values)
        case "string" | "binary":
            return b"".join(value or b"" for value in values)
        case _:
            return None


def _bits(bits: list[bool]) -> bytes:
    return sum(1 << index for index, bit in enumerate(bits) if bit).to_bytes((len(bits) + 7) // 8, "little")
