"""Handing out what has to be acknowledged: the cursor stays where the oldest message begins that is not.

What comes again is read by standing there for a moment.
"""

from __future__ import annotations

from .held import Entry, Held
from .nothing import NOTHING, Nothing
from .reading import Reading


class Holding:
    """What a reader does that holds what it hands out."""

    is_full = False
    """Whether nothing new can be handed out before something is settled: never, here."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._held = Held()
        self._front: tuple[int, int] | None = None
        """Where we go on, while we stand where something comes again."""
        reading.floor = self._floor

    def _floor(self) -> tuple[int, int]:
        """Return where the oldest message begins that is not acknowledged, or where we go on."""
        oldest = self._held.oldest
        return self._place() if oldest is None else (oldest.offset, oldest.sequence)

    def _place(self) -> tuple[int, int]:
        return self._reading.place if self._front is None else self._front

    @property
    def outstanding(self) -> int:
        """How many are neither settled nor given back."""
        return self._held.out

    @property
    def ready(self) -> int:
        """How many come again now."""
        return self._held.ready

    @property
    def next_due(self) -> int:
        """When the next delayed one comes again; 0 if none is delayed."""
        return self._held.next_due

    @property
    def is_drained(self) -> bool:
        """Whether nothing is held."""
        return self._held.oldest is None

    # Handing out

    def begin_call(self) -> None:
        """What is handed out from here on is known by another token."""
        self._held.token += 1

    def next_delivery(self) -> tuple[object, int, int, int, int] | Nothing:
        """Return what comes again, and then what is new, as (item, offset, sequence, attempt, token)."""
        held = self._held
        while (wanted := held.first_ready) is not None:
            self._step_back(wanted)
            record: tuple[object, int, int] | Nothing = NOTHING
            try:
                record = self._reading.next_item()
            finally:
                is_gone = self._step_forward(wanted, taken=record is not NOTHING)
            if not isinstance(record, Nothing):
                return (*record, held.hand_out(record[1]), held.token)
            if not is_gone:
                return NOTHING
        record = self._reading.next_item()
        if isinstance(record, Nothing):
            return NOTHING
        held.push(record[1], record[2])
        return (*record, 1, held.token)

    def _step_back(self, wanted: Entry) -> None:
        """Stand where one begins that comes again."""
        self._front = self._reading.place
        self._reading.stand_at(wanted.offset, wanted.sequence)
        self._reading.wanted = wanted.offset

    def _step_forward(self, wanted: Entry, *, taken: bool) -> bool:
        """Stand where we go on; if a callback has moved us, what waited in between is gone. Tell whether."""
        assert self._front is not None
        reached, front = self._reading.place, self._front
        self._front = self._reading.wanted = None
        self._reading.stand_at(*front)
        if taken or reached[0] == wanted.offset:
            return False
        self._held.drop_waiting(wanted.offset, max(reached[0], wanted.offset + 1))
        if reached[0] > front[0]:
            self._reading.stand_at(*reached)
        self._reading.store_cursor()
        return True

    def take_back(self, offset: int) -> None:
        """Nobody got what this call handed out; what begins at an offset or behind it was new."""
        self._held.take_back(offset)

    def leave(self, offset: int) -> None:
        """Forget what is held from an offset on, where we go: it comes anyway."""
        if self._front is None:
            self._held.drop_from(offset)

    # Settling

    def ack(self, count: int) -> bool:
        """Settle the oldest ones outstanding; False, and nothing changed, if there are fewer."""
        return self._settled(self._held.ack(count))

    def nack(self, count: int | None) -> bool:
        """Let the newest ones outstanding come again, None: all; False, and nothing changed, if there are fewer."""
        return self._held.nack(count)

    def settle(self, offset: int, token: int) -> bool:
        """Settle one that is outstanding since that call; False if it is not."""
        return self._settled(self._held.settle(offset, token))

    def _settled(self, moved: bool | None) -> bool:
        if moved:
            self._reading.store_cursor()
        return moved is not None

    def give_back(self, offset: int, token: int, due: int, *, counted: bool) -> bool:
        """Let one come again, not before *due*; False if it is not outstanding since that call."""
        return self._held.give_back(offset, token, due, counted=counted)

    def outlook(self) -> tuple[int, int, int] | None:
        """Return (how many are outstanding, offset, sequence of the cursor if they are settled).

        None if older ones come again: then there is no such place.
        """
        in_order, waiting = self._held.in_order()
        if not in_order:
            return None
        return (self._held.out, *(self._place() if waiting is None else (waiting.offset, waiting.sequence)))

    def settle_before(self, offset: int) -> None:
        """Settle whatever is held and begins before an offset."""
        if self._held.settle_before(offset):
            self._reading.store_cursor()

    def give_back_all(self) -> None:
        """Let everything come again that is outstanding; that attempt does not count."""
        self._held.give_back_all()

    def coming(self, most: int) -> list[tuple[int, int]]:
        """Return (offset, sequence) of what comes again now, up to so many."""
        return [(entry.offset, entry.sequence) for entry in self._held.coming(most)]

    def forget(self) -> None:
        """Forget what is held: the cursor goes where the next new one begins."""
        self._held.drop_from(0)
        self._reading.store_cursor()
