"""Giving up the oldest segments, so that dying at any step leaves nothing half done that the next one cannot finish.

In this order: positions on disk, so that no consumer comes back from a power cut before what is gone; the decision,
which everybody sees at once and which moves the oldest offset; the checkpoint, so that after a power cut nobody looks
for what is gone; the files; and the word that lets other processes look at the directory again. Whoever dies after the
decision leaves files that begin before the oldest offset: these are removed by whoever comes next.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import final

from .._errors import Busy, CorruptRecordError, FileChannelError, StorageError
from .._format import scan_records
from .._offset import Offset
from .control import Control
from .cursors import Cursors
from .flush import Flusher, briefly
from .index import last_mark_at_or_before
from .log import Log
from .places import Places
from .registry import Registry
from .segments import Segments
from .upkeep import Upkeep

_MOST = 32  # segments that wait to be removed
_logger = logging.getLogger("filechannel")


@final
class Reclaim:
    """Removes what nobody needs any more. For whose turn it is to maintain the channel.

    `Busy` if another process keeps us waiting, which may have been stopped: then the rest is done another time.
    """

    def __init__(
        self,
        control: Control,
        segments: Segments,
        places: Places,
        registry: Registry,
        upkeep: Upkeep,
        log: Log,
        cursors: Cursors,
        flusher: Flusher,
    ) -> None:
        self._control = control
        self._segments = segments
        self._places = places
        self._registry = registry
        self._upkeep = upkeep
        self._log = log
        self._cursors = cursors
        self._flusher = flusher
        self.before_removal: Callable[[Offset], object] = lambda _: None
        """Called with the writer word before the oldest offset moves: for whatever else speaks of what will be gone."""
        self.on_moved: Callable[[], object] = lambda: None
        """Called after the oldest offset has moved, without the word."""

    def up_to(self, wanted: Offset, is_free: Callable[[Offset], bool], *, patiently: bool) -> bool:
        """Remove everything before a segment, or at the end of the log all of it; False if it is needed after all.

        *is_free* looks once more whether nobody needs it; who comes after that look is not overlooked. *patiently*:
        leave it to whoever writes to bring finished segments to disk, and remove less than is *wanted* before that.
        """
        oldest = self._on_disk(wanted, patiently)
        self._cursors.flush_everybody()
        noted = self._registry.note()
        if not is_free(oldest):
            return False
        with self._log.writing(briefly()):
            if not self._is_boundary(oldest):
                return False
            self.before_removal(oldest)
            if not self._registry.decide(oldest, noted):
                return False
        self.on_moved()
        self.finish()
        return True

    def overtake(self, oldest: Offset) -> None:
        """Let a segment be the oldest, whoever has not passed what lies before: a full channel drops it.

        For senders: the caller holds the writer word. The files are removed later, by whose turn it is.
        """
        self.before_removal(oldest)
        self._registry.overrule(oldest)

    def keep_up(self) -> None:
        """Remove what was dropped here and now if there is much of it: then nobody else keeps up with the senders."""
        if len(self._stale()) <= _MOST:
            return
        try:
            self._upkeep.in_turn(self.finish)
        except Busy:
            pass  # somebody is at it
        except (FileChannelError, OSError) as error:
            self._upkeep.count_error()
            _logger.error("%s: what was dropped could not be removed: %s", self._segments.directory, error)

    def _stale(self) -> list[Offset]:
        oldest = self._control.oldest_offset
        return [begin for begin in self._segments.begins if begin < oldest]

    def _on_disk(self, wanted: Offset, patiently: bool) -> Offset:
        """Return where the next checkpoint may say that the log begins.

        Between two batches, so that one of which the beginning is gone does not lose its end in a power cut; or before
        the last checkpoint, since what that covers is on disk.
        """
        found = self._covered(wanted)
        if found > self._control.oldest_offset:
            return found
        if patiently:
            raise Busy
        _tolerating(self._flusher.flush, lambda: self._covered(wanted) > self._control.oldest_offset)
        return self._covered(wanted)

    def _covered(self, wanted: Offset) -> Offset:
        if wanted == self._control.write_offset or self._log.is_between_batches(wanted) or self._ends_batch(wanted):
            return wanted
        checkpoint = self._control.checkpoint()
        limit = wanted if checkpoint is None else min(wanted, checkpoint.offset)
        return self._segments.covering(limit) or Offset(0)

    def _ends_batch(self, end: Offset) -> bool:
        """Tell whether the records before the begin of a segment are whole batches."""
        begin = self._segments.covering(end - 1)
        if begin is None:
            return False
        try:
            segment = self._segments.get(begin)
            stop = self._segments.end_of(begin, end)
            if stop > segment.limit:
                return False  # another one was in between, and is missing
            mark = last_mark_at_or_before(self._places.marks(segment), stop - 1)
        except CorruptRecordError:
            return False
        start = begin if mark is None else mark.offset
        content, first = segment.span(start, stop)
        last = first + stop - start
        return scan_records(content, first, last, start)[0] == last

    def _is_boundary(self, offset: Offset) -> bool:
        """Tell whether a segment begins here; the last one is finished if it ends here."""
        if offset == self._log.writer.pending == self._control.write_offset:
            self._log.finish_segment()
            return True
        return offset in self._segments.begins

    def finish(self) -> None:
        """Do what is left to do for what is decided, by us or by somebody who died."""
        self._log.catch_up()
        if self._registry.is_decided:
            with self._log.writing(briefly()):
                self._registry.carry_out()
        oldest, stale = self._control.oldest_offset, self._stale()
        if not stale:
            return
        self._say_on_disk(oldest)
        size = sum(self._segments.end_of(begin, oldest) - begin for begin in stale)
        self._segments.remove_before(oldest)
        self._upkeep.count_reclaimed(len(stale), size)
        with self._log.writing(briefly()):
            self._log.announce_change()
        self._log.get_ready()

    def _say_on_disk(self, oldest: Offset) -> None:
        """Write a checkpoint that says where the log begins."""
        checkpoint = self._control.checkpoint()
        if checkpoint is None or checkpoint.oldest < oldest:
            if self._covered(oldest) < oldest:  # dropped in the middle of a batch: the rest of it must be on disk
                _tolerating(self._flusher.flush_if_needed, lambda: self._covered(oldest) == oldest)
            self._flusher.forget_before(self._places.earliest())


def _tolerating(flush: Callable[[], object], is_enough: Callable[[], bool]) -> None:
    """Flush; a flush that failed before is told ever after, and the checkpoint is written all the same."""
    try:
        flush()
    except StorageError:
        if not is_enough():
            raise
