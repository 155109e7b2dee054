"""The ring that the members of a group share, as one member sees it: the pure-Python implementation of group_ring.c.

It is a ring of entries in shared memory. There is an entry for each message that was delivered and is not yet
acknowledged, or that lies after one that is not. A member creates an entry, or claims it again, under the lock word.
The member that has a message acknowledges it or returns it to the ring with one compare-and-swap of the entry's word,
which fails if the message is no longer its own. So a change has either happened or not, wherever the process is killed,
and everything else in the file can be derived from the entries (see `_storage/consumers/group_cursor.py`).

The member that acknowledges the oldest entry moves the position, if the lock is free; otherwise the lock holder does so
when it releases the lock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

from typing_extensions import Buffer

from ..clock import wall_clock_ns
from ..layout import (
    CURSOR,
    CURSOR_SLOTS,
    ENTRY,
    ENTRY_ACKED,
    ENTRY_ATTEMPT_SHIFT,
    ENTRY_ATTEMPTS,
    ENTRY_DEADLINE,
    ENTRY_DELAYED,
    ENTRY_OUT,
    ENTRY_OWNER_SHIFT,
    ENTRY_READY,
    ENTRY_SKIPPED,
    ENTRY_STATE,
    ENTRY_TOKEN_SHIFT,
    ENTRY_TOKENS,
    GROUP_DUE,
    GROUP_ENTRIES,
    GROUP_ENTRY_SIZE,
    GROUP_HEAD,
    GROUP_LOCK,
    GROUP_NEXT,
    GROUP_NEXT_SEQUENCE,
    GROUP_READY,
    GROUP_RING,
    GROUP_SIZE,
    GROUP_TAIL,
    LOCK_GENERATION_SHIFT,
)
from ..memory.arguments import U32, U64, unsigned, writable
from ..memory.atomics import add_u64, load_u64, store_u64, swap_if_u32, swap_if_u64
from ..memory.futex import release_word, take_word
from .store_position import write_cursor_slot

LIVENESS_CHECK_NS = 1_000_000_000
"""How many ns after a message was delivered a member checks whether its owner is alive."""
_SPIN = 50e-6


class DamagedWordsError(ValueError):
    """The shared words of a group contradict each other."""

    def __init__(self) -> None:
        super().__init__("the words of the group contradict each other")


@dataclass(slots=True)
class Claim:
    """A message that this member has claimed."""

    offset: int
    sequence: int
    number: int
    word: int

    @property
    def attempt(self) -> int:
        """How often it was delivered."""
        return self.word >> ENTRY_ATTEMPT_SHIFT & ENTRY_ATTEMPTS


_ZEROS = memoryview(bytes(GROUP_SIZE))
"""What a closed member reads instead of the shared memory."""


class Ring:
    """A member's view of the ring, and its own claims."""

    def __init__(self, shared: Buffer, owner: int, lease: int, moved: Callable[[], object]) -> None:
        """*moved* is called after the position moved past acknowledged messages."""
        self._shared = writable(shared)
        if self._shared.nbytes < GROUP_SIZE:
            raise ValueError("group is too short")
        self._owner = owner
        self._lease = lease
        self._claims: dict[tuple[int, int], Claim] = {}
        self._refused: dict[tuple[int, int], Claim] = {}
        self._lost: list[tuple[int, int]] = []
        self.made_space = self.emptied = False
        """What this member did that other processes may wait for."""
        self.damaged = False
        """Whether the shared words contradicted each other when a delivery was acknowledged."""
        self._moved = moved

    def close(self) -> None:
        """Release the shared memory: the ring looks empty from now on."""
        self._shared = _ZEROS

    # State of the group

    @property
    def next(self) -> tuple[int, int]:
        """Offset and sequence of the next new message; the two are not read atomically."""
        return load_u64(self._shared, GROUP_NEXT), load_u64(self._shared, GROUP_NEXT_SEQUENCE)

    @property
    def ready(self) -> int:
        """How many messages are ready to be redelivered."""
        return load_u64(self._shared, GROUP_READY)

    @property
    def due(self) -> int:
        """When a member must check the entries; all bits set: never.

        While there are entries, that is at most LIVENESS_CHECK_NS away: a later time means that the word is damaged.
        """
        due, now = load_u64(self._shared, GROUP_DUE), time.monotonic_ns()
        return now if due > now + LIVENESS_CHECK_NS and not self.is_empty else due

    @property
    def is_due(self) -> bool:
        """Whether a member must check the entries now."""
        return self.due <= time.monotonic_ns()

    @property
    def is_empty(self) -> bool:
        """Whether everything that was delivered is acknowledged."""
        return load_u64(self._shared, GROUP_HEAD) == load_u64(self._shared, GROUP_TAIL)

    @property
    def is_full(self) -> bool:
        """Whether nothing new can be delivered before a delivery is acknowledged."""
        return load_u64(self._shared, GROUP_TAIL) - load_u64(self._shared, GROUP_HEAD) >= GROUP_ENTRIES

    @property
    def is_suspect(self) -> bool:
        """Whether the shared words contradict each other, unless another member is just changing them."""
        if is_sound(self._shared):
            return False
        seen = self._ends
        return not is_sound(self._shared) and (self._ends == seen or not _bounds(self._shared)[0])

    @property
    def _ends(self) -> tuple[int, int]:
        return load_u64(self._shared, GROUP_HEAD), load_u64(self._shared, GROUP_TAIL)

    def ready_positions(self, most: int) -> list[tuple[int, int]]:
        """Return (offset, sequence) of at most *most* messages that are ready to be redelivered."""
        found = islice(self._numbers(ENTRY_READY), most if self.ready else 0)
        return [(offset, sequence) for _, offset, _, sequence, _ in map(self._read, found)]

    # Claiming

    def claim(self, seen: tuple[int, int], offset: int, end: int, sequence: int) -> Claim | bool:
        """Claim a new message.

        Returns False if another member claimed one first, and True if another member has the lock for too long. *seen*
        is the value of `next` before the message was read. `DamagedWordsError` if the shared words contradict each
        other.
        """
        if not take_word(self._shared, GROUP_LOCK, self._owner, _SPIN):
            return True
        try:
            if not is_sound(self._shared):
                raise DamagedWordsError
            if self.next != seen or self.ready or self.is_full:
                return False
            now, number = time.monotonic_ns(), load_u64(self._shared, GROUP_TAIL)
            old = load_u64(self._shared, entry_start(number))
            word = self._word(old, 1)
            ENTRY.pack_into(self._shared, entry_start(number), old, offset, end, sequence, now + self._lease)
            store_u64(self._shared, entry_start(number), word)  # claimed from here on, even if this process is killed
            store_u64(self._shared, GROUP_NEXT, end)
            store_u64(self._shared, GROUP_NEXT_SEQUENCE, sequence + 1 & U64)
            store_u64(self._shared, GROUP_TAIL, number + 1)
            self._lower_due(now + min(self._lease, LIVENESS_CHECK_NS))
            return self._keep(Claim(offset, sequence, number, word))
        finally:
            self._leave()

    def claim_ready(self) -> Claim | bool:
        """Claim the oldest message to be redelivered; False if there is none, True if the lock is held for too long."""
        if not take_word(self._shared, GROUP_LOCK, self._owner, _SPIN):
            return True
        try:
            if not _bounds(self._shared)[0]:
                raise DamagedWordsError
            count = self.ready
            number = next(self._numbers(ENTRY_READY), None)
            if number is None:
                swap_if_u64(self._shared, GROUP_READY, count, 0)
                return False
            now = time.monotonic_ns()
            old, offset, _, sequence, _ = self._read(number)
            word = self._word(old, old >> ENTRY_ATTEMPT_SHIFT & ENTRY_ATTEMPTS)
            store_u64(self._shared, entry_start(number) + ENTRY_DEADLINE, now + self._lease)
            store_u64(self._shared, entry_start(number), word)
            add_u64(self._shared, GROUP_READY, U64)
            self._lower_due(now + min(self._lease, LIVENESS_CHECK_NS))
            return self._keep(Claim(offset, sequence, number, word))
        finally:
            self._leave()

    def _word(self, old: int, attempt: int) -> int:
        token = (old >> ENTRY_TOKEN_SHIFT) + 1 & ENTRY_TOKENS
        owner = self._owner >> LOCK_GENERATION_SHIFT
        return owner << ENTRY_OWNER_SHIFT | token << ENTRY_TOKEN_SHIFT | attempt << ENTRY_ATTEMPT_SHIFT | ENTRY_OUT

    def _keep(self, claim: Claim) -> Claim:
        self._claims[claim.offset, claim.word] = claim
        return claim

    def _leave(self) -> None:
        release_word(self._shared, GROUP_LOCK)
        self._advance_position()

    def _lower_due(self, when: int) -> None:
        while when < (due := load_u64(self._shared, GROUP_DUE)) and not swap_if_u64(self._shared, GROUP_DUE, due, when):
            pass

    # Claims of this member

    @property
    def out(self) -> int:
        """How many claims this member has, without those that did not decode."""
        return sum(load_u64(self._shared, entry_start(claim.number)) == claim.word for claim in self._claims.values())

    @property
    def claims(self) -> list[Claim]:
        """The current claims of this member."""
        return list(self._claims.values())

    def refuse(self, claim: Claim) -> None:
        """Set a claim apart that does not decode: `ack` and `nack` skip it, and only its token acknowledges it."""
        self._refused[claim.offset, claim.word] = self._claims.pop((claim.offset, claim.word))

    def refused(self, offset: int) -> tuple[int, int, int] | None:
        """Return (sequence, attempt, token) of a claim that was set apart; None if there is none."""
        found = [claim for claim in self._refused.values() if claim.offset == offset]
        return (found[-1].sequence, found[-1].attempt, found[-1].word) if found else None

    def entry_number(self, offset: int, token: int) -> int:
        """Return the entry number of a claim; -1 if this member does not have it."""
        claim = self._claims.get((offset, token)) or self._refused.get((offset, token))
        return -1 if claim is None else claim.number

    @property
    def has_lost(self) -> bool:
        """Whether `take_lost` has something to return."""
        return bool(self._lost)

    def take_lost(self) -> list[tuple[int, int]]:
        """Return, once, offset and token of the claims that were to be acknowledged but were already lost."""
        lost, self._lost = self._lost, []
        return lost

    def ack(self, count: int) -> bool:
        """Acknowledge the oldest claims; False, with nothing changed, if there are fewer."""
        if count > len(self._claims):
            return False
        for claim in list(islice(self._claims.values(), count)):
            self.acknowledge(claim.offset, claim.word)
        return True

    def acknowledge(self, offset: int, token: int, *, report_lost: bool = True) -> bool:
        """Acknowledge one claim; False if this member does not have it, or has lost it.

        A lost claim is added to `take_lost` unless *report_lost* is False, when the message was not delivered yet.
        """
        claim = self._pull(offset, token)
        if claim is None or not self._swap_word(claim, claim.word & ~ENTRY_STATE, report_lost=report_lost):
            return False
        if load_u64(self._shared, GROUP_HEAD) == claim.number:
            self._advance_position()
        return True

    def nack(self, count: int | None) -> bool:
        """Redeliver the newest claims, None: all; False, with nothing changed, if there are fewer."""
        wanted = len(self._claims) if count is None else count
        if wanted > len(self._claims):
            return False
        for claim in list(islice(reversed(self._claims.values()), wanted)):
            self.redeliver(claim.offset, claim.word, 0, counted=True)
        return True

    def redeliver(self, offset: int, token: int, due: int, *, counted: bool, report_lost: bool = True) -> bool:
        """Redeliver one message; False if this member does not have the claim, or has lost it, as in `acknowledge`."""
        claim = self._pull(offset, token)
        if claim is None:
            return False
        word = claim.word & ~ENTRY_STATE | (ENTRY_DELAYED if due else ENTRY_READY)
        if counted and claim.attempt < ENTRY_ATTEMPTS:
            word += 1 << ENTRY_ATTEMPT_SHIFT
        if due:
            return self._delay(claim, word, due, report_lost=report_lost)
        if not self._swap_word(claim, word, report_lost=report_lost):
            return False
        add_u64(self._shared, GROUP_READY, 1)
        return True

    def _delay(self, claim: Claim, word: int, due: int, *, report_lost: bool) -> bool:
        """Return a claim to the ring with another deadline.

        While the message is out, an earlier deadline would end its lease, so an earlier one is stored after the state.
        """
        at = entry_start(claim.number) + ENTRY_DEADLINE
        deadline = load_u64(self._shared, at)
        # If the claim was lost, the new holder has another deadline, so the swap fails. The order of the two loads
        # matters: a deadline that was read while the word is still ours is ours.
        if due >= deadline and load_u64(self._shared, entry_start(claim.number)) == claim.word:
            swap_if_u64(self._shared, at, deadline, due)
        done = self._swap_word(claim, word, report_lost=report_lost)
        if done and due < deadline:
            swap_if_u64(self._shared, at, deadline, due)  # fails if another member has claimed the message meanwhile
        self._lower_due(due)
        return done

    def redeliver_all(self, but: list[Claim] | None = None) -> bool:
        """Redeliver everything without counting the attempt, except *but*; return whether there was any."""
        kept = [] if but is None else but
        claims = [claim for claim in self._claims.values() if claim not in kept]
        if but is None:
            claims += self._refused.values()
        return (
            sum(self.redeliver(claim.offset, claim.word, 0, counted=False, report_lost=False) for claim in claims) > 0
        )

    def forget(self) -> None:
        """Forget all claims, because the ring was emptied."""
        self._claims.clear()
        self._refused.clear()

    def _pull(self, offset: int, token: int) -> Claim | None:
        return self._claims.pop((offset, token), None) or self._refused.pop((offset, token), None)

    def _swap_word(self, claim: Claim, word: int, *, report_lost: bool) -> bool:
        done = swap_if_u64(self._shared, entry_start(claim.number), claim.word, word)
        if report_lost and not done:
            self._lost.append((claim.offset, claim.word))
        return done

    def _read(self, number: int) -> tuple[int, int, int, int, int]:
        return ENTRY.unpack_from(self._shared, entry_start(number))

    def _numbers(self, state: int) -> Iterator[int]:
        plausible, head, tail = _bounds(self._shared)
        numbers = range(head, tail) if plausible else range(0)
        return (n for n in numbers if load_u64(self._shared, entry_start(n)) & ENTRY_STATE == state)

    def _advance_position(self) -> None:
        try:
            moved, made_space, emptied = _advance_position(self._shared, self._owner)
        except DamagedWordsError:
            self.damaged = True  # the delivery itself is acknowledged; the next check of the group raises
            return
        self.made_space |= made_space
        self.emptied |= emptied
        if moved:
            self._moved()


