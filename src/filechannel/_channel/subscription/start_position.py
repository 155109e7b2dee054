"""Where to begin and where to end: from what users say to places in the log."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Literal, TypeAlias, TypeVar

from .._format.layout import OFFSET_JUMP
from .._offset import Offset
from .._storage.index import Mark
from .._storage.store import Store

V = TypeVar("V")

Start: TypeAlias = Literal["earliest", "latest"] | Offset | datetime
"""Where to begin: at the oldest stored message, behind the newest, at an offset or at a moment in time."""

Stop: TypeAlias = Literal["latest"] | Offset | None
"""Where a replay ends: behind what is published now, before the message at an offset, or nowhere: it goes on live."""


def find_place(store: Store, start: Start, argument: str = "start") -> Mark:
    """Resolve a place in a channel; `ValueError` if it is none, naming the argument it was given as."""
    if start == "earliest":
        return store.places.earliest()
    if start == "latest":
        return store.places.latest()
    if isinstance(start, datetime):
        return naming(argument, start, store, store.places.since)
    if type(start) is int:
        return naming(argument, start, store, store.places.at)
    raise ValueError(f"{argument}={start!r}: must be 'earliest', 'latest', an Offset or an aware datetime")


def find_stop(store: Store, stop: Stop) -> Mark | None:
    """Resolve where a replay ends; `ValueError` if that is no place to stop at."""
    if stop is None:
        return None
    if stop == "latest":
        return store.places.latest()
    if type(stop) is int:
        return naming("stop", stop, store, store.places.at)
    raise ValueError(f"stop={stop!r}: must be 'latest', an Offset, or None to go on live")


def naming(argument: str, value: V, store: Store, find: Callable[[V], Mark]) -> Mark:
    """Find a place, and let a `ValueError` say which argument of which channel it is about."""
    try:
        return find(value)
    except ValueError as error:
        raise ValueError(f"{argument}={value!r}: {error} ({store.path})") from None


def find_again(store: Store, place: Mark) -> Mark | None:
    """Return where whoever remembers a place, before the message of that number, goes on.

    That is the place itself, also if it is not stored any more; what came after a power cut if that took what was
    there; None if there was no such place.
    """
    while True:
        earliest = store.places.earliest()
        if place.offset < earliest.offset:
            return place if place.sequence <= earliest.sequence else None
        found = _find_stored(store, place)
        if store.control.oldest_offset == earliest.offset:  # else it may have been removed before we came to it
            return found


def _find_stored(store: Store, place: Mark) -> Mark | None:
    """Return the same for a place that is not older than what is stored."""
    if place.offset > store.places.latest().offset:
        return None
    found = store.places.at_or_behind(place.offset)
    if found.offset // OFFSET_JUMP > place.offset // OFFSET_JUMP:
        return found
    return found if (found.offset, found.sequence) == (place.offset, place.sequence) else None
