"""Room in a channel: how much more may be sent before its capacity is reached, and whose turn it is.

The decision is made under the writer word, so any number of processes keep the limit exactly. The writer is told how
far there is room, as an offset and as a number of a message, and asks again only there: consumers have moved on since.
What takes room away again (a consumer that goes back, a name that is registered) counts `registrations` up, which the
writer looks at with each message.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, NoReturn

from .._errors import ChannelFullError, CorruptRecordError, MessageTooLargeError, NoRoomYetError
from .._format import store_u32, wake_waiters
from .._format.layout import ROOM, ROOM_WATCHED, WAKE_LOOPS
from .._offset import Offset
from .._options import SEGMENTS_IN_CAPACITY, Capacity
from .backlog import SMALLEST, Backlog, Batch
from .control import Control
from .files import Files
from .index import Mark
from .processes import Processes
from .segments import Segments
from .turns import Turns

ENDLESS = (1 << 64) - 1
_LOOK = 1.0  # seconds between two looks at what nobody tells us of


def limits_of(capacity: Capacity | None, files: Files, path: Path) -> Batch | None:
    """Return how much may be unconsumed, as it is now; None if there is no limit."""
    if capacity is None:
        return None
    size, messages = capacity.in_bytes(disk_of(capacity, files, path)), capacity.max_messages
    return Batch(ENDLESS if size is None else size, ENDLESS if messages is None else messages)


def disk_of(capacity: Capacity, files: Files, path: Path) -> int | None:
    """Return how large the file system is that a path lies in; None if that does not matter."""
    return None if capacity.fraction is None else files.total_space(path)


def finite(limit: int) -> int | None:
    """Return one of the two as users know it: None if it is no limit."""
    return None if limit == ENDLESS else limit


class _Seen(NamedTuple):
    """What was so when somebody last asked for room."""

    epoch: int
    registrations: int
    oldest: int
    floor: Mark


class Room:
    """Says whether there is room. What changes anything is called with the writer word."""

    def __init__(
        self,
        files: Files,
        path: Path,
        control: Control,
        segments: Segments,
        backlog: Backlog,
        processes: Processes,
    ) -> None:
        self._files = files
        self._path = path
        self._control = control
        self._segments = segments
        self._backlog = backlog
        self._turns = Turns(control, processes)
        self._capacity: Capacity | None = None
        self._limits = Batch(ENDLESS, ENDLESS)
        self._measured = self._looked = self._removed = 0.0
        self._seen = _Seen(0, 0, 0, Mark(Offset(0), 0, 0))
        self._end = self._sequence_end = ENDLESS
        self.overtake: Callable[[Offset], object] = _nowhere
        """Moves the oldest offset over consumers that have not passed it, with the writer word; see `Reclaim`."""
        self.line: object = None
        """Those of this process who wait, for whoever knows how they do; here, to go when the store does."""
        self.notify: Callable[[], object] = _nothing
        """Called, from any thread, when there may be room and event loops wait for it."""
        self.may_pass: Callable[[], bool] = _always
        """Asked before somebody is given room: those of this process who wait come first."""
        self.remove_expired: Callable[[], object] = _nothing
        """Called now and then while somebody waits: a consumer whose time is over holds nobody up."""

    # The capacity

    def set_capacity(self, capacity: Capacity | None) -> None:
        """Go by this from now on. What is stored already stays, whatever it says."""
        self._capacity = capacity
        self._measure(time.monotonic())

    def publish_capacity(self) -> None:
        """Let every process know whether consumers have to look for senders that wait."""
        waits = self._capacity is not None and self._capacity.on_full == "wait"
        store_u32(self._control.map, ROOM_WATCHED, int(waits))

    @property
    def has_limits(self) -> bool:
        """Whether there is a capacity at all."""
        return self._capacity is not None

    @property
    def drops(self) -> bool:
        """Whether the oldest messages make room."""
        return self._capacity is not None and self._capacity.on_full == "drop_oldest"

    def _measure(self, now: float) -> None:
        self._measured = now
        self._limits = limits_of(self._capacity, self._files, self._path) or Batch(ENDLESS, ENDLESS)

    def _measure_if_due(self) -> None:
        """Look at the size of the file system now and then."""
        now = time.monotonic()
        if self._capacity is not None and self._capacity.fraction is not None and now >= self._measured + _LOOK:
            self._measure(now)

    # Asking for room

    def admit(self, batch: Batch, end: Mark) -> bool:
        """Tell whether there is room for a batch behind the end of the log, or can be made with `first_kept`.

        `MessageTooLargeError` if there never is; else, if there is none now and none can be made, `NoRoomYetError` or
        `ChannelFullError`. The caller holds the writer word.
        """
        capacity = self._capacity
        if capacity is None:
            self.lift()
            return True
        self._measure_if_due()
        self._check(batch)
        self._look()
        floor = self._seen.floor
        waits = capacity.on_full == "wait"
        if self._fits(batch, floor, end) and (not waits or (self.may_pass() and self._is_our_turn(end))):
            self._open(floor, end)
            return True
        if not self.drops:
            self._refuse(batch, waits)
        return False

    def _check(self, batch: Batch) -> None:
        if batch.size > self._limits.size:
            raise MessageTooLargeError(batch.size, self._limits.size)
        if batch.messages > self._limits.messages:
            raise MessageTooLargeError(batch.messages, self._limits.messages, unit="messages")

    def _fits(self, batch: Batch, floor: Mark, end: Mark) -> bool:
        used, limits = self._backlog.between(floor, end), self._limits
        return used.size + batch.size <= limits.size and used.messages + batch.messages <= limits.messages

    def _is_our_turn(self, end: Mark) -> bool:
        def has_room(wanted: Batch) -> bool:
            # What never fits since the capacity is another one: whoever waits for that would have left, could it look.
            return not self._ever_fits(wanted) or self._fits(wanted, self._seen.floor, end)

        return self._turns.is_ours(has_room, self._looked)

    def _ever_fits(self, batch: Batch) -> bool:
        return batch.size <= self._limits.size and batch.messages <= self._limits.messages

    def _open(self, floor: Mark, end: Mark) -> None:
        used, limits = self._backlog.between(floor, end), self._limits
        self._end = min(end.offset + limits.size - used.size, ENDLESS)
        self._sequence_end = min(end.sequence + limits.messages - used.messages, ENDLESS)

    def _look(self) -> None:
        # The words first: what changes later is seen the next time.
        words = self._words()
        self._looked = time.monotonic()
        self._seen = _Seen(*words, self._backlog.floor())

    def _words(self) -> tuple[int, int, int]:
        control = self._control
        return control.epoch, control.registrations, control.oldest_offset

    def _refuse(self, batch: Batch, waits: bool) -> NoReturn:
        if self._looked >= self._removed + _LOOK:
            self._removed = self._looked
            self.remove_expired()
        if not waits:
            raise ChannelFullError(self._path, *batch, has_consumers=self._backlog.has_consumers)
        if self.may_pass():
            self._turns.take(batch)
        raise NoRoomYetError(self._path, *batch, has_consumers=self._backlog.has_consumers)

    def has_room(self, batch: Batch) -> bool:
        """Tell whether there is a point in trying again. Touches no files, and needs not the word: any thread may ask.

        That is so when anything but the positions of consumers has changed, and now and then in any case: somebody
        whose turn it was may have died, or be overdue.
        """
        seen = self._seen
        if self._words() != seen[:3] or self._control.sealed or time.monotonic() >= self._looked + _LOOK:
            return True
        tail = self._control.tail(deferred=self._control.deferred)
        if not self._turns.may_be_ours:
            return False
        return self._fits(batch, self._backlog.slowest() or seen.floor, Mark(tail.offset, tail.sequence, 0))

    def is_full(self) -> bool:
        """Tell whether there is no point in trying to send anything, for all that is known. Touches no files."""
        waits = self._capacity is not None and self._capacity.on_full == "wait"
        return waits and (not self.may_pass() or not self.has_room(SMALLEST))

    # The writer's window

    def lift(self) -> None:
        """Let the next append take as much room as it needs."""
        self._end = self._sequence_end = ENDLESS

    def limit_window(self, begin: int, first_sequence: int, needed: int) -> tuple[int, tuple[int, int] | None]:
        """Return where the writer's window ends in a segment and, if there is a limit, what `limit_window` takes.

        *needed* is where the window has to reach. Under "drop_oldest" a segment holds a quarter of the capacity at
        most: what is given up is a segment, and it should not be everything.
        """
        if self._capacity is None:
            return ENDLESS, None
        end, sequence_end = self._end, self._sequence_end
        if self.drops:
            end = min(end, max(begin + self._limits.size // SEGMENTS_IN_CAPACITY, needed))
            sequence_end = min(sequence_end, first_sequence + self._messages_a_segment)
        return end, (sequence_end, self._seen.registrations)

    def is_enough(self, begin: int, first_sequence: int, end: int, sequence: int) -> bool:
        """Tell whether a segment holds as much as it should, and another one has to be begun."""
        if not self.drops or begin == end:
            return False
        full = end - begin >= self._limits.size // SEGMENTS_IN_CAPACITY
        return full or sequence - first_sequence >= self._messages_a_segment

    @property
    def _messages_a_segment(self) -> int:
        return max(1, self._limits.messages // SEGMENTS_IN_CAPACITY)

    # Giving up the oldest

    def first_kept(self, batch: Batch, end: Mark) -> Mark | None:
        """Return the first segment with which, and those after it, there is room for a batch; None if with none.

        The caller holds the writer word.
        """
        for begin in self._segments.begins:
            if self._seen.floor.offset < begin <= end.offset:
                with suppress(CorruptRecordError):  # it goes, and those after it say where they begin
                    place = Mark(begin, self._segments.header(begin).first_sequence, 0)
                    if self._fits(batch, place, end):
                        return place
        return None

    def keep_from(self, place: Mark, end: Mark) -> None:
        """Give up what lies before a place: whoever has not received it is told so. The files go later."""
        self.overtake(place.offset)
        self._open(place, end)

    # Turns

    def stand_in_line(self, stands: bool) -> None:
        """Say whether senders of this process wait."""
        self._turns.stand_in_line(stands)

    def pass_turn(self) -> None:
        """Let the next process try: the first of ours was served, or has left."""
        self._turns.pass_on()
        self.tell()

    def tell(self) -> None:
        """Let whoever waits for room look again, in every process. Costs next to nothing if nobody does."""
        if wake_waiters(self._control.map, ROOM) & WAKE_LOOPS:
            self.notify()


def _nothing() -> None:
    pass


def _nowhere(_: Offset) -> None:
    pass


def _always() -> bool:
    return True
