"""Whose turn it is to be given room: among the processes whose senders stand in line for it.

The first sender in line takes the turn for its process; until it was served, or has left, nobody else is given room. So
a large batch is never overtaken for ever by small messages. The turn goes round; a process that has died, or has nobody
in line, is passed over, and so is one that does not come although there is room for it: it was stopped, or its event
loop is busy.
"""

from __future__ import annotations

from collections.abc import Callable

from .._format import load_u32, load_u64, store_u64, swap_if_u32
from .._format.layout import LOCK_SLOT_SHIFT, ROOM_TURN, ROOM_WANTED
from .backlog import SMALLEST, Batch
from .control import Control
from .processes import Processes

_PATIENCE = 0.5  # seconds that somebody whose turn it is may leave the room that there is


class Turns:
    """The turn of one channel. What is not said to be otherwise is called with the writer word."""

    def __init__(self, control: Control, processes: Processes) -> None:
        self._words = control.map
        self._processes = processes
        self._stands_in_line = False
        self._idle: tuple[int, float] | None = None
        """Whose turn it is that has room and does not come for it, and since when."""

    @property
    def may_be_ours(self) -> bool:
        """Whether nobody else says that it is in line and it is its turn. Any thread may ask, without the word."""
        turn = load_u32(self._words, ROOM_TURN)
        return turn in (0, self._processes.owner) or not self._processes.is_in_line(turn >> LOCK_SLOT_SHIFT)

    def is_ours(self, fits: Callable[[Batch], bool], now: float) -> bool:
        """Tell whether we may have the room that there is, by the monotonic clock; *fits* says how much that is."""
        turn = load_u32(self._words, ROOM_TURN)
        if turn in (0, self._processes.owner) or not self._waits(turn):
            return True
        if not fits(Batch(load_u64(self._words, ROOM_WANTED), load_u64(self._words, ROOM_WANTED + 8))):
            self._idle = None
            return False
        if self._idle is None or self._idle[0] != turn:
            self._idle = turn, now
        if now < self._idle[1] + _PATIENCE:
            return False
        self._processes.take_out_of_line(turn)
        return swap_if_u32(self._words, ROOM_TURN, turn, 0)

    def _waits(self, owner: int) -> bool:
        if not self._processes.is_in_line(owner >> LOCK_SLOT_SHIFT):
            return False
        if self._processes.is_alive(owner):
            return True
        # The dead do not leave the line: the turn would come to it again and again.
        self._processes.take_out_of_line(owner)
        return False

    def take(self, wanted: Batch) -> None:
        """Let nobody be served before our first, who wants so much, unless it is somebody else's turn."""
        if not self._stands_in_line:
            return
        self._processes.set_in_line(True)  # somebody may have thought that we stand still
        seen, owner = load_u32(self._words, ROOM_TURN), self._processes.owner
        if seen in (0, owner) or not self._waits(seen):
            self._want(wanted)
            swap_if_u32(self._words, ROOM_TURN, seen, owner)

    def _want(self, wanted: Batch) -> None:
        store_u64(self._words, ROOM_WANTED, wanted.size)
        store_u64(self._words, ROOM_WANTED + 8, wanted.messages)

    def stand_in_line(self, stands: bool) -> None:
        """Say whether senders of this process wait. Needs not the word."""
        self._stands_in_line = stands
        self._processes.set_in_line(stands)

    def pass_on(self) -> None:
        """Let the next process try, if it was our turn. Needs not the word."""
        owner = self._processes.owner
        if load_u32(self._words, ROOM_TURN) == owner:
            self._want(SMALLEST)  # until the next one says how much it waits for: it may never come to that
            following = next(filter(self._waits, self._processes.in_line()), 0)
            swap_if_u32(self._words, ROOM_TURN, owner, following)
