"""Numbered batches: a batch that is appended again is found to exist and is not appended twice.

The number is in a header record in front of the batch, so that either both exist or neither does. `producer_positions`
describes how the newest number is found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, final

from .._format.layout import SINK
from .._offset import Offset
from .capacity.backlog import Batch
from .consumers.cursor_file_format import encoded_name
from .log.batch_parts import HeaderRecord, Part
from .producers.producer_positions import Producer, ProducerPosition
from .writable_store import WritableStore

_NO_BATCH: Final = 0  # as the offset of a producer position


class _ConcurrentAppendError(Exception):
    """Another process or thread has appended under the same name since the last lookup."""


@final
class IdempotentProducer:
    """The numbered batches of one producer in one channel. Every method blocks."""

    def __init__(self, store: WritableStore, name: str) -> None:
        """Raise `ValueError` if the name cannot be a file name."""
        self._store = store
        self._producer: Producer = store.producers.open(f"sink.{encoded_name(name)}")

    @property
    def last(self) -> int | None:
        """The number of the newest batch; None if there is none."""
        producer_position = self._find()
        return producer_position.offset - 1 if producer_position.offset else None

    def append(self, number: int, batch: Batch, parts: Callable[[], Iterable[Part]]) -> Offset | None:
        """Append a batch, unless it or a later one exists.

        Return its offset, or None if it exists. Raises as `Log` does.
        """
        while True:
            last = self._find()
            if number < last.offset:
                return None
            try:
                return self._store.log.append_parts(
                    parts(), batch, self._header_record_after(last, number, batch.messages)
                )
            except _ConcurrentAppendError:
                continue

    def _find(self) -> ProducerPosition:
        # Under FSYNC, a batch that was appended by a process that died may not be visible yet.
        if self._store.control.deferred:
            self._store.flusher.commit()
        with self._store.log.writing():
            producer_position = self._producer.find()
            if producer_position is None:
                producer_position = ProducerPosition(self._store.control.tail().offset, 0, _NO_BATCH, 0)
                self._producer.begin(producer_position)
            return producer_position

    def _header_record_after(self, last: ProducerPosition, number: int, count: int) -> HeaderRecord:
        def make(at: Offset) -> bytes:
            if self._producer.newest != last:
                raise _ConcurrentAppendError
            return self._producer.record(SINK, ProducerPosition(at, 0, number + 1, count), last)

        return HeaderRecord(self._producer.record_size, make)
