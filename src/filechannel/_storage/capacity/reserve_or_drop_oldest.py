"""The capacity of a channel: reserves capacity for batches, and drops the oldest messages under "drop_oldest".

The decision is made with the writer lock held, so any number of processes keep the limit exactly. The writer gets the
end of the available capacity, as an offset and as a sequence, and asks again only when it reaches it: consumers have
advanced since. Events that reduce the available capacity (a consumer moves back, a name is registered) increment
`registrations`, which the writer checks for each message.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, NoReturn

from ..._errors import CapacityReachedError, ChannelFullError, CorruptRecordError, MessageTooLargeError
from ..._format import store_u32, wake_waiters
from ..._format.layout import CAPACITY_WAKE, CAPACITY_WATCHED, WAKE_LOOPS
from ..._offset import LogPosition, Offset
from ..._options import SEGMENTS_IN_CAPACITY, Capacity
from ..._runtime.may_sleep import always
from ..control.control_page import Control
from ..control.live_processes import Processes
from ..segments.catalog import Segments
from ..store_events import StoreEvents
from ..system.os_calls import Files
from .backlog import SMALLEST, Backlog, Batch
from .limits import UNLIMITED, limits_of
from .process_fairness import Fairness

_RECHECK_SECONDS = 1.0  # seconds between two checks for changes that are not announced


class _Seen(NamedTuple):
    """The shared state at the last `reserve`."""

    epoch: int
    registrations: int
    oldest: int
    floor: LogPosition


class CapacityLimit:
    """Decides whether capacity is available. Methods that change anything are called with the writer lock held."""

    def __init__(
        self,
        files: Files,
        path: Path,
        control: Control,
        segments: Segments,
        backlog: Backlog,
        processes: Processes,
        events: StoreEvents,
        *,
        overtake: Callable[[Offset], object],
        remove_expired: Callable[[], object],
    ) -> None:
        """*overtake* moves the oldest offset past consumers that have not read up to it, with the writer lock held.

        *remove_expired* is called now and then while a sender waits: an expired consumer must not block senders.
        """
        self._files = files
        self._path = path
        self._control = control
        self._segments = segments
        self._backlog = backlog
        self._fairness = Fairness(control, processes)
        self._capacity: Capacity | None = None
        self._limits = Batch(UNLIMITED, UNLIMITED)
        self._measured_at = self._refreshed_at = self._removed_expired_at = 0.0
        self._seen = _Seen(0, 0, 0, LogPosition(Offset(0), 0))
        self._offset_limit = self._sequence_limit = UNLIMITED
        self._overtake = overtake
        self._remove_expired = remove_expired
        self.may_pass: Callable[[], bool] = always
        """Returns whether this thread may reserve capacity before the senders of this process that wait. The send queue
        installs it."""
        self._capacity_freed = events.capacity_freed
        events.position_moved.attach(self.wake_senders)

    # The capacity

    def set_capacity(self, capacity: Capacity | None) -> None:
        """Use this capacity from now on. Messages that are stored already stay, even if they exceed it."""
        self._capacity = capacity
        self._measure(time.monotonic())

    def publish_capacity(self) -> None:
        """Publish in the control page whether consumers have to wake waiting senders."""
        waits = self._capacity is not None and self._capacity.on_full == "wait"
        store_u32(self._control.map, CAPACITY_WATCHED, int(waits))

    @property
    def has_limits(self) -> bool:
        """Whether there is a capacity at all."""
        return self._capacity is not None

    @property
    def drops(self) -> bool:
        """Whether the oldest messages are dropped when the channel is full."""
        return self._capacity is not None and self._capacity.on_full == "drop_oldest"

    def _measure(self, now: float) -> None:
        self._measured_at = now
        self._limits = limits_of(self._capacity, self._files, self._path) or Batch(UNLIMITED, UNLIMITED)

    def _measure_if_due(self) -> None:
        """Measure the file system again if the last time was more than a second ago."""
        now = time.monotonic()
        is_relative = self._capacity is not None and self._capacity.fraction is not None
        if is_relative and now >= self._measured_at + _RECHECK_SECONDS:
            self._measure(now)

    # Reserving

    def reserve(self, batch: Batch, end: LogPosition) -> bool:
        """Reserve capacity for a batch at the end of the log; return False if `first_kept` has to free some first.

        `MessageTooLargeError` if the batch can never fit; `CapacityReachedError` or `ChannelFullError` if it does not
        fit now and nothing may be dropped for it. The caller holds the writer lock.
        """
        capacity = self._capacity
        if capacity is None:
            self.remove_limit()
            return True
        self._measure_if_due()
        self._refuse_too_large(batch)
        self._refresh()
        floor = self._seen.floor
        waits = capacity.on_full == "wait"
        if self._fits(batch, floor, end) and (not waits or (self.may_pass() and self._is_our_turn(end))):
            self._set_limits(floor, end)
            return True
        if not self.drops:
            self._refuse(batch, waits)
        return False

    def _refuse_too_large(self, batch: Batch) -> None:
        if batch.size > self._limits.size:
            raise MessageTooLargeError(batch.size, self._limits.size)
        if batch.messages > self._limits.messages:
            raise MessageTooLargeError(batch.messages, self._limits.messages, unit="messages")

    def _fits(self, batch: Batch, floor: LogPosition, end: LogPosition) -> bool:
        used, limits = self._backlog.between(floor, end), self._limits
        return used.size + batch.size <= limits.size and used.messages + batch.messages <= limits.messages

    def _is_our_turn(self, end: LogPosition) -> bool:
        def fits_now(wanted: Batch) -> bool:
            # A batch that can never fit since the capacity was changed is not waited for: its sender gets an error.
            return not self._ever_fits(wanted) or self._fits(wanted, self._seen.floor, end)

        return self._fairness.is_ours(fits_now, self._refreshed_at)

    def _ever_fits(self, batch: Batch) -> bool:
        return batch.size <= self._limits.size and batch.messages <= self._limits.messages

    def _set_limits(self, floor: LogPosition, end: LogPosition) -> None:
        used, limits = self._backlog.between(floor, end), self._limits
        self._offset_limit = min(end.offset + limits.size - used.size, UNLIMITED)
        self._sequence_limit = min(end.sequence + limits.messages - used.messages, UNLIMITED)

    def _refresh(self) -> None:
        # The words are read first: a later change is noticed at the next call.
        words = self._words()
        self._refreshed_at = time.monotonic()
        self._seen = _Seen(*words, self._backlog.floor())

    def _words(self) -> tuple[int, int, int]:
        control = self._control
        return control.epoch, control.registrations, control.oldest_offset

    def _refuse(self, batch: Batch, waits: bool) -> NoReturn:
        if self._refreshed_at >= self._removed_expired_at + _RECHECK_SECONDS:
            self._removed_expired_at = self._refreshed_at
            self._remove_expired()
        if not waits:
            raise ChannelFullError(self._path, *batch, has_consumers=self._backlog.has_consumers)
        if self.may_pass():
            self._fairness.become_next(batch)
        raise CapacityReachedError(self._path, *batch, has_consumers=self._backlog.has_consumers)

    def fits_now(self, batch: Batch) -> bool:
        """Return whether a waiting sender should try again. Accesses no files; any thread may call this without a lock.

        True if anything except the positions of consumers has changed, and every second in any case: the process that
        was served first may have died, or not have responded in time.
        """
        seen = self._seen
        is_outdated = self._words() != seen[:3] or self._control.sealed
        if is_outdated or time.monotonic() >= self._refreshed_at + _RECHECK_SECONDS:
            return True
        tail = self._control.tail(deferred=self._control.deferred)
        if not self._fairness.may_be_ours:
            return False
        return self._fits(batch, self._backlog.slowest() or seen.floor, LogPosition(tail.offset, tail.sequence))

    def is_full(self) -> bool:
        """Return whether no message can be sent now, according to the state that is known. Accesses no files."""
        waits = self._capacity is not None and self._capacity.on_full == "wait"
        return waits and (not self.may_pass() or not self.fits_now(SMALLEST))

    # The writer's window

    def remove_limit(self) -> None:
        """Let the next append use as much capacity as it needs."""
        self._offset_limit = self._sequence_limit = UNLIMITED

    def limit_window(self, begin: int, first_sequence: int, needed: int) -> tuple[int, tuple[int, int] | None]:
        """Return where the writer's window ends in a segment and, with a limit, the arguments of its `limit_window`.

        *needed* is the offset that the window has to reach. Under "drop_oldest" a segment holds a quarter of the
        capacity at most: whole segments are dropped, and that should not be everything.
        """
        if self._capacity is None:
            return UNLIMITED, None
        end, sequence_end = self._offset_limit, self._sequence_limit
        if self.drops:
            end = min(end, max(begin + self._limits.size // SEGMENTS_IN_CAPACITY, needed))
            sequence_end = min(sequence_end, first_sequence + self._messages_per_segment)
        return end, (sequence_end, self._seen.registrations)

    def is_segment_full(self, begin: int, first_sequence: int, end: int, sequence: int) -> bool:
        """Return whether a segment has its share of the capacity under "drop_oldest", so that the log has to roll."""
        if not self.drops or begin == end:
            return False
        full = end - begin >= self._limits.size // SEGMENTS_IN_CAPACITY
        return full or sequence - first_sequence >= self._messages_per_segment

    @property
    def _messages_per_segment(self) -> int:
        return max(1, self._limits.messages // SEGMENTS_IN_CAPACITY)

    # Dropping the oldest

    def first_kept(self, batch: Batch, end: LogPosition) -> LogPosition | None:
        """Return the first segment start at which the log can begin so that a batch fits; None if there is none.

        The caller holds the writer lock.
        """
        for begin in self._segments.begins:
            if self._seen.floor.offset < begin <= end.offset:
                with suppress(CorruptRecordError):  # the log cannot begin at a damaged segment: try the next one
                    log_position = LogPosition(begin, self._segments.header(begin).first_sequence)
                    if self._fits(batch, log_position, end):
                        return log_position
        return None

    def drop_before(self, log_position: LogPosition, end: LogPosition) -> None:
        """Drop the messages before *log_position*; files are deleted later. Receivers before it get an error."""
        self._overtake(log_position.offset)
        self._set_limits(log_position, end)

    # Fairness

    def set_waiting(self, is_waiting: bool) -> None:
        """Set whether senders of this process wait."""
        self._fairness.set_waiting(is_waiting)

    def pass_on(self) -> None:
        """Let the next process try: the first sender of this process was served, or has stopped waiting."""
        self._fairness.pass_on()
        self.wake_senders()

    def wake_senders(self) -> None:
        """Wake all senders that wait for capacity, in every process. Costs next to nothing if there are none."""
        if wake_waiters(self._control.map, CAPACITY_WAKE) & WAKE_LOOPS:
            self._capacity_freed()
