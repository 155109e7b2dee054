"""The columns of a channel's messages: Spark types, Arrow types, and the plan that fills the columns.

One walk over the schema of a channel produces all three, so that they cannot disagree.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Container, Iterable
from dataclasses import dataclass, replace
from typing import Final, final

import msgspec
import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)
from typing_extensions import TypeForm

from .._channel.schema import Field, Node, Record, Schema, describe
from .._format.arrow.columns import DECIMAL_SCALE, FieldPlan, Plan

PAYLOAD: Final = "payload"
"""The column with the bytes of whole messages, used where messages have no better columns."""
PAYLOAD_PLAN: Final[Plan] = ("binary", False, ())
"""The plan of that column only: it is compared by identity."""
VALUE: Final = "value"
"""The column of messages that have no fields."""
_DECIMAL_DIGITS: Final = 38


@final
@dataclass(frozen=True, slots=True)
class Column:
    """One column: its Spark type, its Arrow type and its plan."""

    name: str
    spark: DataType
    arrow: pa.DataType
    nullable: bool
    plan: Plan

    @property
    def arrow_field(self) -> pa.Field:
        """The column as Arrow describes it."""
        return pa.field(self.name, self.arrow, self.nullable)

    @property
    def spark_field(self) -> StructField:
        """The column as Spark describes it."""
        return StructField(self.name, self.spark, self.nullable)


class NoColumnError(TypeError):
    """A field has a type that no Spark column can represent. The error names the field."""

    def __init__(self, field: str, type_name: str) -> None:
        where = f"field {field!r}" if field else "the message"
        super().__init__(
            f"{where} is {type_name}, which has no type in Spark; "
            f"read whole messages with .schema('{PAYLOAD} binary'), or leave the field out of .schema(...)"
        )
        self.field = field
        self.type_name = type_name


def schema_of(message_type: TypeForm[object]) -> StructType:
    """Return the columns of a message type.

    Columns have the names that the fields have in Python. A message type without fields has one column, `value`. A type
    that Spark cannot represent, such as a union of Structs, has one column, `payload`, with the bytes of the message.
    Raises `TypeError`, naming the field, if a field inside a message cannot be a column.
    """
    return StructType([column.spark_field for column in columns_of(describe(message_type))])


def columns_of(schema: Schema, names: Container[str] | None = None) -> list[Column]:
    """Return all columns of a channel's messages, or those in *names*. `NoColumnError` names a field that has none."""
    root = schema.root
    if root.kind == "record":
        record = schema.records[root.name or ""]
        fields = [field for field in record.fields if names is None or field.name in names]
        return _Walk(schema, root.name).fields(fields, "")
    try:
        return [_Walk(schema).column(VALUE, root, "")]
    except NoColumnError:
        return [payload_column()]


def as_asked(column: Column, asked: StructField) -> Column:
    """Return a column with the requested nullability, also of nested fields. Raise `ValueError` if the type differs.

    The Arrow data must match the declared schema exactly, including nullability, because Spark compares them.
    """
    arrow = _as_asked(column.arrow, column.spark, asked.dataType)
    if arrow is None or (column.nullable and not asked.nullable):
        wanted = f"{asked.dataType.simpleString()}{'' if asked.nullable else ', not null'}"
        found = f"{column.spark.simpleString()}{' or null' if column.nullable else ''}"
        raise ValueError(f"field {column.name!r} is {found}, but .schema(...) has {wanted}: leave it out or cast it")
    return replace(column, spark=asked.dataType, arrow=arrow, nullable=asked.nullable)


def _as_asked(arrow: pa.DataType, own: DataType, asked: DataType) -> pa.DataType | None:
    if isinstance(own, StructType) and isinstance(asked, StructType) and own.names == asked.names:
        parts = [
            _field_as_asked(arrow.field(index), mine.dataType, mine.nullable, other.dataType, other.nullable)
            for index, (mine, other) in enumerate(zip(own, asked, strict=True))
        ]
        known = [part for part in parts if part is not None]
        return pa.struct(known) if len(known) == len(parts) else None
    if isinstance(own, ArrayType) and isinstance(asked, ArrayType) and isinstance(arrow, pa.ListType):
        item = _field_as_asked(
            arrow.value_field, own.elementType, own.containsNull, asked.elementType, asked.containsNull
        )
        return None if item is None else pa.list_(item)
    if isinstance(own, MapType) and isinstance(asked, MapType) and isinstance(arrow, pa.MapType):
        key = _field_as_asked(arrow.key_field, own.keyType, False, asked.keyType, False)
        value = _field_as_asked(
            arrow.item_field, own.valueType, own.valueContainsNull, asked.valueType, asked.valueContainsNull
        )
        return None if key is None or value is None else pa.map_(key, value)
    return arrow if own == asked else None


def _field_as_asked(
    field: pa.Field, own: DataType, may_be_null: bool, asked: DataType, may_be_null_as_asked: bool
) -> pa.Field | None:
    arrow = _as_asked(field.type, own, asked)
    if arrow is None or (may_be_null and not may_be_null_as_asked):
        return None
    return pa.field(field.name, arrow, may_be_null_as_asked)


def payload_column() -> Column:
    """Return the column with the bytes of whole messages."""
    return Column(PAYLOAD, BinaryType(), pa.binary(), False, PAYLOAD_PLAN)


