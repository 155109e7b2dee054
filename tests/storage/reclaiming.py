"""Giving up what was consumed, as whoever decides about it does."""

from __future__ import annotations

from filechannel._storage.store import Store


def reclaim(store: Store, offset: int, *, flush: bool = True) -> None:
    """Give up every segment before the one that an offset lies in.

    Without a *flush* only where no power cut is to be survived.
    """
    oldest = store.segments.covering(offset)
    if oldest is None or oldest <= store.control.oldest_offset:
        return
    store.control.oldest_offset = oldest
    if flush:
        store.flusher.flush()
    store.segments.remove_before(oldest)
    with store.log.writing():
        store.log.announce_change()
