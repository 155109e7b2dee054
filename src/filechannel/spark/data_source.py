"""`format("filechannel")`: what Spark finds under that name, and reading as a batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from .channels import find_channels, opened_to_read
from .filters import can_push, kept, narrowed
from .options import ReadOptions, WriteOptions
from .places import bounds
from .sink import BatchWriter, StreamWriter, prepare, refuse_overwrite
from .stream import StreamReader
from .tasks import Task, plan, read


@final
class ChannelSource(DataSource):
    """`format("filechannel")`: a channel as a table that grows."""

    @classmethod
    def name(cls) -> str:
        """What it is called in `format(...)`."""
        return "filechannel"

    def schema(self) -> StructType:
        """Return the columns of the channel's messages, as its manifest or the option `type` says."""
        return find_channels(ReadOptions.of_either(self.options))[0].table.spark

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return what reads these columns, which may be fewer than there are."""
        options = ReadOptions.of_batch(self.options)
        table = find_channels(options, schema)[0].table
        return FilteringReader(options, schema, table.arrow) if options.push_filters else BatchReader(options, schema)

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802 - the name is Spark's
        """Return what reads these columns again and again, from where it stopped."""
        options = ReadOptions.of_stream(self.options)
        find_channels(options, schema)
        return StreamReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """Return what appends a frame."""
        refuse_overwrite(overwrite)
        options = WriteOptions.of_batch(self.options)
        return BatchWriter(options, schema, prepare(options, schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802 - the name is Spark's
        """Return what appends the batches of a query, each once."""
        refuse_overwrite(overwrite)
        options = WriteOptions.of_stream(self.options)
        return StreamWriter(options, schema, prepare(options, schema))


@final
class BatchReader(DataSourceReader):
    """Reads what is stored between two places."""

    def __init__(self, options: ReadOptions, columns: StructType, filters: Sequence[Filter] = ()) -> None:
        """*filters* can be pushed."""
        self._options = options
        self._columns = columns
        self._filters = filters

    def partitions(self) -> Sequence[InputPartition]:
        """Cut the channels into spans of about the same size, at the boundaries of records."""
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
            return iter(())  # Spark reads a table without partitions as if it had one, which is None
        return kept(read(self._options, self._columns, partition), self._filters)


@final
class FilteringReader(DataSourceReader):
    """Reads what some filters let pass. Spark refuses one like this unless it is set to ask for it."""

    def __init__(self, options: ReadOptions, columns: StructType, arrow: pa.Schema) -> None:
        self._options = options
        self._columns = columns
        self._arrow = arrow
        self._filters: list[Filter] = []

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:  # noqa: N802 - the name is Spark's
        """Take the filters that can be taken, and return the others."""
        self._filters = [each for each in filters if can_push(each, self._arrow)]
        return [each for each in filters if each not in self._filters]

    def partitions(self) -> Sequence[InputPartition]:
        """Cut what is left by filters on offset and sequence into spans."""
        return self._reader.partitions()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the rows of a span that pass."""
        return self._reader.read(partition)

    @property
    def _reader(self) -> BatchReader:
        return BatchReader(self._options, self._columns, self._filters)
