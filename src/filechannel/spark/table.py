"""The messages of one channel as a table: which columns there are, and batches of them."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Self, final

import msgspec
import pyarrow as pa
from pyspark.sql.types import LongType, StructType

from .._channel.schema import Record, Schema
from .._errors import CorruptRecordError, DecodeError
from .._format import Columns, read_record
from .._format.columns import Plan, Result
from .._format.layout import CONTROL_RECORD, RECORD_HEADER_SIZE
from .._offset import Offset
from .._storage.spans import Window
from .schema import PAYLOAD, Column, columns_of, field_plans, payload_column

METADATA = [Column(name, LongType(), pa.int64(), False, ("int", False, ())) for name in ("offset", "sequence")]


@final
class Table:
    """Columns of a channel's messages: all of them, or some."""

    def __init__(self, codec: str, schema: Schema, columns: list[Column], metadata: list[Column]) -> None:
        self._codec = codec
        self._schema = schema
        self._columns = columns
        self._metadata = metadata

    @classmethod
    def of(cls, codec: str, schema: Schema, *, metadata: bool) -> Self:
        """Return every column; `NoColumnError` names a field that can have none, `ValueError` a name that is taken."""
        columns = columns_of(schema) if codec in ("msgpack", "json") else [payload_column()]
        taken = {column.name for column in columns} & {extra.name for extra in METADATA}
        if metadata and taken:
            raise ValueError(f"option includeMetadata: messages have a field {min(taken)!r} themselves")
        return cls(codec, schema, columns, METADATA if metadata else [])

    def only(self, names: list[str]) -> Table:
        """Return some of the columns; the message's own come first. `payload` can always be asked for, alone."""
        known = {PAYLOAD: payload_column()} | {column.name: column for column in self._columns + self._metadata}
        missing = [name for name in names if name not in known]
        if missing:
            raise ValueError(f"messages have no field {missing[0]!r}; there are {', '.join(known)}")
        extra = [column for column in self._metadata if column.name in names]
        wanted = [known[name] for name in names if known[name] not in extra]
        return Table(self._codec, self._schema, wanted, extra)

    @property
    def names(self) -> list[str]:
        """The names of the columns, in order."""
        return [column.name for column in self._columns + self._metadata]

    @property
    def spark(self) -> StructType:
        """The table as Spark describes it."""
        return StructType([column.spark_field for column in self._columns + self._metadata])

    @property
    def arrow(self) -> pa.Schema:
        """The table as Arrow describes it."""
        return pa.schema([column.arrow_field for column in self._columns + self._metadata])

    @property
    def _record(self) -> Record | None:
        """What the messages are, if they have fields that are columns."""
        root = self._schema.root
        return self._schema.records[root.name or ""] if root.kind == "record" and not self._is_whole else None

    @property
    def _is_whole(self) -> bool:
        return [column.name for column in self._columns] == [PAYLOAD] and self._columns[0] == payload_column()

    def _plan(self) -> Plan | None:
        if self._is_whole:
            return None
        record = self._record
        return self._columns[0].plan if record is None else ("struct", False, field_plans(record, self._columns))

    # Batches

    def batches(self, windows: Iterable[Window], sequence: int, most: int) -> Iterator[pa.RecordBatch]:
        """Return the messages of some windows, in batches of at most so many; *sequence* is that of the first.

        Raises `CorruptRecordError` or `DecodeError`, naming the offset, after everything before it.
        """
        columns = Columns(self._plan())
        for window in windows:
            position, offset = window.position, window.offset
            while position < window.stop:
                try:
                    reached, _ = self._take(columns, window, position, offset, most - columns.length)
                except ValueError as error:
                    if columns.length:
                        yield self._batch(columns, sequence)
                    raise _what_is_wrong(window, position, offset, str(error)) from None
                position, offset = reached, Offset(offset + reached - position)
                if columns.length >= most:
                    sequence += columns.length
                    yield self._batch(columns, sequence - columns.length)
        if columns.length:
            yield self._batch(columns, sequence)

    def _take(self, columns: Columns, window: Window, position: int, offset: Offset, most: int) -> tuple[int, int]:
        if self._codec != "json" or self._is_whole:
            return columns.take(window.buffer, position, window.stop, offset, most)
        # JSON has no parser here: one by one, by way of objects.
        word, payload = read_record(window.buffer, position, window.stop, offset)
        if not word & CONTROL_RECORD:
            columns.put(msgspec.msgpack.encode(msgspec.json.decode(payload)), offset)
        return position + RECORD_HEADER_SIZE + len(payload), not word & CONTROL_RECORD

    def _batch(self, columns: Columns, sequence: int) -> pa.RecordBatch:
        length = columns.length
        result, offsets = columns.finish()
        arrays = [_array(column.arrow, inner) for column, inner in self._results(result)]
        for extra in self._metadata:
            if extra.name == "offset":
                arrays.append(pa.Array.from_buffers(pa.int64(), length, [None, pa.py_buffer(offsets)]))
            else:
                numbers = struct.pack(f"<{length}q", *range(sequence, sequence + length))
                arrays.append(pa.Array.from_buffers(pa.int64(), length, [None, pa.py_buffer(numbers)]))
        return pa.RecordBatch.from_arrays(arrays, schema=self.arrow)

    def _results(self, result: Result) -> list[tuple[Column, Result]]:
        """Return each column with what it has become: a record has its fields in its own order."""
        record = self._record
        if record is None:
            return [(column, result) for column in self._columns]
        names = [column.name for column in self._columns]
        order = [field.name for field in record.fields if field.name in names]
        found = dict(zip(order, result[5], strict=True))
        return [(column, found[column.name]) for column in self._columns]


def _array(kind: pa.DataType, result: Result) -> pa.Array:
    length, nulls, validity, offsets, data, inner = result
    buffers = [None if each is None else pa.py_buffer(each) for each in (validity, offsets, data)]
    if pa.types.is_struct(kind):
        children = [_array(kind.field(index).type, each) for index, each in enumerate(inner)]
        return pa.Array.from_buffers(kind, length, [buffers[0]], nulls, children=children)
    if pa.types.is_map(kind):
        entries = pa.struct([kind.key_field, kind.item_field])
        pairs = [_array(kind.key_type, inner[0]), _array(kind.item_type, inner[1])]
        child = pa.Array.from_buffers(entries, inner[0][0], [None], 0, children=pairs)
        return pa.Array.from_buffers(kind, length, buffers[:2], nulls, children=[child])
    if pa.types.is_list(kind):
        return pa.Array.from_buffers(kind, length, buffers[:2], nulls, children=[_array(kind.value_type, inner[0])])
    needed = [buffers[0], buffers[2]] if buffers[1] is None else buffers
    return pa.Array.from_buffers(kind, length, needed, nulls)


def _what_is_wrong(window: Window, position: int, offset: Offset, reason: str) -> Exception:
    """Tell a damaged record from one that is whole and does not fit."""
    try:
        _, payload = read_record(window.buffer, position, window.stop, offset)
    except ValueError:
        return CorruptRecordError(window.name, offset, reason)
    return DecodeError(offset, Offset(offset + RECORD_HEADER_SIZE + len(payload)), reason, payload)
