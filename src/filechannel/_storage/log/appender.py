"""From one segment to the next: the complete way, and taking note of where the writer has gone on by itself."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import final

from .._format import Writer
from .._offset import Offset
from .active import ActiveSegment
from .control import Control, Tail
from .segments import Segments
from .unflushed import Unflushed

_REMEMBERED = 64  # segments


@final
class Rolling:
    """Finishes segments and begins others. The caller holds the writer word, or at least the log's mutex."""

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
        self._finished = False
        self._between_batches: deque[Offset] = deque(maxlen=_REMEMBERED)
        self.on_finished: Callable[[], object] = lambda: None
        """Called, without the word, after a segment was finished."""

    def roll(self, need: int) -> None:
        """Finish the active segment where we are, and begin another that takes at least so many bytes."""
        self._active.check_place()
        begin, sequence, previous_end = self._writer.pending, self._writer.pending_sequence, self._writer.pending
        finished = self._active.segment
        if finished is None:
            self._active.begin(begin, sequence, previous_end, need)
        elif finished.begin == begin:
            # Nothing in it yet and still too small: a larger file takes its name.
            self._active.begin(begin, sequence, finished.header.previous_end, need)
            # After a power cut the name must not lead back to what is made unreadable now.
            self._segments.flush_names()
            finished.invalidate()
        else:
            # Before anything is published beyond it: a reader that sees more must see where this one ends.
            finished.finish(begin)
            self._active.begin(begin, sequence, previous_end, need)
            tail = self._control.tail(deferred=self._writer.deferred)
            self._unflushed.finished(tail, self._control.oldest_offset)
            if tail.offset == begin:
                self._between_batches.append(Offset(begin))
            self._finished = True
        self._active.announce_change()

    def finish_segment(self) -> None:
        """Finish the active segment unless it is empty. The caller holds the word and has nothing pending."""
        segment = self._active.segment
        if segment is not None and segment.begin < self._writer.pending:
            self._active.let_go()
            segment.finish(self._writer.pending)
            self._active.announce_change()

    def look_for_boundary(self) -> None:
        """Who was interrupted may have finished a segment, and not have said so."""
        tail, active = self._control.tail(deferred=self._writer.deferred), self._active.segment
        if active is None or active.begin == tail.offset:
            self._note_finished(tail)

    def follow(self) -> None:
        """Know of the segment that the writer has gone on to by itself. The caller has the mutex."""
        boundary = self._active.follow()
        if boundary is not None:
            self._note_finished(boundary)
            self._writer.note_gone_on()  # last: whoever is interrupted before it does all of it again

    def _note_finished(self, boundary: Tail) -> None:
        """A segment was finished between two batches."""
        self._unflushed.finished(boundary, self._control.oldest_offset)
        self._between_batches.append(boundary.offset)
        self._finished = True

    def tell_finished(self) -> None:
        """Say that a segment was finished, once."""
        if not self._finished:
            return
        self._finished = False
        try:
            self.on_finished()
        except BaseException:
            self._finished = True  # whoever comes next says it
            raise

    def is_between_batches(self, begin: int) -> bool:
        """Tell whether a segment is known to begin where a batch does: then the log may begin there as well.

        Nothing before it has to be on disk for that, since nothing before it belongs to what is left.
        """
        return begin in self._between_batches
