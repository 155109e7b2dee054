"""The position of a reader in the log: where the next record begins, how far may be read, and the stored cursor.

The reader may read up to `limit` without loading the shared words again. At `limit` it loads them; at the end of a
segment it calls `advance` for the next one.
"""

from __future__ import annotations

import sys
from _thread import interrupt_main
from collections.abc import Callable
from types import TracebackType
from typing import NamedTuple, NoReturn

from typing_extensions import Buffer

from ..checksum import crc32c
from ..clock import charge_slice, wall_clock_ns
from ..layout import (
    CACHE_LINE,
    CAPACITY_WAKE,
    CAPACITY_WATCHED,
    CONTROL_RECORD,
    CONTROL_SIZE,
    CURSOR,
    CURSOR_CHECKED,
    CURSOR_SLOTS,
    MAX_PAYLOAD,
    RECORD_HEADER_SIZE,
    SEGMENT_END,
    SEGMENT_HEADER_SIZE,
    STATE,
    STATE_SEALED,
    TAIL_SLOT,
    TAIL_SLOTS,
    WAKE_LOOPS,
    WRITE_TAIL,
)
from ..memory.arguments import U64, readable, writable
from ..memory.atomics import load_u32, load_u64
from ..memory.futex import wake_waiters
from ..records import read_bounded
from ..sentinel import NOTHING, Nothing
from .store_position import write_cursor_slot

_ZEROS = memoryview(bytes(CONTROL_SIZE))
"""What a closed reader reads instead of a control page: nothing is published there."""


