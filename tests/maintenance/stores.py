"""Channels with something to remove, and consumers of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from filechannel import Retention
from filechannel._format import NOTHING
from filechannel._maintenance.background.plan_reclaim import IDLE, reclaim_after
from filechannel._storage.reading.log_reader import LogReader
from filechannel._storage.store import Store
from tests.storage.channels import reader_of

A_THIRD = 1300
"""Three messages of this size fit a segment of one page, and no fourth."""


def fill(store: Store, segments: int) -> list[bytes]:
    """Send three messages for each of so many segments, and bring them to disk; the last segment is full, too."""
    first = store.control.tail().sequence
    payloads = [(b"%d " % number).ljust(A_THIRD, b".") for number in range(first, first + 3 * segments)]
    for payload in payloads:
        store.log.append([payload])
    store.flusher.flush()
    return payloads


@contextmanager
def consumer(store: Store, name: str = "consumer") -> Iterator[LogReader]:
    """Own a name and start where it stopped, at the oldest message if it is new."""
    cursor = store.cursors.open(name)
    reader = reader_of(store, cursor)
    position = cursor.position
    reader.move(store.lookup.earliest() if position is None else position.log_position)
    assert position is not None or store.low_watermark.retain_from(reader.native.offset)
    try:
        yield reader
    finally:
        reader.close()
        store.cursors.close(cursor)


def consume(store: Store, messages: int | None = None, name: str = "consumer") -> list[bytes]:
    """Take so many messages under a name, or all there are."""
    taken: list[bytes] = []
    with consumer(store, name) as reader:
        while messages is None or len(taken) < messages:
            item = reader.native.take()
            if item is NOTHING:
                break
            assert isinstance(item, bytes)
            taken.append(item)
    return taken


def reclaim(store: Store, idle: float = IDLE) -> None:
    """Reclaim what may be, as maintenance does."""
    with store.maintenance_lock.held():
        reclaim_after(store, idle)


def set_retention(store: Store, retention: Retention) -> None:
    """Configure how long messages stay."""
    options = replace(store.manifest.options, retention=retention)
    store.configure(lambda manifest: replace(manifest, options=options))


def files_of(store: Store) -> list[str]:
    """Return the names of the remaining segment files; files of the free list do not count."""
    names = sorted(file.name for file in store.segments.directory.iterdir())
    return [name for name in names if not name.startswith("spare-")]
