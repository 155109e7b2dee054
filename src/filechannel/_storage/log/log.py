"""The log of one channel: appends records at the tail and rolls from segment to segment.

`Log.append` is the complete path: it acquires the writer lock, learns what other processes did, reserves capacity, and
lets the `Appender` write. The native writer's own `append` is the fast path; it calls `Log.append` whenever it cannot
append without Python.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from ..._errors import (
    Busy,
    ChannelFullError,
    ChannelSealedError,
    ClosedResourceError,
    FileChannelError,
    MessageTooLargeError,
    storage_error,
)
from ..._format import PURE, Guard, Mutex, Writer
from ..._format.layout import CONTROL_RECORD, FLUSHES, RECORD_HEADER_SIZE, SEAL, WRITER_LOCK
from ..._offset import LogPosition, Offset
from ..._options import StoredOptions
from ..._runtime.may_sleep import may_sleep
from ..._runtime.threads import NoThreadError
from ..capacity.backlog import Batch
from ..capacity.reserve_or_drop_oldest import CapacityLimit
from ..control.control_page import Control
from ..control.live_processes import Processes
from ..control.lock_holder import Holder
from ..control.shared_lock import SharedLock
from ..segments.catalog import Segments
from ..segments.dirty_segments import DirtySegments
from ..store_events import StoreEvents
from ..system.os_calls import Files
from .active_segment import ActiveSegment
from .append_and_roll_back import Appender
from .batch_parts import HeaderRecord, Part
from .offset_gap import OffsetGap
from .prepare_next import NextSegment

_logger = logging.getLogger("filechannel")


class Log:
    """Appends to the segments of one channel. Any thread of any process may append.

    What this process knows about the active segment may be out of date. The holder of the writer lock checks that with
    `Writer.current`.
    """

    def __init__(
        self,
        files: Files,
        path: Path,
        control: Control,
        segments: Segments,
        processes: Processes,
        options: StoredOptions,
        capacity: CapacityLimit,
        events: StoreEvents,
        check_directory: Callable[[], object],
    ) -> None:
        """*check_directory* is called before a file is created; it raises if the directory is not the channel's."""
        self._files = files
        self._path = path
        self._control = control
        self._segments = segments
        self._capacity = capacity
        self._events = events
        self._check_directory = check_directory
        self._max_message_size = options.max_message_size
        self._lock = SharedLock(control.map, WRITER_LOCK, processes, self._entered, flushes=FLUSHES)
        self._closed = self._is_closing = False
        self._durability_changed = self._dropped = False
        self.writer: Writer = Writer(
            control.map, processes.own_word, options.max_message_size, self.append, events.message_published.__call__
        )
        self.dirty: DirtySegments = DirtySegments(control, segments)
        self._active = ActiveSegment(
            files,
            control,
            segments,
            options,
            self.writer,
            capacity,
            NextSegment(files, segments, self.writer, events, on_ready=self.prepare_next_segment),
            self._check_may_create,
        )
        self.appender: Appender = Appender(
            files, path, control, segments, options, self.writer, self._lock, self._active, self.dirty
        )
        self._gap = OffsetGap(control, segments, self.appender, self._active, self.dirty)
        events.ring_freed.attach(self.wake_receivers)

    def begin(self, *, alone: bool, beyond: Offset | None) -> None:
        """Resume where the last writer stopped, whether it is alive or dead; after a recovery, well past *beyond*.

        *alone*: no other process has the channel open. Otherwise the first append does this, so that a process that
        only reads need not wait for a stopped writer.
        """
        if not alone:
            self.writer.defer(self._control.deferred)
            return
        with self.writing():
            if beyond is not None:
                self._gap.resume_beyond(beyond, self._control.write_offset)
            else:
                self.dirty.add_inherited()
                self.appender.roll_back()

    def writing(self, may_sleep: Callable[[], bool] | None = None) -> Guard:
        """Hold the writer lock, which is reentrant, in a `with` statement; `StorageError` if the log is closed."""
        return self._lock.held() if may_sleep is None else self._lock.held(may_sleep)

    def _check_may_create(self) -> None:
        self.appender.check_not_forked()
        self._check_directory()

    @property
    def holder(self) -> Holder | None:
        """The process that holds the writer lock; None if it is free."""
        return self._lock.holder

    def abandon(self) -> None:
        """Stop writing, in a child that was forked while its thread was appending: all state belongs to the parent."""
        self._closed = True
        self.appender.abandon()
        self._lock.abandon()

    @property
    def mutex(self) -> Mutex:
        """Excludes the other threads of this process from `writing`; their fast paths take only the lock word."""
        return self._lock.mutex

    def _entered(self, from_the_dead: bool) -> None:
        if self._closed:
            raise ClosedResourceError
        try:
            self._take_over(from_the_dead)
        except OSError as error:
            raise storage_error(f"{self._path} cannot be written to", error) from error

    def _take_over(self, from_the_dead: bool) -> None:
        """Learn what other writers did since this process last held the lock, and clean up after a dead writer."""
        self.appender.update_after_roll()
        if self.writer.deferred != self._control.deferred:
            self.writer.defer(self._control.deferred)
            self._durability_changed = True
        if from_the_dead:
            self.appender.roll_back()
        self.appender.start()
        if not self.writer.current and not self._is_closing:
            self._catch_up()

    def _catch_up(self) -> None:
        """Follow another process that rolled to another segment or changed the options."""
        self._events.options_changed()
        segment = self.appender.unfinished_at(Offset(self.writer.pending))
        if segment is not self._active.segment:
            self._active.leave()
        if segment is not None:
            self._active.bind_segment(segment)
        self.dirty.discard_before(self._control.oldest_offset)

    def release_reclaimed(self, may_sleep: Callable[[], bool]) -> None:
        """Release segments that other processes have reclaimed: an open file would keep its disk space.

        `Busy` if another thread or process holds the writer lock and this thread may not sleep any longer.
        """
        active, oldest = self._active.segment, self._control.oldest_offset
        if (active is not None and active.begin < oldest) or self.dirty.reaches_before(oldest):
            with self.writing(may_sleep):  # acquiring the lock already leaves an active segment that was reclaimed
                self.dirty.discard_before(oldest)

    def set_deferred(self, deferred: bool) -> None:
        """Choose whether a flush publishes records (True) or the append does (False).

        The caller holds the writer lock and the flush lock, and everything is flushed.
        """
        tail = self._control.tail(deferred=self.writer.deferred)
        self._control.publish(tail, deferred=deferred)
        self._control.deferred = deferred
        self.writer.defer(deferred)
        self._durability_changed = False
        self.appender.announce_change()
        self.appender.start()

    # Appending

    def append(self, payloads: list[bytes], header_record: HeaderRecord | None = None) -> Offset:
        """Append payloads as one batch and return its offset. If it raises, none of them was appended."""
        if header_record is None and len(payloads) == 1:
            start = self._fast_roll(payloads[0])
            if start is not None:
                self.wake_receivers()
                return Offset(start)
        self.check_sizes(payloads)
        return self.append_parts([payloads], Batch.of(sum(map(len, payloads)), len(payloads)), header_record)

    def _fast_roll(self, payload: bytes) -> int | None:
        """Append the first record of the next segment if a prepared segment can be used at once; otherwise None.

        Code that runs once in thousands of messages is in no CPU cache, and each Python call then takes microseconds.
        So the writer rolls without Python, and in-process bookkeeping is deferred to `update_after_roll`. The C core
        has already tried this before it calls here, unless a test watches the steps of the roll.
        """
        try:
            return self.writer.fast_roll(payload)
        except BaseException as error:
            with self.writing():
                self.appender.roll_back_or_leave()
            if isinstance(error, (OSError, FileChannelError)):
                return None  # the complete path runs into the same error and reports it
            raise

    def catch_up(self) -> None:
        """Finish the bookkeeping that an append deferred. Called on another thread."""
        if self.writer.pending_roll is not None:
            with self.mutex.held():
                self.appender.update_after_roll()
        self._notify_finished()

    def _notify_finished(self) -> None:
        """Raise `segment_finished` once if a segment was finished. The caller does not hold the writer lock."""
        if not self.appender.must_notify_finished:
            return
        self.appender.must_notify_finished = False
        try:
            self._events.segment_finished()
        except BaseException:
            self.appender.must_notify_finished = True  # the next call notifies again
            raise

    def prepare_next_segment(self) -> None:
        """Hand the writer a file from the free list for its next roll, if there is one. Any thread may call this."""
        with self.mutex.held():
            if not self._closed:
                self.appender.update_after_roll()
                self._active.prepare_next_segment()

    def append_parts(self, parts: Iterable[Part], batch: Batch, header_record: HeaderRecord | None = None) -> Offset:
        """Append the messages of several parts, not all of them empty, as one batch; otherwise like `append`.

        The parts are read one by one while the writer lock is held, so that they need not be in memory together.
        *batch* is their size, without the header record: if the capacity does not take all of it, no part is read.
        `StorageError` if records are damaged.
        """
        if header_record is not None:
            batch = Batch(batch.size + RECORD_HEADER_SIZE + header_record.size, batch.messages)
        self._lock.refuse_reentry(f"{self._path}: nothing was sent")
        try:
            while (start := self._append_if_flushed(parts, batch, header_record)) is None:
                if not may_sleep():
                    self._events.append_refused()
                    raise Busy
                self._events.flush_needed()
        except ChannelFullError:
            self._events.append_refused()
            raise
        return start

    def _append_if_flushed(
        self, parts: Iterable[Part], batch: Batch, header_record: HeaderRecord | None
    ) -> Offset | None:
        """Append; return None if the messages that "drop_oldest" would drop for it are not published yet."""
        with self.writing(may_sleep):
            if self._control.sealed:
                raise ChannelSealedError(self._path)
            changed, self._durability_changed = self._durability_changed, False
            if changed and self.writer.deferred and not may_sleep():
                raise Busy  # the caller does not know yet that it has to wait for a flush, and tries again
            self._gap.make_pending()
            if not self._reserve(batch):
                return None
            start = self.appender.append(parts, 0, header_record)
            dropped, self._dropped = self._dropped, False
        self._notify_after_append(dropped=dropped)
        if changed and self.writer.deferred:
            self._events.flush_needed()  # the caller does not know yet that it has to flush
        if not self.writer.deferred:
            self.wake_receivers()
        return start

    def _notify_after_append(self, *, dropped: bool) -> None:
        """Start the work that follows an append. An error is only logged, because the batch is already appended.

        Runs without the writer lock: starting a thread takes locks of other code and may run finalizers.
        """
        try:
            self._notify_finished()
            if dropped:
                self._events.oldest_dropped()
        except (FileChannelError, OSError, NoThreadError) as error:
            if self._closed:  # another thread has just closed the log
                return
            _logger.error("%s: the background work after a roll could not be started: %s", self._path, error)

    def append_seal(self) -> bool:
        """Append the seal; return False if the channel is sealed already. The caller holds the writer lock."""
        if not self._control.sealed:
            self._gap.make_pending()
            self._capacity.remove_limit()
            self.appender.append([[SEAL]], CONTROL_RECORD)
        return not self._control.sealed

    def _reserve(self, batch: Batch) -> bool:
        """Reserve capacity for a batch; under "drop_oldest", drop the oldest segments if necessary.

        Return False if those are not published yet: a message must not be dropped before receivers could read it.
        """
        end = LogPosition(Offset(self.writer.pending), self.writer.pending_sequence)
        try:
            if self._capacity.reserve(batch, end):
                return True
            kept = self._capacity.first_kept(batch, end)
            if kept is None:  # even with the active segment alone the batch exceeds the capacity: finish that one
                kept = end
                if self._active.segment is None:
                    self.appender.roll_back()
                self.appender.all_or_nothing(lambda: self.appender.roll(0))
            if kept.offset > self._control.write_offset:
                return False
            self._capacity.drop_before(kept, end)
        except OSError as error:
            raise storage_error(
                f"{self._path}: the oldest messages could not be dropped, nothing was sent", error
            ) from error
        self._dropped = True
        return True

    def wake_receivers(self) -> None:
        """Wake all waiters, in every process, so that they rescan."""
        self.writer.wake_receivers()

    def check_sizes(self, payloads: list[bytes]) -> None:
        """Raise `MessageTooLargeError` for the longest payload if it exceeds the maximum message size."""
        limit = self._max_message_size
        longest = self.writer.longest(payloads)
        if longest > limit:
            index = next(index for index, payload in enumerate(payloads) if len(payload) == longest)
            raise MessageTooLargeError(longest, limit, index if len(payloads) > 1 else None)

    def store_index_entries(self) -> None:
        """Store the index entries that this process has for the active segment."""
        with self.mutex.held():
            if not self._closed:
                self.appender.update_after_roll()
                self._active.store_index_entries()

    def begin_segment(self) -> None:
        """Create an active segment if there is none. The caller holds the writer lock and has nothing pending."""
        self._gap.make_pending()
        if self._active.segment is None:
            self.appender.roll_back()
        if self._active.segment is None:
            self.appender.roll(0)

    def abandon_active(self) -> None:
        """Poison the active segment, which cannot be flushed any more, and resume in a new file after an offset gap.

        Records that are not published are rolled back. If the new file cannot be created now, the next append must
        create it. The caller holds the writer lock.
        """
        try:
            self._gap.poison_segments()
            with suppress(FileChannelError):
                self._gap.make_pending()
        except BaseException:
            self._lock.leave_behind()
            raise
        self._capacity.wake_senders()  # the rolled-back records released capacity

    def discard(self) -> None:
        """Release every file of a log whose `begin` failed. Nothing is stored: the next open recovers."""
        with self.mutex.held():
            self._release()

    def close(self) -> None:
        """Release the active segment and refuse all further writes: another process may own the channel from now on."""
        # The C core acquires and releases the writer lock in one call. In the pure-Python implementation another
        # thread may be in the middle of an append, so the lock is needed there. With the C core the lock is not
        # acquired: its holder may be a stopped process, and closing must not wait for that.
        with self.mutex.held():
            # Closing needs no catching up with other processes, and the directory may belong to another channel by now.
            self._is_closing = True
            try:
                with self.writing() if PURE else self.mutex.held():
                    self._closed = True
                    self.appender.update_after_roll()
                    self._active.leave()
            except (FileChannelError, OSError) as error:  # the control page is damaged, or the index cannot be stored
                _logger.error("%s: closed without its last index entries: %s", self._path, error)
            finally:
                self._release()
                self._is_closing = False

    def _release(self) -> None:
        """Release every file. The caller holds the mutex."""
        self._closed = True
        self._active.release()
        self.dirty.clear()
        self.writer.close()
