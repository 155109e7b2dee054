"""Reading and decoding records in order, with a cursor: the pure-Python implementation of reader.c.

`log_cursor` keeps the position in the log and reads. With acknowledgements (`ack_tracking`) the cursor stores where the
oldest unacknowledged message begins. In a group (`group_claims`) the reader takes a message only if no other member
claimed it first. This module has the public methods, and decides which thread may call them when.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from operator import index
from threading import RLock
from typing import NoReturn

from anyio import ClosedResourceError
from typing_extensions import Buffer

from ..clock import slice_is_over
from ..layout import MAX_PAYLOAD
from ..memory.arguments import U32, unsigned, writable
from ..memory.closable_map import close_pending
from ..memory.mutex import count_locked
from ..sentinel import NOTHING, Nothing
from .ack_tracking import AckTracking
from .group_claims import GroupClaims
from .group_ring import Ring
from .log_cursor import LogCursor


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
        most: int = MAX_PAYLOAD,
        /,
    ) -> None:
        """*most* is the largest payload size in bytes: a record that claims more is damaged."""
        most = unsigned(most, MAX_PAYLOAD)
        self._log_cursor = LogCursor(
            control, cursor, decode, lambda: advance(self), lambda reason: damaged(self, reason), refuse, most
        )
        self._tracker: AckTracking | GroupClaims | None = None
        """How deliveries are tracked; None if the cursor simply follows them."""
        self._lock = RLock()
        self._busy = False
        self._may_sleep = False
        self._closed = False

    @property
    def _ack_tracking(self) -> AckTracking | None:
        """The ack tracking, until the reader is released."""
        return self._tracker if isinstance(self._tracker, AckTracking) and not self._log_cursor.released else None

    @property
    def _group_claims(self) -> GroupClaims | None:
        return self._tracker if isinstance(self._tracker, GroupClaims) else None

    # State

    @property
    def offset(self) -> int:
        """Where the next record begins."""
        return self._log_position()[0]

    @property
    def sequence(self) -> int:
        """Number of the next message: its sequence."""
        return self._log_position()[1]

    def _log_position(self) -> tuple[int, int]:
        """Return the current log position; a group member that is not reading has the position of the group."""
        claims = self._group_claims
        return self._log_cursor.log_position if claims is None or self._busy else claims.log_position

    @property
    def may_have_more(self) -> bool:
        """Whether the log does not end at the current offset, or the channel is sealed."""
        if self.ready:
            return True
        if self._log_cursor.released:
            return False
        return self.offset != self._log_cursor.write_offset or self._log_cursor.is_sealed

    @property
    def outstanding(self) -> int:
        """How many deliveries are outstanding: neither acknowledged nor redelivered."""
        return 0 if self._tracker is None else self._tracker.outstanding

    @property
    def ready(self) -> int:
        """How many messages are ready to be redelivered before new ones."""
        if (claims := self._group_claims) is not None:
            return claims.ready
        if self._tracker is None:
            return 0
        with self._lock:
            return self._tracker.ready

    @property
    def full(self) -> bool:
        """Whether nothing new can be delivered before a delivery is acknowledged."""
        return self._tracker is not None and self._tracker.is_full

    @property
    def next_due(self) -> int:
        """When the next delayed message is redelivered, in ns of the monotonic clock; 0 if none is delayed.

        For a group member: when a member must check the claims of the group.
        """
        if (claims := self._group_claims) is not None:
            return claims.next_due
        if self._tracker is None:
            return 0
        with self._lock:
            return self._tracker.next_due

    @property
    def drained(self) -> bool:
        """Whether the channel is sealed, and no delivery is unacknowledged."""
        return self._log_cursor.is_sealed and (self._tracker is None or self._tracker.is_drained)

    # Taking items

    def take(self) -> object | Nothing:
        """Return the next item, decoded, or NOTHING."""
        delivery = self.take_delivery()
        return delivery if isinstance(delivery, Nothing) else delivery[0]

    def take_or_yield(self) -> object | Nothing:
        """Like `take`, for a coroutine: NOTHING also if the task has to yield first."""
        return NOTHING if slice_is_over() else self.take()

    def take_record(self) -> tuple[object, int, int] | Nothing:
        """Return (item, offset, sequence), or NOTHING."""
        delivery = self.take_delivery()
        return delivery if isinstance(delivery, Nothing) else delivery[:3]

    def take_delivery(self) -> tuple[object, int, int, int, int] | Nothing:
        """Return (item, offset, sequence, attempt, token), or NOTHING."""
        with self._lock:
            self._enter()
            try:
                tracker = self._tracker
                if isinstance(tracker, AckTracking):
                    tracker.begin_call()
                if tracker is not None:
                    return tracker.next_delivery()
                record = self._log_cursor.next_item()
                if isinstance(record, Nothing):
                    return NOTHING
                self._log_cursor.store_cursor()
                return (*record, 1, 0)
            finally:
                self._leave()

    def take_many(self, most: int, /) -> list[object]:
        """Return up to `most` items; an error is raised by the next call if items were taken before it."""
        wanted = index(most)
        items: list[object] = []
        with self._lock:
            self._enter()
            before, tracker, log_cursor = self._log_cursor.log_position, self._tracker, self._log_cursor
            had = tracker.claims if isinstance(tracker, GroupClaims) else []
            if isinstance(tracker, AckTracking):
                tracker.begin_call()
            try:
                while len(items) < wanted:
                    record = self._next_of(tracker, first=not items)
                    if isinstance(record, Nothing):
                        break
                    items.append(record[0])
            except Exception:
                if not items:
                    raise
            except BaseException:
                # The caller does not get the items taken so far, so they are redelivered.
                if isinstance(tracker, GroupClaims):
                    tracker.redeliver_all(had)
                elif items:
                    log_cursor.move_to(*before)
                    if tracker is not None:
                        tracker.roll_back(before[0])
                    log_cursor.store_cursor()
                raise
            finally:
                if log_cursor.offset != before[0] and not isinstance(tracker, AckTracking):
                    log_cursor.store_cursor()
                self._leave()
        return items

    def _next_of(self, tracker: AckTracking | GroupClaims | None, *, first: bool) -> tuple[object, ...] | Nothing:
        if isinstance(tracker, GroupClaims):
            return tracker.next_delivery(first=first)
        return self._log_cursor.next_item() if tracker is None else tracker.next_delivery()

    def _enter(self) -> None:
        if self._busy:
            raise RuntimeError("the same thread is already reading from this receiver")
        self._busy = True
        count_locked(1)

    def _leave(self) -> None:
        self._busy = False
        count_locked(-1)
        self._close_if_released()

    def _close_if_released(self) -> None:
        """Release every map once no thread is in a call. The caller has the lock."""
        if self._log_cursor.released and not self._busy and not self._closed:
            self._closed = True
            if (claims := self._group_claims) is not None:
                claims.close()
            self._log_cursor.close()
            close_pending()

    # Moving

    def move(self, offset: int, sequence: int, /) -> None:
        """Move to this record boundary and store it in the cursor."""
        offset, sequence = unsigned(offset), unsigned(sequence)
        with self._lock:
            self._move(offset, sequence)

    def move_from(self, expected: int, offset: int, sequence: int, /) -> bool:
        """Move only if still at the expected offset; return whether it moved."""
        expected, offset, sequence = unsigned(expected), unsigned(offset), unsigned(sequence)
        with self._lock:
            self._enter()
            try:
                there = self._log_cursor.offset == expected and not self._log_cursor.released
                if there:
                    self._move(offset, sequence)
                return there
            finally:
                self._leave()

    def _move(self, offset: int, sequence: int) -> None:
        if isinstance(self._tracker, AckTracking):
            self._tracker.drop_from(offset)
        self._log_cursor.move_to(offset, sequence)
        self._log_cursor.store_cursor()

    def bind(self, segment: Buffer, begin: int, /) -> None:
        """Read from this map."""
        self._log_cursor.bind(segment, unsigned(begin))

    def unbind(self) -> None:
        """Release the segment; the next call asks `advance` for another one."""
        self._log_cursor.unbind()

    def sleep_with(self, sleepers: Buffer, spin: float, /) -> None:
        """Let threads that receive sleep in the reader after spinning for *spin* seconds, and count them in *sleepers*.

        The C core does that, to save the cost of Python calls; with the pure-Python implementation the caller sleeps.
        """
        math.ldexp(spin, 0)  # raises TypeError for a string
        if self._log_cursor.released:
            raise ClosedResourceError
        if self._may_sleep or self._log_cursor.is_readonly:
            raise ValueError("already set up" if self._may_sleep else "control page cannot be written to")
        if writable(sleepers).nbytes < 8:
            raise ValueError("sleepers is too short")
        self._may_sleep = True

    def notify_capacity(self, notify: Callable[[], object], /) -> None:
        """Call this when the cursor moved and event loops wait for capacity."""
        if not self._log_cursor.released:
            self._log_cursor.notify = notify

    def release(self) -> bool:
        """Release every map now or, if this thread is in a call, when it returns. Nothing can be taken after that.

        Returns whether any claim was returned to the ring.
        """
        with self._lock:  # a thread in a call stores the cursor first: its item must not be redelivered
            claims = None if self._log_cursor.released else self._group_claims
            returned = claims is not None and claims.redeliver_all()
            self._log_cursor.release()
            self._close_if_released()
            return returned

    # Acknowledging

    def track_acks(self) -> None:
        """Track acknowledgements: from now on the cursor stores the oldest unacknowledged message."""
        if self._tracker is not None:
            raise ValueError("already set up")
        self._tracker = AckTracking(self._log_cursor)

    def share(self, group: Buffer, owner: int, lease: int, tend: Callable[[Reader], object], /) -> None:
        """Take messages that no other member of the group has claimed, each one for *lease* ns.

        *tend* is called when an entry is due, or another member has the lock for too long; nothing is taken if it
        returns False.
        """
        owner, lease = unsigned(owner, U32), unsigned(lease)
        if self._log_cursor.released:
            raise ClosedResourceError
        if self._tracker is not None:
            raise ValueError("already set up")
        self._tracker = GroupClaims(
            self._log_cursor, Ring(group, owner, lease, self._log_cursor.notify_capacity), lambda: tend(self)
        )

    def ack(self, count: int, /) -> bool:
        """Acknowledge the oldest outstanding deliveries; False, with nothing changed, if there are fewer."""
        count = max(index(count), 0)
        with self._lock:
            return self._tracker is not None and not self._log_cursor.released and self._tracker.ack(count)

    def nack(self, count: int | None, /) -> bool:
        """Redeliver the newest outstanding messages, None: all; False, with nothing changed, if there are fewer."""
        count = None if count is None else max(index(count), 0)
        with self._lock:
            return self._tracker is not None and not self._log_cursor.released and self._tracker.nack(count)

    def acknowledge(self, offset: int, token: int, /) -> bool:
        """Acknowledge one delivery, identified by offset and token; False if it is not outstanding."""
        offset, token = unsigned(offset), unsigned(token)
        with self._lock:
            return (
                self._tracker is not None and not self._log_cursor.released and self._tracker.acknowledge(offset, token)
            )

    def redeliver(self, offset: int, token: int, due: int, counted: bool, /) -> bool:
        """Redeliver one message, not before *due*; False if it is not outstanding."""
        offset, token, due, counted = unsigned(offset), unsigned(token), unsigned(due), bool(counted)
        with self._lock:
            tracker = None if self._log_cursor.released else self._tracker
            return tracker is not None and tracker.redeliver(offset, token, due, counted=counted)

    def ready_positions(self, most: int, /) -> list[tuple[int, int]]:
        """Return (offset, sequence) of at most *most* messages that are ready to be redelivered."""
        wanted = min(max(index(most), 0), sys.maxsize)
        with self._lock:
            return [] if self._tracker is None else self._tracker.ready_positions(wanted)

    def forget(self) -> None:
        """Forget all deliveries: the cursor moves to the next new message."""
        with self._lock:
            if self._tracker is not None:
                self._tracker.forget()

    # Only with ack tracking

    def outlook(self) -> tuple[int, int, int] | None:
        """Return (how many are outstanding, offset, sequence of the cursor once they are acknowledged).

        None if an older message is to be redelivered: then there is no such log position.
        """
        with self._lock:
            return None if (acks := self._ack_tracking) is None else acks.outlook()

    def acknowledge_before(self, offset: int, /) -> None:
        """Acknowledge every delivery that begins before an offset."""
        offset = unsigned(offset)
        with self._lock:
            if (acks := self._ack_tracking) is not None:
                acks.acknowledge_before(offset)

    def redeliver_all(self) -> None:
        """Redeliver everything outstanding; the attempt is not counted."""
        with self._lock:
            if (acks := self._ack_tracking) is not None:
                acks.redeliver_all()

    # Only in a group

    def entry_number(self, offset: int, token: int, /) -> int:
        """Return the entry number of an outstanding delivery; -1 if it is not outstanding."""
        offset, token = unsigned(offset), unsigned(token)
        with self._lock:
            return -1 if (claims := self._group_claims) is None else claims.entry_number(offset, token)

    def refused(self, offset: int, /) -> tuple[int, int, int] | None:
        """Return (sequence, attempt, token) of a claim of this member that did not decode; None if there is none."""
        offset = unsigned(offset)
        with self._lock:
            return None if (claims := self._group_claims) is None else claims.refused(offset)

    def take_lost(self) -> list[tuple[int, int]]:
        """Return, once, offset and token of the deliveries that were to be acknowledged but whose claim was lost."""
        with self._lock:
            return [] if (claims := self._group_claims) is None else claims.take_lost()

    def must_wake(self) -> bool:
        """Return, once, whether other processes may wait for what was acknowledged here, or a claim was lost."""
        claims = self._group_claims
        if claims is None:
            return self.drained
        with self._lock:
            return claims.must_wake()
