"""Messages as a Parquet file and back. What they look like as a table is the same as for Spark."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Final, cast

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.types import StructType

from .._channel.untyped import Description
from .._errors import CodecError
from .._offset import Offset
from .._storage.index import Mark
from .._storage.spans import Span
from .._storage.store import Store
from ..spark.identity import Identity
from ..spark.options import ReadOptions
from ..spark.rows import Rows
from ..spark.schema import PAYLOAD, PAYLOAD_PLAN, NoColumnError, columns_of
from ..spark.table import Table
from ..spark.tasks import Task, read
from .failures import Failure
from .header import KEY, described_by, header_of

_ROWS: Final = 50_000  # at once


def write_parquet(
    draft: Path, description: Description, store: Store, begin: Mark, end: Mark
) -> Iterator[tuple[int, Offset]]:
    """Write what lies between two places, and return again and again how many messages were added, up to where."""
    try:
        table = Table.of(description.manifest.codec, description.schema)
    except NoColumnError as error:
        raise Failure(f"{error.field or 'the message'} is {error.type_name}, which Parquet has no type for") from error
    options = ReadOptions.of_batch({"path": str(store.path), "arrowBatchRecords": str(_ROWS)})
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


def described_by_parquet(file: Path, path: Path) -> Description | None:
    """Return what the messages in a file are, for a channel at a path; None if it does not say."""
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
    """Return the payloads of the messages in a file, and how much of it was read; `Failure` for what is none."""
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
    """Return what turns rows with certain columns into payloads; each is checked as a receiver would."""
    check = description.recipe().payloads().check
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