_SCALARS: Final[dict[str, tuple[DataType, pa.DataType, str]]] = {
    "bool": (BooleanType(), pa.bool_(), "bool"),
    "int": (LongType(), pa.int64(), "int"),
    "float": (DoubleType(), pa.float64(), "float"),
    "str": (StringType(), pa.string(), "string"),
    "uuid": (StringType(), pa.string(), "string"),
    "bytes": (BinaryType(), pa.binary(), "binary"),
    "bytearray": (BinaryType(), pa.binary(), "binary"),
    "memoryview": (BinaryType(), pa.binary(), "binary"),
    "datetime": (TimestampType(), pa.timestamp("us", "UTC"), "timestamp"),
    "date": (DateType(), pa.date32(), "date"),
    "decimal": (
        DecimalType(_DECIMAL_DIGITS, DECIMAL_SCALE),
        pa.decimal128(_DECIMAL_DIGITS, DECIMAL_SCALE),
        "decimal",
    ),
}
_NAIVE: Final[tuple[DataType, pa.DataType, str]] = TimestampNTZType(), pa.timestamp("us"), "timestamp"


class _Walk:
    """Converts schema nodes into columns. Rejects types without a column and recursive types."""

    def __init__(self, schema: Schema, root: str | None = None) -> None:
        self._schema = schema
        self._inside = [] if root is None else [root]

    def fields(self, fields: Iterable[Field], path: str) -> list[Column]:
        return [self._field(field, path) for field in fields]

    def _field(self, field: Field, path: str) -> Column:
        inner = f"{path}.{field.name}" if path else field.name
        column = self.column(field.name, field.type, inner)
        # A field that a writer may omit is null if the schema stores no default for it.
        if not field.required and field.default is msgspec.UNSET and not column.nullable:
            kind, _, inside = column.plan
            return replace(column, nullable=True, plan=(kind, True, inside))
        return column

    def column(self, name: str, node: Node, path: str) -> Column:
        nullable = False
        if node.kind == "union":
            others = [argument for argument in node.arguments if argument.kind != "none"]
            nullable = len(others) < len(node.arguments)
            if len(others) != 1:
                raise self._refusal(node, path)
            node = others[0]
        spark, arrow, kind, inside = self._type(node, path)
        return Column(name, spark, arrow, nullable, (kind, nullable, inside))

    def _type(self, node: Node, path: str) -> tuple[DataType, pa.DataType, str, tuple[FieldPlan, ...]]:
        if node.kind in _SCALARS:
            scalar = _NAIVE if node.kind == "datetime" and node.constraints.get("tz") is False else _SCALARS[node.kind]
            return (*scalar, ())
        match node.kind:
            case "enum" | "literal":
                return (*self._scalar_of_values(node, path), ())
            case "list" | "set" | "frozenset" | "vartuple" | "tuple":
                return self._list(node, path)
            case "dict":
                return self._map(node, path)
            case "record":
                return self._struct(node, path)
            case _:
                raise self._refusal(node, path)

    def _scalar_of_values(self, node: Node, path: str) -> tuple[DataType, pa.DataType, str]:
        kinds = {type(value) for value in node.values}
        if kinds == {str}:
            return _SCALARS["str"]
        if kinds == {int}:
            return _SCALARS["int"]
        raise self._refusal(node, path)

    def _list(self, node: Node, path: str) -> tuple[DataType, pa.DataType, str, tuple[FieldPlan, ...]]:
        if not node.arguments or any(argument != node.arguments[0] for argument in node.arguments):
            raise self._refusal(node, path)  # a tuple of different types
        item = self.column("element", node.arguments[0], f"{path}[]")
        plan: FieldPlan = (0, None, f"{path}[]", item.plan)
        return ArrayType(item.spark, item.nullable), pa.list_(item.arrow_field), "list", (plan,)

    def _map(self, node: Node, path: str) -> tuple[DataType, pa.DataType, str, tuple[FieldPlan, ...]]:
        key = self.column("key", node.arguments[0], f"{path} (key)")
        value = self.column("value", node.arguments[1], f"{path}[]")
        if key.nullable:
            raise self._refusal(node, path)
        plans: tuple[FieldPlan, ...] = (
            ("key", None, f"{path} (key)", key.plan),
            ("value", None, f"{path}[]", value.plan),
        )
        return (
            MapType(key.spark, value.spark, value.nullable),
            pa.map_(key.arrow_field, value.arrow_field),
            "map",
            plans,
        )

    def _struct(self, node: Node, path: str) -> tuple[DataType, pa.DataType, str, tuple[FieldPlan, ...]]:
        name = node.name or ""
        if name in self._inside:
            raise self._refusal(node, path)  # a recursive type
        self._inside.append(name)
        record = self._schema.records[name]
        columns = self.fields(record.fields, path)
        self._inside.pop()
        spark = StructType([column.spark_field for column in columns])
        return (
            spark,
            pa.struct([column.arrow_field for column in columns]),
            "struct",
            field_plans(record, columns, path),
        )

    def _refusal(self, node: Node, path: str) -> NoColumnError:
        return NoColumnError(path, self._schema.text(node))


def field_plans(record: Record, columns: list[Column], path: str = "") -> tuple[FieldPlan, ...]:
    """Return how the fields of a record are found in a message. Fields that are not among the columns are skipped."""
    wanted = {column.name: column for column in columns}
    first = 0 if record.tag is None else 1
    return tuple(
        (
            first + position if record.array_like else field.wire_name,
            _fallback(field),
            f"{path}.{field.name}" if path else field.name,
            wanted[field.name].plan,
        )
        for position, field in enumerate(record.fields)
        if field.name in wanted
    )


def _fallback(field: Field) -> bytes | None:
    """Return the default of a field, encoded as in a message. The schema stores defaults in their JSON encoding."""
    if field.default is msgspec.UNSET:
        return None
    default = field.default
    is_bytes = any(node.kind in ("bytes", "bytearray", "memoryview") for node in (field.type, *field.type.arguments))
    if is_bytes and isinstance(default, str):
        default = b64decode(default)
    return msgspec.msgpack.encode(default)
