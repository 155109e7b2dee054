"""Retention: which segments may be removed, and what keeps the others.

A segment is removed as a whole, the oldest first. Under `after_consumed="delete"` it is removed when every registered
consumer has consumed it. By `max_age` and `max_bytes` it is removed under either setting, but never before every
registered consumer has consumed it. The active segment is removed, too, after nothing was sent for a while: then it is
finished where it ends, and the next message creates another.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Literal, TypeAlias, final

from ..._errors import CorruptRecordError
from ..._format.layout import CONTROL_RECORD, RECORD_HEADER_SIZE
from ..._offset import Offset
from ..._policies import Retention
from ..._storage.consumers.cursor_file_format import StoredPosition
from ..._storage.control.control_page import Tail
from ..._storage.segments.compressed_segment import StoredSegment
from ..._storage.store import Store
from ..._storage.writable_store import WritableStore

IDLE = 10.0
"""Seconds without a message after which the active segment may be removed."""
_FLUSH_WAIT_SECONDS = 1.0  # seconds in which the writers flush what they finished
_RETRY_SECONDS = 0.05
_SHORTEST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 1.0, 300.0
_EMPTY_PAUSE_SECONDS = 60.0
_CHECKS_PER_MAX_AGE = 4  # checks per `max_age`, so that nothing gets much older than that
_NANOSECONDS_PER_SECOND = 1e9

PinReason: TypeAlias = Literal["consumer", "nobody", "keep", "active"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """What keeps the oldest segment."""

    reason: PinReason
    """A consumer has not consumed it, no consumer is registered, retention keeps it, or it is the active segment."""
    consumer: str | None = None
    """The consumer's name."""

    def __str__(self) -> str:
        """Describe it in one line."""
        if self.reason == "consumer":
            return f"consumer {self.consumer!r} has not read it"
        if self.reason == "nobody":
            return "no consumer is registered, so nothing counts as consumed"
        return "the retention keeps it" if self.reason == "keep" else "it is the active segment"


@final
@dataclass(frozen=True, slots=True)
class Plan:
    """What may be removed."""

    oldest: Offset
    """Everything before this offset may be removed."""
    pin: Pin | None
    """What keeps the oldest segment, if nothing may be removed; None if nothing is stored."""


def reclaim(store: WritableStore) -> float:
    """Remove what may be removed; a step of maintenance."""
    return reclaim_after(store, IDLE)


def reclaim_after(store: WritableStore, idle: float) -> float:
    """Remove what may be removed; a channel is idle after *idle* seconds. Return the seconds until the next check."""
    store.reclaim.finish()
    store.remove_expired()
    plan = find_plan(store, idle)
    if plan.oldest > store.control.oldest_offset:
        patiently = (
            store.maintenance_lock.quiet(store.control.write_offset)
            < min(idle, _FLUSH_WAIT_SECONDS) * _NANOSECONDS_PER_SECOND
        )
        if not store.reclaim.up_to(
            plan.oldest, lambda oldest: find_plan(store, idle).oldest >= oldest, patiently=patiently
        ):
            return _RETRY_SECONDS
    return _pause(store, idle)


def _pause(store: Store, idle: float) -> float:
    """Return the seconds until the next check: the longer the channel was idle, the more."""
    quiet = store.maintenance_lock.quiet(store.control.write_offset) / _NANOSECONDS_PER_SECOND
    longest = min(_LONGEST_PAUSE_SECONDS, _check_interval(store))
    if quiet < idle:
        longest = min(longest, idle - quiet)
    return max(_SHORTEST_PAUSE_SECONDS, min(quiet, longest))


def pause_while_empty(store: Store) -> float:
    """Return after how many seconds to check an empty channel again: a first message does not cause a request."""
    return max(_SHORTEST_PAUSE_SECONDS, min(_EMPTY_PAUSE_SECONDS, _check_interval(store)))


def _check_interval(store: Store) -> float:
    """Return the most seconds between two checks, so that no message gets much older than its maximum age."""
    max_age = store.options().retention.max_age
    return math.inf if max_age is None else max_age / _CHECKS_PER_MAX_AGE


# What may be removed


def find_plan(store: Store, idle: float = IDLE) -> Plan:
    """Determine what may be removed now. Changes nothing."""
    # Read first: the idle time and the positions of the consumers refer to this end of the log.
    tail = store.control.tail()
    quiet = store.maintenance_lock.quiet(tail.offset)
    oldest = store.control.oldest_offset
    if oldest >= tail.offset:
        return Plan(oldest, None)
    retention = store.options().retention
    floors = {name: _floor(store, position, tail) for name, position in store.consumer_listing.positions().items()}
    floor = min(floors.values(), default=tail.offset)
    ends = [begin for begin in store.segments.begins if begin > oldest]
    consumed = ends + [tail.offset] * (quiet >= idle * _NANOSECONDS_PER_SECOND)
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
    """Return what keeps the oldest segment, which ends at *end*."""
    slowest = min(floors, key=lambda name: floors[name], default=None)
    if retention.after_consumed == "keep" and not is_spent:
        return Pin(reason="keep")
    if slowest is None:
        return Pin(reason="nobody")
    return Pin(reason="consumer", consumer=slowest) if floors[slowest] < end else Pin(reason="active")


def _floor(store: Store, position: StoredPosition | None, tail: Tail) -> Offset:
    """Return up to where a consumer has consumed: the tail if no message is left for it, 0 if it may start over."""
    if position is None:
        return Offset(0)
    if position.sequence >= tail.sequence and not _has_messages(store, position.offset, tail.offset):
        return tail.offset
    return min(position.offset, tail.offset)


def _has_messages(store: Store, start: Offset, stop: Offset) -> bool:
    """Return whether there is anything between two offsets that a consumer may still receive.

    Sequences alone are not enough: a consumer that skipped damage can only estimate how many messages were in it.
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
    """Return whether there is a message or damage between two offsets of a segment; the first of either is enough."""
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
    """Return the offset before which everything is too old. A segment is as young as the beginning of the next one."""
    found = Offset(0)
    if retention.max_age is None:
        return found
    max_age = retention.max_age * _NANOSECONDS_PER_SECOND
    if quiet >= max_age:
        return tail.offset
    for end in ends:
        try:
            started = store.segments.header(end).created
        except CorruptRecordError:
            continue  # the next segment decides
        if time.time_ns() - started < max_age:
            break
        found = end
    return found


def _too_many(store: Store, retention: Retention, oldest: Offset, ends: list[Offset], tail: Tail) -> Offset:
    """Return the offset before which everything exceeds the maximum size. The active segment never does."""
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
