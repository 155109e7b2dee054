"""The messages of one channel as a table: its columns, and its messages as Arrow batches."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from typing import Final, Self, final

import msgspec
import pyarrow as pa
from pyspark.sql.types import LongType, StringType, StructType

from .._channel.schema import Record, Schema
from .._errors import CorruptRecordError, DecodeError
from .._format import read_record
from .._format.arrow import Columns
from .._format.arrow.columns import Plan, Result
from .._format.layout import CONTROL_RECORD, RECORD_HEADER_SIZE
from .._offset import Offset
from .._storage.log_spans import Window
from .spark_schema import PAYLOAD, PAYLOAD_PLAN, Column, as_asked, columns_of, field_plans, payload_column

OFFSET: Final = "offset"
SEQUENCE: Final = "sequence"
CHANNEL: Final = "channel"
_BATCH_BYTES: Final = 16 << 20  # that a Python worker and the JVM hold at a time
_NUMBER: Final = LongType(), pa.int64(), False, ("int", False, ())
_NUMBERS: Final = [Column(OFFSET, *_NUMBER), Column(SEQUENCE, *_NUMBER)]
_CHANNEL: Final = Column(CHANNEL, StringType(), pa.string(), False, ("string", False, ()))


@final
class Table:
    """All or some columns of a channel's messages, and metadata columns that say where a message was found."""

    def __init__(self, codec: str, schema: Schema, columns: list[Column], extra: list[Column], channel: str) -> None:
        self._codec = codec
        self._schema = schema
        self._columns = columns
        self._extra = {column.name for column in extra}
        self._channel = channel

    @classmethod
    def of(
        cls,
        codec: str,
        schema: Schema,
        *,
        metadata: bool = False,
        channel: str | None = None,
        asked: StructType | None = None,
    ) -> Self:
        """Return a table with every column, or with the requested ones. *channel* is the value of the column `channel`.

        `NoColumnError` names a field that cannot be a column. `ValueError` names a column that is a field and metadata
        at once, is unknown, or has another type.
        """
        names = None if asked is None else asked.names
        is_whole = codec not in ("msgpack", "json") or (names is not None and _wants_whole(schema, names))
        columns = [payload_column()] if is_whole else columns_of(schema, names)
        extra = [*_NUMBERS, *([] if channel is None else [_CHANNEL])] if metadata else []
        taken = {column.name for column in columns} & {column.name for column in extra}
        if taken:
            raise ValueError(f"option includeMetadata: messages already have a field {min(taken)!r}")
        if asked is None:
            return cls(codec, schema, columns + extra, extra, channel or "")
        known = {column.name: column for column in columns + extra}
        for name in asked.names:
            if name not in known:
                raise ValueError(_why_unknown(name, schema, is_whole=is_whole, metadata=metadata))
        chosen = [as_asked(known[field.name], field) for field in asked]
        return cls(codec, schema, chosen, [column for column in extra if column.name in asked.names], channel or "")

    @property
    def spark(self) -> StructType:
        """The table as Spark describes it."""
        return StructType([column.spark_field for column in self._columns])

    @property
    def arrow(self) -> pa.Schema:
        """The table as Arrow describes it."""
        return pa.schema([column.arrow_field for column in self._columns])

    @property
    def _own(self) -> list[Column]:
        """The columns that are fields of the messages."""
        return [column for column in self._columns if column.name not in self._extra]

    @property
    def _record(self) -> Record | None:
        """The record type of the messages, if they have fields."""
        root = self._schema.root
        return self._schema.records[root.name or ""] if root.kind == "record" and not self._is_whole else None

    @property
    def _is_whole(self) -> bool:
        own = self._own
        return self._codec not in ("msgpack", "json") or (len(own) == 1 and own[0].plan is PAYLOAD_PLAN)

    def _plan(self) -> Plan | None:
        if self._is_whole:
            return None
        record = self._record
        return self._own[0].plan if record is None else ("struct", False, field_plans(record, self._own))

    # Batches

    def batches(
        self, windows: Iterable[Window], sequence: int, most: int, size: int = _BATCH_BYTES
    ) -> Iterator[pa.RecordBatch]:
        """Return the messages of some windows in batches of at most *most*; *sequence* is that of the first message.

        The records of a batch have at most *size* bytes together, unless it has only one. Raises `CorruptRecordError`
        or `DecodeError`, naming the offset, after all messages before it.
        """
        columns, filled, damage = Columns(self._plan()), 0, list[CorruptRecordError]()
        for window in _up_to_damage(windows, damage):
            position, offset = window.position, window.offset
            while position < window.stop:
                reach, most_left = window.stop, 1  # the first message of a batch may have any size
                if columns.length:
                    reach, most_left = min(window.stop, position + size - filled), most - columns.length
                try:
                    reached = self._take(columns, window, position, reach, offset, most_left)
                except ValueError as error:
                    if not columns.length:
                        raise _what_is_wrong(window, position, offset, str(error)) from None
                    reached, filled = position, size  # too large for this batch, or invalid: the next batch raises
                filled += reached - position
                position, offset = reached, Offset(offset + reached - position)
                if columns.length >= most or filled >= size:
                    sequence, filled = sequence + columns.length, 0
                    yield self._batch(columns, sequence - columns.length)
        if columns.length:
            yield self._batch(columns, sequence)
        if damage:
            raise damage[0]

    def _take(self, columns: Columns, window: Window, position: int, stop: int, offset: Offset, most: int) -> int:
        """Append up to *most* messages to the columns. Return the position reached."""
        if self._codec != "json" or self._is_whole:
            return columns.take(window.buffer, position, stop, offset, most)[0]
        # The column builder does not parse JSON: convert the messages one by one, through Python objects.
        word, payload = read_record(window.buffer, position, stop, offset)
        if not word & CONTROL_RECORD:
            columns.put(msgspec.msgpack.encode(msgspec.json.decode(payload)), offset)
        return position + RECORD_HEADER_SIZE + len(payload)

    def _batch(self, columns: Columns, sequence: int) -> pa.RecordBatch:
        length = columns.length
        result, offsets = columns.finish()
        found = {column.name: _array(column.arrow, inner) for column, inner in self._results(result)}
        if OFFSET in self._extra:
            found[OFFSET] = pa.Array.from_buffers(pa.int64(), length, [None, pa.py_buffer(offsets)])
        if SEQUENCE in self._extra:
            numbers = array("q", range(sequence, sequence + length))
            found[SEQUENCE] = pa.Array.from_buffers(pa.int64(), length, [None, pa.py_buffer(numbers)])
        if CHANNEL in self._extra:
            found[CHANNEL] = pa.repeat(pa.scalar(self._channel, pa.string()), length)
        return pa.RecordBatch.from_arrays([found[column.name] for column in self._columns], schema=self.arrow)

    def _results(self, result: Result) -> list[tuple[Column, Result]]:
        """Return each column of the messages with its result.

        The results of a record are in the order of its fields.
        """
        record, own = self._record, self._own
        if record is None:
            return [(column, result) for column in own]
        by_name = {column.name: column for column in own}
        order = [by_name[field.name] for field in record.fields if field.name in by_name]
        return list(zip(order, result[5], strict=True))


