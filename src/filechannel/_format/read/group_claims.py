"""Handing out what no other member of a group has: what was read is taken only if nobody was faster. See `ring`."""

from __future__ import annotations

from collections.abc import Callable

from .arguments import U64
from .clock import charge_turn
from .layout import RECORD_HEADER_SIZE
from .nothing import NOTHING, Nothing
from .reading import Reading
from .ring import Claim, DamagedWordsError, Ring

_MOST_RACES = 1000


class Sharing:
    """What a reader does that is a member of a group."""

    def __init__(self, reading: Reading, ring: Ring, tend: Callable[[], object]) -> None:
        self._reading = reading
        self._ring = ring
        self._tend = tend
        self._seen: tuple[int, int] | None = None
        """Where the group went on when we followed it."""
        ring.on_moved = reading.tell_room

    def close(self) -> None:
        """Release what the members share. The reader was released, and no thread is inside."""
        self._reading.offset, self._reading.sequence = self.place
        self._ring.close()
        self._seen = self._ring.next

    @property
    def place(self) -> tuple[int, int]:
        """Where the group goes on, and we with it."""
        place = self._ring.next
        return self._reading.place if place == self._seen else place

    @property
    def outstanding(self) -> int:
        """How many we have."""
        return self._ring.out

    @property
    def ready(self) -> int:
        """How many come again now, to any member."""
        return self._ring.ready

    @property
    def next_due(self) -> int:
        """When somebody has to look at what the members have; 0: never."""
        due = self._ring.due
        return 0 if due == U64 else due

    @property
    def is_full(self) -> bool:
        """Whether nothing new can be handed out before something is settled, if the ring can be believed."""
        return self._ring.is_full and not self._ring.is_suspect

    @property
    def is_drained(self) -> bool:
        """Whether nobody has anything, and a sealed channel has nothing more."""
        return self._ring.is_empty and not self._reading.has_message_from(self._ring.next[1])

    # Handing out

    @property
    def mark(self) -> list[Claim]:
        """What we have now."""
        return self._ring.mark

    def next_delivery(self, *, first: bool = True) -> tuple[object, int, int, int, int] | Nothing:
        """Return the next item that no other member has, as (item, offset, sequence, attempt, token).

        One that does not decode stays ours, apart from the others; unless others come with it, in the same call.
        """
        ring, found = self._ring, self._claim_next()
        if isinstance(found, Nothing):
            # Whoever had settled the last one found the lock taken by us, and left it to us to tell.
            if not self._is_released() and (ring.made_room or (ring.emptied and self._reading.is_sealed)):
                self._ask_to_tend()
            return NOTHING
        claim, payload = found
        try:
            item = self._reading.decode(payload)
        except Exception as error:
            if first:
                ring.refuse(claim)
            else:
                self._return(claim)
            self._reading.refuse(claim.offset, payload, error)
        except BaseException:
            self._return(claim)
            raise
        charge_turn(len(payload))
        return item, claim.offset, claim.sequence, claim.attempt, claim.word

    def _claim_next(self) -> tuple[Claim, bytes] | Nothing:
        """Have the next message: one that comes again, or a new one that no other member has taken since we read it."""
        ring, reading, races = self._ring, self._reading, 0
        found: tuple[Claim, bytes] | Nothing | bool
        if self._is_released() or (ring.is_due and not self._ask_to_tend()):
            return NOTHING
        while not reading.released:
            try:
                found = self._try_to_claim()
            except DamagedWordsError:
                # The owner of the file looks at the words with the lock, and raises unless it was a race.
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
        return self._reading.released

    def _try_to_claim(self) -> tuple[Claim, bytes] | Nothing | bool:
        """Try once; False if another member was faster, True if the lock is taken for longer.

        `DamagedWordsError` if the shared words contradict each other.
        """
        ring, reading = self._ring, self._reading
        if ring.ready:
            claim = ring.claim_again()
            if not isinstance(claim, Claim):
                return claim
            again = self._read_again(claim)
            return False if again is None else (claim, again)
        if ring.is_full:
            if ring.is_suspect:
                raise DamagedWordsError
            return NOTHING
        seen = self._follow()
        payload = reading.next_payload()
        if isinstance(payload, Nothing):
            return NOTHING
        end = reading.offset + RECORD_HEADER_SIZE + len(payload)
        claim = ring.claim(seen, reading.offset, end, reading.sequence)
        if not isinstance(claim, Claim):
            return claim
        reading.offset, reading.sequence = self._seen = end, reading.sequence + 1
        return claim, payload

    def _ask_to_tend(self) -> bool:
        return self._tend() is not False

    def _follow(self) -> tuple[int, int]:
        """Stand where the group does, if that is elsewhere by now; what we have passed that is no message stays so."""
        if (place := self._ring.next) != self._seen:
            if self._ring.is_suspect:
                raise DamagedWordsError
            self._seen = place
            self._reading.go_on_at(*place)
        return place

    def _read_again(self, claim: Claim) -> bytes | None:
        """Return the payload of what comes again; None if it is gone. What cannot be read is not ours."""
        reading, self._seen = self._reading, None
        reading.stand_at(claim.offset, claim.sequence)
        reading.wanted = claim.offset
        try:
            payload = reading.next_payload()
        except BaseException:
            self._return(claim)
            raise
        finally:
            reading.wanted = None
        if not isinstance(payload, Nothing):
            return payload
        if reading.released:
            self._return(claim)
        else:
            self._ring.settle(claim.offset, claim.word, tell=False)
        return None

    def _return(self, claim: Claim) -> None:
        """Let one come again that nobody got."""
        self._ring.give_back(claim.offset, claim.word, 0, counted=False, tell=False)

    def give_all_back(self, but: list[Claim] | None = None) -> bool:
        """Let everything come again, without counting, but what we had then; tell whether there was any."""
        return self._ring.give_all_back(but)

    # Settling

    def ack(self, count: int) -> bool:
        """Settle our oldest ones; False, and nothing changed, if there are fewer."""
        return self._ring.ack(count)

    def nack(self, count: int | None) -> bool:
        """Let our newest ones come again, None: all; False, and nothing changed, if there are fewer."""
        return self._ring.nack(count)

    def settle(self, offset: int, token: int) -> bool:
        """Settle one; False if we do not have it, or not any more."""
        return self._ring.settle(offset, token)

    def give_back(self, offset: int, token: int, due: int, *, counted: bool) -> bool:
        """Let one come again; False if we do not have it, or not any more."""
        return self._ring.give_back(offset, token, due, counted=counted)

    def place_of(self, offset: int, token: int) -> int:
        """Return the number of the entry of one that we have; -1 if we have not."""
        return self._ring.place_of(offset, token)

    def refused(self, offset: int) -> tuple[int, int, int] | None:
        """Return (sequence, attempt, token) of one that did not decode, and is ours; None if there is none."""
        return self._ring.refused(offset)

    def take_lost(self) -> list[tuple[int, int]]:
        """Return, once, offset and token of what was to be settled and is not ours any more."""
        return self._ring.take_lost()

    def must_tell(self) -> bool:
        """Tell, once, whether others may wait for what was settled here, or something was lost."""
        ring = self._ring
        made_room, emptied = ring.made_room, ring.emptied
        damaged, ring.made_room, ring.emptied, ring.damaged = ring.damaged, False, False, False
        return made_room or damaged or ring.has_lost or (emptied and self._reading.is_sealed and self.is_drained)

    def coming(self, most: int) -> list[tuple[int, int]]:
        """Return (offset, sequence) of what comes again now, up to so many."""
        return self._ring.coming(most)

    def forget(self) -> None:
        """Forget what we have: somebody has emptied the ring."""
        self._ring.forget()
