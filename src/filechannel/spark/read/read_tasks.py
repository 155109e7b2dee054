"""What tasks read: spans of the log of a channel, each turned into Arrow batches wherever its task runs.

Planning and reading run in different processes, perhaps on different hosts. What crosses is the options, the columns,
the offsets and what they are offsets in.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from .._errors import CorruptRecordError
from .._storage.index import Mark
from .._storage.spans import Span, expired, split, windows
from .._storage.store import Store
from .channels import find_channels, opened_to_read
from .identity import Identity, check_channel, naming_host
from .options import ReadOptions

_BYTES_A_TASK: Final = 256 << 20  # a task begins and ends with some ten milliseconds in which nothing is read
_FEWEST_BYTES: Final = 16 << 20  # that are worth a task of their own


@final
class Task(InputPartition):
    """One span, for one task."""

    def __init__(self, path: Path, span: Span, identity: Identity) -> None:
        super().__init__(None)
        self.path = path
        self.span = span
        self.identity = identity

    def __repr__(self) -> str:
        return f"Task({str(self.path)!r}, {self.span.start}..{self.span.stop})"


def plan(store: Store, start: Mark, stop: Mark, parts: int | None) -> list[Task]:
    """Cut what lies between two places into spans of about the same size, at the boundaries of records."""
    parts = parts or tasks_for(stop.offset - start.offset, os.cpu_count() or 1)
    return [Task(store.path, span, Identity.of(store, span)) for span in split(store, start, stop, parts)]


def tasks_for(size: int, cores: int) -> int:
    """Return how many tasks are best: few, and no core without one in the last turn. Cores are those of the driver."""
    by_size = -(-size // _BYTES_A_TASK)
    if by_size > cores:
        return -(-by_size // cores) * cores
    return max(1, min(cores, -(-size // _FEWEST_BYTES)))


def read(options: ReadOptions, asked: StructType, task: Task) -> Iterator[pa.RecordBatch]:
    """Return the messages of a span as Arrow batches.

    Raises `ChannelMismatchError` before the first row if the path leads to another channel here, `CorruptRecordError`
    or `DecodeError` after everything before it, `DataExpiredError` if it was removed since.
    """
    span = task.span
    with naming_host(), opened_to_read(task.path, options) as store:
        task.identity.check(store, span)
        channel = find_channels(options, asked, only=task.path)[0]
        check_channel(task.path, task.identity.channel, channel.id)  # it was read apart from the store
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
                # Perhaps it was compressed meanwhile, and its file written anew: damage is what is there at once.
                span = Span(error.offset, span.stop, sequence)
