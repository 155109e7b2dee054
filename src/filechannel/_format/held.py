"""What was handed out and not acknowledged yet, in order of offset: the readable reference of held.c."""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import Enum


class State(Enum):
    """What became of a message that was handed out."""

    OUT = "somebody has it"
    SETTLED = "acknowledged, and older ones are not yet"
    WAITING = "to come again"


@dataclass(slots=True)
class Entry:
    """One message."""

    offset: int
    sequence: int
    token: int
    """Of the call that handed it out last."""
    attempt: int = 1
    due: int = 0
    """When it comes again, by the monotonic clock; 0: at once."""
    state: State = State.OUT


class Held:
    """What a reader holds. Not locked: that is the reader's business."""

    def __init__(self) -> None:
        self._entries: dict[int, Entry] = {}  # by offset, which is also their order
        self.token: int = 0
        """Of the newest call that handed something out."""

    def push(self, offset: int, sequence: int) -> None:
        """Hold a new one."""
        self._entries[offset] = Entry(offset, sequence, self.token)

    @property
    def oldest(self) -> Entry | None:
        """The oldest that is not settled."""
        return next(iter(self._entries.values()), None)

    @property
    def out(self) -> list[Entry]:
        """Those that somebody has."""
        return [entry for entry in list(self._entries.values()) if entry.state is State.OUT]

    @property
    def ready(self) -> list[Entry]:
        """Those that come again now."""
        now = time.monotonic_ns()
        return [entry for entry in self._waiting() if entry.due <= now]

    @property
    def next_due(self) -> int:
        """When the next delayed one comes again; 0 if none is delayed."""
        now = time.monotonic_ns()
        return min((entry.due for entry in self._waiting() if entry.due > now), default=0)

    def _waiting(self) -> list[Entry]:
        # Any thread may ask: a list of them is made in one piece.
        return [entry for entry in list(self._entries.values()) if entry.state is State.WAITING]

    def ack(self, count: int) -> bool | None:
        """Settle the oldest ones; None if there are fewer, else whether the oldest is another one now."""
        out = self.out
        if count > len(out):
            return None
        for entry in out[:count]:
            entry.state = State.SETTLED
        return self._trim()

    def settle(self, offset: int, token: int) -> bool | None:
        """Settle one; None if nobody has it since that call, else whether the oldest is another one now."""
        entry = self._find_out(offset, token)
        if entry is None:
            return None
        entry.state = State.SETTLED
        return self._trim()

    def nack(self, count: int | None) -> bool:
        """Let the newest ones come again, None: all; tell whether there were so many."""
        out = self.out
        wanted = len(out) if count is None else count
        if wanted > len(out):
            return False
        for entry in out[len(out) - wanted :]:
            _come_again(entry, 0, counted=True)
        return True

    def give_back(self, offset: int, token: int, due: int, *, counted: bool) -> bool:
        """Let one come again; tell whether somebody has had it since that call."""
        entry = self._find_out(offset, token)
        if entry is not None:
            _come_again(entry, due, counted=counted)
        return entry is not None

    def hand_out(self, offset: int) -> int:
        """Somebody has it again; return which attempt it is."""
        entry = self._entries.get(offset)
        if entry is None:
            return 1
        entry.state, entry.token = State.OUT, self.token
        return entry.attempt

    def take_back(self, offset: int) -> None:
        """Nobody got what was handed out last: those from an offset on were new, the others come again."""
        self.drop_from(offset)
        for entry in self.out:
            if entry.token == self.token:
                _come_again(entry, 0, counted=False)

    def drop_from(self, offset: int) -> None:
        """Forget what begins at an offset or behind it."""
        for begin in [begin for begin in self._entries if begin >= offset]:
            del self._entries[begin]
        self._trim()

    def drop_waiting(self, begin: int, end: int) -> None:
        """Forget what waits to come again between two offsets: it is gone."""
        for entry in self._waiting():
            if begin <= entry.offset < end:
                entry.state = State.SETTLED
        self._trim()

    def _find_out(self, offset: int, token: int) -> Entry | None:
        entry = self._entries.get(offset)
        return entry if entry is not None and entry.state is State.OUT and entry.token == token else None

    def _trim(self) -> bool:
        """Drop what is settled and older than the oldest one that is not; tell whether there was any."""
        before = len(self._entries)
        while (oldest := self.oldest) is not None and oldest.state is State.SETTLED:
            del self._entries[oldest.offset]
        return len(self._entries) != before


def _come_again(entry: Entry, due: int, *, counted: bool) -> None:
    entry.state, entry.due, entry.attempt = State.WAITING, due, entry.attempt + counted
