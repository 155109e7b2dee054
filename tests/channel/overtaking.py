"""Dropping what receivers have not read yet."""

from __future__ import annotations

from filechannel import FileChannel


def overtake(channel: FileChannel[int], segments: int) -> None:
    """Drop the oldest segments as `drop_oldest` does, while receivers are in them."""
    store = channel._store
    oldest = store.segments.begins[segments]
    store.control.oldest_offset = oldest
    store.segments.remove_before(oldest)
