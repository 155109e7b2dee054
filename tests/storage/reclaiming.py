"""Retiring what was consumed, as maintenance does."""

from __future__ import annotations

from filechannel._storage.store import Store


def reclaim(store: Store, offset: int, *, flush: bool = True) -> None:
    """Retire every segment before the one with an offset.

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
        store.log.appender.announce_change()
