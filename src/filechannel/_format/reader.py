"""Reading one record after the other, decoded, with a cursor: the readable reference of the C reader.

A reader stands at an offset and knows how far it may read without looking again (`limit`). Where that ends it looks
at the shared words; where the segment ends it asks `advance` for the next one.

One that holds stores in its cursor where the oldest message begins that was not acknowledged. What comes again is read
by standing there for a moment.

One that shares takes what it has read only if no other member of its group was faster: see `ring`.
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

from .arguments import U32, U64, readable, unsigned, writable
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
    TAIL_SLOT,
    TAIL_SLOTS,
    WAKE_LOOPS,
    WRITE_TAIL,
)
from .nothing import NOTHING, Nothing
from .records import read_record
from .ring import Claim, Ring
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
        self._ring: Ring | None = None
        self._tend: Callable[[Reader], object] | None = None
        self._seen: tuple[int, int] | None = None
        """Of one that shares: where the group went on when we followed it."""
        self._again: int | None = None
        """Of one that shares: where something begins that comes again, while we read it."""

    @property
    def offset(self) -> int:
        """Where the next record begins."""
        return self._place()[0]

    @property
    def may_have_more(self) -> bool:
        """Whether there is something behind our offset, or the channel is sealed."""
        words = self._control
        if self.ready:
            return True
        return load_u64(words, WRITE_TAIL) > self.offset or bool(load_u32(words, STATE) & STATE_SEALED)

    @property
    def sequence(self) -> int:
        """Number of the next message."""
        return self._place()[1]

    def _place(self) -> tuple[int, int]:
        """Return where we stand; one that shares and reads nothing now stands where the group does."""
        if self._ring is not None and not self._busy and (place := self._ring.next) != self._seen:
            return place
        return self._offset, self._sequence

    @property
    def outstanding(self) -> int:
        """How many are held and neither settled nor given back."""
        if self._ring is not None:
            return self._ring.out
        return 0 if self._held is None else self._held.out

    @property
    def ready(self) -> int:
        """How many come again now, before anything new."""
        if self._ring is not None:
            return self._ring.ready
        if self._held is None:
            return 0
        with self._lock:
            return self._held.ready

    @property
    def full(self) -> bool:
        """Whether nothing new can be handed out before something is settled."""
        return self._ring is not None and self._ring.is_full

    @property
    def next_due(self) -> int:
        """When the next delayed one comes again, in ns of the monotonic clock; 0 if none is delayed.

        Of one that shares: when somebody has to look at what the members have.
        """
        if self._ring is not None:
            return 0 if self._ring.due == U64 else self._ring.due
        if self._held is None:
            return 0
        with self._lock:
            return self._held.next_due

    @property
    def drained(self) -> bool:
        """Whether the channel is sealed, and nothing is held."""
        if not load_u32(self._control, STATE) & STATE_SEALED:
            return False
        if self._ring is not None:
            return self._ring.is_empty and self._all_handed_out(self._ring)
        return self._held is None or self._held.oldest is None

    def _all_handed_out(self, ring: Ring) -> bool:
        """Tell whether a sealed channel has nothing more: more than the seal may lie behind the last message."""
        end = load_u64(self._control, WRITE_TAIL)
        slots = [TAIL_SLOT.unpack_from(self._control, WRITE_TAIL + distance) for distance in TAIL_SLOTS]
        return all(ring.next[1] >= sequence for offset, sequence, _, _ in slots if offset == end)

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
                if self._ring is not None:
                    return self._next_shared(self._ring)
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
            before, held, ring = (self._offset, self._sequence), self._held, self._ring
            had = [] if ring is None else ring.mark
            if held is not None:
                held.token += 1
            try:
                while len(items) < wanted:
                    record = self._next_of(ring, held, first=not items)
                    if isinstance(record, Nothing):
                        break
                    items.append(record[0])
            except Exception:
                if not items:
                    raise
            except BaseException:
                # Nobody gets what was taken so far: it comes again.
                if ring is not None:
                    ring.give_all_back(had)
                elif items:
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

    def _next_of(self, ring: Ring | None, held: Held | None, *, first: bool) -> tuple[object, ...] | Nothing:
        if ring is not None:
            return self._next_shared(ring, first=first)
        return self._next() if held is None else self._next_held(held)

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
        if self._held is not None or self._ring is not None:
            raise ValueError("said before")
        self._held = Held()

    def share(self, group: Buffer, owner: int, lease: int, tend: Callable[[Reader], object], /) -> None:
        """Take what no other member of a group has, each message for so many ns.

        *tend* is called when something is due, or the lock was taken for longer; nothing is taken if it returns False.
        """
        owner, lease = unsigned(owner, U32), unsigned(lease)
        if self._held is not None or self._ring is not None:
            raise ValueError("said before")
        self._ring, self._tend = Ring(group, owner, lease), tend
        self._ring.on_moved = self._tell_room

    def place_of(self, offset: int, token: int, /) -> int:
        """Return the number of the entry of one that is outstanding since that call; -1 if it is not."""
        offset, token = unsigned(offset), unsigned(token)
        with self._lock:
            return -1 if self._ring is None else self._ring.place_of(offset, token)

    def refused(self, offset: int, /) -> tuple[int, int, int] | None:
        """Return (sequence, attempt, token) of one that did not decode, and is ours; None if there is none."""
        offset = unsigned(offset)
        with self._lock:
            return None if self._ring is None else self._ring.refused(offset)

    def take_lost(self) -> list[tuple[int, int]]:
        """Return, once, offset and token of what was to be settled and is not ours any more."""
        with self._lock:
            return [] if self._ring is None else self._ring.take_lost()

    def must_tell(self) -> bool:
        """Tell, once, whether others may wait for what was settled here, or something was lost."""
        if self._ring is None:
            return self.drained
        with self._lock:
            made_room, emptied = self._ring.made_room, self._ring.emptied
            self._ring.made_room = self._ring.emptied = False
            return made_room or self._ring.has_lost or (emptied and self.drained)

    def ack(self, count: int, /) -> bool:
        """Settle the oldest ones outstanding; False, and nothing changed, if there are fewer."""
        count = max(index(count), 0)
        with self._lock:
            if self._ring is not None:
                return not self._released and self._ring.ack(count)
            moved = None if self._held is None or self._released else self._held.ack(count)
            if moved:
                self._store_cursor()
            return moved is not None

    def nack(self, count: int | None, /) -> bool:
        """Let the newest ones outstanding come again, None: all; False, and nothing changed, if there are fewer."""
        count = None if count is None else max(index(count), 0)
        with self._lock:
            if self._ring is not None:
                return not self._released and self._ring.nack(count)
            return self._held is not None and not self._released and self._held.nack(count)

    def settle(self, offset: int, token: int, /) -> bool:
        """Settle one that is outstanding since that call; False if it is not."""
        offset, token = unsigned(offset), unsigned(token)
        with self._lock:
            if self._ring is not None:
                return not self._released and self._ring.settle(offset, token)
            moved = None if self._held is None or self._released else self._held.settle(offset, token)
            if moved:
                self._store_cursor()
            return moved is not None

    def give_back(self, offset: int, token: int, due: int, counted: bool, /) -> bool:
        """Let one come again, not before *due*; False if it is not outstanding since that call."""
        offset, token, due, counted = unsigned(offset), unsigned(token), unsigned(due), bool(counted)
        with self._lock:
            if self._ring is not None:
                return not self._released and self._ring.give_back(offset, token, due, counted=counted)
            held = None if self._released else self._held
            return held is not None and held.give_back(offset, token, due, counted=counted)

    def outlook(self) -> tuple[int, int, int] | None:
        """Return (how many are outstanding, offset, sequence of the cursor if they are settled).

        None if older ones come again: then there is no such place.
        """
        with self._lock:
            if self._held is None or self._released:
                return None
            in_order, waiting = self._held.in_order()
            if not in_order:
                return None
            front = (self._offset, self._sequence) if self._wanted is None else self._front
            return (self._held.out, *(front if waiting is None else (waiting.offset, waiting.sequence)))

    def settle_before(self, offset: int, /) -> None:
        """Settle whatever is held and begins before an offset."""
        offset = unsigned(offset)
        with self._lock:
            if self._held is not None and not self._released and self._held.settle_before(offset):
                self._store_cursor()

    def give_back_all(self) -> None:
        """Let everything come again that is outstanding; that attempt does not count."""
        with self._lock:
            if self._held is not None and not self._released:
                self._held.give_back_all()

    def coming(self, most: int, /) -> list[tuple[int, int]]:
        """Return (offset, sequence) of what comes again now, up to so many."""
        wanted = min(max(index(most), 0), sys.maxsize)
        with self._lock:
            if self._ring is not None:
                return self._ring.coming(wanted)
            entries = [] if self._held is None else self._held.coming(wanted)
            return [(entry.offset, entry.sequence) for entry in entries]

    def forget(self) -> None:
        """Forget what is held: the cursor goes where the next new one begins."""
        with self._lock:
            if self._ring is not None:
                self._ring.forget()
            if self._held is not None:
                self._held.drop_from(0)
                self._store_cursor()

    def release(self) -> bool:
        """Let go of segment and cursor; there is nothing to take any more. Tell whether something was given back."""
        with self._lock:  # whoever is inside stores the cursor first: what it hands out must not come again
            gave = self._ring is not None and not self._released and self._ring.give_all_back()
            self._released = True
            self.unbind()
            self._cursor = None
            return gave

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

    # Sharing

    def _next_shared(self, ring: Ring, *, first: bool = True) -> tuple[object, int, int, int, int] | Nothing:
        """Return the next item that no other member has, with its attempt and token.

        One that does not decode stays ours, apart from the others; unless others come with it, in the same call.
        """
        found = self._claim_next(ring)
        if isinstance(found, Nothing):
            # Whoever had settled the last one found the lock taken by us, and left it to us to tell.
            is_sealed = load_u32(self._control, STATE) & STATE_SEALED
            if ring.made_room or (ring.emptied and is_sealed):
                self._ask_to_tend()
            return NOTHING
        claim, payload = found
        try:
            item = payload if self._decode is None else self._decode(payload)
        except Exception as error:
            if first:
                ring.refuse(claim)
            else:
                ring.give_back(claim.offset, claim.word, 0, counted=False, tell=False)
            self._refuse(claim.offset, claim.offset + RECORD_HEADER_SIZE + len(payload), payload, error)
            raise SystemError("refuse() must raise") from None
        except BaseException:
            ring.give_back(claim.offset, claim.word, 0, counted=False, tell=False)
            raise
        charge_turn(len(payload))
        return item, claim.offset, claim.sequence, claim.attempt, claim.word

    def _claim_next(self, ring: Ring) -> tuple[Claim, bytes] | Nothing:
        """Have the next message: one that comes again, or a new one that no other member has taken since we read it."""
        if ring.is_due and not self._ask_to_tend():
            return NOTHING
        while not self._released:
            if ring.ready:
                claim = ring.claim_again()
                if isinstance(claim, Claim) and (found := self._read_again(ring, claim)) is not None:
                    return claim, found
                if claim is True and not self._ask_to_tend():
                    return NOTHING
                continue
            if ring.is_full:
                return NOTHING
            self._follow(ring)
            assert self._seen is not None
            payload = self._next_payload()
            if isinstance(payload, Nothing):
                return NOTHING
            end = self._offset + RECORD_HEADER_SIZE + len(payload)
            claim = ring.claim(self._seen, self._offset, end, self._sequence)
            if isinstance(claim, Claim):
                self._offset, self._sequence = self._seen = end, self._sequence + 1
                return claim, payload
            if claim and not self._ask_to_tend():
                return NOTHING
        return NOTHING

    def _ask_to_tend(self) -> bool:
        assert self._tend is not None
        return self._tend(self) is not False

    def _follow(self, ring: Ring) -> None:
        """Stand where the group does, if that is elsewhere by now; what we have passed that is no message stays so."""
        if (place := ring.next) != self._seen:
            self._seen = self._offset, self._sequence = place
            self._limit = 0 if self._offset < self._begin else self._limit

    def _read_again(self, ring: Ring, claim: Claim) -> bytes | None:
        """Return the payload of what comes again; None if it is gone. What cannot be read is not ours."""
        self._offset, self._sequence, self._limit, self._seen = claim.offset, claim.sequence, 0, None
        self._again = claim.offset
        try:
            payload = self._next_payload()
        except BaseException:
            ring.give_back(claim.offset, claim.word, 0, counted=False, tell=False)
            raise
        finally:
            self._again = None
        if not isinstance(payload, Nothing):
            return payload
        if self._released:
            ring.give_back(claim.offset, claim.word, 0, counted=False, tell=False)
        else:
            ring.settle(claim.offset, claim.word, tell=False)
        return None

    # Reading

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
            # Each once: another thread may take the segment away from us, and the limit after it.
            segment, begin, limit = self._segment, self._begin, self._limit
            if segment is None or self._offset >= limit:
                self._advance(self)
                continue
            position = SEGMENT_HEADER_SIZE + self._offset - begin
            stop = SEGMENT_HEADER_SIZE + limit - begin
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
        if self._again is not None:
            return self._offset == self._again
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
        segment = self._segment
        if segment is not None and self._offset >= self._begin:
            # After `write`: a segment's end is stored before anything beyond it is published.
            end = load_u64(segment, SEGMENT_END)
            room = self._begin + segment.nbytes - SEGMENT_HEADER_SIZE
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
