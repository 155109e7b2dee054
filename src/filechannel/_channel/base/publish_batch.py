"""Publishing any number of messages as one batch, atomically."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from uuid import uuid4

from ..._errors import MessageTooLargeError
from ..._storage.capacity.backlog import Batch
from ..._storage.log.batch_parts import Records
from ..._storage.producers.staging import Staging
from ..._storage.writable_store import WritableStore
from ..._wakeup.send_queue import append_with_capacity
from ..._wakeup.waiters import waiters_of


def publish(store: WritableStore, parts: Iterable[list[bytes]]) -> int:
    """Append payloads as one batch, and return how many. They need not fit in memory together.

    They are staged in separate files until the last one is written. On any error, and on Ctrl-C, nothing is sent and
    nothing is left behind. Waits for capacity if the channel lets senders wait. Raises `MessageTooLargeError` for a
    payload that can never fit, or for all of them if together they exceed the capacity.
    """
    waiters_of(store)  # connects the store, so that waiters in all processes are woken
    limit = store.manifest.options.max_message_size
    staging = Staging(store.files, store.path, f"batch-{uuid4().hex}", store.manifest.options.mode)
    try:
        staged = staging.write(map(Records.of, _checked(parts, limit)))
        if staged.count:
            batch = Batch.of(staged.length, staged.count)
            append_with_capacity(store, lambda: store.log.append_parts(staging.read(staged), batch))
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
