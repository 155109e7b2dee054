"""Reading a channel as a stream: Spark's checkpoint says how far it has come, and a consumer's name lets others see it.

Spark asks for the newest offset with the one that it has dealt with in hand. That is the acknowledgement: `commit`
comes only while the next batch is planned, and never for the last one.
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

from .._storage.index import Mark
from .channels import find_channels
from .followed import Followed
from .options import ReadOptions, matching
from .progress import Progress, place_in, segment_in
from .tasks import Task, plan, read

_LOOK: Final = 1.0  # seconds between two looks for more channels


@final
class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads what came since the last batch. One lives as long as its query, in a process of its own."""

    def __init__(self, options: ReadOptions, columns: StructType) -> None:
        self._options = options
        self._columns = columns
        self._followed: dict[str, Followed] | None = None
        """The channels by their ids, open; only where batches are planned."""
        self._target: dict[str, Mark] | None = None
        """How far to go at all, if the query ends by itself."""
        self._next_look = 0.0
        """When to look for more channels of that name, by the monotonic clock."""

    def __getstate__(self) -> object:
        """Take to other processes what it takes to read there."""
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
                "the other: read one of them, or each in a query of its own"
            )
        channels[followed.id] = followed

    def _look_for_more(self, channels: dict[str, Followed]) -> None:
        """Follow the channels that were made since, if they are called like the others."""
        if self._options.glob is None or self._target is not None or time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + _LOOK
        known = {followed.store.path for followed in channels.values()}
        for path in matching(self._options.glob):
            if path not in known:
                find_channels(self._options, self._columns, only=path)  # it has these columns, or the query fails
                self._follow(path, channels)

    # What Spark asks, with names that are its own

    def initialOffset(self) -> Progress:  # noqa: N802
        """Return where a query begins that has no checkpoint yet."""
        return {key: followed.place(followed.begin()) for key, followed in self._channels().items()}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return what the options say about the size of a batch."""
        if self._options.max_records is not None:
            return ReadMaxRows(self._options.max_records)
        return ReadAllAvailable() if self._options.max_bytes is None else ReadMaxBytes(self._options.max_bytes)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Go no further than what is there now."""
        self._target = {key: followed.latest() for key, followed in self._channels().items()}

    def latestOffset(self, start: Progress, limit: ReadLimit) -> Progress:  # noqa: N802
        """Return where the next batch ends; what lies before *start* is dealt with, and need not be kept for us."""
        channels = self._channels()
        self._look_for_more(channels)
        begins = self._begins(start)
        ends = self._target or {key: followed.latest() for key, followed in channels.items()}
        for key, begin in begins.items():
            channels[key].acknowledge(begin)
        behind = [key for key, begin in begins.items() if begin.offset < ends[key].offset]
        # Where nothing came, what was given: Spark compares it, and would begin a batch for any difference.
        found = {key: start.get(key) or channels[key].place(begin) for key, begin in begins.items()}
        for key in behind:
            end = ends[key]
            if not isinstance(limit, ReadAllAvailable):
                # At least one message of each: whoever is behind must not stay so for the others' sake.
                records, size = (
                    None if whole is None else max(1, whole // len(behind))
                    for whole in (self._options.max_records, self._options.max_bytes)
                )
                end = channels[key].bounded(begins[key], end, records, size)
            found[key] = channels[key].place(end)
        return found

    def reportLatestOffset(self) -> Progress:  # noqa: N802
        """Return where the channels end, for whoever looks at the query's progress."""
        return {key: followed.place(followed.latest()) for key, followed in self._channels().items()}

    def partitions(self, start: Progress, end: Progress) -> Sequence[InputPartition]:
        """Cut a batch into spans of about the same size, at the boundaries of records."""
        channels, begins, options = self._channels(), self._begins(start), self._options
        parts = None if options.partitions is None else -(-options.partitions // len(channels))
        tasks: list[Task] = []
        for key in end:
            begin, stop = begins.get(key), place_in(end, key)
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
        """Nothing: see `latestOffset`."""

    def stop(self) -> None:
        """Let go of the channels; consumers stay where they are."""
        for followed in (self._followed or {}).values():
            followed.close()
        self._followed = None

    # Where a batch begins

    def _begins(self, start: Progress) -> dict[str, Mark]:
        """Return where each channel stands; one that was not there when the query last ran is read from its oldest."""
        channels = self._channels()
        for key in start:
            if key not in channels:
                raise self._unknown(key)
        return {
            key: followed.check(place_in(start, key), segment_in(start, key)) if key in start else followed.oldest()
            for key, followed in channels.items()
        }

    def _unknown(self, key: str) -> ValueError:
        paths = ", ".join(map(str, self._options.paths))
        return ValueError(
            f"the checkpoint speaks of channel {key}, which is not at {paths}: "
            "let the option 'path' lead to it again, or begin anew with another checkpointLocation"
        )