def _bounds(shared: Buffer) -> tuple[bool, int, int]:
    """Return whether the numbers of the oldest and the next entry are plausible, and both numbers.

    The file is mapped by every member and may be damaged while in use: every loop over the entries relies on this
    check.
    """
    head, tail = load_u64(shared, GROUP_HEAD), load_u64(shared, GROUP_TAIL)
    return head <= tail <= head + GROUP_ENTRIES, head, tail


def is_sound(shared: Buffer) -> bool:
    """Return whether the words that say what was delivered agree with each other. The caller has the lock.

    The newest entry says where the group resumes, and it is not overwritten before the next one is created. Before the
    first entry, the position says so.
    """
    plausible, _, tail = _bounds(shared)
    if not plausible:
        return False
    following = load_u64(shared, GROUP_NEXT), load_u64(shared, GROUP_NEXT_SEQUENCE)
    if not tail:
        return following in [CURSOR.unpack_from(shared, slot)[1:3] for slot in CURSOR_SLOTS]
    _, _, end, sequence, _ = ENTRY.unpack_from(shared, entry_start(tail - 1))
    return following == (end, sequence + 1 & U64)


def entry_start(number: int) -> int:
    """Return the position of an entry in the file."""
    return GROUP_RING + number % GROUP_ENTRIES * GROUP_ENTRY_SIZE


