"""Start and stop positions: from the arguments of users to log positions."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Literal, TypeAlias, TypeVar

from ..._format.layout import OFFSET_GAP
from ..._offset import LogPosition, Offset
from ..._storage.store import Store

V = TypeVar("V")

Start: TypeAlias = Literal["earliest", "latest"] | Offset | datetime
"""Where to start: at the oldest stored message, after the newest, at an offset or at a point in time."""

Stop: TypeAlias = Literal["latest"] | Offset | None
"""Where a replay ends: after what is published now, before the message at an offset, or never (None)."""


def resolve_start(store: Store, start: Start, argument: str = "start") -> LogPosition:
    """Resolve a start position. Raise `ValueError`, naming the argument, if it is invalid."""
    if start == "earliest":
        return store.lookup.earliest()
    if start == "latest":
        return store.lookup.latest()
    if isinstance(start, datetime):
        return find_for_argument(argument, start, store, store.lookup.since)
    if type(start) is int:
        return find_for_argument(argument, start, store, store.lookup.at)
    raise ValueError(f"{argument}={start!r}: must be 'earliest', 'latest', an Offset or an aware datetime")


def find_stop(store: Store, stop: Stop) -> LogPosition | None:
    """Resolve where a replay ends. Raise `ValueError` if it is invalid."""
    if stop is None:
        return None
    if stop == "latest":
        return store.lookup.latest()
    if type(stop) is int:
        return find_for_argument("stop", stop, store, store.lookup.at)
    raise ValueError(f"stop={stop!r}: must be 'latest', an Offset, or None to follow new messages")


def find_for_argument(argument: str, value: V, store: Store, find: Callable[[V], LogPosition]) -> LogPosition:
    """Find a log position, and add the argument and the channel to a `ValueError`."""
    try:
        return find(value)
    except ValueError as error:
        raise ValueError(f"{argument}={value!r}: {error} ({store.path})") from None


def find_again(store: Store, log_position: LogPosition) -> LogPosition | None:
    """Return where a reader that remembers a log position (an offset and the sequence there) resumes.

    That is the position itself, even if it is not stored any more; the position after the gap if a power cut lost the
    data there; None if the position never existed.
    """
    while True:
        earliest = store.lookup.earliest()
        if log_position.offset < earliest.offset:
            return log_position if log_position.sequence <= earliest.sequence else None
        found = _find_stored(store, log_position)
        if store.control.oldest_offset == earliest.offset:  # otherwise it may have been reclaimed during the lookup
            return found


def _find_stored(store: Store, log_position: LogPosition) -> LogPosition | None:
    """Return the same for a position that is not older than what is stored."""
    if log_position.offset > store.lookup.latest().offset:
        return None
    found = store.lookup.at_or_after(log_position.offset)
    if found.offset // OFFSET_GAP > log_position.offset // OFFSET_GAP:
        return found
    return found if (found.offset, found.sequence) == (log_position.offset, log_position.sequence) else None
