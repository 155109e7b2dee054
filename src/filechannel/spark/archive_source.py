"""Beyond one host: finished segments in an archive, put there from the channel's machine and read anywhere.

There are two ways to a file system. Arrow's works in every process, so `format("filechannel")` can use it on workers.
Hadoop's is known to the JVM alone: the driver plans and copies by it, and workers get whole files from Spark itself.
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
from .._maintenance.shipping import Shipped, ship_segments
from .._storage.archive import archived_path, open_archive
from .._storage.compressed import CompressedSegment
from .._storage.remote import HeldFiles
from .._storage.segment import Header, SegmentLimits
from .._storage.spans import Span, windows_of
from .._storage.store import Store
from .arrow_files import ArrowFiles
from .channels import channel_at, opened
from .hadoop_files import HadoopFiles
from .options import ReadOptions, load_type
from .places import bounds
from .table import Table


def ship(
    path: str | PathLike[str],
    archive: str,
    *,
    spark: SparkSession | None = None,
    consumer: str | None = None,
    verify: bool = False,
    tell: Callable[[int, int], object] = lambda _done, _all: None,
) -> Shipped:
    """Copy the finished segments of a channel to an archive, from where they are read without the channel.

    *archive* is a URI that Arrow knows (`file`, `s3`, `gs`, `abfs`, `hdfs`), or with a *spark* session any that Hadoop
    does. What is there already stays; what was cut off is copied again. *consumer* registers a name: then nothing is
    removed from the channel before it was shipped. *verify* reads all that is there, too. *tell* is called with how
    many segments are done, of how many. The channel may be in use.

    Blocks until it is done. Killed, it leaves nothing that a reader would take for a segment; the next call goes on.
    Raises `ValueError` if that is the archive of another channel, `CorruptRecordError` for what cannot be shipped.
    """
    files, root = ArrowFiles.of(archive) if spark is None else HadoopFiles.of(archive, spark)
    with opened(Path(path).absolute(), readonly=False) as store:
        return ship_segments(store, files, root, consumer=consumer, verify=verify, tell=tell)


def read_archive(
    spark: SparkSession,
    archive: str,
    *,
    schema: StructType | str | None = None,
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """Return an archive as a table, wherever Hadoop can reach it: workers need neither a mount nor Arrow's way there.

    *schema* has the columns that are wanted, and *options* are those of a batch: `type`, `startingOffset`,
    `endingOffset`, `includeMetadata`, `arrowBatchRecords`. Whole segments are read, a task one at a time. Where Arrow
    knows the file system, `format("filechannel").option("archive", ...)` reads less, and splits finer.
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
    """Return which part of which file is wanted, and the header that the file has."""
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
    """Return what Spark calls with rows that have a file each; `mapInArrow` would do the same, and needs pandas."""

    class Decode:
        def eval(self, files: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
            yield from decode.rows(files)

    return Decode


@final
@dataclass(frozen=True)
class _Decode:
    """Turns the files of an archive into the rows of a table, where a task runs."""

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
        for place, content in zip(files.column("path"), files.column("content"), strict=True):
            path = Path(cast("str", place.as_py()))
            (span, header), held = self.spans[path.name], HeldFiles(path, cast("pa.BinaryScalar", content).as_buffer())
            segment = CompressedSegment.open(held, path, self.limits)
            if segment.header != header:
                wanted, found = (
                    f"channel {self.channel} with a segment of id {each.id:08x}" for each in (header, segment.header)
                )
                raise ChannelMismatchError(path, wanted, found, socket.gethostname())
            yield from table.batches(windows_of(segment, span), span.sequence, options.batch_records)
