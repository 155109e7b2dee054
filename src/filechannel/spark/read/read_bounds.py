"""Where a batch begins and ends, as its options say."""

from __future__ import annotations

from datetime import datetime

from .._channel.places import find_place
from .._errors import ConsumerDamagedError, UnknownConsumerError
from .._storage.index import Mark
from .._storage.store import Store
from .options import ReadOptions


def bounds(store: Store, options: ReadOptions) -> tuple[Mark, Mark]:
    """Return where to begin and to end; `ValueError` names the option that is wrong."""
    if isinstance(options.stop, datetime):
        stop = store.places.until(options.stop)
    else:
        stop = find_place(store, options.stop, "option endingOffset")
    start = _start(store, options)
    if stop.offset < start.offset and options.start is not None:
        raise ValueError(
            f"option endingOffset={options.stop!s} lies before startingOffset={options.start!s} ({store.path})"
        )
    return start, stop


def _start(store: Store, options: ReadOptions) -> Mark:
    if options.start is not None or options.consumer is None:
        return find_place(store, options.start or "earliest", "option startingOffset")
    registration = store.roster.look(options.consumer)
    if registration is None:
        raise UnknownConsumerError(options.consumer, path=store.path)
    if registration.position is None:
        raise ConsumerDamagedError(options.consumer, path=store.path)
    return Mark(registration.position.offset, registration.position.sequence, 0)
