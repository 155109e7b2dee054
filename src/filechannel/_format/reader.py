"""Reading one record after the other, decoded, with a cursor: the readable reference of the C reader.

A reader stands at an offset and knows how far it may read without looking again (`limit`). Where that ends it looks
at the shared words; where the segment ends it asks `advance` for the next one.

One that holds stores in its cursor where the oldest message begins that was not acknowledged. What comes again is read
by standing there for a moment.
"""

from __future__ import annotations

import math
import sys
from _thread import interrupt_main
from collections.abc import Callable
from operator import index
from threading import RLock
from types import TracebackType
from typing import NamedTuple, NoReturn

from typing_extensions import Buffer

from .arguments import readable, unsigned, writable
from .checksum import crc32c
from .clock import charge_turn, turn_is_over, wall_clock_ns
from .held import Entry, Held
from .layout import (
    CACHE_LINE,
    CONTROL_RECORD,
    CONTROL_SIZE,
    CURSOR,
    CURSOR_CHECKED,
    CURSOR_SLOTS,
    RECORD_HEADER_SIZE,
    ROOM,
    ROOM_WATCHED,
    SEGMENT_END,
    SEGMENT_HEADER_SIZE,
    STATE,
    STATE_SEALED,
    WAKE_LOOPS,
    WRITE_TAIL,
)
from .nothing import NOTHING, Nothing
from .records import read_record
from .waiting import wake_waiters
from .words import load_u32, load_u64


class _Unraisable(NamedTuple):
    exc_type: type[BaseException]
    exc_value: BaseException
    exc_traceback: TracebackType | None
    err_msg: str | None
    object: object


