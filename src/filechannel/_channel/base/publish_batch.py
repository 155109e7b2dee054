"""Any number of messages as one batch: all of them become visible at once, or none ever does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from uuid import uuid4

from .._errors import MessageTooLargeError
from .._storage.backlog import Batch
from .._storage.parts import Records
from .._storage.staging import Staging
from .._storage.store import Store
from .._wakeup.arrivals import arrivals_of
from .._wakeup.line import when_there_is_room


def publish(store: Store, parts: Iterable[list[bytes]]) -> int:
    """Append payloads as one batch, and return how many. They need not be in memory together.

    They wait in files of their own until the last one is there; on any error, and on Ctrl-C, nothing is sent and
    nothing is left behind. Waits for room in a channel that lets senders wait. Raises `MessageTooLargeError` for a
    payload that never fits, or for all of them together if they are more than the capacity.
    """
    arrivals_of(store)  # whoever waits, in any process, is woken
    limit = store.manifest.options.max_message_size
    staging = Staging(store.files, store.path, f"batch-{uuid4().hex}", store.manifest.options.mode)
    try:
        staged = staging.write(map(Records.of, _checked(parts, limit)))
        if staged.count:
            batch = Batch.of(staged.length, staged.count)
            when_there_is_room(store, lambda: store.log.append_parts(staging.read(staged), batch))
            if store.control.deferred:
                store.flusher.commit()
        return staged.count
    finally:
        staging.sweep()


def _checked(parts: Iterable[list[bytes]], limit: int) -> Iterator[list[bytes]]:
    for part in parts:
        longest = max(map(len, part), default=0)
        if longest > limit:
            raise MessageTooLargeError(longest, limit)
        yield part
