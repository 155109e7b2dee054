"""What of a channel may go, and what holds back the rest.

A segment goes as a whole, the oldest first. Under `after_consumed="delete"` it goes when every registered consumer has
passed it; by `max_age` and `max_bytes` it goes under either, but never while a registered consumer has not passed it.
The segment that is written to goes, too, once nothing was sent for a while: then it is finished where it ends, and the
next message makes another.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Literal, TypeAlias, final

from .._errors import CorruptRecordError
from .._format.layout import CONTROL_RECORD, RECORD_HEADER_SIZE
from .._offset import Offset
from .._policies import Retention
from .._storage.compressed import StoredSegment
from .._storage.control import Tail
from .._storage.cursor_file import Position
from .._storage.store import Store

IDLE = 10.0
"""Seconds without a message after which the segment that is written to may go."""
_PATIENCE = 1.0  # seconds in which whoever writes brings to disk what it finished
_SOON = 0.05
_SHORTEST, _LONGEST = 1.0, 300.0
_EMPTY = 60.0
_AT_LEAST = 4  # looks before something is as old as it may become, or as long again
_NANOSECONDS = 1e9

PinReason: TypeAlias = Literal["consumer", "nobody", "keep", "active"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """What holds back the oldest segment."""

    reason: PinReason
    """A consumer that has not passed it, that nobody is registered, that it is to be kept, or that it is written to."""
    consumer: str | None = None
    """The consumer's name."""

    def __str__(self) -> str:
        """Say it in one line."""
        if self.reason == "consumer":
            return f"consumer {self.consumer!r} has not passed it"
        if self.reason == "nobody":
            return "no consumer is registered, so nothing counts as consumed"
        return "the retention says to keep it" if self.reason == "keep" else "it is the segment that is written to"


@final
@dataclass(frozen=True, slots=True)
class Plan:
    """What may go."""

    oldest: Offset
    """Everything before it."""
    pin: Pin | None
    """What holds back the rest, if nothing may go; None if nothing is stored either."""


def reclaim(store: Store) -> float:
    """Remove what may go; a step of maintenance."""
    return reclaim_after(store, IDLE)


def reclaim_after(store: Store, idle: float) -> float:
    """Remove what may go, where a channel counts as idle after so many seconds; return when to look again."""
    store.reclaim.finish()
    store.remove_expired()
    plan = find_plan(store, idle)
    if plan.oldest > store.control.oldest_offset:
        patiently = store.upkeep.quiet(store.control.write_offset) < min(idle, _PATIENCE) * _NANOSECONDS
        if not store.reclaim.up_to(
            plan.oldest, lambda oldest: find_plan(store, idle).oldest >= oldest, patiently=patiently
        ):
            return _SOON
    return _pause(store, idle)


def _pause(store: Store, idle: float) -> float:
    """Return how long nothing will be to do, most likely: the longer it was quiet, the longer it will be."""
    quiet = store.upkeep.quiet(store.control.write_offset) / _NANOSECONDS
    longest = min(_LONGEST, _between_looks(store))
    if quiet < idle:
        longest = min(longest, idle - quiet)
    return max(_SHORTEST, min(quiet, longest))


def pause_while_empty(store: Store) -> float:
    """Return when to look again at a channel in which nothing is stored: nobody tells of a first message."""
    return max(_SHORTEST, min(_EMPTY, _between_looks(store)))


def _between_looks(store: Store) -> float:
    """Return how long a message may go unseen, so that it is not much older than it may become."""
    max_age = store.options().retention.max_age
    return math.inf if max_age is None else max_age / _AT_LEAST


# What may go


