"""What was handed out and not acknowledged yet, in order of offset: the readable reference of held.c."""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from dataclasses import dataclass
from enum import Enum
from heapq import heappop, heappush
from itertools import islice, takewhile


class State(Enum):
    """What became of a message that was handed out."""

    OUT = "somebody has it"
    SETTLED = "acknowledged, and older ones are not yet"
    READY = "to come again now"
    DELAYED = "to come again later"


@dataclass(slots=True)
class Entry:
    """One message."""

    offset: int
    sequence: int
    token: int
    """Of the call that handed it out last."""
    attempt: int = 1
    due: int = 0
    """When it comes again, by the monotonic clock."""
    state: State = State.OUT


class Held:
    """What a reader holds. Not locked: that is the reader's business."""

    def __init__(self) -> None:
        self._entries: OrderedDict[int, Entry] = OrderedDict()  # by offset, which is also their order
        self._count: Counter[State] = Counter()
        # Heaps of what comes again; entries that have changed since stay in them until they are at the top.
        self._ready: list[int] = []
        self._delayed: list[tuple[int, int]] = []
        self.token: int = 0
        """Of the newest call that handed something out."""

    def push(self, offset: int, sequence: int) -> None:
        """Hold a new one."""
        self._entries[offset] = Entry(offset, sequence, self.token)
        self._count[State.OUT] += 1

    @property
    def oldest(self) -> Entry | None:
        """The oldest that is not settled."""
        return next(iter(self._entries.values()), None)

    @property
    def out(self) -> int:
        """How many somebody has."""
        return self._count[State.OUT]

    @property
    def ready(self) -> int:
        """How many come again now."""
        self._end_delays()
        return self._count[State.READY]

    @property
    def first_ready(self) -> Entry | None:
        """The first that comes again now."""
        if not self.ready:
            return None
        while not self._is(self._ready[0], State.READY):
            heappop(self._ready)
        return self._entries[self._ready[0]]

    def coming(self, most: int) -> list[Entry]:
        """Return what comes again now, up to so many."""
        entries = (entry for entry in self._entries.values() if entry.state is State.READY)
        return list(islice(entries, most)) if self.ready else []

    @property
    def next_due(self) -> int:
        """When the next delayed one comes again; 0 if none is delayed."""
        self._end_delays()
        return self._delayed[0][0] if self._count[State.DELAYED] else 0

    def _end_delays(self) -> None:
        """Let those come again whose delay is over."""
        now = time.monotonic_ns()
        while self._delayed:
            due, offset = self._delayed[0]
            current = self._is(offset, State.DELAYED) and self._entries[offset].due == due
            if current and due > now:
                return
            heappop(self._delayed)
            if current:
                self._come_again(self._entries[offset], 0, counted=False)

    def _is(self, offset: int, state: State) -> bool:
        entry = self._entries.get(offset)
        return entry is not None and entry.state is state

    # Settling

    def ack(self, count: int) -> bool | None:
        """Settle the oldest ones; None if there are fewer, else whether the oldest is another one now."""
        if count > self.out:
            return None
        for entry in islice((entry for entry in self._entries.values() if entry.state is State.OUT), count):
            self._turn(entry, State.SETTLED)
        return self._trim()

    def settle(self, offset: int, token: int) -> bool | None:
        """Settle one; None if nobody has it since that call, else whether the oldest is another one now."""
        entry = self._find_out(offset, token)
        if entry is None:
            return None
        self._turn(entry, State.SETTLED)
        return self._trim()

    def nack(self, count: int | None) -> bool:
        """Let the newest ones come again, None: all; tell whether there were so many."""
        wanted = self.out if count is None else count
        if wanted > self.out:
            return False
        newest_first = (entry for entry in reversed(self._entries.values()) if entry.state is State.OUT)
        for entry in list(islice(newest_first, wanted)):
            self._come_again(entry, 0, counted=True)
        return True

    def in_order(self) -> tuple[bool, Entry | None]:
        """Tell whether what somebody has is the oldest there is, and what comes again behind it."""
        waiting: Entry | None = None
        for entry in self._entries.values():
            if entry.state is State.OUT and waiting is not None:
                return False, waiting
            if entry.state in (State.READY, State.DELAYED) and waiting is None:
                waiting = entry
        return True, waiting

    def settle_before(self, offset: int) -> bool:
        """Settle whatever begins before an offset; tell whether the oldest is another one now."""
        for entry in takewhile(lambda entry: entry.offset < offset, self._entries.values()):
            self._turn(entry, State.SETTLED)
        return self._trim()

    def give_back_all(self) -> None:
        """Let everything come again that somebody has; that attempt does not count."""
        for entry in self._entries.values():
            if entry.state is State.OUT:
                self._come_again(entry, 0, counted=False)

    def give_back(self, offset: int, token: int, due: int, *, counted: bool) -> bool:
        """Let one come again; tell whether somebody has had it since that call."""
        entry = self._find_out(offset, token)
        if entry is not None:
            self._come_again(entry, due, counted=counted)
        return entry is not None

    def hand_out(self, offset: int) -> int:
        """Somebody has it again; return which attempt it is."""
        entry = self._entries.get(offset)
        if entry is None:
            return 1
        self._turn(entry, State.OUT)
        entry.token = self.token
        if self._ready and self._ready[0] == offset:
            heappop(self._ready)
        return entry.attempt

    def take_back(self, offset: int) -> None:
        """Nobody got what was handed out last: those from an offset on were new, the others come again."""
        self.drop_from(offset)
        for entry in self._entries.values():
            if entry.state is State.OUT and entry.token == self.token:
                self._come_again(entry, 0, counted=False)

    def drop_from(self, offset: int) -> None:
        """Forget what begins at an offset or behind it."""
        while self._entries and next(reversed(self._entries)) >= offset:
            _, entry = self._entries.popitem()
            self._count[entry.state] -= 1

    def drop_waiting(self, begin: int, end: int) -> None:
        """Forget what waits to come again between two offsets: it is gone."""
        for entry in self._entries.values():
            if entry.state in (State.READY, State.DELAYED) and begin <= entry.offset < end:
                self._turn(entry, State.SETTLED)
        self._trim()

    def _turn(self, entry: Entry, state: State) -> None:
        self._count[entry.state] -= 1
        self._count[state] += 1
        entry.state = state

    def _come_again(self, entry: Entry, due: int, *, counted: bool) -> None:
        self._turn(entry, State.DELAYED if due else State.READY)
        entry.due = due
        entry.attempt += counted
        if due:
            heappush(self._delayed, (due, entry.offset))
        else:
            heappush(self._ready, entry.offset)

    def _find_out(self, offset: int, token: int) -> Entry | None:
        entry = self._entries.get(offset)
        return entry if entry is not None and entry.state is State.OUT and entry.token == token else None

    def _trim(self) -> bool:
        """Drop what is settled and older than the oldest one that is not; tell whether there was any."""
        before = len(self._entries)
        while (oldest := self.oldest) is not None and oldest.state is State.SETTLED:
            del self._entries[oldest.offset]
            self._count[State.SETTLED] -= 1
        return len(self._entries) != before
