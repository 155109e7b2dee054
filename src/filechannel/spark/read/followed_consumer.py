"""A channel that a stream reads: its open store, and its consumer if the options name one."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import final

from ..._channel.subscription.start_position import resolve_start
from ..._maintenance.background.maintenance_thread import MAINTENANCE
from ..._offset import LogPosition
from ..._storage.consumers.cursor import Cursor
from ..._storage.log_spans import expired
from ..._storage.open_stores import STORES
from ..._storage.store import Store
from ..._storage.writable_store import writable
from ..channel_identity import header_at, segment_mismatch
from ..open_channels import open_store
from ..source_options import ReadOptions
from .stream_offset import Known, checkpoint_entry


@final
class Followed:
    """A channel that a stream reads, in the process that plans the batches."""

    def __init__(self, path: Path, options: ReadOptions) -> None:
        self._options = options
        self._cursor: Cursor | None = None
        self._checked: LogPosition | None = None
        # The owner of a consumer name writes its stored position, so the store must be writable.
        self.store: Store = open_store(path, readonly=options.consumer is None)
        self.id: str = self.store.manifest.id
        if options.consumer is not None:
            try:
                self._cursor = writable(self.store).cursors.open(options.consumer)
            except BaseException:
                STORES.close(self.store)
                raise
            MAINTENANCE.register(writable(self.store))

    def close(self) -> None:
        """Close the channel. The consumer stays registered and keeps its stored position."""
        if self._cursor is not None:
            writable(self.store).cursors.close(self._cursor)
        STORES.close(self.store)

    def begin(self) -> LogPosition:
        """Return where a new query starts, and store that position for the consumer."""
        position = None if self._cursor is None else self._cursor.position
        if self._options.start is None and position is not None:
            return self.check(position.log_position)
        while True:
            log_position = resolve_start(self.store, self._options.start or "earliest", "option startingOffset")
            if self._store_position(log_position):
                self._checked = log_position
                return log_position

    def _store_position(self, log_position: LogPosition) -> bool:
        """Store a log position for the consumer and retain the data there.

        Return False if it was reclaimed first.
        """
        if self._cursor is None:
            return True
        self._cursor.store(log_position.offset, log_position.sequence, time.time_ns())
        return writable(self.store).low_watermark.retain_from(log_position.offset)

    def checkpoint_entry(self, log_position: LogPosition) -> dict[str, int]:
        """Return the checkpoint entry of a log position."""
        return checkpoint_entry(log_position, header_at(self.store, log_position.offset - 1))

    def check(self, log_position: LogPosition, segment: Known | None = None) -> LogPosition:
        """Return the log position of a checkpoint; raise an error if it is not valid any more.

        *segment* is the segment before it: raises `ChannelMismatchError` if another segment has taken its place.
        """
        if self._checked is None or self._checked.offset != log_position.offset:
            self._check_segment(segment)
            gone = expired(self.store, log_position.offset, log_position.sequence)
            if gone is not None:
                raise gone
            try:
                self._checked = self.store.lookup.at(log_position.offset)
            except ValueError as error:
                raise ValueError(
                    f"the checkpoint does not belong to the channel at {self.store.path}: {error}; "
                    "start again with another checkpointLocation"
                ) from None
        return self._checked

    def _check_segment(self, known: Known | None) -> None:
        if known is None or known.begin < self.store.control.oldest_offset:
            return  # the segment was removed
        found = header_at(self.store, known.begin)
        if found is None or found.id == known.id or found.created == known.created:
            return
        if found.begin == known.begin or self.store.segments.get(found.begin).limit > known.begin:
            expected = replace(found, begin=known.begin, id=known.id)
            raise segment_mismatch(self.store, expected, f"segment {found.begin} of id {found.id:08x}")

    def acknowledge(self, log_position: LogPosition) -> None:
        """Store a new position for the consumer. Segments that no consumer needs any more can then be reclaimed."""
        position = None if self._cursor is None else self._cursor.position
        if self._cursor is None or (position is not None and position.offset == log_position.offset):
            return
        if position is None or position.offset > log_position.offset:
            # The consumer is new, or moves back because an older checkpoint was restored. `check` found that the data
            # is there.
            self._store_position(log_position)
            return
        self._cursor.store(log_position.offset, log_position.sequence, time.time_ns())
        if self.store.segments.covering(position.offset) != self.store.segments.covering(log_position.offset):
            self.store.events.maintenance_due()

    def oldest(self) -> LogPosition:
        """Return the log position of the oldest message."""
        return self.store.lookup.earliest()

    def latest(self) -> LogPosition:
        """Return the log position of the next message to be sent."""
        return self.store.lookup.latest()

    def bounded(self, begin: LogPosition, end: LogPosition, records: int | None, size: int | None) -> LogPosition:
        """Return where a batch ends that has at most *records* messages and not many more than *size* bytes."""
        if size is not None and end.offset - begin.offset > size:
            end = self.store.lookup.at_or_after(begin.offset + size)
        if records is not None and end.sequence - begin.sequence > records:
            end = self.store.lookup.numbered(begin.sequence + records)
        self._checked = end
        return end
