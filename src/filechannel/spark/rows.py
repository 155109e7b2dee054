"""From rows to messages: what a table becomes when it is written to a channel.

Values are checked for what a receiver would refuse: null where there is none, a name that an Enum has not. All of it by
the schema in the manifest: the classes of a channel's messages need not be known here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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

from .._channel.schema import Field, Node, Record, Schema
from .schema import PAYLOAD, Column, NoColumnError, columns_of, payload_column

Convert: TypeAlias = Callable[[object], object]

_INTEGERS = (ByteType, ShortType, IntegerType, LongType)


@final
class Rows:
    """Turns rows with certain columns into messages of a channel."""

    def __init__(self, codec: str, schema: Schema, given: StructType) -> None:
        """Raise `ValueError` if the columns are not those of a message, naming one."""
        self._encode: Callable[[object], bytes] = (
            msgspec.json.encode if codec == "json" else cast("Callable[[object], bytes]", msgspec.msgpack.encode)
        )
        self._is_whole = codec not in ("msgpack", "json")
        columns = [payload_column()] if self._is_whole else columns_of(schema)
        if not self._is_whole and [column.name for column in columns] == [PAYLOAD] and schema.root.kind != "record":
            raise NoColumnError("", schema.text(schema.root))
        _check_columns(columns, _optional(schema), given)
        self._names = [column.name for column in columns if column.name in given.names]
        walk = _Walk(schema)
        record = schema.records[schema.root.name or ""] if schema.root.kind == "record" else None
        self._convert: Convert
        if self._is_whole:
            self._convert = _payload
        elif record is None:
            self._convert = _only(walk.converter(schema.root, columns[0].name))
        else:
            self._convert = walk.record(record, "", self._names)

    def encode(self, batch: pa.RecordBatch) -> list[bytes]:
        """Return the messages of a batch; `ValueError` naming the field of a row that is none."""
        columns = [batch.column(name).to_pylist() for name in self._names]
        convert, encode = self._convert, self._encode
        if self._is_whole:
            return [cast("bytes", convert(row)) for row in zip(*columns, strict=True)]
        return [encode(convert(row)) for row in zip(*columns, strict=True)]

    def parts(self, batches: Iterator[pa.RecordBatch]) -> Iterator[list[bytes]]:
        """Return the messages of batches, batch by batch."""
        for batch in batches:
            if batch.num_rows:
                yield self.encode(batch)


# Columns


def _optional(schema: Schema) -> set[str]:
    if schema.root.kind != "record":
        return set()
    return {field.name for field in schema.records[schema.root.name or ""].fields if not field.required}


def _check_columns(columns: list[Column], optional: set[str], given: StructType) -> None:
    known = {column.name: column for column in columns}
    for field in given:
        if field.name not in known:
            there = ", ".join(known)
            raise ValueError(f"column {field.name!r} is no field of the channel's messages; there are {there}: drop it")
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
            f"column {path!r} is {given.simpleString()}, and messages have {wanted.simpleString()} there: cast it"
        )


def _fits(given: DataType, wanted: DataType) -> bool:
    if isinstance(wanted, LongType):
        return isinstance(given, _INTEGERS)
    if isinstance(wanted, DoubleType):
        return isinstance(given, (FloatType, DoubleType))
    if isinstance(wanted, DecimalType):
        return isinstance(given, DecimalType)
    return given == wanted


# Values


class _Walk:
    """Makes what turns Arrow's values into those of a message."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema

    def record(self, record: Record, path: str, names: Sequence[str]) -> Convert:
        """Return what turns the values of some fields, in this order, into a message or a part of one."""
        by_name = {field.name: field for field in record.fields}
        fields = [by_name[name] for name in names]
        converts = [self._field(field, f"{path}.{field.name}" if path else field.name) for field in fields]
        tag = {} if record.tag is None or record.array_like else {record.tag_field or "type": record.tag}
        wires = [field.wire_name for field in fields]

        def as_object(values: object) -> object:
            found = dict(tag)
            for wire, convert, value in zip(wires, converts, cast("Sequence[object]", values), strict=True):
                converted = convert(value)
                if converted is not msgspec.UNSET:
                    found[wire] = cast("str", converted)
            return found

        def as_array(values: object) -> object:
            given = [convert(value) for convert, value in zip(converts, cast("Sequence[object]", values), strict=True)]
            return given if record.tag is None else [record.tag, *given]

        if record.array_like and len(names) < len(record.fields):
            missing = next(field.name for field in record.fields if field.name not in names)
            raise ValueError(f"messages are arrays, which need every field, and there is no column {missing!r}")
        return as_array if record.array_like else as_object

    def _field(self, field: Field, path: str) -> Convert:
        return self.converter(field.type, path, absent=not field.required and field.default is msgspec.UNSET)

    def converter(self, node: Node, path: str, *, absent: bool = False) -> Convert:
        """Return what turns a value; null is None where the type has it, or left out where it can be *absent*."""
        nullable = False
        if node.kind == "union":
            nullable = any(argument.kind == "none" for argument in node.arguments)
            node = next(argument for argument in node.arguments if argument.kind != "none")
        inner = self._inner(node, path)

        def convert(value: object) -> object:
            if value is None:
                if not nullable and not absent:
                    raise ValueError(f"column {path!r} is null in a row, which the field may not be")
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
                record = self._schema.records[node.name or ""]
                names = [field.name for field in record.fields]
                inside = self.record(record, path, names)
                return lambda value: inside([cast("dict[str, object]", value)[name] for name in names])
            case _:
                return None


def _payload(row: object) -> object:
    (payload,) = cast("tuple[object]", row)
    if payload is None:
        raise ValueError(f"column {PAYLOAD!r} is null in a row, and a message is bytes")
    return payload


def _only(convert: Convert) -> Convert:
    return lambda row: convert(cast("tuple[object]", row)[0])


def _uuid(path: str) -> Convert:
    def convert(value: object) -> object:
        try:
            return str(UUID(cast("str", value)))
        except ValueError:
            raise ValueError(f"column {path!r} is {value!r} in a row, which is no UUID") from None

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
