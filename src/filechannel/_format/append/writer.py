"""Appending to the active segment: the pure-Python implementation of writer.c.

Publishing takes two steps. A tail is one offset with two slots after it; the writer fills the slot that is not
current and then stores the offset. A reader that loads the offset therefore finds the slot that belongs to it complete,
and offset and sequence change together.

`append` and `append_all` handle the common case. All other cases (the window is used up, the index needs an entry, the
channel is sealed, the writer lock is held) go to `overflow`, which is `Log.append` and may block.
"""

# The C core checks the types of its arguments, and so does this implementation.
# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from threading import get_ident
from typing import NoReturn

from anyio import ClosedResourceError
from typing_extensions import Buffer

from ..checksum import crc32c
from ..clock import charge_slice, wall_clock_ns
from ..layout import (
    ALLOCATED_END,
    APPEND_TAIL,
    BATCH_CONTINUES,
    CONTROL_RECORD,
    CONTROL_SIZE,
    EPOCH,
    FLUSHES,
    FLUSHING_SEGMENTS,
    INDEX_BYTES,
    INDEX_CHECKED,
    LARGEST_OFFSET,
    MAX_PAYLOAD,
    PAGE,
    RECORD_HEADER,
    RECORD_HEADER_SIZE,
    REGISTRATIONS,
    RESERVED_END,
    SEGMENT_HEADER_SIZE,
    STATE,
    STATE_DEFERRED,
    TAIL_CHECKED,
    TAIL_SLOT,
    TAIL_SLOTS,
    WAKE,
    WAKE_LOOPS,
    WRITE_TAIL,
    WRITER_LOCK,
)
from ..memory.arguments import U32, readable, unsigned, writable
from ..memory.atomics import load_u32, load_u64, store_u32, store_u64, swap_if_u32
from ..memory.closable_map import close_pending
from ..memory.futex import release_word, wake_waiters
from ..memory.prefault import StoreCheck, can_store, can_store_word, populate_soon
from ..records import check_payloads, read_record, write_record
from .roll import PreparedSegment, Watch, created

_MOST_INDEX_ENTRIES = 4096  # for 256 MiB, written in more than the second that entries wait; more are dropped
_NEVER = (1 << 64) - 1
_INT_MAX = (1 << 31) - 1

_ZEROS = memoryview(bytes(CONTROL_SIZE))
"""What a closed writer reads instead of a control page."""


def _not_storable() -> OSError:
    return OSError(errno.EIO, os.strerror(errno.EIO))


def _refuse_closed(*_: object) -> NoReturn:
    raise ClosedResourceError