def _up_to_damage(windows: Iterable[Window], damage: list[CorruptRecordError]) -> Iterator[Window]:
    """Return the windows up to damage. The error is stored in *damage*, to be raised after the messages before it."""
    try:
        yield from windows
    except CorruptRecordError as error:
        damage.append(error)


def _wants_whole(schema: Schema, names: list[str]) -> bool:
    """Return whether `payload` is requested and means the whole message. A field with that name takes precedence."""
    record = schema.records[schema.root.name or ""] if schema.root.kind == "record" else None
    return PAYLOAD in names and (record is None or all(field.name != PAYLOAD for field in record.fields))


def _why_unknown(name: str, schema: Schema, *, is_whole: bool, metadata: bool) -> str:
    if name in (OFFSET, SEQUENCE, CHANNEL) and not metadata:
        return f".schema(...): column {name!r} needs the option includeMetadata=true"
    if is_whole:
        return f".schema(...): {PAYLOAD!r} is the whole message, and cannot be read together with {name!r}"
    record = schema.records[schema.root.name or ""] if schema.root.kind == "record" else None
    fields = [field.name for field in record.fields] if record else [column.name for column in columns_of(schema)]
    return f".schema(...): messages have no field {name!r}; there are {', '.join(fields)}"


def _array(kind: pa.DataType, result: Result) -> pa.Array:
    length, nulls, validity, offsets, data, inner = result
    buffers = [None if each is None else pa.py_buffer(each) for each in (validity, offsets, data)]
    if isinstance(kind, pa.StructType):
        children = [_array(kind.field(index).type, each) for index, each in enumerate(inner)]
        return pa.Array.from_buffers(kind, length, [buffers[0]], nulls, children=children)
    if isinstance(kind, pa.MapType):
        entries = pa.struct([kind.key_field, kind.item_field])
        pairs = [_array(kind.key_type, inner[0]), _array(kind.item_type, inner[1])]
        child = pa.Array.from_buffers(entries, inner[0][0], [None], 0, children=pairs)
        return pa.Array.from_buffers(kind, length, buffers[:2], nulls, children=[child])
    if isinstance(kind, pa.ListType):
        return pa.Array.from_buffers(kind, length, buffers[:2], nulls, children=[_array(kind.value_type, inner[0])])
    needed = [buffers[0], buffers[2]] if buffers[1] is None else buffers
    return pa.Array.from_buffers(kind, length, needed, nulls)


def _what_is_wrong(window: Window, position: int, offset: Offset, reason: str) -> Exception:
    """Return `CorruptRecordError` for a damaged record, and `DecodeError` for an intact one that cannot be decoded."""
    try:
        _, payload = read_record(window.buffer, position, window.stop, offset)
    except ValueError:
        segment = window.segment
        channel = segment.path.parent.parent
        return CorruptRecordError(segment.path.name, offset, segment.explain(offset, reason), path=channel)
    return DecodeError(offset, Offset(offset + RECORD_HEADER_SIZE + len(payload)), reason, payload)
