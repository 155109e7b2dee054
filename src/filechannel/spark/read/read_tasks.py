"""The tasks of a read: each turns one span of a channel's log into Arrow batches, on the executor that runs it.

Planning and reading run in different processes, perhaps on different hosts. The options, the columns, the offsets and
the identity of the channel and its segments are sent from one to the other.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from ..._errors import CorruptRecordError
from ..._offset import LogPosition
from ..._storage.log_spans import Span, expired, split, windows
from ..._storage.store import Store
from ..channel_identity import Identity, check_channel, naming_host
from ..open_channels import find_channels, opened_to_read
from ..source_options import ReadOptions

_BYTES_A_TASK: Final = 256 << 20  # a task needs some ten milliseconds to start and to end
_FEWEST_BYTES: Final = 16 << 20  # the smallest amount for which a task of its own pays off


@final
class Task(InputPartition):
    """One span of the log, read by one task."""

    def __init__(self, path: Path, span: Span, identity: Identity) -> None:
        super().__init__(None)
        self.path = path
        self.span = span
        self.identity = identity

    def __repr__(self) -> str:
        return f"Task({str(self.path)!r}, {self.span.start}..{self.span.stop})"


def plan(store: Store, start: LogPosition, stop: LogPosition, parts: int | None) -> list[Task]:
    """Split the log between two positions into spans of about the same size, at record boundaries."""
    parts = parts or tasks_for(stop.offset - start.offset, os.cpu_count() or 1)
    return [Task(store.path, span, Identity.of(store, span)) for span in split(store, start, stop, parts)]


def tasks_for(size: int, cores: int) -> int:
    """Return the best number of tasks: few, but enough that no core of the driver idles in the last round."""
    by_size = -(-size // _BYTES_A_TASK)
    if by_size > cores:
        return -(-by_size // cores) * cores
    return max(1, min(cores, -(-size // _FEWEST_BYTES)))


def read(options: ReadOptions, asked: StructType, task: Task) -> Iterator[pa.RecordBatch]:
    """Return the messages of a span as Arrow batches.

    Raises `ChannelMismatchError` before the first row if the path leads to another channel here. Raises
    `CorruptRecordError` or `DecodeError` after all rows before it, and `DataExpiredError` if the data was removed
    since.
    """
    span = task.span
    with naming_host(), opened_to_read(task.path, options) as store:
        task.identity.check(store, span)
        channel = find_channels(options, asked, only=task.path)[0]
        check_channel(task.path, task.identity.channel, channel.id)  # the manifest was read separately from the store
        table = channel.table
        while True:
            sequence = span.sequence
            try:
                for batch in table.batches(windows(store, span), sequence, options.batch_records):
                    yield batch
                    sequence += batch.num_rows
                return
            except CorruptRecordError as error:
                gone = expired(store, error.offset, sequence)
                if gone is not None:
                    raise gone from None
                if not store.segments.drop_reused() and error.offset == span.start:
                    raise
                # The segment may have been compressed during the read, and its file recycled. Damage at the first
                # record of a new attempt is real, so the next attempt starts at the failed record.
                span = Span(error.offset, span.stop, sequence)
