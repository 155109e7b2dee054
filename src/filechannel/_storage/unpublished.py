"""What lies behind the tail of the log, of our own or of a writer who died, and how it is taken back."""

from __future__ import annotations

from typing import final

from .._errors import StorageError
from .._format import Writer
from .._offset import Offset
from .active import ActiveSegment
from .control import Control
from .segment import Segment
from .segments import Segments
from .unflushed import Unflushed


@final
class Unpublished:
    """Takes back what was not published. The caller holds the writer word."""

    def __init__(
        self,
        control: Control,
        segments: Segments,
        writer: Writer,
        active: ActiveSegment,
        unflushed: Unflushed,
    ) -> None:
        self._control = control
        self._segments = segments
        self._writer = writer
        self._active = active
        self._unflushed = unflushed

    def discard(self) -> None:
        """Take back whatever lies behind the tail: our own unfinished batch, or that of a writer who died.

        Idempotent, so that dying in here is no different from dying before.
        """
        if self._control.owes_jump:  # whoever owes it may have died before it took back what nobody had seen
            self._control.publish(self._control.tail(), deferred=True)
        tail = self._control.tail(deferred=self._writer.deferred)
        self._active.let_go()
        try:
            self._active.check_place()
        except StorageError:
            pass  # the directory is another one by now, and tells nothing about this log
        else:
            self._segments.scan()  # whoever was interrupted may have given a file its name, and not have said so
        reserved = self._control.reserved_end
        removed = self._remove_beyond(tail.offset)
        segment = self.unfinished_at(tail.offset)
        if segment is not None:
            segment.reopen()
            segment.wipe(tail.offset, reserved)
            self._active.resume(segment)
        if removed or reserved > tail.offset:
            self._forget_on_disk(segment, removed=removed)
        self._control.reserved_end = tail.offset
        self._active.announce_change()

    def _remove_beyond(self, offset: Offset) -> bool:
        beyond = [begin for begin in self._segments.begins if begin > offset]
        for begin in reversed(beyond):
            self._segments.remove(begin)
        self._unflushed.discard_beyond(offset)
        if beyond:
            self._unflushed.change_names()
        return bool(beyond)

    def unfinished_at(self, offset: Offset) -> Segment | None:
        """Return the segment that goes on at an offset; None if another one has to be made."""
        return None if self._control.owes_jump else self.reaching(offset)

    def reaching(self, offset: Offset) -> Segment | None:
        """Return the segment that would go on at an offset if its file was any good; None if there is none."""
        begin = self._segments.covering(offset)
        if begin is None or begin < self._control.oldest_offset:  # the latter is being given up, and may be half gone
            return None
        segment = self._segments.get(begin)
        if not isinstance(segment, Segment) or (segment.end is not None and segment.end <= offset):
            return None
        return segment

    def _forget_on_disk(self, segment: Segment | None, *, removed: bool) -> None:
        """What was taken back must not come to life after a power cut, in place of what is written there next."""
        try:
            if segment is not None:
                segment.flush()
            if removed:
                self._segments.flush_names()
        except OSError as error:
            self._unflushed.failed(error)