def find_plan(store: Store, idle: float = IDLE) -> Plan:
    """Look what may go now. Changes nothing."""
    # Before everything else: how long it was quiet, and where consumers stand, is about this end of the log.
    tail = store.control.tail()
    quiet = store.upkeep.quiet(tail.offset)
    oldest = store.control.oldest_offset
    if oldest >= tail.offset:
        return Plan(oldest, None)
    retention = store.options().retention
    floors = {name: _floor(store, position, tail) for name, position in store.roster.positions().items()}
    floor = min(floors.values(), default=tail.offset)
    ends = [begin for begin in store.segments.begins if begin > oldest]
    consumed = ends + [tail.offset] * (quiet >= idle * _NANOSECONDS)
    spent = max(_too_old(store, retention, ends, tail, quiet), _too_many(store, retention, oldest, ends, tail))
    free = [end for end in [*ends, tail.offset] if end <= spent]
    if retention.after_consumed == "delete" and floors:
        free += consumed
    reached = max((end for end in free if end <= floor), default=oldest)
    if reached > oldest:
        return Plan(reached, None)
    first_end = min([*ends, tail.offset])
    return Plan(oldest, _pin(retention, floors, first_end, is_spent=first_end <= spent))


def _pin(retention: Retention, floors: dict[str, Offset], end: Offset, *, is_spent: bool) -> Pin:
    """Return why the oldest segment, which ends here, may not go."""
    slowest = min(floors, key=lambda name: floors[name], default=None)
    if retention.after_consumed == "keep" and not is_spent:
        return Pin(reason="keep")
    if slowest is None:
        return Pin(reason="nobody")
    return Pin(reason="consumer", consumer=slowest) if floors[slowest] < end else Pin(reason="active")


def _floor(store: Store, position: Position | None, tail: Tail) -> Offset:
    """Return what a consumer has passed: the tail if no message is left for it, nothing if it may begin anew."""
    if position is None:
        return Offset(0)
    if position.sequence >= tail.sequence and not _has_messages(store, position.offset, tail.offset):
        return tail.offset
    return min(position.offset, tail.offset)


def _has_messages(store: Store, start: Offset, stop: Offset) -> bool:
    """Tell whether there is anything between two offsets that a consumer may still get.

    Numbers alone do not tell: who skipped damage can only guess how many messages were in it.
    """
    while start < stop:
        begin = store.segments.covering(start)
        end = start if begin is None else min(store.segments.end_of(begin, stop), stop)
        if begin is not None and start < end:
            try:
                segment = store.segments.get(begin)
            except CorruptRecordError:
                return True
            if _has_more_than_control_records(segment, start, end):
                return True
        following = store.segments.following(start)
        start = stop if following is None else following
    return False


def _has_more_than_control_records(segment: StoredSegment, start: int, stop: int) -> bool:
    """Tell whether a message or damage lies between two offsets of a segment; the first of either is enough."""
    while start < stop:
        try:
            word, payload = segment.read(start, stop)
        except ValueError:
            return True
        if not word & CONTROL_RECORD:
            return True
        start += RECORD_HEADER_SIZE + len(payload)
    return False


def _too_old(store: Store, retention: Retention, ends: list[Offset], tail: Tail, quiet: int) -> Offset:
    """Return before what everything is too old. A segment is as young as the beginning of the next."""
    found = Offset(0)
    if retention.max_age is None:
        return found
    max_age = retention.max_age * _NANOSECONDS
    if quiet >= max_age:
        return tail.offset
    for end in ends:
        try:
            begun = store.segments.header(end).created
        except CorruptRecordError:
            continue  # the one behind it will tell
        if time.time_ns() - begun < max_age:
            break
        found = end
    return found


def _too_many(store: Store, retention: Retention, oldest: Offset, ends: list[Offset], tail: Tail) -> Offset:
    """Return before what everything goes beyond what may be stored. The segment that is written to never does."""
    found = Offset(0)
    if retention.max_bytes is None:
        return found
    begins = [oldest, *ends]
    sizes = [store.segments.end_of(begin, tail.offset) - begin for begin in begins]
    stored = sum(sizes)
    for end, size in zip(ends, sizes, strict=False):
        if stored <= retention.max_bytes:
            break
        stored -= size
        found = end
    return found
