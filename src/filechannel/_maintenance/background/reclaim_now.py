"""Reclaiming on request, whether or not another process has the channel open."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import final

from ..._storage.manifest import Manifest
from ..._storage.open_stores import STORES
from ..._storage.system.os_calls import Files
from .compress_segment import sweep
from .plan_reclaim import Pin, find_plan, reclaim_after

_MAPPED_SEGMENTS = 2  # segments; nothing is read
_LOCK_WAIT_SECONDS = 10.0  # seconds to wait for another process that does maintenance


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Reclaimed:
    """The result of `gc`."""

    segments: int
    """How many segments were removed."""
    bytes: int
    """The size of the records in them."""
    pinned_by: Pin | None
    """What keeps the oldest segment that is left; None if nothing does, or if nothing is stored."""


def gc(path: Path, *, files: Files | None = None) -> Reclaimed:
    """Remove what may be removed from the channel in a directory, right now: a consumed channel counts as idle.

    Opens the directory like any other process, which recovers it if needed. Raises what opening raises, and `Busy` if
    another process does maintenance and does not finish in time.
    """
    store = STORES.open(
        path, check=_accept, new=None, readonly=False, max_mapped_segments=_MAPPED_SEGMENTS, files=files
    )
    try:
        until = time.monotonic() + _LOCK_WAIT_SECONDS
        with store.maintenance_lock.held(lambda: time.monotonic() < until):
            segments, size = store.maintenance_lock.reclaimed
            sweep(store)
            reclaim_after(store, 0.0)
            wanted = find_plan(store, 0.0).oldest
            # The first pass stops if a consumer registers or moves back: repeat with what may still be removed.
            while store.control.oldest_offset < min(wanted, find_plan(store, 0.0).oldest):
                reclaim_after(store, 0.0)
            segments_now, size_now = store.maintenance_lock.reclaimed
            pin = find_plan(store, 0.0).pin
            store.maintenance_lock.forget_errors()  # the user sees the result, and maintenance succeeded
        return Reclaimed(segments=segments_now - segments, bytes=size_now - size, pinned_by=pin)
    finally:
        STORES.close(store)


def preview(path: Path, *, files: Files | None = None) -> Reclaimed:
    """Return what `gc` would remove now. Changes nothing. If something would be removed, `pinned_by` is None."""
    store = STORES.open(path, check=_accept, new=None, readonly=True, max_mapped_segments=_MAPPED_SEGMENTS, files=files)
    try:
        plan, tail = find_plan(store, 0.0), store.control.write_offset
        removable = [begin for begin in store.segments.begins if begin < plan.oldest]
        size = sum(store.segments.end_of(begin, tail) - begin for begin in removable)
        return Reclaimed(segments=len(removable), bytes=size, pinned_by=plan.pin)
    finally:
        STORES.close(store)


def _accept(_: Manifest) -> None:
    pass
