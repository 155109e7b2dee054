"""What messages look like as a table: Spark's types, Arrow's, and the plan by which the columns are filled.

One walk over the schema of a channel gives all three, so that they cannot disagree.
"""

from __future__ import annotations

from base64 import b64decode
from dataclasses import dataclass
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
from .._format.columns import DECIMAL_SCALE, FieldPlan, Plan

PAYLOAD: Final = "payload"
"""The column of whole messages, as bytes, where there is no better one."""
VALUE: Final = "value"
"""The column of messages that have no fields."""
_DECIMAL_DIGITS: Final = 38


@final
@dataclass(frozen=True, slots=True)
class Column:
    """One column, in the three languages."""

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
    """A type that has no column. It names the field."""

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

    Columns take the names that fields have in Python. A message without fields has one column, `value`; one that Spark
    has no type for, such as a union of Structs, has `payload`, its bytes. Raises `TypeError` naming the field inside a
    message that has no column.
    """
    return StructType([column.spark_field for column in columns_of(describe(message_type))])


def columns_of(schema: Schema) -> list[Column]:
    """Return the columns of a channel's messages; `NoColumnError` naming a field that can have none."""
    root = schema.root
    if root.kind == "record":
        return _Walk(schema).fields(schema.records[root.name or ""], "")
    try:
        return [_Walk(schema).column(VALUE, root, "")]
    except NoColumnError:
        return [payload_column()]


def payload_column() -> Column:
    """Return the column of whole messages."""
    return Column(PAYLOAD, BinaryType(), pa.binary(), False, ("binary", False, ()))


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
_NAIVE: Final = TimestampNTZType(), pa.timestamp("us"), "timestamp"


class _Walk:
    """Turns nodes into columns, and refuses those that have none or never end."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._inside: list[str] = []

    def fields(self, record: Record, path: str) -> list[Column]:
        return [self._field(field, path) for field in record.fields]

    def _field(self, field: Field, path: str) -> Column:
        inner = f"{path}.{field.name}" if path else field.name
        column = self.column(field.name, field.type, inner)
        # What a writer may leave out, and has no default that is known, is null.
        if not field.required and field.default is msgspec.UNSET and not column.nullable:
            kind, _, inside = column.plan
            return Column(column.name, column.spark, column.arrow, True, (kind, True, inside))
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
            raise self._refusal(node, path)  # it contains itself
        self._inside.append(name)
        record = self._schema.records[name]
        columns = self.fields(record, path)
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
    """Return how the fields of a record are found in a message; only those that have one of the columns."""
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
    """Return the default of a field as a message would have it; the schema keeps it as JSON would."""
    if field.default is msgspec.UNSET:
        return None
    default = field.default
    is_bytes = any(node.kind in ("bytes", "bytearray", "memoryview") for node in (field.type, *field.type.arguments))
    if is_bytes and isinstance(default, str):
        default = b64decode(default)
    return msgspec.msgpack.encode(default)
