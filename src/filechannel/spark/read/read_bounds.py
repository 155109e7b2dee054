"""The log positions at which a batch read starts and ends, according to its options."""

from __future__ import annotations

from datetime import datetime

from ..._channel.subscription.start_position import resolve_start
from ..._errors import ConsumerDamagedError, UnknownConsumerError
from ..._offset import LogPosition
from ..._storage.store import Store
from ..source_options import ReadOptions


def bounds(store: Store, options: ReadOptions) -> tuple[LogPosition, LogPosition]:
    """Return where to start and to end. `ValueError` names the option that is wrong."""
    if isinstance(options.stop, datetime):
        stop = store.lookup.until(options.stop)
    else:
        stop = resolve_start(store, options.stop, "option endingOffset")
    start = _start(store, options)
    if stop.offset < start.offset and options.start is not None:
        raise ValueError(
            f"option endingOffset={options.stop!s} lies before startingOffset={options.start!s} ({store.path})"
        )
    return start, stop


def _start(store: Store, options: ReadOptions) -> LogPosition:
    if options.start is not None or options.consumer is None:
        return resolve_start(store, options.start or "earliest", "option startingOffset")
    registration = store.consumer_listing.find(options.consumer)
    if registration is None:
        raise UnknownConsumerError(options.consumer, path=store.path)
    if registration.position is None:
        raise ConsumerDamagedError(options.consumer, path=store.path)
    return registration.position.log_position