def advance_position(group: Buffer, owner: int, /) -> bool:
    """Advance the position past the acknowledged messages, unless another member has the lock, which then does so.

    Returns whether other processes may wait for that, because the ring was full before.
    """
    shared, owner = writable(group), unsigned(owner, U32)
    if shared.nbytes < GROUP_SIZE:
        raise ValueError("group is too short")
    try:
        return _advance_position(shared, owner)[1]
    except DamagedWordsError:
        return False


def _advance_position(shared: memoryview, owner: int) -> tuple[bool, bool, bool]:
    """Return whether the position moved, whether the ring was full before, and whether it was empty afterwards."""
    moved = was_full = is_empty = False
    while _is_acknowledged(shared) and swap_if_u32(shared, GROUP_LOCK, 0, owner):
        try:
            if not is_sound(shared):
                raise DamagedWordsError
            head, tail = load_u64(shared, GROUP_HEAD), load_u64(shared, GROUP_TAIL)
            was_full |= tail - head >= GROUP_ENTRIES
            is_empty |= _move_position(shared, head, tail)
            moved = True
        finally:
            release_word(shared, GROUP_LOCK)
    return moved, was_full, is_empty


def _is_acknowledged(shared: memoryview) -> bool:
    """Return whether there is an oldest entry, and it is acknowledged."""
    head, tail = load_u64(shared, GROUP_HEAD), load_u64(shared, GROUP_TAIL)
    return head != tail and load_u64(shared, entry_start(head)) & ENTRY_STATE in (ENTRY_ACKED, ENTRY_SKIPPED)


