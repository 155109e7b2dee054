"""Reading channels as a stream. Spark's checkpoint stores the progress; a consumer name shows it to other processes.

Spark asks for the newest offset and passes the offset up to which it has processed everything. That is the
acknowledgement: Spark calls `commit` only while it plans the next batch, and never for the last one.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from ..._offset import LogPosition
from ..open_channels import find_channels
from ..source_options import ReadOptions, matching
from .followed_consumer import Followed
from .read_tasks import Task, plan, read
from .stream_offset import Progress, position_in, segment_in

_SEARCH_SECONDS: Final = 1.0  # seconds between two searches for new channels


@final
class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the messages since the last batch. Lives as long as its query, in a process of its own."""

    def __init__(self, options: ReadOptions, columns: StructType) -> None:
        self._options = options
        self._columns = columns
        self._followed: dict[str, Followed] | None = None
        """The open channels by their ids; only in the process that plans batches."""
        self._target: dict[str, LogPosition] | None = None
        """Where the query ends, if it ends by itself."""
        self._next_search = 0.0
        """When to search for new channels that match the glob, by the monotonic clock."""

    def __getstate__(self) -> object:
        """Pickle only what other processes need to read."""
        return self._options, self._columns

    def __setstate__(self, state: tuple[ReadOptions, StructType]) -> None:
        self.__init__(*state)

    def _channels(self) -> dict[str, Followed]:
        if self._followed is None:
            self._followed = {}
            for path in self._options.paths:
                self._follow(path, self._followed)
        return self._followed

    def _follow(self, path: Path, channels: dict[str, Followed]) -> None:
        followed = Followed(path, self._options)
        same = channels.get(followed.id)
        if same is not None:
            followed.close()
            raise ValueError(
                f"option path: {same.store.path} and {path} are the same channel, {followed.id}, or one is a copy of "
                "the other: read one of them, or each in its own query"
            )
        channels[followed.id] = followed

    def _follow_new_channels(self, channels: dict[str, Followed]) -> None:
        """Follow the channels that were created since and match the glob."""
        if self._options.glob is None or self._target is not None or time.monotonic() < self._next_search:
            return
        self._next_search = time.monotonic() + _SEARCH_SECONDS
        known = {followed.store.path for followed in channels.values()}
        for path in matching(self._options.glob):
            if path not in known:
                find_channels(self._options, self._columns, only=path)  # the query fails if it has other columns
                self._follow(path, channels)

    # The methods that Spark calls, under Spark's names

    def initialOffset(self) -> Progress:  # noqa: N802
        """Return where a query without a checkpoint starts."""
        return {key: followed.checkpoint_entry(followed.begin()) for key, followed in self._channels().items()}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the batch size limit that the options set."""
        if self._options.max_records is not None:
            return ReadMaxRows(self._options.max_records)
        return ReadAllAvailable() if self._options.max_bytes is None else ReadMaxBytes(self._options.max_bytes)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """End the query at the current end of the channels."""
        self._target = {key: followed.latest() for key, followed in self._channels().items()}

    def latestOffset(self, start: Progress, limit: ReadLimit) -> Progress:  # noqa: N802
        """Return where the next batch ends. Acknowledges everything before *start*, which Spark has processed."""
        channels = self._channels()
        self._follow_new_channels(channels)
        begins = self._begins(start)
        ends = self._target or {key: followed.latest() for key, followed in channels.items()}
        for key, begin in begins.items():
            channels[key].acknowledge(begin)
        behind = [key for key, begin in begins.items() if begin.offset < ends[key].offset]
        # Return the given entry unchanged where nothing was sent: Spark compares entries, and any difference starts a
        # batch.
        found = {key: start.get(key) or channels[key].checkpoint_entry(begin) for key, begin in begins.items()}
        for key in behind:
            end = ends[key]
            if not isinstance(limit, ReadAllAvailable):
                # At least one message of each channel, so that no channel falls behind because of the others.
                records, size = (
                    None if whole is None else max(1, whole // len(behind))
                    for whole in (self._options.max_records, self._options.max_bytes)
                )
                end = channels[key].bounded(begins[key], end, records, size)
            found[key] = channels[key].checkpoint_entry(end)
        return found

    def reportLatestOffset(self) -> Progress:  # noqa: N802
        """Return where the channels end. Spark shows it in the progress of the query."""
        return {key: followed.checkpoint_entry(followed.latest()) for key, followed in self._channels().items()}

    def partitions(self, start: Progress, end: Progress) -> Sequence[InputPartition]:
        """Split a batch into spans of about the same size, at record boundaries."""
        channels, begins, options = self._channels(), self._begins(start), self._options
        parts = None if options.partitions is None else -(-options.partitions // len(channels))
        tasks: list[Task] = []
        for key in end:
            begin, stop = begins.get(key), position_in(end, key)
            if begin is None:
                raise self._unknown(key)
            if begin.offset < stop.offset:
                tasks += plan(channels[key].store, begin, stop, parts)
        return tasks

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the messages of a span as Arrow batches."""
        assert isinstance(partition, Task)
        return read(self._options, self._columns, partition)

    def commit(self, end: Progress) -> None:
        """Do nothing: `latestOffset` acknowledges."""

    def stop(self) -> None:
        """Close the channels. Consumers keep their stored positions."""
        for followed in (self._followed or {}).values():
            followed.close()
        self._followed = None

    # Where a batch starts

    def _begins(self, start: Progress) -> dict[str, LogPosition]:
        """Return where the next batch of each channel starts: at its oldest message if *start* does not name it."""
        channels = self._channels()
        for key in start:
            if key not in channels:
                raise self._unknown(key)
        return {
            key: followed.check(position_in(start, key), segment_in(start, key)) if key in start else followed.oldest()
            for key, followed in channels.items()
        }

    def _unknown(self, key: str) -> ValueError:
        paths = ", ".join(map(str, self._options.paths))
        return ValueError(
            f"the checkpoint refers to channel {key}, which is not at {paths}: "
            "let the option 'path' name it again, or start again with another checkpointLocation"
        )
