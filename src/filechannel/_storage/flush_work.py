"""What a flush has to do, whoever wrote it: this process, one that died before, or others at the same time."""

from __future__ import annotations

from contextlib import suppress
from typing import final

from .._errors import CorruptRecordError
from .._offset import Offset
from .active import ActiveSegment
from .control import Control
from .segment import Segment
from .segments import Segments
from .unflushed import Unflushed, Work


@final
class FlushWork:
    """Finds the segments that the disk may not have. The caller holds the writer word."""

    def __init__(self, control: Control, segments: Segments, active: ActiveSegment, unflushed: Unflushed) -> None:
        self._control = control
        self._segments = segments
        self._active = active
        self._unflushed = unflushed
        self._done = Offset(0)

    def inherit(self) -> None:
        """Whoever wrote before us may have left segments that are not on disk: all behind the checkpoint."""
        checkpoint = self._control.checkpoint()
        flushed = 0 if checkpoint is None else checkpoint.offset
        for begin in self._segments.begins:
            following = self._segments.following(begin)
            if (following is None or following > flushed) and begin >= self._control.given_up:
                with suppress(CorruptRecordError):  # that is for whoever reads it
                    if isinstance(segment := self._segments.get(begin), Segment):  # else it is on disk
                        self._unflushed.add(segment)
        self._unflushed.change_names()

    def take(self) -> Work:
        """Return what a flush has to do. The caller holds the writer word and does it, or gives the log up.

        Raises `OSError` if the disk refused a flush before.
        """
        given_up = self._control.given_up
        flushed = max(self._control.durable_offset, given_up, self._done)
        stored = range(max(self._control.oldest_offset, given_up), self._control.append_offset)
        self._unflushed.keep({begin for begin in self._segments.begins if begin >= given_up}, stored, flushed)
        self._add_written_elsewhere(flushed)
        return self._unflushed.take(self._active.segment)

    def done(self, offset: Offset) -> None:
        """What was taken is on disk, up to an offset: we need not look there again, whatever was given up before."""
        self._done = max(self._done, offset)

    def _add_written_elsewhere(self, flushed: Offset) -> None:
        """Other processes may have written to segments that we never had: all behind what is known to be on disk."""
        begin = self._segments.covering(flushed)
        if begin is None:  # what was there has been removed since
            begin = self._segments.first_from(0)
        while begin is not None:
            if not self._unflushed.knows(begin):
                with suppress(CorruptRecordError):  # that is for whoever reads it
                    segment = self._segments.get(begin)
                    if segment.limit > flushed and isinstance(segment, Segment):
                        self._unflushed.add(segment)
                        self._unflushed.change_names()
            begin = self._segments.following(begin)
