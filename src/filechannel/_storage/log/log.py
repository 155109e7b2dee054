"""The log: one tail that grows through segments.

`append` is the complete path: it rolls, allocates, marks the index and undoes what it could not finish. The writer's
own `append` is its fast path and comes here when something is not simple.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from .._errors import (
    Busy,
    ChannelFullError,
    ChannelSealedError,
    FileChannelError,
    MessageTooLargeError,
    StorageError,
    storage_error,
)
from .._format import PURE, Guard, Mutex, Writer
from .._format.layout import BATCH_CONTINUES, CONTROL_RECORD, FLUSHES, RECORD_HEADER_SIZE, SEAL, WRITER_LOCK
from .._offset import Offset
from .._options import StoredOptions
from .active import ActiveSegment
from .background import NoThreadError
from .backlog import Batch
from .batch_writer import BatchWriter
from .control import Control
from .files import Files
from .flush_work import FlushWork
from .holder import Holder
from .index import Mark
from .jump import Jump
from .parts import Lead, Part
from .processes import Processes
from .rolling import Rolling
from .room import Room
from .segments import Segments
from .shared_lock import SharedLock
from .unflushed import Unflushed, Work
from .unpublished import Unpublished

_logger = logging.getLogger("filechannel")


class Log:
    """Appends to the segments of one channel. Any thread of any process may append.

    What this process knows of the active segment may be out of date; `Writer.current` tells, under the writer word.
    """

    def __init__(
        self,
        files: Files,
        path: Path,
        control: Control,
        segments: Segments,
        processes: Processes,
        options: StoredOptions,
        notify: Callable[[], object],
        room: Room,
    ) -> None:
        self._files = files
        self._path = path
        self._control = control
        self._segments = segments
        self._room = room
        self._max_message_size = options.max_message_size
        self._lock = SharedLock(control.map, WRITER_LOCK, processes, self._entered, flushes=FLUSHES)
        self.may_sleep: Callable[[], bool] = _always
        """Asked before a thread that appends sleeps for the writer word: one that runs an event loop must not."""
        self.on_finished: Callable[[], object] = _nothing
        """Called after an append that finished a segment, or by `catch_up`."""
        self.on_rolled: Callable[[], object] = _nothing
        """Called by the append after one that finished a segment and left the rest to `catch_up`, on another thread."""
        self.on_dropped: Callable[[], object] = _nothing
        """Called after an append that gave up the oldest segments, whose files are still there."""
        self.on_changed: Callable[[], object] = _nothing
        """Called when another process has called `announce_change`, under the writer word."""
        self.on_deferred: Callable[[], object] = _nothing
        """Called after the first append since another process has chosen `FSYNC`; flushes it."""
        self.on_refused: Callable[[], object] = _nothing
        """Called, without the word, when there was no room for an append."""
        self.on_closed: Callable[[], object] = _nothing
        """Called when somebody comes too late; may raise an error of its own."""
        self._closed = self._is_closing = self._forked = False
        self._durability_changed = self._dropped = False
        self.writer: Writer = Writer(control.map, processes.owner, options.max_message_size, self.append, notify)
        self._unflushed = Unflushed()
        self._active = ActiveSegment(files, control, segments, options, self.writer, self._unflushed, room)
        self._active.on_ready = self.get_ready
        self._active.on_gone_on = lambda: self.on_rolled()  # noqa: PLW0108 - set later
        shared = control, segments, self.writer, self._active, self._unflushed
        self._rolling = Rolling(*shared)
        self._rolling.on_finished = lambda: self.on_finished()  # noqa: PLW0108 - set later
        self._unpublished = Unpublished(*shared)
        check = self._check_not_forked
        self._batch = BatchWriter(path, self.writer, self._active, self._rolling, self._unpublished, check)
        self._work = FlushWork(control, segments, self._active, self._unflushed)
        self._jump = Jump(control, segments, self._active, self._unflushed)

    def begin(self, *, alone: bool, beyond: Offset | None) -> None:
        """Go on where the last writer stopped, dead or alive; after a recovery, far behind an offset.

        *alone*: nobody else has the channel open. With others there, the first append sees to it: who only wants to
        read need not wait for a writer that stands still.
        """
        if not alone:
            self.writer.defer(self._control.deferred)
            return
        with self.writing():
            if beyond is not None:
                self._jump.go(beyond, self._control.write_offset)
                self.announce_change()
            else:
                self._work.inherit()
                self._unpublished.discard()

    def writing(self, may_sleep: Callable[[], bool] | None = None) -> Guard:
        """Hold the writer word. Whoever holds it may come in again; `StorageError` if the log is closed."""
        return self._lock.held() if may_sleep is None else self._lock.held(may_sleep)

    def set_check_of_place(self, check: Callable[[], object]) -> None:
        """Call this before a file is made; it raises if the directory is not the channel's any more."""
        self._active.check_place = check
        if self._segments.spares is not None:
            self._segments.spares.check_place = check

    @property
    def holder(self) -> Holder | None:
        """Who is in the middle of writing; None if nobody is."""
        return self._lock.holder

    def abandon(self) -> None:
        """Stop where we are, in a forked child whose thread was inside: everything here is the parent's."""
        self._forked = self._closed = True
        self._active.check_place = self._refuse_child
        self.writer.unbind()
        self._lock.abandon()

    def _check_not_forked(self) -> None:
        if self._forked:
            self._refuse_child()

    def _refuse_child(self) -> NoReturn:
        raise StorageError(f"{self._path}: nothing was sent, because this process was forked in the middle of it")

    @property
    def mutex(self) -> Mutex:
        """Keeps the other threads of this process from `writing`; their fast paths take only the word."""
        return self._lock.mutex

    def _entered(self, from_the_dead: bool) -> None:
        if self._closed:
            self.on_closed()
            raise StorageError(f"{self._path} is closed")
        try:
            self._take_over(from_the_dead)
        except OSError as error:
            raise storage_error(f"{self._path} cannot be written to", error) from error

    def _take_over(self, from_the_dead: bool) -> None:
        """Know what others have done since we had the word, and finish what the dead have not."""
        self._rolling.follow()
        self._follow_durability()
        if from_the_dead:
            self._unpublished.discard()
        self._start_writer()
        if not self.writer.current and not self._is_closing:
            self._catch_up()

    def _start_writer(self) -> None:
        try:
            self.writer.start()
        except ValueError:
            self._control.tail(deferred=self.writer.deferred)  # which says what is damaged
            raise

    def _follow_durability(self) -> None:
        if self.writer.deferred != self._control.deferred:
            self.writer.defer(self._control.deferred)
            self._durability_changed = True

    def _catch_up(self) -> None:
        """Another process has gone on to another segment, or changed the options: do so too."""
        self.on_changed()
        segment = self._unpublished.unfinished_at(Offset(self.writer.pending))
        if segment is not self._active.segment:
            self._active.let_go()
        if segment is not None:
            self._active.take_up(segment)
        self._unflushed.discard_before(self._control.oldest_offset)

    def let_go_of_given_up(self, may_sleep: Callable[[], bool]) -> None:
        """Hold no segment that others have given up, and may have removed: its file would keep its disk space.

        `Busy` if somebody has the word, and the thread may not sleep any longer.
        """
        active, oldest = self._active.segment, self._control.oldest_offset
        if (active is not None and active.begin < oldest) or self._unflushed.reaches_before(oldest):
            with self.writing(may_sleep):  # whoever enters leaves the active one
                self._unflushed.discard_before(oldest)

    def announce_change(self) -> None:
        """Let the other processes know that segments came or went, or options changed. The caller holds the word.

        After they did, and before anything is published: a reader that sees more must look again at what there is.
        """
        self._active.announce_change()

    def close_window(self) -> None:
        """Let the next append ask for room, whatever it was given before. The caller holds the word."""
        if self._active.segment is not None:
            self._active.take_up(self._active.segment)

    def set_deferred(self, deferred: bool) -> None:
        """Leave it to a flush to move what readers see, or do it here. The caller holds both words, all is flushed."""
        tail = self._control.tail(deferred=self.writer.deferred)
        self._control.publish(tail, deferred=deferred)
        self._control.deferred = deferred
        self.writer.defer(deferred)
        self._durability_changed = False
        self.announce_change()
        self._start_writer()

    # Appending

    def append(self, payloads: list[bytes], lead: Lead | None = None) -> Offset:
        """Append payloads as one batch and return where it begins. All of them, or an error and none."""
        if lead is None and len(payloads) == 1:
            start = self._go_on(payloads[0])
            if start is not None:
                self.tell_waiters()
                return Offset(start)
        self.check_sizes(payloads)
        return self.append_parts([payloads], Batch.of(sum(map(len, payloads)), len(payloads)), lead)

    def _go_on(self, payload: bytes) -> int | None:
        """Append the first record of the next segment, if its file is ready and nothing is in the way; None if not.

        Code that runs once in thousands of messages is in no cache, and each Python function takes microseconds: so
        the writer does it alone, and what only this process has to know of it comes later. The C core has tried
        before it came here, unless somebody watches.
        """
        try:
            return self.writer.go_on(payload)
        except BaseException as error:
            with self.writing():
                self._take_back()
            if isinstance(error, (OSError, FileChannelError)):
                return None  # whoever comes the long way finds out what it is
            raise

    def catch_up(self) -> None:
        """Do what an append has left to be done, on another thread."""
        if self.writer.gone_on is not None:
            with self.mutex.held():
                self._rolling.follow()
        self._rolling.tell_finished()

    def get_ready(self) -> None:
        """Let the next segment begin with a file that waits, if there is one. Any thread may call this."""
        with self.mutex.held():
            if not self._closed:
                self._rolling.follow()
                self._active.get_ready()

    def append_parts(self, parts: Iterable[Part], batch: Batch, lead: Lead | None = None) -> Offset:
        """Append the messages of several parts, not all of them empty, as one batch; otherwise like `append`.

        The parts are asked for with the word taken, one after the other, so that they need not be in memory together.
        *batch* says beforehand how much they are, without the lead: there is room for all of it, or nothing is asked
        for. `StorageError` if records are damaged.
        """
        if lead is not None:
            batch = Batch(batch.size + RECORD_HEADER_SIZE + lead.size, batch.messages)
        self._lock.refuse_reentry(f"{self._path}: nothing was sent")
        try:
            while (start := self._append_if_flushed(parts, batch, lead)) is None:
                if not self.may_sleep():
                    self.on_refused()
                    raise Busy
                self.on_deferred()
        except ChannelFullError:
            self.on_refused()
            raise
        return start

    def _append_if_flushed(self, parts: Iterable[Part], batch: Batch, lead: Lead | None) -> Offset | None:
        """Append, unless what has to make room for it is not visible yet."""
        with self.writing(self.may_sleep):
            if self._control.sealed:
                raise ChannelSealedError(self._path)
            changed, self._durability_changed = self._durability_changed, False
            if changed and self.writer.deferred and not self.may_sleep():
                raise Busy  # whoever called does not know yet that it has to wait for a flush, and asks again
            self._make_owed_jump()
            if not self._find_room(batch):
                return None
            start = self._append(parts, 0, lead)
            dropped, self._dropped = self._dropped, False
        self._see_to_the_rest(dropped=dropped)
        if changed and self.writer.deferred:
            self.on_deferred()  # whoever called does not know yet that somebody has to flush
        self._tell_waiters()
        return start

    def _see_to_the_rest(self, *, dropped: bool) -> None:
        """Have done what an append leaves to be done: it was sent, whatever becomes of that.

        Not with the word: starting a thread takes locks, and runs finalizers, of others.
        """
        try:
            self._rolling.tell_finished()
            if dropped:
                self.on_dropped()
        except (FileChannelError, OSError, NoThreadError) as error:
            if self._closed:  # by another thread, in this moment
                return
            _logger.error("%s: what a full segment leaves to be done could not be begun: %s", self._path, error)

    def end(self) -> bool:
        """Append the record that ends the channel; False if it has ended. The caller holds the word."""
        if not self._control.sealed:
            self._make_owed_jump()
            self._room.lift()
            self._append([[SEAL]], CONTROL_RECORD)
        return not self._control.sealed

    def _find_room(self, batch: Batch) -> bool:
        """Make sure that the capacity takes a batch; under "drop_oldest" give up what stands in its way.

        False if that is not visible yet: nobody may miss what nobody could have had.
        """
        try:
            if self._room.admit(batch, self._end()):
                return True
            place = self._room.first_kept(batch, self._end()) or self._begin_anew()
            if place.offset > self._control.write_offset:
                return False
            self._room.keep_from(place, self._end())
        except OSError as error:
            raise storage_error(f"{self._path}: no room could be made, nothing was sent", error) from error
        self._dropped = True
        return True

    def _begin_anew(self) -> Mark:
        """Finish the active segment: not even with that alone there is room."""
        if self._active.segment is None:
            self._unpublished.discard()
        self._all_or_nothing(lambda: self._rolling.roll(0))
        return self._end()

    def _end(self) -> Mark:
        return Mark(Offset(self.writer.pending), self.writer.pending_sequence, 0)

    def _append(self, parts: Iterable[Part], flags: int, lead: Lead | None = None) -> Offset:
        start = Offset(self.writer.pending)

        def write_and_publish() -> None:
            if lead is not None:
                self._batch.write([lead.make(start)], CONTROL_RECORD | BATCH_CONTINUES)
            last: Part = []
            for part in parts:
                if part if isinstance(part, list) else part.count:
                    self._batch.write(last, flags | BATCH_CONTINUES)
                    last = part
            self._batch.write(last, flags)
            self._check_not_forked()
            self.writer.publish()

        self._all_or_nothing(write_and_publish)
        return start

    def _all_or_nothing(self, work: Callable[[], object]) -> None:
        """Call *work*, and roll back what it has not published if it fails.

        This is not a context manager: a signal handler may raise an exception on entering or leaving one, and the
        generator would be closed by the garbage collector. That would roll back without the writer lock, and destroy
        what another process has written meanwhile.
        """
        try:
            work()
        except OSError as error:
            self._take_back()
            raise self._nothing_sent(error) from error
        except BaseException:
            self._take_back()
            raise

    def _nothing_sent(self, error: OSError) -> StorageError:
        return storage_error(f"{self._path} cannot be written to, nothing was sent", error)

    def _tell_waiters(self) -> None:
        if not self.writer.deferred:
            self.tell_waiters()

    def tell_waiters(self) -> None:
        """Let whoever waits look again, in every process."""
        self.writer.tell_waiters()

    def check_sizes(self, payloads: list[bytes]) -> None:
        """Raise `MessageTooLargeError` for the longest one if that is too long."""
        limit = self._max_message_size
        longest = self.writer.longest(payloads)
        if longest > limit:
            index = next(index for index, payload in enumerate(payloads) if len(payload) == longest)
            raise MessageTooLargeError(longest, limit, index if len(payloads) > 1 else None)

    def is_between_batches(self, begin: int) -> bool:
        """Tell whether a segment is known to begin where a batch does: then the log may begin there as well."""
        return self._rolling.is_between_batches(begin)

    def store_marks(self) -> None:
        """Bring the index of the active segment up to date, as far as this process wrote it."""
        with self.mutex.held():
            self._rolling.follow()
            self._active.store_marks()

    def finish_segment(self) -> None:
        """Finish the active segment unless it is empty. The caller holds the word and has nothing pending."""
        self._rolling.finish_segment()

    def begin_segment(self) -> None:
        """Begin one if there is none. The caller holds the word and has nothing pending."""
        self._make_owed_jump()
        if self._active.segment is None:
            self._unpublished.discard()
        if self._active.segment is None:
            self._rolling.roll(0)

    # Taking back

    def _take_back(self) -> None:
        """Take back our own unfinished batch; if not even that is possible, whoever writes next does it."""
        if self._forked:
            return
        try:
            self._unpublished.discard()
            self._rolling.look_for_boundary()
        except OSError as error:
            self._lock.leave_behind()
            raise self._nothing_sent(error) from error
        except BaseException:
            self._lock.leave_behind()
            raise

    # Going on elsewhere

    def abandon_active(self) -> None:
        """Go on in a fresh file, far behind every offset used: the active one cannot be flushed any more.

        What readers do not see is gone. If the file cannot be made now, the next append has to. The caller holds the
        writer word.
        """
        try:
            self._jump.leave()
            with suppress(FileChannelError):
                self._make_owed_jump()
        except BaseException:
            self._lock.leave_behind()
            raise
        self._room.tell()  # what was taken back needs none any more

    def _make_owed_jump(self) -> None:
        """Go on in a fresh file if that is still to be done: no offset may be used before."""
        if self._control.owes_jump:
            self._all_or_nothing(self._make_jump)

    def _make_jump(self) -> None:
        self._jump.make(self._unpublished.reaching(self._control.write_offset))
        self._start_writer()

    # Flushing

    def take_unflushed(self) -> Work:
        """Return what a flush has to do. The caller holds the writer word and does it, or gives the log up.

        Raises `OSError` if the disk refused a flush before.
        """
        return self._work.take()

    @property
    def refused_flush(self) -> OSError | None:
        """Why the disk refused a flush while something was appended; nothing can be flushed then."""
        return self._unflushed.failure

    def names_were_flushed(self, names: int) -> None:
        """The disk has the names as they were when some work was taken."""
        self._unflushed.names_were_flushed(names)

    def was_flushed(self, offset: Offset) -> None:
        """All that was taken to be flushed is on disk, up to an offset."""
        self._work.done(offset)

    def has_lost(self, offset: int) -> bool:
        """Tell whether what was appended at an offset was taken back since: no segment has it any more."""
        try:
            is_missing = self._is_missing(offset)
        except FileChannelError:
            if offset >= self._control.oldest_offset:
                raise
            return False
        return is_missing and offset >= self._control.oldest_offset  # otherwise it was there, perhaps a moment ago

    def _is_missing(self, offset: int) -> bool:
        if self._control.given_up > offset >= self._control.write_offset:
            return True
        begin = self._segments.covering(offset)
        return begin is None or offset >= self._segments.get(begin).limit

    @property
    def has_finished(self) -> bool:
        """Whether there are finished segments that the disk may not have."""
        return self._unflushed.has_finished

    @property
    def unflushed_segments(self) -> int:
        """How many segments the disk may not have."""
        return len(self._unflushed)

    def close(self) -> None:
        """Let go of the active segment, and let nobody write any more: the channel may be another process's now."""
        # The C core takes the word and frees it in one go; its twin may be in the middle, in another thread.
        # Native, the word may be a stopped process's, which nobody has to wait for to close.
        with self.mutex.held():
            self._is_closing = True  # whoever only lets go has to catch up with nothing, which may be elsewhere by now
            try:
                with self.writing() if PURE else self.mutex.held():
                    self._closed = True
                    self._rolling.follow()
                    self._active.let_go()
            except (FileChannelError, OSError) as error:  # the control page is damaged, or the index cannot be stored
                _logger.error("%s: closed without its last index entries: %s", self._path, error)
            finally:
                self._closed = True
                self._unflushed.clear()
                self.writer.close()
                self._is_closing = False


def _nothing() -> None:
    pass


def _always() -> bool:
    return True
