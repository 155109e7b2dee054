"""Describes to the native `RowEncoder` how Arrow columns become messages without a Python object for each value.

Columns without such a description (a shape) are encoded through Python objects in `encode_rows`: arrays that may lack
a field, columns with 64-bit offsets, and maps with float keys.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias, final

import msgspec
import pyarrow as pa

from ..._channel.schema import Field, Node, Record, Schema
from ..._format.arrow import RowEncoder
from ..._format.arrow.rows import LEFT_OUT, REFUSED, WRITTEN, Shape, Values
from ..._storage.log.batch_parts import Records

Gather: TypeAlias = Callable[[pa.Array], Values]
"""Returns the buffers of a column and of its nested columns, in the order of its shape."""

_PLAIN: Final[dict[str, tuple[dict[pa.DataType, int], str]]] = {
    "bool": ({pa.bool_(): 0}, "bool"),
    "int": ({pa.int8(): 1, pa.int16(): 2, pa.int32(): 4, pa.int64(): 8}, "int"),
    "float": ({pa.float32(): 4, pa.float64(): 8}, "float"),
    "str": ({pa.string(): 0}, "string"),
    "uuid": ({pa.string(): 0}, "uuid"),
    "bytes": ({pa.binary(): 0}, "binary"),
    "bytearray": ({pa.binary(): 0}, "binary"),
    "memoryview": ({pa.binary(): 0}, "binary"),
    "date": ({pa.date32(): 0}, "date"),
}
"""For each kind of field: the column types it accepts, each with the number of its shape, and the kind of the shape."""
_LISTS: Final = ("list", "set", "frozenset", "vartuple", "tuple")


class _NoShapeError(Exception):
    """The columns have no shape: they have to be encoded through Python objects."""


class _ColumnShape(NamedTuple):
    """The shape of a column, and the function that returns its buffers."""

    shape: Shape
    gather: Gather


@final
class Encoder:
    """Encodes record batches that have given columns."""

    def __init__(self, shape: Shape | None, gather: Callable[[pa.RecordBatch], Values]) -> None:
        self._encoder = RowEncoder(shape)
        self._gather = gather

    @classmethod
    def whole(cls, name: str) -> Encoder:
        """Return an encoder that copies the values of a column unchanged."""
        return cls(None, lambda batch: _gather_text(batch.column(name)))

    @classmethod
    def of(cls, schema: Schema, names: Sequence[str], given: pa.Schema) -> Encoder | None:
        """Return an encoder of the columns to MessagePack; None if they have to be encoded through Python objects."""
        types = {name: given.field(name).type for name in names}
        walk = _Walk(schema)
        try:
            if schema.root.kind == "record":
                shape, gathers = walk.fields(schema.records[schema.root.name or ""], types, REFUSED)
                return cls(shape, lambda batch: _gather_rows(batch, gathers))
            shape, gather = walk.column_shape(schema.root, types[names[0]])
            return cls(shape, lambda batch: gather(batch.column(names[0])))
        except _NoShapeError:
            return None

    def encode(self, batch: pa.RecordBatch) -> tuple[Records, int]:
        """Return the messages of a batch and the length of the longest. Raise `ValueError` for an invalid row."""
        content, longest = self._encoder.encode(self._gather(batch))
        return Records(batch.num_rows, content), longest


class _Walk:
    """Finds the shapes of schema nodes."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema

    def column_shape(self, node: Node, given: pa.DataType, null: int = REFUSED) -> _ColumnShape:
        """Return the shape with which a column is encoded as a schema node.

        *null* is the meaning of null if the node is not nullable.
        """
        if node.kind == "union":
            null = WRITTEN if any(argument.kind == "none" for argument in node.arguments) else null
            node = next(argument for argument in node.arguments if argument.kind != "none")
        if node.kind in _LISTS:
            return self._list(node, given, null)
        if node.kind == "dict":
            return self._map(node, given, null)
        if node.kind == "record":
            return self._struct(self._schema.records[node.name or ""], given, null)
        kind, number = _scalar(node, given)
        texts = tuple(map(msgspec.msgpack.encode, node.values))
        gather = _gather_text if kind in ("string", "binary", "uuid") else _gather_plain
        return _ColumnShape((kind, number, null, texts, ()), gather)

    def _list(self, node: Node, given: pa.DataType, null: int) -> _ColumnShape:
        if not isinstance(given, pa.ListType):
            raise _NoShapeError
        item = self.column_shape(node.arguments[0], given.value_type)
        size = len(node.arguments) if node.kind == "tuple" else 0
        return _ColumnShape(("list", size, null, (), ((b"", item.shape),)), _gather_list(item.gather))

    def _map(self, node: Node, given: pa.DataType, null: int) -> _ColumnShape:
        if not isinstance(given, pa.MapType):
            raise _NoShapeError
        key, value = (
            self.column_shape(node.arguments[0], given.key_type),
            self.column_shape(node.arguments[1], given.item_type),
        )
        if key.shape[0] == "float":
            raise _NoShapeError  # as a key, 0.0 and -0.0 are the same
        fields = ((b"", key.shape), (b"", value.shape))
        return _ColumnShape(("map", 0, null, (), fields), _gather_map(key.gather, value.gather))

    def _struct(self, record: Record, given: pa.DataType, null: int) -> _ColumnShape:
        if not isinstance(given, pa.StructType):
            raise _NoShapeError
        types = {given.field(index).name: given.field(index).type for index in range(given.num_fields)}
        shape, gathers = self.fields(record, {field.name: types[field.name] for field in record.fields}, null)
        return _ColumnShape(shape, _gather_struct(gathers))

    def fields(
        self, record: Record, types: Mapping[str, pa.DataType], null: int
    ) -> tuple[Shape, list[tuple[str, Gather]]]:
        """Return how columns become a record. The columns are in the order of its fields."""
        known = {field.name: field for field in record.fields}
        columns = [(known[name], self._field(known[name], given)) for name, given in types.items()]
        if record.array_like:
            if any(column.shape[2] == LEFT_OUT for _, column in columns):
                raise _NoShapeError
            fields = tuple((b"", column.shape) for _, column in columns)
        else:
            fields = tuple((msgspec.msgpack.encode(field.wire_name), column.shape) for field, column in columns)
        shape: Shape = ("struct", int(record.array_like), null, _tag(record), fields)
        return shape, [(field.name, column.gather) for field, column in columns]

    def _field(self, field: Field, given: pa.DataType) -> _ColumnShape:
        may_be_absent = not field.required and field.default is msgspec.UNSET
        return self.column_shape(field.type, given, LEFT_OUT if may_be_absent else REFUSED)


