"""Purging a channel: removing every stored message, in an order that the next process can finish after a crash."""

from __future__ import annotations

from contextlib import suppress
from typing import final

from .._errors import DiskFullError
from .._offset import LogPosition
from .consumers.cursors import Cursors
from .consumers.low_watermark import LowWatermark
from .control.control_page import Control
from .durability.flusher import Flusher
from .log.log import Log
from .producers.producer_positions import Producers
from .reading.lookup import LogLookup
from .reading.open_readers import OpenReaders
from .segments.catalog import Segments


@final
class Purge:
    """Removes the messages of one channel."""

    def __init__(
        self,
        control: Control,
        segments: Segments,
        lookup: LogLookup,
        readers: OpenReaders,
        low_watermark: LowWatermark,
        log: Log,
        cursors: Cursors,
        producers: Producers,
        flusher: Flusher,
    ) -> None:
        self._control = control
        self._segments = segments
        self._lookup = lookup
        self._readers = readers
        self._low_watermark = low_watermark
        self._log = log
        self._cursors = cursors
        self._producers = producers
        self._flusher = flusher

    def run(self) -> None:
        """Remove every message stored now, and move every consumer of this process past them."""
        log, cursors, flusher = self._log, self._cursors, self._flusher
        flusher.commit()  # flush most of the data while other threads and processes may append
        with flusher.held(), log.writing():
            flusher.commit_with_lock()
            log.appender.finish_segment()
            tail = self._control.tail()
            self._producers.release_before(tail.offset)
            self._control.purge(tail.offset)
            log_position = LogPosition(tail.offset, tail.sequence)
            self._readers.start_over(log_position)
            cursors.start_groups_over(log_position)
            cursors.move_unowned(log_position)
            # On disk before the first file is deleted: after a power cut, recovery must not expect the deleted files.
            flusher.flush_the_rest_with_lock()
            self._segments.remove_before(tail.offset)
            log.appender.announce_change()
            # Another program may have used the disk space: then the next append allocates the segment.
            with suppress(DiskFullError):
                log.begin_segment()
        self._control.reserve.allocate()

    def finish(self) -> None:
        """Repeat what a process that removed segments and died may have left undone."""
        with self._log.writing():
            self._low_watermark.carry_out()
        oldest = self._control.oldest_offset
        if self._segments.begins and self._segments.begins[0] < oldest:
            if self._control.is_purged:  # else consumers that were overtaken get an error
                self._cursors.move_unowned(self._lookup.earliest())
            self._flusher.flush_the_rest()
            self._segments.remove_before(oldest)
