"""The log: one tail that grows through segments.

`append` is the complete path: it rolls, allocates, marks the index and undoes what it could not finish. The writer's
own `append` is its fast path and comes here when something is not simple.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import RLock

from .._errors import ChannelSealedError, CorruptRecordError, MessageTooLargeError, StorageError
from .._format import Writer
from .._format.layout import CONTROL_RECORD, RECORD_HEADER_SIZE, SEAL
from .._offset import Offset
from .._options import StoredOptions
from .active import ActiveSegment
from .control import Control
from .files import Files
from .jump import Jump
from .segment import Segment
from .segments import Segments
from .unflushed import Unflushed, Work

_OWNER = 1  # the only process that writes


class Log:
    """Appends to the segments of one channel. Any thread may append."""

    def __init__(
        self,
        files: Files,
        path: Path,
        control: Control,
        segments: Segments,
        options: StoredOptions,
        notify: Callable[[], object],
    ) -> None:
        self._files = files
        self._path = path
        self._control = control
        self._segments = segments
        self._max_message_size = options.max_message_size
        self._lock = RLock()
        self._depth = 0
        self.on_finished: Callable[[], object] = _nothing
        """Called after a segment was finished, under the writer word."""
        self.on_closed: Callable[[], object] = _nothing
        """Called when somebody comes too late; may raise an error of its own."""
        self._closed = False
        self.writer: Writer = Writer(control.map, _OWNER, options.max_message_size, self.append, notify)
        self._unflushed = Unflushed()
        self._active = ActiveSegment(files, control, segments, options, self.writer, self._unflushed)
        self._jump = Jump(files, control, segments, self._active, self._unflushed)

    @classmethod
    def open(
        cls,
        files: Files,
        path: Path,
        control: Control,
        segments: Segments,
        options: StoredOptions,
        notify: Callable[[], object],
        beyond: Offset | None = None,
    ) -> Log:
        """Go on where the last writer stopped, dead or alive; after a recovery, far behind an offset."""
        log = cls(files, path, control, segments, options, notify)
        with log.writing():
            if beyond is None:
                log._inherit_unflushed()
                log._discard_unpublished()
            else:
                log._jump.go(beyond, control.write_offset)
        return log

    @contextmanager
    def writing(self) -> Generator[None]:
        """Hold the writer word. Whoever holds it may come in again; `StorageError` if the log is closed."""
        with self._lock:
            if self._closed and not self._depth:
                self.on_closed()
                raise StorageError(f"{self._path} is closed")
            # Only a fast path of another thread can have it here, and only for an instant.
            while not self._depth and not self.writer.lock():
                os.sched_yield()
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
                if not self._depth:
                    self.writer.unlock()

    # Appending

    def append(self, payloads: list[bytes], flags: int = 0) -> Offset:
        """Append payloads as one batch and return the offset of the first. All of them, or an error and none."""
        self._check_sizes(payloads)
        with self.writing():
            if self._control.sealed:
                raise ChannelSealedError(self._path)
            start = self._append(payloads, flags)
        self._tell_waiters()
        return start

    def seal(self) -> None:
        """End the channel with a control record; sealing twice is sealing once."""
        with self.writing():
            if self._control.sealed:
                return
            self._append([SEAL], CONTROL_RECORD)
            self._control.mark_sealed()
        self._tell_waiters()

    def _append(self, payloads: list[bytes], flags: int) -> Offset:
        start = Offset(self.writer.pending)
        try:
            self._write(payloads, flags)
            self.writer.publish()
        except OSError as error:
            self._discard_unpublished()
            raise StorageError(f"{self._path} cannot be written to, nothing was sent: {error}") from error
        except BaseException:
            self._discard_unpublished()
            raise
        return start

    def _tell_waiters(self) -> None:
        if not self.writer.deferred:
            self.writer.tell_waiters()

    def _check_sizes(self, payloads: list[bytes]) -> None:
        limit = self._max_message_size
        longest = self.writer.longest(payloads)
        if longest > limit:
            index = next(index for index, payload in enumerate(payloads) if len(payload) == longest)
            raise MessageTooLargeError(longest, limit, index if len(payloads) > 1 else None)

    def _write(self, payloads: list[bytes], flags: int) -> None:
        index = 0
        if time.time_ns() >= self._active.mark_due and payloads:
            self._make_room(len(payloads[0]))
        while (index := self.writer.write(payloads, index, flags)) < len(payloads):
            self._make_room(len(payloads[index]))

    def _make_room(self, length: int) -> None:
        """Open a window that takes at least one more record of this length."""
        if self._active.segment is None:
            self._discard_unpublished()  # perhaps it was cut short by an error
        if not self._active.fits(length):
            self._roll(RECORD_HEADER_SIZE + length)
        self._active.open_window(length)

    def _roll(self, need: int) -> None:
        """Finish the active segment where we are, and begin another that takes at least so many bytes."""
        begin, sequence, previous_end = self.writer.pending, self.writer.pending_sequence, self.writer.pending
        finished = self._active.segment
        if finished is None:
            self._active.begin(begin, sequence, previous_end, need)
        elif finished.begin == begin:
            # Nothing in it yet and still too small: a larger file takes its name.
            self._active.begin(begin, sequence, finished.header.previous_end, need)
            self._unflushed.discard(finished)
            # After a power cut the name must not lead back to what is made unreadable now.
            self._files.flush_directory(self._segments.directory)
            finished.invalidate()
        else:
            # Before anything is published beyond it: a reader that sees more must see where this one ends.
            finished.finish(begin)
            self._active.begin(begin, sequence, previous_end, need)
            self._unflushed.finished(self._control.tail(deferred=self.writer.deferred))
            self.on_finished()

    def store_marks(self) -> None:
        """Bring the index of the active segment up to date."""
        with self.writing():
            self._active.store_marks()

    def finish_segment(self) -> None:
        """Finish the active segment unless it is empty. The caller holds the word and has nothing pending."""
        segment = self._active.segment
        if segment is not None and segment.begin < self.writer.pending:
            self._active.let_go()
            segment.finish(self.writer.pending)

    def begin_segment(self) -> None:
        """Begin one if there is none. The caller holds the word and has nothing pending."""
        if self._active.segment is None:
            self._discard_unpublished()
        if self._active.segment is None:
            self._roll(0)

    # Taking back

    def _discard_unpublished(self) -> None:
        """Take back whatever lies behind the tail: our own unfinished batch, or that of a writer who died.

        Idempotent, so that dying in here is no different from dying before.
        """
        tail = self._control.tail(deferred=self.writer.deferred)
        self._active.let_go()
        reserved = self._control.reserved_end
        removed = self._remove_beyond(tail.offset)
        segment = self._unfinished_at(tail.offset)
        if segment is not None:
            segment.reopen()
            segment.wipe(tail.offset, reserved)
            self._active.resume(segment, tail.offset)
        if removed or reserved > tail.offset:
            self._forget_on_disk(segment, removed=removed)
        self._control.reserved_end = tail.offset

    def _remove_beyond(self, offset: Offset) -> bool:
        beyond = [begin for begin in self._segments.begins if begin > offset]
        for begin in reversed(beyond):
            self._segments.remove(begin)
        self._unflushed.discard_beyond(offset)
        self._unflushed.names_changed |= bool(beyond)
        return bool(beyond)

    def _unfinished_at(self, offset: Offset) -> Segment | None:
        """Return the segment that goes on at an offset; None if one that begins there has to be made."""
        begin = self._segments.covering(offset)
        segment = None if begin is None else self._segments.get(begin)
        return None if segment is None or (segment.end is not None and segment.end <= offset) else segment

    def _forget_on_disk(self, segment: Segment | None, *, removed: bool) -> None:
        """What was taken back must not come to life after a power cut, in place of what is written there next."""
        try:
            if segment is not None:
                segment.flush()
            if removed:
                self._files.flush_directory(self._segments.directory)
        except OSError as error:
            self._unflushed.failed(error)

    # Going on elsewhere

    def abandon_active(self, cause: OSError) -> None:
        """Go on in a fresh file, far behind every offset used: the active one cannot be flushed any more.

        The caller holds the writer word and has moved the tails back to where the log ends.
        """
        tail = self._control.tail()
        self._active.let_go()
        self._unflushed.clear()
        segment, end = self._unfinished_at(tail.offset), tail.offset
        if segment is not None and segment.begin < tail.offset:
            segment.finish(tail.offset)
        elif segment is not None:
            end = segment.header.previous_end
            self._unflushed.failed(cause)  # until there is another file
        self._jump.go(max(tail.offset, self._control.reserved_end), end)
        self._unflushed.clear_failure(cause)

    # Flushing

    def _inherit_unflushed(self) -> None:
        """Whoever wrote before us may have left segments that are not on disk: all behind the checkpoint."""
        checkpoint = self._control.checkpoint()
        flushed = 0 if checkpoint is None else checkpoint.offset
        for begin in self._segments.begins:
            following = self._segments.following(begin)
            if following is None or following > flushed:
                with suppress(CorruptRecordError):  # that is for whoever reads it
                    self._unflushed.add(self._segments.get(begin))
        self._unflushed.names_changed = True

    def take_unflushed(self) -> Work:
        """Return what a flush has to do. The caller holds the writer word and does it, or gives the log up.

        Raises `OSError` if the disk refused a flush before.
        """
        return self._unflushed.take(self._active.segment)

    @property
    def has_finished(self) -> bool:
        """Whether there are finished segments that the disk may not have."""
        return self._unflushed.has_finished

    def close(self) -> None:
        """Let go of the active segment, and let nobody write any more: the channel may be another process's now."""
        with self._lock:
            self._closed = True
            self._active.let_go()
            self._unflushed.clear()


def _nothing() -> None:
    pass
