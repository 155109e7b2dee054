"""Delivering messages to a member of a group: only those that no other member claimed. See `group_ring`."""

from __future__ import annotations

from collections.abc import Callable

from ..clock import charge_slice
from ..layout import RECORD_HEADER_SIZE
from ..memory.arguments import U64
from ..sentinel import NOTHING, Nothing
from .group_ring import Claim, DamagedWordsError, Ring
from .log_cursor import LogCursor

_MOST_RACES = 1000


class GroupClaims:
    """The deliveries of a reader that is a member of a group."""

    def __init__(self, log_cursor: LogCursor, ring: Ring, tend: Callable[[], object]) -> None:
        self._log_cursor = log_cursor
        self._ring = ring
        self._tend = tend
        self._seen: tuple[int, int] | None = None
        """The position of the group when this member last followed it."""

    def close(self) -> None:
        """Release the shared memory. The reader was released, and no thread is in a call."""
        self._log_cursor.offset, self._log_cursor.sequence = self.log_position
        self._ring.close()
        self._seen = self._ring.next

    @property
    def log_position(self) -> tuple[int, int]:
        """The log position of the group, and so of this member."""
        log_position = self._ring.next
        return self._log_cursor.log_position if log_position == self._seen else log_position

    @property
    def outstanding(self) -> int:
        """How many deliveries this member has."""
        return self._ring.out

    @property
    def ready(self) -> int:
        """How many messages are ready to be redelivered, to any member."""
        return self._ring.ready

    @property
    def next_due(self) -> int:
        """When a member must check the entries of the group; 0: never."""
        due = self._ring.due
        return 0 if due == U64 else due

    @property
    def is_full(self) -> bool:
        """Whether nothing new can be delivered before a delivery is acknowledged, unless the ring looks damaged."""
        return self._ring.is_full and not self._ring.is_suspect

    @property
    def is_drained(self) -> bool:
        """Whether no member has a delivery, and a sealed channel has no more messages."""
        return self._ring.is_empty and not self._log_cursor.has_message_from(self._ring.next[1])

    # Delivering

    @property
    def claims(self) -> list[Claim]:
        """The current claims of this member."""
        return self._ring.claims

    def next_delivery(self, *, first: bool = True) -> tuple[object, int, int, int, int] | Nothing:
        """Return the next item that no other member has, as (item, offset, sequence, attempt, token).

        An item that does not decode stays claimed and is set apart, unless items were taken before it in the same call:
        then it is returned to the ring.
        """
        ring, found = self._ring, self._claim_next()
        if isinstance(found, Nothing):
            # The member that acknowledged the last entry found the lock held by this one, which has to notify now.
            if not self._is_released() and (ring.made_space or (ring.emptied and self._log_cursor.is_sealed)):
                self._ask_to_tend()
            return NOTHING
        claim, payload = found
        try:
            item = self._log_cursor.decode(payload)
        except Exception as error:
            if first:
                ring.refuse(claim)
            else:
                self._return(claim)
            self._log_cursor.refuse(claim.offset, payload, error)
        except BaseException:
            self._return(claim)
            raise
        charge_slice(len(payload))
        return item, claim.offset, claim.sequence, claim.attempt, claim.word

    def _claim_next(self) -> tuple[Claim, bytes] | Nothing:
        """Claim the next message: one to be redelivered, or a new one that no other member claimed meanwhile."""
        ring, log_cursor, races = self._ring, self._log_cursor, 0
        found: tuple[Claim, bytes] | Nothing | bool
        if self._is_released() or (ring.is_due and not self._ask_to_tend()):
            return NOTHING
        while not log_cursor.released:
            try:
                found = self._try_to_claim()
            except DamagedWordsError:
                # `tend` checks the words with the lock held, and raises unless it was a race.
                races += 1
                if races > _MOST_RACES:
                    raise
                self._seen = None
                found = True
            if found is True:
                if not self._ask_to_tend():
                    return NOTHING
            elif found is not False:
                return found
        return NOTHING

    def _is_released(self) -> bool:
        return self._log_cursor.released

    def _try_to_claim(self) -> tuple[Claim, bytes] | Nothing | bool:
        """Try once; False if another member claimed it first, True if another member has the lock for too long.

        `DamagedWordsError` if the shared words contradict each other.
        """
        ring, log_cursor = self._ring, self._log_cursor
        if ring.ready:
            claim = ring.claim_ready()
            if not isinstance(claim, Claim):
                return claim
            redelivered = self._read_redelivered(claim)
            return False if redelivered is None else (claim, redelivered)
        if ring.is_full:
            if ring.is_suspect:
                raise DamagedWordsError
            return NOTHING
        seen = self._update_position()
        payload = log_cursor.next_payload()
        if isinstance(payload, Nothing):
            return NOTHING
        end = log_cursor.offset + RECORD_HEADER_SIZE + len(payload)
        claim = ring.claim(seen, log_cursor.offset, end, log_cursor.sequence)
        if not isinstance(claim, Claim):
            return claim
        log_cursor.offset, log_cursor.sequence = self._seen = end, log_cursor.sequence + 1
        return claim, payload

    def _ask_to_tend(self) -> bool:
        return self._tend() is not False

    def _update_position(self) -> tuple[int, int]:
        """Move to the position of the group, if that changed; control records skipped after it stay skipped."""
        if (log_position := self._ring.next) != self._seen:
            if self._ring.is_suspect:
                raise DamagedWordsError
            self._seen = log_position
            self._log_cursor.resume_at(*log_position)
        return log_position

    def _read_redelivered(self, claim: Claim) -> bytes | None:
        """Return the payload of a redelivered message; None if it no longer exists.

        If reading raises, the claim is returned to the ring.
        """
        log_cursor, self._seen = self._log_cursor, None
        log_cursor.move_to(claim.offset, claim.sequence)
        log_cursor.wanted = claim.offset
        try:
            payload = log_cursor.next_payload()
        except BaseException:
            self._return(claim)
            raise
        finally:
            log_cursor.wanted = None
        if not isinstance(payload, Nothing):
            return payload
        if log_cursor.released:
            self._return(claim)
        else:
            self._ring.acknowledge(claim.offset, claim.word, report_lost=False)
        return None

    def _return(self, claim: Claim) -> None:
        """Return a message that was not delivered to the ring."""
        self._ring.redeliver(claim.offset, claim.word, 0, counted=False, report_lost=False)

    def redeliver_all(self, but: list[Claim] | None = None) -> bool:
        """Redeliver everything without counting the attempt, except *but*; return whether there was any."""
        return self._ring.redeliver_all(but)

    # Acknowledging

    def ack(self, count: int) -> bool:
        """Acknowledge the oldest claims; False, with nothing changed, if there are fewer."""
        return self._ring.ack(count)

    def nack(self, count: int | None) -> bool:
        """Redeliver the newest claims, None: all; False, with nothing changed, if there are fewer."""
        return self._ring.nack(count)

    def acknowledge(self, offset: int, token: int) -> bool:
        """Acknowledge one claim; False if this member does not have it, or has lost it."""
        return self._ring.acknowledge(offset, token)

    def redeliver(self, offset: int, token: int, due: int, *, counted: bool) -> bool:
        """Redeliver one message; False if this member does not have the claim, or has lost it."""
        return self._ring.redeliver(offset, token, due, counted=counted)

    def entry_number(self, offset: int, token: int) -> int:
        """Return the entry number of a claim; -1 if this member does not have it."""
        return self._ring.entry_number(offset, token)

    def refused(self, offset: int) -> tuple[int, int, int] | None:
        """Return (sequence, attempt, token) of a claim of this member that did not decode; None if there is none."""
        return self._ring.refused(offset)

    def take_lost(self) -> list[tuple[int, int]]:
        """Return, once, offset and token of the claims that were to be acknowledged but were already lost."""
        return self._ring.take_lost()

    def must_wake(self) -> bool:
        """Return, once, whether other processes may wait for what was acknowledged here, or a claim was lost."""
        ring = self._ring
        made_space, emptied = ring.made_space, ring.emptied
        damaged, ring.made_space, ring.emptied, ring.damaged = ring.damaged, False, False, False
        return made_space or damaged or ring.has_lost or (emptied and self._log_cursor.is_sealed and self.is_drained)

    def ready_positions(self, most: int) -> list[tuple[int, int]]:
        """Return (offset, sequence) of at most *most* messages that are ready to be redelivered."""
        return self._ring.ready_positions(most)

    def forget(self) -> None:
        """Forget all claims, because the ring was emptied."""
        self._ring.forget()
