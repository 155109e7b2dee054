"""Converting columns in the Arrow layout to messages: the pure-Python implementation of rows.c.

A shape describes how a message represents the values of a column: `(kind, number, null, texts, fields)`. The number is
the size in bytes of an int or float, the scale of a decimal, how many items a list has (0 for any), or 1 for a struct
that is encoded as an array. Texts are MessagePack: the only permitted values, or what a struct begins with. A field is
`(key, shape)`: one for the item of a list, two for key and value of a map. The key is what precedes the value, in
MessagePack.

A column is `(length, start, validity, offsets, data, inner)`: values from `start` on in Arrow's buffers, and the
columns inside. Columns inside a struct have one value for each of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from struct import unpack_from
from typing import Any, Final, TypeAlias, cast

from typing_extensions import Buffer

from ..layout import MAX_PAYLOAD
from ..memory.arguments import readable
from ..records import join_records
from .msgpack import array_head, map_head, packed_bin, packed_float, packed_int, packed_str, packed_timestamp

Shape: TypeAlias = tuple[str, int, int, tuple[bytes, ...], tuple[tuple[bytes, "Shape"], ...]]
Values: TypeAlias = tuple[int, int, Buffer | None, Buffer | None, Buffer | None, tuple["Values", ...]]

KINDS: Final = (
    "bool", "int", "float", "string", "binary", "uuid", "timestamp", "moment", "date", "decimal",
    "list", "map", "struct",
)  # fmt: skip
REFUSED: Final = 0
"""Null is an error."""
WRITTEN: Final = 1
"""Null is nil."""
LEFT_OUT: Final = 2
"""A null field is left out."""
_NULLS: Final = 3
_DEEPEST: Final = 64
_MOST_KEYS: Final = 64
_MOST_VALUES: Final = 1 << 40
_NUMBERS: Final = {"int": (1, 2, 4, 8), "float": (4, 8), "decimal": range(39), "list": range(1 << 31), "struct": (0, 1)}
_FIELDS: Final = {"list": 1, "map": 2}
_WITH_OFFSETS: Final = ("string", "binary", "uuid", "list", "map")
_WIDTHS: Final = {"timestamp": 8, "moment": 8, "date": 4, "decimal": 16}
_UUID: Final = re.compile(rb"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001 - a date and time without a time zone
_FIRST_DAY: Final = date.min.toordinal() - _EPOCH.toordinal()
_LAST_DAY: Final = date.max.toordinal() - _EPOCH.toordinal()
_DAY: Final = 86_400_000_000
_SHORT: Final = "a column is shorter than it says"
_OUTSIDE: Final = "it reaches beyond its column"
_NO_MOMENT: Final = "it is beyond the years 1 to 9999"


@dataclass(slots=True)
class _Shape:
    kind: str
    number: int
    null: int
    texts: tuple[bytes, ...]
    fields: list[tuple[bytes, _Shape]]


@dataclass(slots=True)
class _Column:
    shape: _Shape
    length: int
    start: int
    validity: memoryview | None
    offsets: memoryview
    data: memoryview
    inner: list[_Column]

    def is_null(self, index: int) -> bool:
        return self.validity is not None and not _bit(self.validity, self.start + index)

    def number(self, index: int, code: str, width: int) -> Any:
        return unpack_from(f"<{code}", self.data, (self.start + index) * width)[0]

    def range(self, index: int, limit: int) -> tuple[int, int]:
        begin, end = unpack_from("<2i", self.offsets, 4 * (self.start + index))
        if not 0 <= begin <= end <= limit:
            raise ValueError(_OUTSIDE)
        return begin, end

    def text(self, index: int) -> bytes:
        begin, end = self.range(index, self.data.nbytes)
        return bytes(self.data[begin:end])


class RowEncoder:
    """Turns columns in the Arrow layout into messages; without a shape (None), binary values as they are."""

    def __init__(self, shape: Shape | None, /) -> None:
        self._is_whole = shape is None
        self._shape = _Shape("binary", 0, REFUSED, (), []) if shape is None else _shape(shape, 0)

    def encode(self, values: Values, /) -> tuple[bytes, int]:
        """Return rows as records, the first one at offset 0, and the length of the longest message.

        `ValueError` for the first row that cannot be a message.
        """
        column = _bind(self._shape, values)
        messages = list[bytes]()
        for index in range(column.length):
            try:
                messages.append(_whole(column, index) if self._is_whole else _put(column, index))
                if len(messages[-1]) > MAX_PAYLOAD:
                    raise ValueError("it is too long for a record")
            except ValueError as error:
                raise ValueError(f"row {index}: {error}") from None
        return join_records(messages), max(map(len, messages), default=0)


# Shapes and columns


def _shape(given: object, depth: int) -> _Shape:
    if depth > _DEEPEST:
        raise ValueError("the type is nested too deeply")
    match _parts(given):
        case (str(kind), int(number), int(null), *parts) if len(parts) == 2 and all(map(_is_tuple, parts)):
            texts, fields = map(_parts, parts)
        case _:
            raise ValueError("a shape is (kind, number, null, texts, fields)")
    if kind not in KINDS:
        raise ValueError(f"no kind of value is called {kind}")
    if not 0 <= null < _NULLS:
        raise ValueError("null is refused, written or left out")
    wanted = len(fields) if kind == "struct" else _FIELDS.get(kind, 0)
    if len(fields) != wanted:
        raise ValueError(f"{kind} has {len(fields)} fields, not {wanted}")
    if number not in _NUMBERS.get(kind, (0,)):
        raise ValueError(f"{kind} has no number {number}")
    return _Shape(kind, number, null, tuple(map(_bytes, texts)), [_field(each, depth) for each in fields])


def _field(given: object, depth: int) -> tuple[bytes, _Shape]:
    parts = _parts(given)
    if len(parts) != 2:
        raise ValueError("a field is (key, shape)")
    return _bytes(parts[0]), _shape(parts[1], depth + 1)


def _is_tuple(given: object) -> bool:
    return isinstance(given, tuple)


def _parts(given: object) -> tuple[object, ...]:
    return cast("tuple[object, ...]", given) if isinstance(given, tuple) else ()


def _bytes(given: object) -> bytes:
    if not isinstance(given, bytes):
        raise ValueError("texts and keys are bytes")
    return given


def _bind(shape: _Shape, values: object) -> _Column:
    match _parts(values):
        case (int(length), int(start), validity, offsets, data, within) if _is_tuple(within):
            inside = _parts(within)
        case _:
            raise ValueError("a column is (length, start, validity, offsets, data, inner)")
    if not (0 <= length <= _MOST_VALUES and 0 <= start <= _MOST_VALUES):
        raise ValueError(_SHORT)
    if len(inside) != len(shape.fields):
        raise ValueError("a column has other columns inside than its shape")
    nulls = None if validity is None else readable(cast("Buffer", validity))
    views = [readable(b"" if each is None else cast("Buffer", each)) for each in (offsets, data)]
    column = _Column(shape, length, start, nulls, views[0], views[1], [])
    end = start + length
    width = shape.number if shape.kind in ("int", "float") else _WIDTHS.get(shape.kind, 0)
    short = nulls is not None and nulls.nbytes < (end + 7) // 8
    short |= column.data.nbytes < ((end + 7) // 8 if shape.kind == "bool" else end * width)
    short |= shape.kind in _WITH_OFFSETS and column.offsets.nbytes // 4 < end + 1
    if length and short:
        raise ValueError(_SHORT)
    for (_, field), each in zip(shape.fields, inside, strict=True):
        column.inner.append(_bind(field, each))
        if shape.kind == "struct" and column.inner[-1].length < length:
            raise ValueError(_SHORT)
    return column


def _bit(bits: memoryview, index: int) -> bool:
    return bool(bits[index // 8] >> index % 8 & 1)


# Values


def _whole(column: _Column, index: int) -> bytes:
    if column.is_null(index):
        raise ValueError("it is null, which is not allowed")
    return column.text(index)


def _put(column: _Column, index: int) -> bytes:
    """Return the encoding of a value in a message."""
    shape = column.shape
    if column.is_null(index):
        if shape.null != WRITTEN:
            raise ValueError("it is null, which is not allowed")
        return b"\xc0"
    encoded = _ENCODERS[shape.kind](column, index)
    if shape.texts and shape.kind != "struct" and encoded not in shape.texts:
        raise ValueError("it is not one of the allowed values")
    return encoded


def _bool(column: _Column, index: int) -> bytes:
    return b"\xc3" if _bit(column.data, column.start + index) else b"\xc2"


def _int(column: _Column, index: int) -> bytes:
    width = column.shape.number
    return packed_int(column.number(index, {1: "b", 2: "h", 4: "i", 8: "q"}[width], width))


def _float(column: _Column, index: int) -> bytes:
    width = column.shape.number
    return packed_float(column.number(index, "f" if width == 4 else "d", width))


def _string(column: _Column, index: int) -> bytes:
    text = column.text(index)
    try:
        text.decode()
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8") from None
    return packed_str(text)


def _binary(column: _Column, index: int) -> bytes:
    return packed_bin(column.text(index))


def _uuid(column: _Column, index: int) -> bytes:
    """Encode a UUID in the canonical form only; its letters become lower case."""
    text = column.text(index)
    if not _UUID.fullmatch(text):
        raise ValueError("it is not a UUID in the usual form")
    return packed_str(text.lower())


def _timestamp(column: _Column, index: int) -> bytes:
    return packed_timestamp(_microseconds(column, index))


def _microseconds(column: _Column, index: int) -> int:
    microseconds: int = column.number(index, "q", 8)
    if not _FIRST_DAY * _DAY <= microseconds < (_LAST_DAY + 1) * _DAY:
        raise ValueError(_NO_MOMENT)
    return microseconds


def _moment(column: _Column, index: int) -> bytes:
    moment = _EPOCH + timedelta(microseconds=_microseconds(column, index))
    return packed_str(moment.isoformat().encode())


def _date(column: _Column, index: int) -> bytes:
    days: int = column.number(index, "i", 4)
    if not _FIRST_DAY <= days <= _LAST_DAY:
        raise ValueError(_NO_MOMENT)
    return packed_str(date.fromordinal(_EPOCH.toordinal() + days).isoformat().encode())


def _decimal(column: _Column, index: int) -> bytes:
    at = (column.start + index) * 16
    number = int.from_bytes(column.data[at : at + 16], "little", signed=True)
    digits = tuple(map(int, str(abs(number))))
    return packed_str(str(Decimal((number < 0, digits, -column.shape.number))).encode())


def _list(column: _Column, index: int) -> bytes:
    (item,) = column.inner
    begin, end = column.range(index, item.length)
    if column.shape.number and end - begin != column.shape.number:
        raise ValueError("it has another number of items")
    return array_head(end - begin) + b"".join(_put(item, each) for each in range(begin, end))


def _map(column: _Column, index: int) -> bytes:
    """Encode a map; raise `ValueError` for a duplicate key.

    In a dict such a key would appear once: that is left to the caller's slow path, which builds a dict.
    """
    key, value = column.inner
    begin, end = column.range(index, min(key.length, value.length))
    if end - begin > _MOST_KEYS:
        raise ValueError("it has too many keys to compare them")
    pairs = dict[bytes, bytes]()
    for each in range(begin, end):
        name = _put(key, each)
        if name in pairs:
            raise ValueError("it has a key twice")
        pairs[name] = _put(value, each)
    return map_head(end - begin) + b"".join(name + pairs[name] for name in pairs)


def _struct(column: _Column, index: int) -> bytes:
    parts = list(column.shape.texts)
    for (key, field), inner in zip(column.shape.fields, column.inner, strict=True):
        if field.null != LEFT_OUT or not inner.is_null(index):
            parts.append(key + _put(inner, index))
    return (array_head if column.shape.number else map_head)(len(parts)) + b"".join(parts)


_ENCODERS: Final[dict[str, Callable[[_Column, int], bytes]]] = {
    "bool": _bool,
    "int": _int,
    "float": _float,
    "string": _string,
    "binary": _binary,
    "uuid": _uuid,
    "timestamp": _timestamp,
    "moment": _moment,
    "date": _date,
    "decimal": _decimal,
    "list": _list,
    "map": _map,
    "struct": _struct,
}
