"""Reclaiming now, with or without anybody who has the channel open."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import final

from .._storage.files import Files
from .._storage.store import Store
from .._storage.stores import STORES
from .compression import sweep
from .retention import Pin, find_plan, reclaim_after

_MAPPED = 2  # segments; nothing is read
_PATIENCE = 10.0  # seconds for whoever else is at it


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Reclaimed:
    """What came of it."""

    segments: int
    """How many were removed."""
    bytes: int
    """How many bytes of records were in them."""
    pinned_by: Pin | None
    """What holds back the oldest that is left; None if nothing does, or nothing is stored."""


def gc(path: Path, *, files: Files | None = None) -> Reclaimed:
    """Remove what may go from the channel in a directory, right now: a channel that is consumed counts as idle.

    Opens the directory like anybody, which recovers it if need be. Raises what opening raises, and `Busy` if somebody
    else maintains the channel and does not come to an end.
    """
    store = _open(path, files, readonly=False)
    try:
        until = time.monotonic() + _PATIENCE
        with store.upkeep.turn(lambda: time.monotonic() < until):
            segments, size = store.upkeep.reclaimed
            sweep(store)
            reclaim_after(store, 0.0)
            wanted = find_plan(store, 0.0).oldest
            while store.control.oldest_offset < min(wanted, find_plan(store, 0.0).oldest):  # somebody came in between
                reclaim_after(store, 0.0)
            segments_now, size_now = store.upkeep.reclaimed
            pin = find_plan(store, 0.0).pin
            store.upkeep.forget_errors()  # somebody looks, and it worked
        return Reclaimed(segments=segments_now - segments, bytes=size_now - size, pinned_by=pin)
    finally:
        STORES.close(store)


def foresee(path: Path, *, files: Files | None = None) -> Reclaimed:
    """Return what `gc` would remove now. Changes nothing; what would hold back the rest is not known then."""
    store = _open(path, files, readonly=True)
    try:
        plan, tail = find_plan(store, 0.0), store.control.write_offset
        going = [begin for begin in store.segments.begins if begin < plan.oldest]
        size = sum(store.segments.end_of(begin, tail) - begin for begin in going)
        return Reclaimed(segments=len(going), bytes=size, pinned_by=plan.pin)
    finally:
        STORES.close(store)


def _open(path: Path, files: Files | None, *, readonly: bool) -> Store:
    return STORES.open(
        path, check=lambda _: None, new=None, readonly=readonly, max_mapped_segments=_MAPPED, files=files
    )