def _tag(record: Record) -> tuple[bytes, ...]:
    """Return the encoded tag with which a record starts."""
    if record.tag is None:
        return ()
    tag = msgspec.msgpack.encode(record.tag)
    return (tag,) if record.array_like else (msgspec.msgpack.encode(record.tag_field) + tag,)


def _scalar(node: Node, given: pa.DataType) -> tuple[str, int]:
    kind = node.kind
    if kind in ("enum", "literal"):
        kind = "str" if isinstance(node.values[0], str) else "int"
    if kind in _PLAIN and given in _PLAIN[kind][0]:
        return _PLAIN[kind][1], _PLAIN[kind][0][given]
    if kind == "decimal" and isinstance(given, pa.Decimal128Type) and given.scale >= 0:
        return "decimal", given.scale
    if kind == "datetime" and isinstance(given, pa.TimestampType) and given.unit == "us":
        return ("moment" if given.tz is None else "timestamp"), 0
    raise _NoShapeError


# From Arrow columns to their buffers


def _validity(column: pa.Array) -> pa.Buffer | None:
    return column.buffers()[0] if column.null_count else None


def _gather_plain(column: pa.Array) -> Values:
    return len(column), column.offset, _validity(column), None, column.buffers()[1], ()


def _gather_text(column: pa.Array) -> Values:
    _, offsets, data = column.buffers()
    return len(column), column.offset, _validity(column), offsets, data, ()


def _gather_list(item: Gather) -> Gather:
    def gather(column: pa.Array) -> Values:
        assert isinstance(column, pa.ListArray)
        return len(column), column.offset, _validity(column), column.buffers()[1], None, (item(column.values),)

    return gather


def _gather_map(key: Gather, value: Gather) -> Gather:
    def gather(column: pa.Array) -> Values:
        assert isinstance(column, pa.MapArray)
        pairs = key(column.keys), value(column.items)
        return len(column), column.offset, _validity(column), column.buffers()[1], None, pairs

    return gather


def _gather_struct(gathers: list[tuple[str, Gather]]) -> Gather:
    def gather(column: pa.Array) -> Values:
        assert isinstance(column, pa.StructArray)
        inner = tuple(inside(column.field(name)) for name, inside in gathers)  # field() applies the column's offset
        return len(column), column.offset, _validity(column), None, None, inner

    return gather


def _gather_rows(batch: pa.RecordBatch, gathers: list[tuple[str, Gather]]) -> Values:
    return batch.num_rows, 0, None, None, None, tuple(gather(batch.column(name)) for name, gather in gathers)
