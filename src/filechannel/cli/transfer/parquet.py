"""Writes messages to Parquet files and reads them back, with the same columns as in Spark."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Final, cast

import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import UNSET
from pyspark.sql.types import StructType

from ..._channel.lifecycle.channel_description import Description
from ..._channel.schema import MOST_DEFAULT_BYTES, Node, Schema, affordable_defaults
from ..._errors import CodecError
from ..._offset import LogPosition, Offset
from ..._storage.log_spans import Span
from ..._storage.store import Store
from ...spark.arrow_table import Table
from ...spark.channel_identity import Identity
from ...spark.read.read_tasks import Task, read
from ...spark.source_options import ReadOptions
from ...spark.spark_schema import PAYLOAD, PAYLOAD_PLAN, NoColumnError, columns_of
from ...spark.write.encode_rows import Rows
from ..ui.failures import Failure
from .export_header import KEY, described_by, header_of

_ROWS: Final = 50_000  # at once
_MOST_BYTES: Final = 64 << 20  # of columns and defaults that such rows may have without anything in the messages
_MOST_COLUMNS: Final = 10_000
_BYTES_A_VALUE: Final = 8
_DEEPEST: Final = 64  # as in `_format.columns`


def write_parquet(
    draft: Path, description: Description, store: Store, begin: LogPosition, end: LogPosition
) -> Iterator[tuple[int, Offset]]:
    """Write the messages between two log positions. Yield after each batch how many were added, up to which offset."""
    rows = _ROWS if description.is_bytes else _rows_at_once(description.schema)
    try:
        table = Table.of(description.manifest.codec, description.schema)
    except NoColumnError as error:
        raise Failure(f"{error.field or 'the message'} is {error.type_name}, which Parquet has no type for") from error
    options = ReadOptions.of_batch({"path": str(store.path), "arrowBatchRecords": str(rows)})
    span = Span(begin.offset, end.offset, begin.sequence)
    schema = table.arrow.with_metadata({KEY: header_of(description).decode()})
    with pq.ParquetWriter(draft, schema, compression="zstd") as writer:
        total = max(1, end.sequence - begin.sequence)
        done = 0
        tasks = [Task(store.path, span, Identity.of(store, span))] if begin.offset < end.offset else []
        for batch in chain.from_iterable(read(options, table.spark, task) for task in tasks):
            writer.write_batch(batch)
            done += batch.num_rows
            yield batch.num_rows, Offset(begin.offset + (end.offset - begin.offset) * done // total)


def _rows_at_once(schema: Schema) -> int:
    """Return how many rows fit into memory if messages lack all fields, and defaults are in their place.

    `Failure` if there are too many columns, or defaults are too large. The schema may be an attacker's: a few kilobytes
    of it can mean any number of columns.
    """
    affordable, columns, size = affordable_defaults(schema), 0, 0
    pending = [(schema.root, 0, frozenset[str]())]
    while pending:
        node, depth, around = pending.pop()
        columns += 1
        if columns > _MOST_COLUMNS:
            raise Failure(f"messages have more than {_MOST_COLUMNS:,} columns, which is too many for Parquet")
        if depth > _DEEPEST:
            raise Failure(f"messages have more than {_DEEPEST} nested types, too many for Parquet")
        if node.kind != "record":
            pending += [(part, depth + (node.kind != "union"), around) for part in _parts(node)]
            continue
        name = node.name or ""
        record = schema.records[name]
        for position, field in enumerate(record.fields if name not in around else ()):  # else it has no column
            if not field.required and field.default is not UNSET:
                if position not in affordable[name]:
                    raise Failure(
                        f"{record.name}.{field.name} has a default that is too large for every row of a table, or the "
                        f"defaults of {record.name} have more than {MOST_DEFAULT_BYTES:,} bytes: export JSON lines"
                    )
                size += _largest(field.default)
            pending.append((field.type, depth + 1, around | {name}))
    return max(1, min(_ROWS, _MOST_BYTES // (_BYTES_A_VALUE * columns + size)))


def _parts(node: Node) -> tuple[Node, ...]:
    """Return the types inside of one that have columns of their own."""
    if node.kind == "union":
        others = tuple(argument for argument in node.arguments if argument.kind != "none")
        return others if len(others) == 1 else ()
    return node.arguments[:1] if node.kind == "tuple" else node.arguments


def _largest(default: object) -> int:
    """Return how many bytes a default can have in a row."""
    if isinstance(default, str):
        return len(default)
    return MOST_DEFAULT_BYTES if default and isinstance(default, list | dict) else 0


def described_by_parquet(file: Path, path: Path) -> Description | None:
    """Return the description of the messages in a file, for a channel at a path; None if the file has none."""
    with _reading(file):
        metadata = pq.read_schema(file).metadata or {}
    header = metadata.get(KEY.encode())
    return None if header is None else described_by(header, path)


@contextmanager
def _reading(file: Path) -> Generator[None]:
    try:
        yield
    except pa.ArrowInvalid as error:
        raise Failure(f"{file} is not a Parquet file: {error}") from error


def read_parquet(file: Path, description: Description) -> Iterator[tuple[list[bytes], float]]:
    """Yield the payloads of the messages in a file, and the fraction that was read.

    Raise `Failure` for invalid rows.
    """
    with _reading(file):
        opened = pq.ParquetFile(file)
    with opened as source:
        convert = _conversion(description, source.schema_arrow.names)
        done, total = 0, max(1, source.metadata.num_rows)
        for batch in source.iter_batches(_ROWS):
            try:
                payloads = convert(batch)
            except (ValueError, CodecError) as error:  # Arrow's errors are ValueErrors, too
                raise Failure(f"rows {done + 1} to {done + batch.num_rows} are not messages: {error}") from error
            done += batch.num_rows
            yield payloads, done / total


def _conversion(description: Description, names: list[str]) -> Callable[[pa.RecordBatch], list[bytes]]:
    """Return a function that converts rows to payloads. Each payload is checked by decoding it like a receiver."""
    if not description.is_bytes:
        _rows_at_once(description.schema)
    check = description.open_spec().payloads().check
    known = {column.name: column for column in columns_of(description.schema)}
    if names == [PAYLOAD] and (description.is_bytes or known[PAYLOAD].plan is PAYLOAD_PLAN):

        def as_they_are(batch: pa.RecordBatch) -> list[bytes]:
            payloads = cast("list[bytes]", batch.column(PAYLOAD).cast(pa.binary()).to_pylist())
            for payload in payloads:
                check(payload)
            return payloads

        return as_they_are
    unknown = [name for name in names if name not in known]
    if unknown:
        raise Failure(f"column {unknown[0]!r} is not a field of the channel's messages; there are {', '.join(known)}")
    columns = [known[name] for name in names]
    try:
        rows = Rows(description.manifest.codec, description.schema, StructType([each.spark_field for each in columns]))
    except ValueError as error:
        raise Failure(str(error)) from error
    schema = pa.schema([column.arrow_field for column in columns])

    def by_row(batch: pa.RecordBatch) -> list[bytes]:
        arrays = [batch.column(column.name).cast(column.arrow) for column in columns]
        payloads = rows.encode(pa.RecordBatch.from_arrays(arrays, schema=schema))
        for payload in payloads:
            check(payload)
        return payloads

    return by_row
