"""`format("filechannel")`: what Spark finds under that name, and reading as a batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from .._channel.source import find_place
from .._errors import UnknownConsumerError
from .._storage.index import Mark
from .._storage.store import Store
from .channels import find_channels, opened
from .options import ReadOptions, WriteOptions
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
        find_channels(options, schema)
        return BatchReader(options, schema)

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802 - the name is Spark's
        """Return what reads these columns again and again, from where it stopped."""
        options = ReadOptions.of_stream(self.options)
        find_channels(options, schema)
        return StreamReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """Return what appends a frame."""
        refuse_overwrite(overwrite)
        options = WriteOptions.of_batch(self.options)
        prepare(options, schema)
        return BatchWriter(options, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802 - the name is Spark's
        """Return what appends the batches of a query, each once."""
        refuse_overwrite(overwrite)
        options = WriteOptions.of_stream(self.options)
        prepare(options, schema)
        return StreamWriter(options, schema)


@final
class BatchReader(DataSourceReader):
    """Reads what is stored between two places."""

    def __init__(self, options: ReadOptions, columns: StructType) -> None:
        self._options = options
        self._columns = columns

    def partitions(self) -> Sequence[InputPartition]:
        """Cut the channels into spans of about the same size, at the boundaries of records."""
        return [task for path in self._options.paths for task in self._plan(path)]

    def _plan(self, path: Path) -> list[Task]:
        options = self._options
        parts = None if options.partitions is None else -(-options.partitions // len(options.paths))
        with opened(path) as store:
            if isinstance(options.stop, datetime):
                stop = store.places.until(options.stop)
            else:
                stop = find_place(store, options.stop, "option endingOffset")
            start = self._start(store)
            if stop.offset < start.offset and options.start is not None:
                raise ValueError(
                    f"option endingOffset={options.stop!s} lies before startingOffset={options.start!s} ({path})"
                )
            return plan(store, start, stop, parts)

    def _start(self, store: Store) -> Mark:
        options = self._options
        if options.start is not None or options.consumer is None:
            return find_place(store, options.start or "earliest", "option startingOffset")
        registration = store.roster.look(options.consumer)
        if registration is None:
            raise UnknownConsumerError(options.consumer, path=store.path)
        return Mark(registration.position.offset, registration.position.sequence, 0)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the messages of a span as Arrow batches."""
        if not isinstance(partition, Task):
            return iter(())  # Spark reads a table without partitions as if it had one, which is None
        return read(self._options, self._columns, partition)
