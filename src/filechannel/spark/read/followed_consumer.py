"""A channel that a stream follows: open, with a consumer's name if there is one."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import final

from .._channel.places import find_place
from .._maintenance.worker import WORKER
from .._storage.cursor import Cursor
from .._storage.index import Mark
from .._storage.spans import expired
from .._storage.store import Store
from .._storage.stores import STORES
from .channels import open_store
from .identity import header_at, segment_mismatch
from .options import ReadOptions
from .progress import Known, written


@final
class Followed:
    """A channel that a stream follows, where batches are planned."""

    def __init__(self, path: Path, options: ReadOptions) -> None:
        self._options = options
        self._cursor: Cursor | None = None
        self._checked: Mark | None = None
        # Who has a name writes its position.
        self.store: Store = open_store(path, readonly=options.consumer is None)
        self.id: str = self.store.manifest.id
        if options.consumer is not None:
            try:
                self._cursor = self.store.cursors.open(options.consumer)
            except BaseException:
                STORES.close(self.store)
                raise
            WORKER.look_after(self.store)

    def close(self) -> None:
        """Let go of it; the consumer stays registered where it is."""
        if self._cursor is not None:
            self.store.cursors.close(self._cursor)
        STORES.close(self.store)

    def begin(self) -> Mark:
        """Return where a new query begins, and let the consumer stand there."""
        position = None if self._cursor is None else self._cursor.position
        if self._options.start is None and position is not None:
            return self.check(Mark(position.offset, position.sequence, 0))
        while True:
            mark = find_place(self.store, self._options.start or "earliest", "option startingOffset")
            if self._stand(mark):
                self._checked = mark
                return mark

    def _stand(self, mark: Mark) -> bool:
        """Let the consumer stand at a place, and hold what lies there; False if it was removed in this moment."""
        if self._cursor is None:
            return True
        self._cursor.store(mark.offset, mark.sequence, time.time_ns())
        return self.store.registry.settle(mark.offset)

    def place(self, mark: Mark) -> dict[str, int]:
        """Return a place as the checkpoint keeps it."""
        return written(mark, header_at(self.store, mark.offset - 1))

    def check(self, mark: Mark, segment: Known | None = None) -> Mark:
        """Return a place that a checkpoint has; an error if it is none any more.

        *segment* is the one before it: `ChannelMismatchError` if there is another one in its place.
        """
        if self._checked is None or self._checked.offset != mark.offset:
            self._check_segment(segment)
            gone = expired(self.store, mark.offset, mark.sequence)
            if gone is not None:
                raise gone
            try:
                self._checked = self.store.places.at(mark.offset)
            except ValueError as error:
                raise ValueError(
                    f"the checkpoint does not fit the channel at {self.store.path}: {error}; "
                    "begin anew with another checkpointLocation"
                ) from None
        return self._checked

    def _check_segment(self, known: Known | None) -> None:
        if known is None or known.begin < self.store.control.oldest_offset:
            return  # removed since
        found = header_at(self.store, known.begin)
        if found is None or found.id == known.id or found.created == known.created:
            return
        if found.begin == known.begin or self.store.segments.get(found.begin).limit > known.begin:
            expected = replace(found, begin=known.begin, id=known.id)
            raise segment_mismatch(self.store, expected, f"segment {found.begin} of id {found.id:08x}")

    def acknowledge(self, mark: Mark) -> None:
        """Let the consumer stand behind what was dealt with; segments that nobody needs may go."""
        position = None if self._cursor is None else self._cursor.position
        if self._cursor is None or (position is not None and position.offset == mark.offset):
            return
        if position is None or position.offset > mark.offset:
            # New, or back: an older checkpoint was restored, and what lies there was looked at.
            self._stand(mark)
            return
        self._cursor.store(mark.offset, mark.sequence, time.time_ns())
        if self.store.segments.covering(position.offset) != self.store.segments.covering(mark.offset):
            self.store.on_boundary()

    def oldest(self) -> Mark:
        """Return where the oldest message begins."""
        return self.store.places.earliest()

    def latest(self) -> Mark:
        """Return where the next message will begin."""
        return self.store.places.latest()

    def bounded(self, begin: Mark, end: Mark, records: int | None, size: int | None) -> Mark:
        """Return where a batch ends that has at most so many messages and not much more than so many bytes."""
        if size is not None and end.offset - begin.offset > size:
            end = self.store.places.at_or_behind(begin.offset + size)
        if records is not None and end.sequence - begin.sequence > records:
            end = self.store.places.numbered(begin.sequence + records)
        self._checked = end
        return end