class LogCursor:
    """Reads the record at its position. Not locked: the reader does that."""

    def __init__(
        self,
        control: Buffer,
        cursor: Buffer | None,
        decode: Callable[[bytes], object] | None,
        advance: Callable[[], object],
        damaged: Callable[[str], object],
        refuse: Callable[[int, int, bytes, Exception], NoReturn],
        most: int = MAX_PAYLOAD,
    ) -> None:
        self._most = most
        self._control = readable(control)
        if self._control.nbytes < CONTROL_SIZE:
            raise ValueError("control page is too short")
        self._cursor = None if cursor is None else writable(cursor)
        self._generation = 0 if self._cursor is None else _newest_generation(self._cursor)
        self._decode = decode
        self._advance = advance
        self._damaged = damaged
        self._refuse = refuse
        self._segment: memoryview | None = None
        self._begin: int = 0
        self._limit: int = 0
        self.offset: int = 0
        self.sequence: int = 0
        self.released: bool = False
        self.wanted: int | None = None
        """The offset of a redelivered message while it is read: if a callback moves the reader, it no longer exists."""
        self.floor: Callable[[], tuple[int, int]] | None = None
        """Returns the log position to store in the cursor, if that is not the current one."""
        self.notify: Callable[[], object] | None = None
        """Called when the cursor moved and event loops wait for capacity."""

    @property
    def log_position(self) -> tuple[int, int]:
        """Offset and sequence of the next message."""
        return self.offset, self.sequence

    @property
    def is_readonly(self) -> bool:
        """Whether the control page is read-only."""
        return self._control.readonly

    @property
    def is_sealed(self) -> bool:
        """Whether the channel is sealed, so that nothing more is published."""
        return bool(load_u32(self._control, STATE) & STATE_SEALED)

    @property
    def write_offset(self) -> int:
        """Where the published records end."""
        return load_u64(self._control, WRITE_TAIL)

    def has_message_from(self, sequence: int) -> bool:
        """Return whether there is a message with that sequence or a later one; control records do not count."""
        end = self.write_offset
        slots = [TAIL_SLOT.unpack_from(self._control, WRITE_TAIL + distance) for distance in TAIL_SLOTS]
        return any(sequence < following for offset, following, _, _ in slots if offset == end)

    # Moving

    def move_to(self, offset: int, sequence: int) -> None:
        """Move to a record boundary."""
        self.offset, self.sequence, self._limit = offset, sequence, 0

    def resume_at(self, offset: int, sequence: int) -> None:
        """Move to a record boundary that is likely to be in the same segment."""
        self.offset, self.sequence = offset, sequence
        if offset < self._begin:
            self._limit = 0

    def bind(self, segment: Buffer, begin: int) -> None:
        """Read from this map, unless the reader was released."""
        view = readable(segment)
        if view.nbytes < SEGMENT_HEADER_SIZE:
            raise ValueError("segment is shorter than its header")
        if self.released:
            return
        self._segment, self._begin, self._limit = view, begin, 0

    def unbind(self) -> None:
        """Release the segment; `advance` is called for another one."""
        self._segment, self._limit = None, 0

    def release(self) -> None:
        """Release segment and cursor; there is nothing to read any more."""
        self.released = True
        self.unbind()
        self._cursor = None

    def close(self) -> None:
        """Release the control page as well. The reader was released, and no thread is in a call."""
        self._control, self.notify = _ZEROS, None

    # Reading

    def next_item(self) -> tuple[object, int, int] | Nothing:
        """Return (item, offset, sequence) of the next message and move past it; NOTHING if there is none."""
        payload = self.next_payload()
        if isinstance(payload, Nothing):
            return NOTHING
        start, sequence = self.log_position
        try:
            item = self.decode(payload)
        except Exception as error:
            self.refuse(start, payload, error)
        self.offset, self.sequence = start + RECORD_HEADER_SIZE + len(payload), sequence + 1
        charge_slice(len(payload))
        return item, start, sequence

    def decode(self, payload: bytes) -> object:
        """Return the decoded payload."""
        return payload if self._decode is None else self._decode(payload)

    def refuse(self, offset: int, payload: bytes, error: Exception) -> NoReturn:
        """Raise the error for an item, at an offset, that does not decode."""
        self._refuse(offset, offset + RECORD_HEADER_SIZE + len(payload), payload, error)
        raise SystemError("refuse() must raise") from None

    def next_payload(self) -> bytes | Nothing:
        """Return the payload of the next message and stay in front of it; NOTHING if there is none."""
        while self.wanted in (None, self.offset) and self._check_limit():
            # Load each once: another thread may release the segment, and reset the limit after it.
            segment, begin, limit = self._segment, self._begin, self._limit
            if segment is None or self.offset >= limit:
                self._advance()
                continue
            position = SEGMENT_HEADER_SIZE + self.offset - begin
            stop = SEGMENT_HEADER_SIZE + limit - begin
            try:
                word, payload = read_bounded(segment, position, stop, self.offset, self._most)
            except ValueError as error:
                self._damaged(str(error))
                continue
            if not word & CONTROL_RECORD:
                return payload
            self.offset += RECORD_HEADER_SIZE + len(payload)
            self.store_cursor()
        return NOTHING

    def _check_limit(self) -> bool:
        """Return whether there is anything beyond the current offset, and update the limit for this segment."""
        if self.offset < self._limit:
            return True
        if self.released:
            return False
        write = self.write_offset
        if self.offset >= write:
            return False
        segment = self._segment
        if segment is not None and self.offset >= self._begin:
            # Loaded after `write`: a segment's end is stored before anything beyond it is published.
            end = load_u64(segment, SEGMENT_END)
            space = self._begin + segment.nbytes - SEGMENT_HEADER_SIZE
            self._limit = min(write, space, end or space)
        return True

    # The cursor

    def store_cursor(self) -> None:
        """Store the position, and wake senders that wait for capacity."""
        if self._cursor is None:
            return
        self._generation = self._generation + 1 & U64
        log_position = self.log_position if self.floor is None else self.floor()
        write_cursor_slot(self._cursor, self._generation, *log_position, wall_clock_ns())
        self.notify_capacity()

    def notify_capacity(self) -> None:
        """Wake senders that wait for capacity, after the cursor moved."""
        if not load_u32(self._control, CAPACITY_WATCHED) or self._control.readonly:
            return
        if wake_waiters(self._control, CAPACITY_WAKE) & WAKE_LOOPS and self.notify is not None:
            try:
                self.notify()
            except BaseException as error:  # the cursor has moved, whatever fails here
                _report_exception(error, self.notify)


class _Unraisable(NamedTuple):
    exc_type: type[BaseException]
    exc_value: BaseException
    exc_traceback: TracebackType | None
    err_msg: str | None
    object: object


def _report_exception(error: BaseException, where: object) -> None:
    """Report an exception that cannot be raised; Ctrl-C is raised a little later.

    The C core does the same for everything a signal handler raises, with a pending call, which Python code cannot make.
    """
    if isinstance(error, KeyboardInterrupt):
        interrupt_main()
    else:
        unraisable = _Unraisable(type(error), error, error.__traceback__, None, where)
        sys.unraisablehook(unraisable)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def _newest_generation(cursor: memoryview) -> int:
    """Return the generation of the newest complete slot, which the next store must not overwrite."""
    if cursor.nbytes < CURSOR_SLOTS[-1] + CACHE_LINE:
        raise ValueError("cursor is too short")
    newest = 0
    for slot in CURSOR_SLOTS:
        *fields, crc = CURSOR.unpack_from(cursor, slot)
        if crc == crc32c(CURSOR_CHECKED.pack(*fields)):
            newest = max(newest, fields[0])
    return newest
