"""Reading one record after the other, decoded, with a cursor: the readable reference of the C reader.

`reading` stands in the log and reads. A reader that holds (`holding`) stores in its cursor where the oldest message
begins that was not acknowledged; one that shares (`sharing`) takes what it has read only if no other member of its
group was faster. Here is what others call, and who may do so when.
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

from .arguments import U32, unsigned, writable
from .clock import turn_is_over
from .holding import Holding
from .layout import MAX_PAYLOAD
from .map import close_pending
from .mutex import count_locked
from .nothing import NOTHING, Nothing
from .reading import Reading
from .ring import Ring
from .sharing import Sharing


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
        """*most* is how many bytes a payload may have: a record that claims more is damaged."""
        most = unsigned(most, MAX_PAYLOAD)
        self._reading = Reading(
            control, cursor, decode, lambda: advance(self), lambda reason: damaged(self, reason), refuse, most
        )
        self._keeper: Holding | Sharing | None = None
        """What becomes of messages that are handed out; None if the cursor just follows them."""
        self._lock = RLock()
        self._busy = False
        self._may_sleep = False
        self._closed = False

    @property
    def _holding(self) -> Holding | None:
        """What holds, as long as we may read."""
        return self._keeper if isinstance(self._keeper, Holding) and not self._reading.released else None

    @property
    def _sharing(self) -> Sharing | None:
        return self._keeper if isinstance(self._keeper, Sharing) else None

    # Looking

    @property
    def offset(self) -> int:
        """Where the next record begins."""
        return self._place()[0]

    @property
    def sequence(self) -> int:
        """Number of the next message."""
        return self._place()[1]

    def _place(self) -> tuple[int, int]:
        """Return where we stand; one that shares and reads nothing now stands where the group does."""
        sharing = self._sharing
        return self._reading.place if sharing is None or self._busy else sharing.place

    @property
    def may_have_more(self) -> bool:
        """Whether the log does not end at our offset, or the channel is sealed."""
        if self.ready:
            return True
        if self._reading.released:
            return False
        return self.offset != self._reading.write_offset or self._reading.is_sealed

    @property
    def outstanding(self) -> int:
        """How many are held and neither settled nor given back."""
        return 0 if self._keeper is None else self._keeper.outstanding

    @property
    def ready(self) -> int:
        """How many come again now, before anything new."""
        if (sharing := self._sharing) is not None:
            return sharing.ready
        if self._keeper is None:
            return 0
        with self._lock:
            return self._keeper.ready

    @property
    def full(self) -> bool:
        """Whether nothing new can be handed out before something is settled."""
        return self._keeper is not None and self._keeper.is_full

    @property
    def next_due(self) -> int:
        """When the next delayed one comes again, in ns of the monotonic clock; 0 if none is delayed.

        Of one that shares: when somebody has to look at what the members have.
        """
        if (sharing := self._sharing) is not None:
            return sharing.next_due
        if self._keeper is None:
            return 0
        with self._lock:
            return self._keeper.next_due

    @property
    def drained(self) -> bool:
        """Whether the channel is sealed, and nothing is held."""
        return self._reading.is_sealed and (self._keeper is None or self._keeper.is_drained)

    # Taking

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
                keeper = self._keeper
                if isinstance(keeper, Holding):
                    keeper.begin_call()
                if keeper is not None:
                    return keeper.next_delivery()
                record = self._reading.next_item()
                if isinstance(record, Nothing):
                    return NOTHING
                self._reading.store_cursor()
                return (*record, 1, 0)
            finally:
                self._leave()

    def take_many(self, most: int, /) -> list[object]:
        """Return up to `most` items; an error waits until what came before it is taken."""
        wanted = index(most)
        items: list[object] = []
        with self._lock:
            self._enter()
            before, keeper, reading = self._reading.place, self._keeper, self._reading
            had = keeper.mark if isinstance(keeper, Sharing) else []
            if isinstance(keeper, Holding):
                keeper.begin_call()
            try:
                while len(items) < wanted:
                    record = self._next_of(keeper, first=not items)
                    if isinstance(record, Nothing):
                        break
                    items.append(record[0])
            except Exception:
                if not items:
                    raise
            except BaseException:
                # Nobody gets what was taken so far: it comes again.
                if isinstance(keeper, Sharing):
                    keeper.give_all_back(had)
                elif items:
                    reading.stand_at(*before)
                    if keeper is not None:
                        keeper.take_back(before[0])
                    reading.store_cursor()
                raise
            finally:
                if reading.offset != before[0] and not isinstance(keeper, Holding):
                    reading.store_cursor()
                self._leave()
        return items

    def _next_of(self, keeper: Holding | Sharing | None, *, first: bool) -> tuple[object, ...] | Nothing:
        if isinstance(keeper, Sharing):
            return keeper.next_delivery(first=first)
        return self._reading.next_item() if keeper is None else keeper.next_delivery()

    def _enter(self) -> None:
        if self._busy:
            raise RuntimeError("this receiver is being read by the same thread already")
        self._busy = True
        count_locked(1)

    def _leave(self) -> None:
        self._busy = False
        count_locked(-1)
        self._close_if_released()

    def _close_if_released(self) -> None:
        """Release every map when no thread is inside any more. The caller holds the lock."""
        if self._reading.released and not self._busy and not self._closed:
            self._closed = True
            if (sharing := self._sharing) is not None:
                sharing.close()
            self._reading.close()
            close_pending()

    # Standing

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
                there = self._reading.offset == expected and not self._reading.released
                if there:
                    self._stand_at(offset, sequence)
                return there
            finally:
                self._leave()

    def _stand_at(self, offset: int, sequence: int) -> None:
        if isinstance(self._keeper, Holding):
            self._keeper.leave(offset)
        self._reading.stand_at(offset, sequence)
        self._reading.store_cursor()

    def bind(self, segment: Buffer, begin: int, /) -> None:
        """Read from this map."""
        self._reading.bind(segment, unsigned(begin))

    def unbind(self) -> None:
        """Let go of the segment; advance is asked for another."""
        self._reading.unbind()

    def sleep_with(self, sleepers: Buffer, spin: float, /) -> None:
        """Let threads sleep for more where they receive, having watched for so long, and count them.

        The C core does, to save what going through Python costs; here whoever calls sleeps by itself.
        """
        math.ldexp(spin, 0)  # a number, not a text
        if self._reading.released:
            raise ClosedResourceError
        if self._may_sleep or self._reading.is_readonly:
            raise ValueError("said before" if self._may_sleep else "control page cannot be written to")
        if writable(sleepers).nbytes < 8:
            raise ValueError("sleepers is too short")
        self._may_sleep = True

    def tell_room(self, notify: Callable[[], object], /) -> None:
        """Call this when the cursor moved and event loops wait for room."""
        if not self._reading.released:
            self._reading.notify = notify

    def release(self) -> bool:
        """Release every map or, if this thread is inside, when that call returns. There is nothing to take any more.

        Returns whether something was given back.
        """
        with self._lock:  # whoever is inside stores the cursor first: what it hands out must not come again
            sharing = None if self._reading.released else self._sharing
            gave = sharing is not None and sharing.give_all_back()
            self._reading.release()
            self._close_if_released()
            return gave

    # Acknowledging

    def hold(self) -> None:
        """Keep what is handed out until it is acknowledged; the cursor follows the oldest."""
        if self._keeper is not None:
            raise ValueError("said before")
        self._keeper = Holding(self._reading)

    def share(self, group: Buffer, owner: int, lease: int, tend: Callable[[Reader], object], /) -> None:
        """Take what no other member of a group has, each message for so many ns.

        *tend* is called when something is due, or the lock was taken for longer; nothing is taken if it returns False.
        """
        owner, lease = unsigned(owner, U32), unsigned(lease)
        if self._reading.released:
            raise ClosedResourceError
        if self._keeper is not None:
            raise ValueError("said before")
        self._keeper = Sharing(self._reading, Ring(group, owner, lease), lambda: tend(self))

    def ack(self, count: int, /) -> bool:
        """Settle the oldest ones outstanding; False, and nothing changed, if there are fewer."""
        count = max(index(count), 0)
        with self._lock:
            return self._keeper is not None and not self._reading.released and self._keeper.ack(count)

    def nack(self, count: int | None, /) -> bool:
        """Let the newest ones outstanding come again, None: all; False, and nothing changed, if there are fewer."""
        count = None if count is None else max(index(count), 0)
        with self._lock:
            return self._keeper is not None and not self._reading.released and self._keeper.nack(count)

    def settle(self, offset: int, token: int, /) -> bool:
        """Settle one that is outstanding since that call; False if it is not."""
        offset, token = unsigned(offset), unsigned(token)
        with self._lock:
            return self._keeper is not None and not self._reading.released and self._keeper.settle(offset, token)

    def give_back(self, offset: int, token: int, due: int, counted: bool, /) -> bool:
        """Let one come again, not before *due*; False if it is not outstanding since that call."""
        offset, token, due, counted = unsigned(offset), unsigned(token), unsigned(due), bool(counted)
        with self._lock:
            keeper = None if self._reading.released else self._keeper
            return keeper is not None and keeper.give_back(offset, token, due, counted=counted)

    def coming(self, most: int, /) -> list[tuple[int, int]]:
        """Return (offset, sequence) of what comes again now, up to so many."""
        wanted = min(max(index(most), 0), sys.maxsize)
        with self._lock:
            return [] if self._keeper is None else self._keeper.coming(wanted)

    def forget(self) -> None:
        """Forget what is held: the cursor goes where the next new one begins."""
        with self._lock:
            if self._keeper is not None:
                self._keeper.forget()

    # Of one that holds

    def outlook(self) -> tuple[int, int, int] | None:
        """Return (how many are outstanding, offset, sequence of the cursor if they are settled).

        None if older ones come again: then there is no such place.
        """
        with self._lock:
            return None if (holding := self._holding) is None else holding.outlook()

    def settle_before(self, offset: int, /) -> None:
        """Settle whatever is held and begins before an offset."""
        offset = unsigned(offset)
        with self._lock:
            if (holding := self._holding) is not None:
                holding.settle_before(offset)

    def give_back_all(self) -> None:
        """Let everything come again that is outstanding; that attempt does not count."""
        with self._lock:
            if (holding := self._holding) is not None:
                holding.give_back_all()

    # Of one that shares

    def place_of(self, offset: int, token: int, /) -> int:
        """Return the number of the entry of one that is outstanding since that call; -1 if it is not."""
        offset, token = unsigned(offset), unsigned(token)
        with self._lock:
            return -1 if (sharing := self._sharing) is None else sharing.place_of(offset, token)

    def refused(self, offset: int, /) -> tuple[int, int, int] | None:
        """Return (sequence, attempt, token) of one that did not decode, and is ours; None if there is none."""
        offset = unsigned(offset)
        with self._lock:
            return None if (sharing := self._sharing) is None else sharing.refused(offset)

    def take_lost(self) -> list[tuple[int, int]]:
        """Return, once, offset and token of what was to be settled and is not ours any more."""
        with self._lock:
            return [] if (sharing := self._sharing) is None else sharing.take_lost()

    def must_tell(self) -> bool:
        """Tell, once, whether others may wait for what was settled here, or something was lost."""
        sharing = self._sharing
        if sharing is None:
            return self.drained
        with self._lock:
            return sharing.must_tell()
