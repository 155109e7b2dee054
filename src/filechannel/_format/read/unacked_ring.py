"""The deliveries that are not acknowledged, in order of offset: the pure-Python implementation of unacked_ring.c."""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from dataclasses import dataclass
from enum import Enum
from heapq import heappop, heappush
from itertools import islice, takewhile


class State(Enum):
    """The state of a message that was delivered."""

    OUT = "outstanding"
    ACKED = "acknowledged, but older ones are not"
    READY = "to be redelivered now"
    DELAYED = "to be redelivered later"


@dataclass(slots=True)
class Entry:
    """One delivery."""

    offset: int
    sequence: int
    token: int
    """Token of the call that delivered it last."""
    attempt: int = 1
    due: int = 0
    """When it is redelivered, by the monotonic clock."""
    state: State = State.OUT


class UnackedRing:
    """The unacknowledged deliveries of a reader. Not locked: the reader does that."""

    def __init__(self) -> None:
        self._entries: OrderedDict[int, Entry] = OrderedDict()  # by offset, in order of offset
        self._count: Counter[State] = Counter()
        # Heaps of the messages to redeliver; entries whose state has changed since stay in them until they are at the
        # top.
        self._ready: list[int] = []
        self._delayed: list[tuple[int, int]] = []
        self.token: int = 0
        """Token of the newest call that delivered something."""

    def push(self, offset: int, sequence: int) -> None:
        """Add a new delivery."""
        self._entries[offset] = Entry(offset, sequence, self.token)
        self._count[State.OUT] += 1

    @property
    def oldest(self) -> Entry | None:
        """The oldest delivery that is not acknowledged."""
        return next(iter(self._entries.values()), None)

    @property
    def out(self) -> int:
        """How many are outstanding."""
        return self._count[State.OUT]

    @property
    def ready(self) -> int:
        """How many are ready to be redelivered."""
        self._end_delays()
        return self._count[State.READY]

    @property
    def first_ready(self) -> Entry | None:
        """The first message that is ready to be redelivered."""
        if not self.ready:
            return None
        while not self._is(self._ready[0], State.READY):
            heappop(self._ready)
        return self._entries[self._ready[0]]

    def ready_entries(self, most: int) -> list[Entry]:
        """Return at most *most* messages that are ready to be redelivered."""
        entries = (entry for entry in self._entries.values() if entry.state is State.READY)
        return list(islice(entries, most)) if self.ready else []

    @property
    def next_due(self) -> int:
        """When the next delayed message is redelivered; 0 if none is delayed."""
        self._end_delays()
        return self._delayed[0][0] if self._count[State.DELAYED] else 0

    def _end_delays(self) -> None:
        """Make messages ready whose delay is over."""
        now = time.monotonic_ns()
        while self._delayed:
            due, offset = self._delayed[0]
            current = self._is(offset, State.DELAYED) and self._entries[offset].due == due
            if current and due > now:
                return
            heappop(self._delayed)
            if current:
                self._redeliver(self._entries[offset], 0, counted=False)

    def _is(self, offset: int, state: State) -> bool:
        entry = self._entries.get(offset)
        return entry is not None and entry.state is state

    # Acknowledging

    def ack(self, count: int) -> bool | None:
        """Acknowledge the oldest outstanding ones; None if there are fewer, else whether the oldest entry changed."""
        if count > self.out:
            return None
        for entry in islice((entry for entry in self._entries.values() if entry.state is State.OUT), count):
            self._set_state(entry, State.ACKED)
        return self._trim()

    def acknowledge(self, offset: int, token: int) -> bool | None:
        """Acknowledge one; None if it is not outstanding with that token, else whether the oldest entry changed."""
        entry = self._find_outstanding(offset, token)
        if entry is None:
            return None
        self._set_state(entry, State.ACKED)
        return self._trim()

    def nack(self, count: int | None) -> bool:
        """Redeliver the newest outstanding ones, None: all; return whether there were that many."""
        wanted = self.out if count is None else count
        if wanted > self.out:
            return False
        newest_first = (entry for entry in reversed(self._entries.values()) if entry.state is State.OUT)
        for entry in list(islice(newest_first, wanted)):
            self._redeliver(entry, 0, counted=True)
        return True

    def in_order(self) -> tuple[bool, Entry | None]:
        """Return whether every outstanding one is older than all that wait for redelivery, and the first that waits."""
        waiting: Entry | None = None
        for entry in self._entries.values():
            if entry.state is State.OUT and waiting is not None:
                return False, waiting
            if entry.state in (State.READY, State.DELAYED) and waiting is None:
                waiting = entry
        return True, waiting

    def acknowledge_before(self, offset: int) -> bool:
        """Acknowledge everything that begins before an offset; return whether the oldest entry changed."""
        for entry in takewhile(lambda entry: entry.offset < offset, self._entries.values()):
            self._set_state(entry, State.ACKED)
        return self._trim()

    def redeliver_all(self) -> None:
        """Redeliver everything that is outstanding; the attempt is not counted."""
        for entry in self._entries.values():
            if entry.state is State.OUT:
                self._redeliver(entry, 0, counted=False)

    def redeliver(self, offset: int, token: int, due: int, *, counted: bool) -> bool:
        """Redeliver one message; return whether it was outstanding with that token."""
        entry = self._find_outstanding(offset, token)
        if entry is not None:
            self._redeliver(entry, due, counted=counted)
        return entry is not None

    def mark_redelivered(self, offset: int) -> int:
        """Mark a message as delivered again; return which attempt it is."""
        entry = self._entries.get(offset)
        if entry is None:
            return 1
        self._set_state(entry, State.OUT)
        entry.token = self.token
        if self._ready and self._ready[0] == offset:
            heappop(self._ready)
        return entry.attempt

    def roll_back(self, offset: int) -> None:
        """Undo the last call, whose caller did not get its items.

        Those from *offset* on were new and are dropped; the others are redelivered.
        """
        self.drop_from(offset)
        for entry in self._entries.values():
            if entry.state is State.OUT and entry.token == self.token:
                self._redeliver(entry, 0, counted=False)

    def drop_from(self, offset: int) -> None:
        """Forget the entries that begin at an offset or after it."""
        while self._entries and next(reversed(self._entries)) >= offset:
            _, entry = self._entries.popitem()
            self._count[entry.state] -= 1

    def drop_waiting(self, begin: int, end: int) -> None:
        """Drop the messages that wait to be redelivered between two offsets, because they no longer exist."""
        for entry in self._entries.values():
            if entry.state in (State.READY, State.DELAYED) and begin <= entry.offset < end:
                self._set_state(entry, State.ACKED)
        self._trim()

    def _set_state(self, entry: Entry, state: State) -> None:
        self._count[entry.state] -= 1
        self._count[state] += 1
        entry.state = state

    def _redeliver(self, entry: Entry, due: int, *, counted: bool) -> None:
        self._set_state(entry, State.DELAYED if due else State.READY)
        entry.due = due
        entry.attempt += counted
        if due:
            heappush(self._delayed, (due, entry.offset))
        else:
            heappush(self._ready, entry.offset)

    def _find_outstanding(self, offset: int, token: int) -> Entry | None:
        entry = self._entries.get(offset)
        return entry if entry is not None and entry.state is State.OUT and entry.token == token else None

    def _trim(self) -> bool:
        """Drop the acknowledged entries before the oldest one that is not; return whether there were any."""
        before = len(self._entries)
        while (oldest := self.oldest) is not None and oldest.state is State.ACKED:
            del self._entries[oldest.offset]
            self._count[State.ACKED] -= 1
        return len(self._entries) != before
