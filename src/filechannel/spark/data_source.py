"""The data source `format("filechannel")`, and reading as a batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from .open_channels import find_channels, opened_to_read
from .read.filters import can_push, kept, narrowed
from .read.read_bounds import bounds
from .read.read_tasks import Task, plan, read
from .read.stream import StreamReader
from .source_options import ReadOptions, WriteOptions
from .write.sink import BatchWriter, StreamWriter, prepare, refuse_overwrite


@final
class ChannelSource(DataSource):
    """The data source `format("filechannel")`: a channel as an append-only table."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the data source in `format(...)`."""
        return "filechannel"

    def schema(self) -> StructType:
        """Return the columns of the channel's messages, from its manifest or the option `type`."""
        return find_channels(ReadOptions.of_either(self.options))[0].table.spark

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a batch reader of these columns, which may be a subset."""
        options = ReadOptions.of_batch(self.options)
        table = find_channels(options, schema)[0].table
        return FilteringReader(options, schema, table.arrow) if options.push_filters else BatchReader(options, schema)

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802 - the name is Spark's
        """Return a streaming reader of these columns. It resumes from the checkpoint of the query."""
        options = ReadOptions.of_stream(self.options)
        find_channels(options, schema)
        return StreamReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """Return a writer that appends a frame."""
        refuse_overwrite(overwrite)
        options = WriteOptions.of_batch(self.options)
        return BatchWriter(options, schema, prepare(options, schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802 - the name is Spark's
        """Return a writer that appends each batch of a query exactly once."""
        refuse_overwrite(overwrite)
        options = WriteOptions.of_stream(self.options)
        return StreamWriter(options, schema, prepare(options, schema))


@final
class BatchReader(DataSourceReader):
    """Reads the messages between two log positions."""

    def __init__(self, options: ReadOptions, columns: StructType, filters: Sequence[Filter] = ()) -> None:
        """`can_push` holds for each of the *filters*."""
        self._options = options
        self._columns = columns
        self._filters = filters

    def partitions(self) -> Sequence[InputPartition]:
        """Split the channels into spans of about the same size, at record boundaries."""
        return [task for path in self._options.paths for task in self._plan(path)]

    def _plan(self, path: Path) -> list[Task]:
        options = self._options
        parts = None if options.partitions is None else -(-options.partitions // len(options.paths))
        with opened_to_read(path, options) as store:
            start, stop = narrowed(store, *bounds(store, options), self._filters)
            return plan(store, start, stop, parts)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the messages of a span as Arrow batches."""
        if not isinstance(partition, Task):
            return iter(())  # Spark reads a table without partitions as if it had one partition, None
        return kept(read(self._options, self._columns, partition), self._filters)


@final
class FilteringReader(DataSourceReader):
    """Reads the rows that pass the pushed filters. Spark rejects such a reader unless filter pushdown is enabled."""

    def __init__(self, options: ReadOptions, columns: StructType, arrow: pa.Schema) -> None:
        self._options = options
        self._columns = columns
        self._arrow = arrow
        self._filters: list[Filter] = []

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:  # noqa: N802 - the name is Spark's
        """Keep the filters that Arrow can evaluate, and return the others to Spark."""
        self._filters = [each for each in filters if can_push(each, self._arrow)]
        return [each for each in filters if each not in self._filters]

    def partitions(self) -> Sequence[InputPartition]:
        """Split the range that filters on offset and sequence leave into spans."""
        return self._reader.partitions()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the rows of a span that pass the filters."""
        return self._reader.read(partition)

    @property
    def _reader(self) -> BatchReader:
        return BatchReader(self._options, self._columns, self._filters)
