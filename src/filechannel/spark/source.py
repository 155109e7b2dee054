"""Reading a channel as a table: partitions are spans of the log, and tasks turn them into Arrow batches.

Planning and reading run in different processes. What crosses is the path, the names of the columns and offsets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from .._channel.schema import Schema, describe, find_difference
from .._channel.source import find_place
from .._errors import SchemaMismatchError
from .._storage.files import Files
from .._storage.manifest import Manifest
from .._storage.spans import Span, split, windows
from .._storage.store import Store
from .._storage.stores import STORES
from .options import ReadOptions, load_type
from .table import Table

_BYTES_A_TASK = 32 << 20


@contextmanager
def opened(path: Path) -> Iterator[Store]:
    """Open a channel to read, whatever its type."""
    store = STORES.open(path, check=lambda _: None, new=None, readonly=True, max_mapped_segments=4)
    try:
        yield store
    finally:
        STORES.close(store)


def table_of(options: ReadOptions) -> Table:
    """Return every column of a channel, as the option `type` or else its manifest says."""
    manifest = Manifest.read(Files(), options.path)
    schema = Schema.from_json(manifest.schema)
    if options.message_type is not None:
        asked = describe(load_type(options.message_type))
        difference = find_difference(schema, asked)
        if difference is not None:
            raise SchemaMismatchError(difference.field, difference.expected, difference.found, path=options.path)
        schema = asked
    return Table.of(manifest.codec, schema, metadata=options.metadata)


@final
class ChannelSource(DataSource):
    """`format("filechannel")`: a channel as a table that grows."""

    @classmethod
    def name(cls) -> str:
        """What it is called in `format(...)`."""
        return "filechannel"

    def schema(self) -> StructType:
        """Return the columns of the channel's messages, as its manifest or the option `type` says."""
        options = ReadOptions.parse(self.options)
        return table_of(options).spark

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return what reads these columns, which may be fewer than there are."""
        options = ReadOptions.parse(self.options)
        return BatchReader(options, table_of(options).only(schema.names).names)


@final
class Task(InputPartition):
    """One span, for one task."""

    def __init__(self, span: Span) -> None:
        super().__init__(span)
        self.span = span


@final
class BatchReader(DataSourceReader):
    """Reads what is stored between two places."""

    def __init__(self, options: ReadOptions, columns: list[str]) -> None:
        self._options = options
        self._columns = columns

    def partitions(self) -> Sequence[InputPartition]:
        """Cut the channel into spans of about the same size, at the boundaries of records."""
        with opened(self._options.path) as store:
            stop = find_place(store, self._options.stop, "endingOffset")
            start = find_place(store, self._options.start, "startingOffset")
            parts = self._options.partitions or -(-(stop.offset - start.offset) // _BYTES_A_TASK)
            return [Task(span) for span in split(store, start, stop, max(1, parts))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the messages of a span as Arrow batches."""
        assert isinstance(partition, Task)
        table = table_of(self._options).only(self._columns)
        with opened(self._options.path) as store:
            span = partition.span
            yield from table.batches(windows(store, span), span.sequence, self._options.batch_records)