class Writer:
    """Appends records to the active segment."""

    def __init__(
        self,
        control: Buffer,
        owner: int,
        max_payload: int,
        overflow: Callable[[list[bytes]], int],
        notify: Callable[[], object],
        /,
    ) -> None:
        self._owner = unsigned(owner, U32)
        self._max_payload = min(unsigned(max_payload), MAX_PAYLOAD)
        self._control = writable(control)
        if self._control.nbytes < CONTROL_SIZE:
            raise ValueError("control page is too short")
        self._overflow = overflow
        self._notify = notify
        self._segment: memoryview | None = None
        self._begin = 0
        self._window_end = 0
        self._limit: tuple[int, int] | None = None
        """The sequence that no message may reach, and the value of `REGISTRATIONS` when that capacity was computed."""
        self._index_due = 0
        self._next_indexed = 0
        self._index_entries: list[tuple[int, int, int]] = []
        self._latest = 0
        """The time of the segment's last index entry; never, if the clock has gone back since."""
        self._next: PreparedSegment | None = None
        self._pending_roll: tuple[object, bytes] | None = None
        self._after_roll: Callable[[], object] | None = None
        """The callback that is still to be notified of the fast roll."""
        self._ahead = self._ahead_end = 0
        """How many bytes ahead of the tail to keep present in memory, and up to which offset."""
        self._ahead_from, self._ahead_at = 0, _NEVER
        """Where the next pages to populate begin, and at which tail they are due."""
        self._alone = False
        self._deferred = False
        self._words_check, self._segment_check = StoreCheck(), StoreCheck()
        self._storable_end = 0
        """Up to which offset the segment was storable at that check."""
        self._epoch = 0
        self._tail_end = self._tail_sequence = 0
        self._tail_slot = -1
        self._pending = self._pending_sequence = 0
        self._inside: set[int] = set()
        """The threads that append, or are about to."""
        self._closed = False

    @property
    def pending(self) -> int:
        """Offset after everything written, published or not."""
        return self._pending

    @property
    def pending_sequence(self) -> int:
        """Sequence that belongs to pending."""
        return self._pending_sequence

    @property
    def alone(self) -> bool:
        """Whether no other process has written to the segment since it was bound empty."""
        return self._alone

    @property
    def deferred(self) -> bool:
        """Whether publishing is left to the flush."""
        return self._deferred

    def append(self, payload: bytes, /) -> int:
        """Append one record and return its offset; it is published unless `deferred`."""
        if not isinstance(payload, bytes):
            raise TypeError(f"payload must be bytes, not {type(payload).__name__}")
        return self._append([payload])

    def append_all(self, payloads: list[bytes], /) -> int:
        """Append a list of payloads as one batch and return the first offset."""
        check_payloads(payloads)
        return self._append(payloads)

    def _append(self, payloads: list[bytes]) -> int:
        size = sum(map(len, payloads)) + RECORD_HEADER_SIZE * len(payloads)
        simple = payloads and max(map(len, payloads)) <= self._max_payload
        me = get_ident()
        if me in self._inside:  # a signal handler or a finalizer, which cannot run at this point in the C core
            raise RuntimeError("the same thread is already inside an append, and was interrupted there")
        self._inside.add(me)
        try:
            self._check_open()
            # Avoids useless work, as the tail only grows. `_enter` compares again under the writer lock.
            simple = simple and self._fits_window(load_u64(self._control, self._tail()), size)
            start = self._append_simply(payloads, size) if simple else None
        finally:
            self._inside.discard(me)
            self._close_if_unused()
        if start is None:
            return self._overflow(payloads)
        charge_slice(size)
        if start + size >= self._ahead_at:
            self._populate_next(start + size)
        if not self._deferred:
            self.wake_receivers()
        after_roll, self._after_roll = self._after_roll, None
        if after_roll is not None:
            after_roll()
        return start

    def _append_simply(self, payloads: list[bytes], size: int) -> int | None:
        if not self._enter(size, len(payloads)):
            return None
        start = self._pending
        try:
            self.write(payloads, 0, 0)
            self.publish()
        finally:
            release_word(self._control, WRITER_LOCK)
        return start

    # Under FSYNC the pages that are written next were flushed a moment ago, which made them read-only. A store then
    # calls the file system, and if the file system has shut down, the store kills the process. So after every flush,
    # while a flush is running, and when the kernel may have written pages back by itself, the pages are made writable
    # first; that call reports an error instead of killing the process.

    def _words_storable(self) -> bool:
        """Return whether the control page may be stored to. Checked first, as taking the writer lock is a store."""
        return not self._deferred or can_store_word(self._control.obj, WRITER_LOCK, FLUSHES, self._words_check)

    def _segment_storable(self, offset: int, size: int) -> bool:
        """Return whether *size* bytes of the segment may be stored to. The caller has the writer lock."""
        if not self._deferred or not size or self._segment is None:
            return True
        flushes, now = load_u32(self._control, FLUSHES), wall_clock_ns()
        last, is_beyond = self._segment_check, offset + size > self._storable_end
        if not (is_beyond or flushes != last.flushes or flushes & FLUSHING_SEGMENTS) and last.is_valid(now):
            return True
        position = SEGMENT_HEADER_SIZE + offset - self._begin
        if not can_store(self._segment.obj, position, size):
            return False
        last.note(flushes, now)
        self._storable_end = offset + size + -(position + size) % PAGE
        return True

    def _enter(self, size: int, count: int) -> bool:
        if not self._words_storable() or not swap_if_u32(self._control, WRITER_LOCK, 0, self._owner):
            return False
        if (
            self.current
            and self._refresh_tail()
            and self._fits_window(self._tail_end, size)
            and self._fits_limit(count)
            and wall_clock_ns() < self._index_due
            and self._segment_storable(self._tail_end, size)
        ):
            self._pending, self._pending_sequence = self._tail_end, self._tail_sequence
            return True
        release_word(self._control, WRITER_LOCK)
        return False

    def _fits_window(self, offset: int, size: int) -> bool:
        return self._begin <= offset and offset + size <= self._window_end

    def _within_limit(self, sequence: int, count: int) -> bool:
        return self._limit is None or sequence + count <= self._limit[0]

    def _fits_limit(self, count: int) -> bool:
        """Return whether *count* more messages are within the limit, and the limit is still valid.

        A consumer that seeks back takes capacity away.
        """
        current = self._limit is None or load_u32(self._control, REGISTRATIONS) == self._limit[1]
        return current and self._within_limit(self._tail_sequence, count)

    # The steps of `Log.append`; the caller has the writer lock.

    def start(self) -> None:
        """Continue at the tail; `ValueError` if no tail slot matches. The caller has the writer lock."""
        self._check_open()
        self._tail_slot = -1
        if not self._refresh_tail():
            raise ValueError("no tail slot agrees with the offset")
        self._pending, self._pending_sequence = self._tail_end, self._tail_sequence

    def change(self) -> None:
        """Make every other writer check again which segment is active, and how it is written to."""
        self._check_open()
        self._epoch = (load_u32(self._control, EPOCH) + 1) & U32
        store_u32(self._control, EPOCH, self._epoch)

    @property
    def current(self) -> bool:
        """Whether no process called `change` or sealed the channel since the segment was bound."""
        state = STATE_DEFERRED if self._deferred else 0
        return (
            self._segment is not None
            and load_u32(self._control, EPOCH) == self._epoch
            and load_u32(self._control, STATE) == state
        )

    def write(self, payloads: list[bytes], index: int, flags: int, /) -> int:
        """Copy payloads from index on while they fit the window, unpublished; return the first index left."""
        index, flags = unsigned(index), unsigned(flags)
        check_payloads(payloads)
        if flags & ~(BATCH_CONTINUES | CONTROL_RECORD) or max(map(len, payloads), default=0) > MAX_PAYLOAD:
            raise ValueError("payload or flags do not fit the word")
        if self._segment is not None and self._fits_window(self._pending, 0):
            # Stored before the first byte is written: the next lock holder clears up to here if this process dies.
            need = sum(map(len, payloads[index:])) + RECORD_HEADER_SIZE * len(payloads[index:])
            end = min(self._pending + need, self._window_end)
            if not self._words_storable() or not self._segment_storable(self._pending, end - self._pending):
                raise _not_storable()
            store_u64(self._control, RESERVED_END, end)
        while index < len(payloads) and self._segment is not None:
            payload = payloads[index]
            size = RECORD_HEADER_SIZE + len(payload)
            if not self._fits_window(self._pending, size):
                break
            if not self._within_limit(self._pending_sequence, 0 if flags & CONTROL_RECORD else 1):
                break
            if self._pending >= self._next_indexed:
                self._add_index_entry()
            position = SEGMENT_HEADER_SIZE + self._pending - self._begin
            more = BATCH_CONTINUES if index + 1 < len(payloads) else 0
            write_record(self._segment, position, self._pending, flags | more, payload)
            self._pending += size
            self._pending_sequence += not flags & CONTROL_RECORD
            index += 1
        return index

    def copy(self, buffer: Buffer, position: int, stop: int, offset: int, flags: int, /) -> int:
        """Copy the records in a range as messages of a batch; the first record of the range has the offset *offset*.

        Copies while they fit the window, and does not publish them. Returns the position of the first record left.
        `ValueError` if a record does not validate.
        """
        position, stop, offset, flags = unsigned(position), unsigned(stop), unsigned(offset), unsigned(flags)
        view, first = readable(buffer), position
        if not position <= stop <= view.nbytes:
            raise ValueError("range is not inside the buffer")
        if flags & ~BATCH_CONTINUES:
            raise ValueError("payload or flags do not fit the word")
        while position < stop and self._segment is not None:
            length = _length_at(view, position, stop)
            fits = self._fits_window(self._pending, RECORD_HEADER_SIZE + length)
            if not fits or not self._within_limit(self._pending_sequence, 1):
                break
            _, payload = read_record(view, position, stop, offset + position - first)
            position += RECORD_HEADER_SIZE + length
            self.write([payload], 0, BATCH_CONTINUES if position < stop else flags)
        return position

    def longest(self, payloads: list[bytes], /) -> int:
        """Return the length of the longest payload."""
        check_payloads(payloads)
        return max(map(len, payloads), default=0)

    def publish(self) -> None:
        """Move the tail past everything written, which makes it visible."""
        if self._control is _ZEROS:
            raise ClosedResourceError
        if self._tail_slot < 0:
            raise RuntimeError("publish() without start()")
        if not self._words_storable():
            raise _not_storable()
        tail, slot = self._tail(), 1 - self._tail_slot
        checked = TAIL_CHECKED.pack(self._pending, self._pending_sequence, self._begin)
        TAIL_SLOT.pack_into(
            self._control,
            tail + TAIL_SLOTS[slot],
            self._pending,
            self._pending_sequence,
            self._begin,
            crc32c(checked),
        )
        store_u64(self._control, tail, self._pending)
        self._tail_slot = slot
        self._tail_end, self._tail_sequence = self._pending, self._pending_sequence
        store_u64(self._control, RESERVED_END, self._pending)

    def wake_receivers(self) -> None:
        """Wake threads that wait, and call notify if event loops wait. Do not call it with the writer lock held."""
        control, notify = self._control, self._notify
        if not self._closed and wake_waiters(control, WAKE) & WAKE_LOOPS:
            notify()

    def bind(self, segment: Buffer, begin: int, /) -> None:
        """Write into this map from now on; the window is closed until `open_window`."""
        self._check_open()
        begin, view = unsigned(begin), writable(segment)
        if view.nbytes < SEGMENT_HEADER_SIZE:
            raise ValueError("segment is shorter than its header")
        self._segment, self._begin, self._window_end = view, begin, 0
        self._epoch = load_u32(self._control, EPOCH)
        self._next_indexed, self._index_entries, self._latest = 0, [], 0
        self._next = self._pending_roll = self._after_roll = None
        self._alone = begin == self._pending
        self._storable_end = 0
        self._ahead_from, self._ahead_at = 0, _NEVER

    def open_window(self, end: int, index_due: int, /) -> None:
        """Let the fast path write below *end* until the wall clock reaches *index_due*."""
        end, index_due = unsigned(end), unsigned(index_due)
        space = -1 if self._segment is None else self._segment.nbytes - SEGMENT_HEADER_SIZE
        if not 0 <= end - self._begin <= space:
            raise ValueError("window is not inside the segment")
        self._window_end, self._index_due = end, index_due
        self._limit = None

    def limit_window(self, sequence_end: int, registrations: int, /) -> None:
        """Let the open window take only messages below a sequence, and none once `REGISTRATIONS` has changed."""
        self._limit = unsigned(sequence_end), unsigned(registrations, U32)

    def populate_ahead(self, end: int, distance: int, /) -> None:
        """Have *distance* bytes ahead of the tail populated by another thread.

        Up to the offset *end*, until another segment is bound.
        """
        end, distance = unsigned(end), unsigned(distance)
        space = -1 if self._segment is None else self._segment.nbytes - SEGMENT_HEADER_SIZE
        if not self._begin <= self._pending <= end or end - self._begin > space:
            raise ValueError("end is not inside the segment, or before what is written")
        self._ahead, self._ahead_end = distance, end
        if self._ahead_from - self._pending > distance // 2:
            self._ahead_at = self._ahead_from - distance // 2  # enough pages are present for now
        else:
            self._populate_next(self._pending)

    def _populate_next(self, offset: int) -> None:
        """Let another thread populate the next pages, long before the tail reaches them."""
        start, stop = max(self._ahead_from, offset), min(offset + self._ahead, self._ahead_end)
        self._ahead_at = stop - self._ahead // 2 if stop < self._ahead_end else _NEVER
        if start < stop and self._segment is not None:
            self._ahead_from = stop
            populate_soon(self._segment.obj, SEGMENT_HEADER_SIZE + start - self._begin, stop - start)

    def index_next(self) -> None:
        """Remember the next record for the index."""
        self._next_indexed = 0

    def take_index_entries(self) -> bytes:
        """Return the pending index entries and clear them: one record per 64 KiB.

        Each entry has the layout of the index, without checksum.
        """
        taken, self._index_entries = self._index_entries, []
        return b"".join(INDEX_CHECKED.pack(*entry) for entry in taken)

    def _add_index_entry(self) -> None:
        """Remember a record for the index. Its time is taken before it is visible, so no record before it is newer."""
        self._next_indexed = self._pending + INDEX_BYTES
        now = wall_clock_ns()
        self._latest = now if now >= self._latest else _NEVER
        if len(self._index_entries) < _MOST_INDEX_ENTRIES:
            self._index_entries.append((self._pending, self._pending_sequence, now))

    def close(self) -> None:
        """Release every map now or, if a thread is appending, when it is done.

        The caller has made sure that no thread is in any call other than `append`.
        """
        self._closed = True
        self._close_if_unused()

    def _close_if_unused(self) -> None:
        if self._closed and not self._inside:
            self.unbind()
            self._control = _ZEROS
            self._overflow, self._notify = _refuse_closed, _refuse_closed
            close_pending()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedResourceError

    def unbind(self) -> None:
        """Release the segment and forget its index entries; every append overflows from now on."""
        self._segment = self._next = self._pending_roll = self._after_roll = None
        self._window_end, self._index_entries = 0, []
        self._ahead_at = _NEVER

    # The roll to the next segment (see roll.py)

    def prepare_next(
        self,
        what: object,
        map: Buffer,
        header: Buffer,
        device: int,
        inode: int,
        source: bytes,
        target: bytes,
        digits: int,
        window: int,
        after_roll: Callable[[], object],
        watch: Watch,
        directory: int,
        /,
    ) -> None:
        """Have a file ready for `fast_roll`, unless the last roll is not acknowledged yet."""
        self._check_open()
        directory = unsigned(directory, _INT_MAX)
        device, inode, digits, window = unsigned(device), unsigned(inode), unsigned(digits), unsigned(window)
        for path in (source, target):
            if not isinstance(path, bytes):
                raise TypeError(f"expected bytes, {type(path).__name__} found")
        content, view = bytes(readable(header)), writable(map)
        allocated, names = view.nbytes - SEGMENT_HEADER_SIZE, (source, target, digits)
        prepared = PreparedSegment(
            what, view, content, allocated, None, device, inode, names, window, after_roll, watch
        )
        if self._pending_roll is None and prepared.keep(directory):
            self._next = prepared

    def forget_next(self, what: object, /) -> None:
        """Release a prepared file."""
        if self._next is not None and self._next.what is what:
            self._next = None

    @property
    def pending_roll(self) -> tuple[object, bytes] | None:
        """The file of the last fast roll and its header, until that roll is acknowledged; else None."""
        return self._pending_roll

    def acknowledge_roll(self) -> None:
        """Acknowledge the roll that `pending_roll` describes."""
        self._pending_roll = None

    def fast_roll(self, payload: bytes, /) -> int | None:
        """Append the first record of the next segment, if the current one is full, and return its offset.

        Returns None, with nothing done, in any case that needs the slow path. The caller wakes waiters.
        """
        if not isinstance(payload, bytes):
            raise TypeError(f"payload must be bytes, not {type(payload).__name__}")
        size, prepared, now = RECORD_HEADER_SIZE + len(payload), self._next, wall_clock_ns()
        me = get_ident()
        if prepared is None or len(payload) > self._max_payload or me in self._inside:
            return None
        self._inside.add(me)
        try:
            start = None if self._closed else self._fast_roll(prepared, payload, size, now)
        finally:
            self._inside.discard(me)
            self._close_if_unused()
        if start is not None:
            charge_slice(size)
        return start

    def _fast_roll(self, prepared: PreparedSegment, payload: bytes, size: int, now: int) -> int | None:
        if not swap_if_u32(self._control, WRITER_LOCK, 0, self._owner):
            return None
        try:
            if not self._may_fast_roll(prepared, size, now):
                return None
            self._next, start = None, self._tail_end
            was_ahead = self._ahead_end > self._begin
            prepared.before("check")
            if not prepared.is_there():
                return None
            prepared.fill_header(start, self._tail_sequence, now)
            if not self._roll(prepared):
                return None
            self._window_end = self._begin + max(min(prepared.window, prepared.space), size)
            self._ahead_end = self._begin + prepared.space if was_ahead else 0
            self._ahead_from = self._begin  # its first pages were populated when it was prepared
            if was_ahead and self._ahead // 2 < prepared.space:
                self._ahead_at = self._begin + self._ahead // 2
            self._pending, self._pending_sequence = self._tail_end, self._tail_sequence
            self.write([payload], 0, 0)
            self.publish()
        finally:
            try:
                release_word(self._control, WRITER_LOCK)
            except BaseException:  # Ctrl-C at the start of the call: no other code would release the lock
                release_word(self._control, WRITER_LOCK)
                raise
        return start

    def _may_fast_roll(self, prepared: PreparedSegment, size: int, now: int) -> bool:
        """Return whether a record of this size is the first of the next segment, and a fast roll is possible."""
        segment = self._segment
        if self._deferred or self._limit is not None or not self.current or not self._refresh_tail():
            return False
        if segment is None or not self._fits_window(self._tail_end, 0):
            return False  # the window is closed: capacity must be reserved first
        used, space = self._tail_end - self._begin, segment.nbytes - SEGMENT_HEADER_SIZE
        is_full = 0 < used <= space < used + size
        # No offset or sequence in it may pass the largest one; a message takes more than a byte.
        fits = size <= prepared.space <= LARGEST_OFFSET - max(self._tail_end, self._tail_sequence)
        # If the clock went back, the slow path computes the creation time: times in the log never go back.
        return self._alone and is_full and fits and now >= max(self._latest, created(segment))

    def roll(self, what: object, map: Buffer, header: Buffer, allocated: int, rename: Callable[[], object], /) -> None:
        """Roll to a file that *rename* gives its name; the window is closed. The caller holds the writer lock.

        *header* is complete, and says where the segment begins; the bound segment ends there, unless it is empty. If
        this raises, the caller rolls back.
        """
        self._check_open()
        allocated = unsigned(allocated)
        content = bytes(readable(header))
        if len(content) != SEGMENT_HEADER_SIZE:
            raise ValueError("not a segment header")
        if not callable(rename):
            raise TypeError("rename must be callable")
        prepared = PreparedSegment(what, writable(map), content, allocated, rename)
        if allocated > prepared.space or prepared.space > LARGEST_OFFSET - prepared.begin:
            raise ValueError("segment is smaller than its disk space, or reaches beyond the largest offset")
        self._roll(prepared)
        self._alone = self._begin == self._pending
        self._next = None

    def _roll(self, prepared: PreparedSegment) -> bool:
        """Take the steps that roll.py describes; return False, with nothing changed, if the rename failed."""
        begin, segment = prepared.begin, self._segment
        if not prepared.become_segment(segment if self._begin < begin else None, self._begin):
            return False
        if self._closed or self._segment is not segment:
            raise RuntimeError("the writer was changed meanwhile")
        try:
            prepared.before("publish")
        finally:
            self.change()  # in any case, even after an exception: the file has its new name
        self._pending_roll, self._after_roll = (prepared.what, prepared.header), prepared.after_roll
        self._segment, self._begin, self._window_end = prepared.map, begin, 0
        self._next_indexed = self._latest = self._storable_end = 0
        self._ahead_from, self._ahead_at = 0, _NEVER
        store_u64(self._control, ALLOCATED_END, begin + prepared.allocated)
        return True

    def defer(self, deferred: bool, /) -> None:
        """Move the append tail instead of the write tail, which readers see, or stop doing so."""
        self._deferred = bool(deferred)
        self._tail_slot = -1

    def _tail(self) -> int:
        return APPEND_TAIL if self._deferred else WRITE_TAIL

    def _refresh_tail(self) -> bool:
        tail = self._tail()
        end = load_u64(self._control, tail)
        if end == self._tail_end and self._tail_slot >= 0:
            return True
        for slot, distance in enumerate(TAIL_SLOTS):
            slot_end, sequence, begin, crc = TAIL_SLOT.unpack_from(self._control, tail + distance)
            is_whole = slot_end == end and crc32c(TAIL_CHECKED.pack(slot_end, sequence, begin)) == crc
            if is_whole and max(end, sequence, begin) <= LARGEST_OFFSET:
                self._alone &= end == self._tail_end
                self._tail_slot, self._tail_end, self._tail_sequence = slot, end, sequence
                return True
        return False


def _length_at(view: memoryview, position: int, stop: int) -> int:
    """Return the payload length of a record that lies completely inside a buffer."""
    if stop - position < RECORD_HEADER_SIZE:
        raise ValueError("record reaches beyond the end")
    # The word must have no flags: `copy` sets the batch flags.
    length: int = RECORD_HEADER.unpack_from(view, position)[0]
    if length > MAX_PAYLOAD or stop - position - RECORD_HEADER_SIZE < length:
        raise ValueError("record reaches beyond the end")
    return length
