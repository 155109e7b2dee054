"""Archives: ships finished segments from the channel's machine to a file system that other machines can read.

There are two ways to access a file system. Arrow works in every process, so `format("filechannel")` can use it on
workers. Hadoop is available in the JVM only: the driver plans and copies through it, and workers receive whole files
from Spark itself.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import cast, final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, functions
from pyspark.sql.types import StructType

from .._channel.schema import Schema, describe
from .._errors import ChannelMismatchError
from .._maintenance.ship import Shipped, ship_segments
from .._storage.archive.archive import archived_path, open_archive
from .._storage.archive.remote_files import MemoryFiles
from .._storage.log_spans import Span, windows_of
from .._storage.segments.compressed_segment import CompressedSegment
from .._storage.segments.segment import Header, SegmentLimits
from .._storage.store import Store
from .arrow_files import ArrowFiles
from .arrow_table import Table
from .hadoop_files import HadoopFiles
from .open_channels import channel_at, opened_to_write
from .read.read_bounds import bounds
from .source_options import ReadOptions, load_type


def ship(
    path: str | PathLike[str],
    archive: str,
    *,
    spark: SparkSession | None = None,
    consumer: str | None = None,
    verify: bool = False,
    tell: Callable[[int, int], object] = lambda _, __: None,
) -> Shipped:
    """Copy the finished segments of a channel to an archive, which can be read without the channel.

    *archive* is a URI that Arrow knows (`file`, `s3`, `gs`, `abfs`, `hdfs`), or with a *spark* session any that Hadoop
    knows. Segments that are already in the archive are skipped; incomplete copies are replaced. *consumer* registers a
    consumer name: the channel then keeps every segment until it is shipped. *verify* also reads the segments that are
    already in the archive. *tell* is called with the number of segments that are done and the total. The channel may be
    in use.

    Blocks until it is done. If the process is killed, the archive contains nothing that a reader would take for a
    segment; the next call resumes. Raises `ValueError` if the archive belongs to another channel, and
    `CorruptRecordError` for a segment that cannot be shipped.
    """
    files, root = ArrowFiles.of(archive) if spark is None else HadoopFiles.of(archive, spark)
    with opened_to_write(Path(path).absolute()) as store:
        return ship_segments(store, files, root, consumer=consumer, verify=verify, report_progress=tell)


def read_archive(
    spark: SparkSession,
    archive: str,
    *,
    schema: StructType | str | None = None,
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """Return an archive as a table, in any file system that Hadoop can access.

    Workers need neither a mount nor access through Arrow. *schema* selects the columns. *options* are those of a batch
    read: `type`, `startingOffset`, `endingOffset`, `includeMetadata`, `arrowBatchRecords`. Tasks read whole segments,
    one at a time. If Arrow knows the file system, `format("filechannel").option("archive", ...)` reads less and splits
    the archive into smaller tasks.
    """
    files, root = HadoopFiles.of(archive, spark)
    chosen = ReadOptions.of_archive(options or {}, root)
    manifest, stored = channel_at(root, chosen.message_type, files)
    asked = _struct(spark, schema)
    columns = Table.of(manifest.codec, stored, metadata=chosen.metadata, asked=asked).spark
    store = open_archive(files, root)
    try:
        spans = _spans(store, chosen)
    finally:
        store.close()
    if not spans:
        return _empty(spark, columns)
    uris = [f"{archive.rstrip('/')}/segments/{name}" for name in spans]
    content = spark.read.format("binaryFile").load(uris).select("path", "content")
    limits = SegmentLimits.of(manifest.options)
    decode = _table_function(_Decode(manifest.codec, manifest.schema, chosen, columns, manifest.id, spans, limits))
    make = cast("Callable[..., Callable[[object], DataFrame]]", functions.arrow_udtf)  # pyright: ignore[reportUnknownMemberType]
    return make(decode, returnType=columns)(content.asTable())


def _empty(spark: SparkSession, columns: StructType | str) -> DataFrame:
    return spark.createDataFrame([], columns)  # pyright: ignore[reportUnknownMemberType]


def _struct(spark: SparkSession, schema: StructType | str | None) -> StructType | None:
    return _empty(spark, schema).schema if isinstance(schema, str) else schema


def _spans(store: Store, options: ReadOptions) -> dict[str, tuple[Span, Header]]:
    """Return the span to read of each file, and the header that the file must have."""
    start, stop = bounds(store, options)
    spans: dict[str, tuple[Span, Header]] = {}
    for begin in store.segments.begins:
        end = store.segments.get(begin).limit
        if begin < stop.offset and end > start.offset:
            header = store.segments.header(begin)
            sequence = header.first_sequence if begin >= start.offset else start.sequence
            name = archived_path(store.path, begin).name
            spans[name] = Span(max(begin, start.offset), min(end, stop.offset), sequence), header
    return spans


def _table_function(decode: _Decode) -> type:
    """Return a table function that Spark calls with one file per row.

    `mapInArrow` would also work, but needs pandas.
    """

    class Decode:
        def eval(self, files: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
            yield from decode.rows(files)

    return Decode


@final
@dataclass(frozen=True)
class _Decode:
    """Decodes files of an archive into rows, on the worker that runs the task."""

    codec: str
    schema: object
    options: ReadOptions
    columns: StructType
    channel: str
    spans: dict[str, tuple[Span, Header]]
    limits: SegmentLimits

    def rows(self, files: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Return the rows of some files."""
        options, name = self.options, self.options.message_type
        known = Schema.from_json(self.schema) if name is None else describe(load_type(name))
        table = Table.of(self.codec, known, metadata=options.metadata, asked=self.columns)
        for location, content in zip(files.column("path"), files.column("content"), strict=True):
            path = Path(cast("str", location.as_py()))
            (span, header), held = (
                self.spans[path.name],
                MemoryFiles(path, cast("pa.BinaryScalar", content).as_buffer()),
            )
            segment = CompressedSegment.open(held, path, self.limits)
            if segment.header != header:
                wanted, found = (
                    f"channel {self.channel} with a segment of id {each.id:08x}" for each in (header, segment.header)
                )
                raise ChannelMismatchError(path, wanted, found, socket.gethostname())
            yield from table.batches(windows_of(segment, span), span.sequence, options.batch_records)
