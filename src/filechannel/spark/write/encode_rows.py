"""Encodes the rows of a frame as messages of a channel.

Values that a receiver could not decode are rejected: null in a field that is not nullable, or a name that an Enum does
not have. The checks use only the schema in the manifest: the classes of the messages need not be importable here.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import TypeAlias, cast, final
from uuid import UUID

import msgspec
import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StructField,
    StructType,
)

from ..._channel.schema import Field, Node, Record, Schema
from ..._errors import MessageTooLargeError
from ..._storage.log.batch_parts import Records
from ..spark_schema import PAYLOAD, Column, columns_of, payload_column
from .row_shapes import Encoder

Convert: TypeAlias = Callable[[object], object]

_INTEGERS = (ByteType, ShortType, IntegerType, LongType)


@final
class Rows:
    """Converts rows with given columns to messages of a channel."""

    def __init__(self, codec: str, schema: Schema, given: StructType) -> None:
        """Raise `ValueError`, naming a column, if the columns do not match the fields of a message."""
        self._encode: Callable[[object], bytes] = (
            msgspec.json.encode if codec == "json" else cast("Callable[[object], bytes]", msgspec.msgpack.encode)
        )
        self._codec = codec
        self._schema = schema
        self._is_whole = codec not in ("msgpack", "json")
        columns = [payload_column()] if self._is_whole else columns_of(schema)
        if not self._is_whole and [column.name for column in columns] == [PAYLOAD] and schema.root.kind != "record":
            raise ValueError(
                f"messages are {schema.text(schema.root)}, which cannot be distinguished in rows: use a sender"
            )
        _check_names_and_types(columns, _optional(schema), given)
        self._names = [column.name for column in columns if column.name in given.names]
        walk = _Walk(schema)
        record = schema.records[schema.root.name or ""] if schema.root.kind == "record" else None
        if record is None:
            root = Node("bytes") if self._is_whole else schema.root
            self._columns = [_ColumnOfValues(columns[0].name, walk, root)]
            self._message: Callable[..., object] = _itself
        else:
            fields = {field.name: field for field in record.fields}
            self._columns = [
                _ColumnOfValues(name, walk, fields[name].type, absent=_may_be_absent(fields[name]))
                for name in self._names
            ]
            self._message = _class_of(record, self._names)

    def encode(self, batch: pa.RecordBatch) -> list[bytes]:
        """Return the messages of a batch, encoded through Python objects.

        `ValueError` names the field of an invalid row.
        """
        columns = [column.values(batch.column(column.name)) for column in self._columns]
        messages = map(self._message, *columns)
        return cast("list[bytes]", list(messages)) if self._is_whole else list(map(self._encode, messages))

    def records(self, batches: Iterator[pa.RecordBatch], limit: int) -> Iterator[Records]:
        """Return the messages of the batches, batch by batch.

        Raises `ValueError`, naming the field, for an invalid row, and `MessageTooLargeError` for a message beyond
        *limit*.
        """
        encoder: Encoder | None = None
        for number, batch in enumerate(batches):
            if not number:
                encoder = self._encoder(batch.schema)
            if batch.num_rows:
                records, longest = self._records(encoder, batch)
                if longest > limit:
                    raise MessageTooLargeError(longest, limit)
                yield records

    def _encoder(self, given: pa.Schema) -> Encoder | None:
        if self._is_whole:
            return Encoder.whole(PAYLOAD)
        return None if self._codec == "json" else Encoder.of(self._schema, self._names, given)

    def _records(self, encoder: Encoder | None, batch: pa.RecordBatch) -> tuple[Records, int]:
        if encoder is not None:
            with suppress(ValueError):  # `encode` accepts more representations, or names the field
                return encoder.encode(batch)
        payloads = self.encode(batch)
        return Records.of(payloads), max(map(len, payloads))


# Columns


def check_columns(codec: str, schema: Schema, given: StructType) -> None:
    """Raise `ValueError`, naming a column, if rows with given columns cannot be messages of a channel."""
    Rows(codec, schema, given)


def _optional(schema: Schema) -> set[str]:
    if schema.root.kind != "record":
        return set()
    return {field.name for field in schema.records[schema.root.name or ""].fields if not field.required}


def _check_names_and_types(columns: list[Column], optional: set[str], given: StructType) -> None:
    known = {column.name: column for column in columns}
    for field in given:
        if field.name not in known:
            there = ", ".join(known)
            what = f"column {field.name!r} is not a field of the channel's messages"
            raise ValueError(f"{what}; there are {there}: drop it")
        _check_type(field, known[field.name].spark, field.name)
    for name in known:
        if name not in given.names and name not in optional:
            raise ValueError(f"messages have a field {name!r}, and there is no column of that name")


def _check_type(field: StructField, wanted: DataType, path: str) -> None:
    given = field.dataType
    if isinstance(given, StructType) and isinstance(wanted, StructType):
        for inner in wanted:
            if inner.name not in given.names:
                raise ValueError(f"column {path!r} has no field {inner.name!r}")
            _check_type(given[inner.name], inner.dataType, f"{path}.{inner.name}")
        return
    if isinstance(given, ArrayType) and isinstance(wanted, ArrayType):
        _check_type(StructField("item", given.elementType), wanted.elementType, f"{path}[]")
        return
    if isinstance(given, MapType) and isinstance(wanted, MapType):
        _check_type(StructField("key", given.keyType), wanted.keyType, f"{path} (key)")
        _check_type(StructField("value", given.valueType), wanted.valueType, f"{path}[]")
        return
    if not _fits(given, wanted):
        raise ValueError(
            f"column {path!r} is {given.simpleString()}, but messages have {wanted.simpleString()}: cast it"
        )


def _fits(given: DataType, wanted: DataType) -> bool:
    if isinstance(wanted, LongType):
        return isinstance(given, _INTEGERS)
    if isinstance(wanted, DoubleType):
        return isinstance(given, (FloatType, DoubleType))
    if isinstance(wanted, DecimalType):
        return isinstance(given, DecimalType)
    return given == wanted


# Messages


def _itself(value: object) -> object:
    return value


def _may_be_absent(field: Field) -> bool:
    return not field.required and field.default is msgspec.UNSET


def _class_of(record: Record, names: Sequence[str]) -> Callable[..., object]:
    """Return a class whose instances are encoded like the messages that a record describes."""
    by_name = {field.name: field for field in record.fields}
    if record.array_like:
        missing = [field.name for field in record.fields if field.name not in names]
        if missing:
            raise ValueError(f"messages are arrays, which need every field, and there is no column {missing[0]!r}")
    return msgspec.defstruct(
        "Row",
        [(name, object) for name in names],
        rename={name: by_name[name].wire_name for name in names},
        array_like=record.array_like,
        tag=record.tag,
        tag_field=None if record.array_like else record.tag_field,
        gc=False,
    )


# Values


class _ColumnOfValues:
    """Converts a column to the values of a field."""

    def __init__(self, name: str, walk: _Walk, node: Node, *, absent: bool = False) -> None:
        self.name = name
        self._convert = walk.converter(node, name, absent=absent)
        self._is_plain = walk.is_plain(node)
        self._may_be_null = any(argument.kind == "none" for argument in node.arguments)

    def values(self, column: pa.Array) -> list[object]:
        """Return the values. Raise `ValueError` for a value that a receiver could not decode."""
        found = _values(column)
        if self._is_plain and (self._may_be_null or not column.null_count):
            return found
        return list(map(self._convert, found))


def _values(column: pa.Array) -> list[object]:
    """Return the values as Python objects; for the most frequent types without creating an Arrow scalar for each."""
    found = _plain_values(column)
    validity = column.buffers()[0] if column.null_count else None
    if found is None or validity is None:
        return column.to_pylist() if found is None else found
    valid = int.from_bytes(validity.to_pybytes(), "little") >> column.offset
    bits = f"{valid:b}"[::-1].ljust(len(found), "0")  # in row order; the bits after the last row are ignored
    return [value if bit == "1" else None for value, bit in zip(found, bits, strict=False)]


def _plain_values(column: pa.Array) -> list[object] | None:
    """Return numbers or strings, with arbitrary values where the column is null; None for every other type."""
    kind, first, count = column.type, column.offset, len(column)
    code = {pa.int64(): "q", pa.int32(): "i", pa.float64(): "d"}.get(kind)
    is_text = kind == pa.string()
    if not count or (code is None and not is_text):
        return None
    buffers = column.buffers()
    if code is not None:
        assert buffers[1] is not None
        width = struct.calcsize(code)
        return list(struct.unpack_from(f"<{count}{code}", buffers[1], first * width))
    _, ends, texts = buffers
    assert ends is not None
    bounds = struct.unpack_from(f"<{count + 1}i", ends, 4 * first)
    content = b"" if texts is None else texts.to_pybytes()
    if content.isascii():
        text = content.decode("ascii")
        return [text[start:stop] for start, stop in pairwise(bounds)]
    return [content[start:stop].decode() for start, stop in pairwise(bounds)]


class _Walk:
    """Creates the functions that convert Arrow values to the values of a message."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema

    def is_plain(self, node: Node) -> bool:
        """Return whether values that are not null need no conversion."""
        if node.kind == "union":
            return all(argument.kind == "none" or self.is_plain(argument) for argument in node.arguments)
        return self._inner(node, "") is None

    def _record(self, record: Record, path: str) -> Convert:
        """Return a function that converts a nested record to an object that is encoded like it."""
        names = [field.name for field in record.fields]
        make = _class_of(record, names)
        converts = [
            self.converter(field.type, f"{path}.{field.name}", absent=_may_be_absent(field)) for field in record.fields
        ]

        def convert(value: object) -> object:
            given = cast("dict[str, object]", value)
            return make(*[inner(given[name]) for name, inner in zip(names, converts, strict=True)])

        return convert

    def converter(self, node: Node, path: str, *, absent: bool = False) -> Convert:
        """Return a function that converts a value.

        Null becomes None in a nullable field, and is left out if *absent*.
        """
        nullable = False
        if node.kind == "union":
            nullable = any(argument.kind == "none" for argument in node.arguments)
            node = next(argument for argument in node.arguments if argument.kind != "none")
        inner = self._inner(node, path)

        def convert(value: object) -> object:
            if value is None:
                if not nullable and not absent:
                    raise ValueError(f"column {path!r} is null in a row, but the field does not allow null")
                return None if nullable else msgspec.UNSET
            return value if inner is None else inner(value)

        return convert

    def _inner(self, node: Node, path: str) -> Convert | None:
        match node.kind:
            case "uuid":
                return _uuid(path)
            case "enum" | "literal":
                return _one_of(node, path)
            case "list" | "set" | "frozenset" | "vartuple" | "tuple":
                item = self.converter(node.arguments[0], f"{path}[]")
                size = len(node.arguments) if node.kind == "tuple" else None
                return _list(item, size, path)
            case "dict":
                key = self.converter(node.arguments[0], f"{path} (key)")
                value = self.converter(node.arguments[1], f"{path}[]")
                return lambda pairs: {key(k): value(v) for k, v in cast("list[tuple[object, object]]", pairs)}
            case "record":
                return self._record(self._schema.records[node.name or ""], path)
            case _:
                return None


def _uuid(path: str) -> Convert:
    def convert(value: object) -> object:
        try:
            return str(UUID(cast("str", value)))
        except ValueError:
            raise ValueError(f"column {path!r} is {value!r} in a row, which is not a UUID") from None

    return convert


def _one_of(node: Node, path: str) -> Convert:
    def convert(value: object) -> object:
        if value not in node.values:
            raise ValueError(f"column {path!r} is {value!r} in a row; the field is one of {list(node.values)}")
        return value

    return convert


def _list(item: Convert, size: int | None, path: str) -> Convert:
    def convert(value: object) -> object:
        items = [item(each) for each in cast("list[object]", value)]
        if size is not None and len(items) != size:
            raise ValueError(f"column {path!r} has {len(items)} items in a row, and the field has {size}")
        return items

    return convert