def _move_position(shared: memoryview, head: int, tail: int) -> bool:
    """Move the position to the oldest entry that is not acknowledged; return whether there is none."""
    while head != tail and (word := load_u64(shared, entry_start(head))) & ENTRY_STATE in (
        ENTRY_ACKED,
        ENTRY_SKIPPED,
    ):
        if word & ENTRY_STATE == ENTRY_SKIPPED:
            store_u64(
                shared, entry_start(head), word & ~ENTRY_STATE
            )  # the member that reuses the entry must find it acknowledged
        head += 1
    if head == tail:
        store_position(shared, load_u64(shared, GROUP_NEXT), load_u64(shared, GROUP_NEXT_SEQUENCE))
    else:
        _, offset, _, sequence, _ = ENTRY.unpack_from(shared, entry_start(head))
        if offset >= load_u64(shared, GROUP_NEXT):
            raise DamagedWordsError
        store_position(shared, offset, sequence)
    store_u64(shared, GROUP_HEAD, head)
    return head == tail


def store_position(shared: memoryview, offset: int, sequence: int) -> None:
    """Write a position into the cursor slot that is not current. The caller has the lock."""
    newest: int = max(CURSOR.unpack_from(shared, slot)[0] for slot in CURSOR_SLOTS)
    write_cursor_slot(shared, newest + 1 & U64, offset, sequence, wall_clock_ns())