class Reader:
    """Reads records in order and decodes them."""

    def __init__(
        self,
        control: Buffer,
        cursor: Buffer | None,
        decode: Callable[[bytes], object] | None,
        advance: Callable[[Reader], object],
        damaged: Callable[[Reader, str], object],
        refuse: Callable[[int, int, bytes, Exception], NoReturn],
        reuse: bool = False,
        /,
    ) -> None:
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
        self._offset: int = 0
        self._sequence: int = 0
        self._lock = RLock()
        self._busy = False
        self._may_sleep = False
        self._released = False
        self._notify: Callable[[], object] | None = None
        self._held: Held | None = None
        self._wanted: Entry | None = None
        """What comes again, while we stand there; `_front` is then where we go on."""
        self._front: tuple[int, int] = (0, 0)

    @property
    def offset(self) -> int:
        """Where the next record begins."""
        return self._offset

    @property
    def may_have_more(self) -> bool:
        """Whether there is something behind our offset, or the channel is sealed."""
        words = self._control
        if self.ready:
            return True
        return load_u64(words, WRITE_TAIL) > self._offset or bool(load_u32(words, STATE) & STATE_SEALED)

    @property
    def sequence(self) -> int:
        """Number of the next message."""
        return self._sequence

    @property
    def outstanding(self) -> int:
        """How many are held and neither settled nor given back."""
        return 0 if self._held is None else self._held.out

    @property
    def ready(self) -> int:
        """How many come again now, before anything new."""
        if self._held is None:
            return 0
        with self._lock:
            return self._held.ready

    @property
    def next_due(self) -> int:
        """When the next delayed one comes again, in ns of the monotonic clock; 0 if none is delayed."""
        if self._held is None:
            return 0
        with self._lock:
            return self._held.next_due

    @property
    def drained(self) -> bool:
        """Whether the channel is sealed, and nothing is held."""
        is_held = self._held is not None and self._held.oldest is not None
        return not is_held and bool(load_u32(self._control, STATE) & STATE_SEALED)

    def take(self) -> object | Nothing:
        """Return the next item, decoded, or NOTHING."""
        delivery = self.take_delivery()
        return delivery if isinstance(delivery, Nothing) else delivery[0]

    def take_in_turn(self) -> object | Nothing:
        """The same for a coroutine: NOTHING also when it has to give way first."""
        return NOTHING if turn_is_over() else self.take()

    def take_record(self) -> tuple[object, int, int] | Nothing:
        """Return (item, offset, sequence), or NOTHING."""
        delivery = self.take_delivery()
        return delivery if isinstance(delivery, Nothing) else delivery[:3]

    def take_delivery(self) -> tuple[object, int, int, int, int] | Nothing:
        """Return (item, offset, sequence, attempt, token), or NOTHING."""
        with self._lock:
            self._enter()
            try:
                if self._held is not None:
                    self._held.token += 1
                    given = self._next_held(self._held)
                    return given if isinstance(given, Nothing) else (*given, self._held.token)
                record = self._next()
                if isinstance(record, Nothing):
                    return NOTHING
                self._store_cursor()
                return (*record, 1, 0)
            finally:
                self._busy = False

    def take_many(self, most: int, /) -> list[object]:
        """Return up to `most` items; an error waits until what came before it is taken."""
        wanted = index(most)
        items: list[object] = []
        with self._lock:
            self._enter()
            before, held = (self._offset, self._sequence), self._held
            if held is not None:
                held.token += 1
            try:
                while len(items) < wanted:
                    record = self._next() if held is None else self._next_held(held)
                    if isinstance(record, Nothing):
                        break
                    items.append(record[0])
            except Exception:
                if not items:
                    raise
            except BaseException:
                # Nobody gets what was taken so far: it comes again.
                if items:
                    (self._offset, self._sequence), self._limit = before, 0
                    if held is not None:
                        held.take_back(before[0])
                    self._store_cursor()
                raise
            finally:
                if self._offset != before[0] and held is None:
                    self._store_cursor()
                self._busy = False
        return items

    def move(self, offset: int, sequence: int, /) -> None:
        """Stand at this record boundary and store it in the cursor."""
        offset, sequence = unsigned(offset), unsigned(sequence)
        with self._lock:
            self._stand_at(offset, sequence)

    def move_from(self, expected: int, offset: int, sequence: int, /) -> bool:
        """Move only if still at the expected offset; tell whether."""
        expected, offset, sequence = unsigned(expected), unsigned(offset), unsigned(sequence)
        with self._lock:
            self._enter()
            try:
                there = self._offset == expected and not self._released
                if there:
                    self._stand_at(offset, sequence)
                return there
            finally:
                self._busy = False

    def _stand_at(self, offset: int, sequence: int) -> None:
        """Stand at a record boundary. What we hold from there on is forgotten: it comes anyway."""
        if self._held is not None and self._wanted is None:
            self._held.drop_from(offset)
        self._offset, self._sequence, self._limit = offset, sequence, 0
        self._store_cursor()

    def bind(self, segment: Buffer, begin: int, /) -> None:
        """Read from this map."""
        begin, view = unsigned(begin), readable(segment)
        if view.nbytes < SEGMENT_HEADER_SIZE:
            raise ValueError("segment is shorter than its header")
        self._segment, self._begin, self._limit = view, begin, 0

    def unbind(self) -> None:
        """Let go of the segment; advance is asked for another."""
        self._segment, self._limit = None, 0

    def sleep_with(self, sleepers: Buffer, spin: float, /) -> None:
        """Let threads sleep for more where they receive, having watched for so long, and count them.

        The C core does, to save what going through Python costs; here whoever calls sleeps by itself.
        """
        math.ldexp(spin, 0)  # a number, not a text
        if self._may_sleep or self._control.readonly:
            raise ValueError("said before" if self._may_sleep else "control page cannot be written to")
        if writable(sleepers).nbytes < 8:
            raise ValueError("sleepers is too short")
        self._may_sleep = True

    def tell_room(self, notify: Callable[[], object], /) -> None:
        """Call this when the cursor moved and event loops wait for room."""
        self._notify = notify

    # Acknowledging

    def hold(self) -> None:
        """Keep what is handed out until it is acknowledged; the cursor follows the oldest."""
        if self._held is not None:
            raise ValueError("said before")
        self._held = Held()

    def ack(self, count: int, /) -> bool:
        """Settle the oldest ones outstanding; False, and nothing changed, if there are fewer."""
        count = max(index(count), 0)
        with self._lock:
            moved = None if self._held is None or self._released else self._held.ack(count)
            if moved:
                self._store_cursor()
            return moved is not None

    def nack(self, count: int | None, /) -> bool:
        """Let the newest ones outstanding come again, None: all; False, and nothing changed, if there are fewer."""
        count = None if count is None else max(index(count), 0)
        with self._lock:
            return self._held is not None and not self._released and self._held.nack(count)

    def settle(self, offset: int, token: int, /) -> bool:
        """Settle one that is outstanding since that call; False if it is not."""
        offset, token = unsigned(offset), unsigned(token)
        with self._lock:
            moved = None if self._held is None or self._released else self._held.settle(offset, token)
            if moved:
                self._store_cursor()
            return moved is not None

    def give_back(self, offset: int, token: int, due: int, counted: bool, /) -> bool:
        """Let one come again, not before *due*; False if it is not outstanding since that call."""
        offset, token, due, counted = unsigned(offset), unsigned(token), unsigned(due), bool(counted)
        with self._lock:
            held = None if self._released else self._held
            return held is not None and held.give_back(offset, token, due, counted=counted)

    def coming(self, most: int, /) -> list[tuple[int, int]]:
        """Return (offset, sequence) of what comes again now, up to so many."""
        wanted = min(max(index(most), 0), sys.maxsize)
        with self._lock:
            entries = [] if self._held is None else self._held.coming(wanted)
            return [(entry.offset, entry.sequence) for entry in entries]

    def forget(self) -> None:
        """Forget what is held: the cursor goes where the next new one begins."""
        with self._lock:
            if self._held is not None:
                self._held.drop_from(0)
                self._store_cursor()

    def release(self) -> None:
        """Let go of segment and cursor; there is nothing to take any more."""
        with self._lock:  # whoever is inside stores the cursor first: what it hands out must not come again
            self._released = True
            self.unbind()
            self._cursor = None

    def _enter(self) -> None:
        if self._busy:
            raise RuntimeError("this receiver is being read by the same thread already")
        self._busy = True

    def _next_held(self, held: Held) -> tuple[object, int, int, int] | Nothing:
        """Return the next item that comes again, and then what is new, with its attempt."""
        while (wanted := held.first_ready) is not None:
            self._step_back(wanted)
            record: tuple[object, int, int] | Nothing = NOTHING
            try:
                record = self._next()
            finally:
                is_gone = self._step_forward(held, wanted, taken=record is not NOTHING)
            if not isinstance(record, Nothing):
                return (*record, held.hand_out(record[1]))
            if not is_gone:
                return NOTHING
        record = self._next()
        if isinstance(record, Nothing):
            return NOTHING
        held.push(record[1], record[2])
        return (*record, 1)

    def _step_back(self, wanted: Entry) -> None:
        """Stand where one begins that comes again."""
        self._front = self._offset, self._sequence
        self._offset, self._sequence, self._limit, self._wanted = wanted.offset, wanted.sequence, 0, wanted

    def _step_forward(self, held: Held, wanted: Entry, *, taken: bool) -> bool:
        """Stand where we go on; if a callback has moved us, what waited in between is gone. Tell whether."""
        reached = self._offset, self._sequence
        (self._offset, self._sequence), self._limit, self._wanted = self._front, 0, None
        if taken or reached[0] == wanted.offset:
            return False
        held.drop_waiting(wanted.offset, max(reached[0], wanted.offset + 1))
        if reached[0] > self._offset:
            self._offset, self._sequence = reached
        self._store_cursor()
        return True

    def _next(self) -> tuple[object, int, int] | Nothing:
        payload = self._next_payload()
        if isinstance(payload, Nothing):
            return NOTHING
        start, sequence = self._offset, self._sequence
        end = start + RECORD_HEADER_SIZE + len(payload)
        try:
            item = payload if self._decode is None else self._decode(payload)
        except Exception as error:
            self._refuse(start, end, payload, error)
            raise SystemError("refuse() must raise") from None
        self._offset, self._sequence = end, sequence + 1
        charge_turn(len(payload))
        return item, start, sequence

    def _next_payload(self) -> bytes | Nothing:
        while self._is_where_it_should_be() and self._look():
            segment = self._segment
            if segment is None or self._offset >= self._limit:
                self._advance(self)
                continue
            position = SEGMENT_HEADER_SIZE + self._offset - self._begin
            stop = SEGMENT_HEADER_SIZE + self._limit - self._begin
            try:
                word, payload = read_record(segment, position, stop, self._offset)
            except ValueError as error:
                self._damaged(self, str(error))
                continue
            if not word & CONTROL_RECORD:
                return payload
            self._offset += RECORD_HEADER_SIZE + len(payload)
            self._store_cursor()
        return NOTHING

    def _is_where_it_should_be(self) -> bool:
        """Tell whether what comes again is still there: otherwise a callback has moved us."""
        return self._wanted is None or self._offset == self._wanted.offset

    def _look(self) -> bool:
        """Tell whether there is anything beyond our offset, and learn how far this segment goes."""
        if self._offset < self._limit:
            return True
        if self._released:
            return False
        write = load_u64(self._control, WRITE_TAIL)
        if self._offset >= write:
            return False
        if self._segment is not None and self._offset >= self._begin:
            # After `write`: a segment's end is stored before anything beyond it is published.
            end = load_u64(self._segment, SEGMENT_END)
            room = self._begin + self._segment.nbytes - SEGMENT_HEADER_SIZE
            self._limit = min(write, room, end or room)
        return True

    def _store_cursor(self) -> None:
        """Two slots in turn, so that one of them is whole whenever we are killed."""
        if self._cursor is None:
            return
        self._generation += 1
        fields = (self._generation, *self._floor(), wall_clock_ns())
        slot = CURSOR_SLOTS[self._generation & 1]
        CURSOR.pack_into(self._cursor, slot, *fields, crc32c(CURSOR_CHECKED.pack(*fields)))
        self._tell_room()

    def _tell_room(self) -> None:
        """Senders that wait for room must hear that we moved on."""
        if not load_u32(self._control, ROOM_WATCHED) or self._control.readonly:
            return
        if wake_waiters(self._control, ROOM) & WAKE_LOOPS and self._notify is not None:
            try:
                self._notify()
            except BaseException as error:  # whatever goes wrong there, we have moved on
                _report(error, self._notify)

    def _floor(self) -> tuple[int, int]:
        """Return where the oldest message begins that is not acknowledged, or where we go on."""
        oldest = None if self._held is None else self._held.oldest
        if oldest is not None:
            return oldest.offset, oldest.sequence
        return (self._offset, self._sequence) if self._wanted is None else self._front


def _report(error: BaseException, where: object) -> None:
    """Say what cannot be raised; Ctrl-C comes again, a little later."""
    if isinstance(error, KeyboardInterrupt):
        interrupt_main()
    else:
        unraisable = _Unraisable(type(error), error, error.__traceback__, None, where)
        sys.unraisablehook(unraisable)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def _newest_generation(cursor: memoryview) -> int:
    """Return the generation of the newest whole slot: the next one must not go over it."""
    if cursor.nbytes < CURSOR_SLOTS[-1] + CACHE_LINE:
        raise ValueError("cursor is too short")
    newest = 0
    for slot in CURSOR_SLOTS:
        *fields, crc = CURSOR.unpack_from(cursor, slot)
        if crc == crc32c(CURSOR_CHECKED.pack(*fields)):
            newest = max(newest, fields[0])
    return newest
