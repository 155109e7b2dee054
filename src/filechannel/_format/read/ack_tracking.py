"""Delivering messages that must be acknowledged: the cursor stays at the oldest unacknowledged message.

To redeliver a message, the reader moves to its log position for a moment.
"""

from __future__ import annotations

from ..sentinel import NOTHING, Nothing
from .log_cursor import LogCursor
from .unacked_ring import Entry, UnackedRing


class AckTracking:
    """The deliveries of a reader that must be acknowledged."""

    is_full = False
    """Whether nothing new can be delivered before a delivery is acknowledged: never, here."""

    def __init__(self, log_cursor: LogCursor) -> None:
        self._log_cursor = log_cursor
        self._unacked = UnackedRing()
        self._front: tuple[int, int] | None = None
        """The log position to resume at, while the reader is at a message that is redelivered."""
        log_cursor.floor = self._floor

    def _floor(self) -> tuple[int, int]:
        """Return the position of the oldest unacknowledged message or, if there is none, where the reader resumes."""
        oldest = self._unacked.oldest
        return self._log_position() if oldest is None else (oldest.offset, oldest.sequence)

    def _log_position(self) -> tuple[int, int]:
        return self._log_cursor.log_position if self._front is None else self._front

    @property
    def outstanding(self) -> int:
        """How many deliveries are neither acknowledged nor redelivered."""
        return self._unacked.out

    @property
    def ready(self) -> int:
        """How many messages are ready to be redelivered."""
        return self._unacked.ready

    @property
    def next_due(self) -> int:
        """When the next delayed message is redelivered; 0 if none is delayed."""
        return self._unacked.next_due

    @property
    def is_drained(self) -> bool:
        """Whether everything that was delivered is acknowledged."""
        return self._unacked.oldest is None

    # Delivering

    def begin_call(self) -> None:
        """Use a new token for what is delivered from here on."""
        self._unacked.token += 1

    def next_delivery(self) -> tuple[object, int, int, int, int] | Nothing:
        """Return redelivered messages first, then new ones, as (item, offset, sequence, attempt, token)."""
        unacked = self._unacked
        while (wanted := unacked.first_ready) is not None:
            self._begin_redelivery(wanted)
            record: tuple[object, int, int] | Nothing = NOTHING
            try:
                record = self._log_cursor.next_item()
            finally:
                is_gone = self._end_redelivery(wanted, taken=record is not NOTHING)
            if not isinstance(record, Nothing):
                return (*record, unacked.mark_redelivered(record[1]), unacked.token)
            if not is_gone:
                return NOTHING
        record = self._log_cursor.next_item()
        if isinstance(record, Nothing):
            return NOTHING
        unacked.push(record[1], record[2])
        return (*record, 1, unacked.token)

    def _begin_redelivery(self, wanted: Entry) -> None:
        """Move to a message that is redelivered."""
        self._front = self._log_cursor.log_position
        self._log_cursor.move_to(wanted.offset, wanted.sequence)
        self._log_cursor.wanted = wanted.offset

    def _end_redelivery(self, wanted: Entry, *, taken: bool) -> bool:
        """Return to where the reader resumes.

        If a callback moved the reader, the messages that waited to be redelivered in between no longer exist. Returns
        whether that is so.
        """
        assert self._front is not None
        reached, front = self._log_cursor.log_position, self._front
        self._front = self._log_cursor.wanted = None
        self._log_cursor.move_to(*front)
        if taken or reached[0] == wanted.offset:
            return False
        self._unacked.drop_waiting(wanted.offset, max(reached[0], wanted.offset + 1))
        if reached[0] > front[0]:
            self._log_cursor.move_to(*reached)
        self._log_cursor.store_cursor()
        return True

    def roll_back(self, offset: int) -> None:
        """Undo the deliveries of this call, which the caller did not get; from *offset* on they were new."""
        self._unacked.roll_back(offset)

    def drop_from(self, offset: int) -> None:
        """Forget deliveries from an offset on, to which the reader moves: it reads them again anyway."""
        if self._front is None:
            self._unacked.drop_from(offset)

    # Acknowledging

    def ack(self, count: int) -> bool:
        """Acknowledge the oldest outstanding deliveries; False, with nothing changed, if there are fewer."""
        return self._store_if_moved(self._unacked.ack(count))

    def nack(self, count: int | None) -> bool:
        """Redeliver the newest outstanding messages, None: all; False, with nothing changed, if there are fewer."""
        return self._unacked.nack(count)

    def acknowledge(self, offset: int, token: int) -> bool:
        """Acknowledge one delivery, identified by offset and token; False if it is not outstanding."""
        return self._store_if_moved(self._unacked.acknowledge(offset, token))

    def _store_if_moved(self, moved: bool | None) -> bool:
        if moved:
            self._log_cursor.store_cursor()
        return moved is not None

    def redeliver(self, offset: int, token: int, due: int, *, counted: bool) -> bool:
        """Redeliver one message, not before *due*; False if that delivery is not outstanding."""
        return self._unacked.redeliver(offset, token, due, counted=counted)

    def outlook(self) -> tuple[int, int, int] | None:
        """Return (how many are outstanding, offset, sequence of the cursor once they are acknowledged).

        None if an older message is to be redelivered: then there is no such log position.
        """
        in_order, waiting = self._unacked.in_order()
        if not in_order:
            return None
        return (self._unacked.out, *(self._log_position() if waiting is None else (waiting.offset, waiting.sequence)))

    def acknowledge_before(self, offset: int) -> None:
        """Acknowledge every delivery that begins before an offset."""
        if self._unacked.acknowledge_before(offset):
            self._log_cursor.store_cursor()

    def redeliver_all(self) -> None:
        """Redeliver everything that is outstanding; the attempt is not counted."""
        self._unacked.redeliver_all()

    def ready_positions(self, most: int) -> list[tuple[int, int]]:
        """Return (offset, sequence) of at most *most* messages that are ready to be redelivered."""
        return [(entry.offset, entry.sequence) for entry in self._unacked.ready_entries(most)]

    def forget(self) -> None:
        """Forget all unacknowledged deliveries: the cursor moves to the next new message."""
        self._unacked.drop_from(0)
        self._log_cursor.store_cursor()
