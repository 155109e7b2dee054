"""Batches that are known by a number: whoever appends one again finds that it is there already.

The number travels in a control record in front of the batch, so that both are there or neither is; `producers.py` says
how the newest one is found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, final

from .._format.layout import SINK
from .._offset import Offset
from .backlog import Batch
from .cursor_file import encoded_name
from .parts import Lead, Part
from .producers import Place, Producer
from .store import Store

_NOTHING: Final = 0


class _OvertakenError(Exception):
    """Somebody else has appended under the same name since we had a look."""


@final
class Ledger:
    """The batches of one producer in one channel, by number. Appending and looking block."""

    def __init__(self, store: Store, name: str) -> None:
        """Raise `ValueError` if the name cannot be that of a file."""
        self._store = store
        self._producer: Producer = store.producers.open(f"sink.{encoded_name(name)}")

    @property
    def last(self) -> int | None:
        """The number of the newest batch; None if there is none."""
        place = self._find()
        return place.offset - 1 if place.offset else None

    def append(self, number: int, batch: Batch, parts: Callable[[], Iterable[Part]]) -> Offset | None:
        """Append a batch, unless it or a later one is there; return where it begins, or None. Raises as `Log` does."""
        while True:
            last = self._find()
            if number < last.offset:
                return None
            try:
                return self._store.log.append_parts(parts(), batch, self._lead_after(last, number, batch.messages))
            except _OvertakenError:
                continue

    def _find(self) -> Place:
        # A batch that was appended under FSYNC, by somebody who died, need not be visible yet.
        if self._store.control.deferred:
            self._store.flusher.commit()
        with self._store.log.writing():
            place = self._producer.find()
            if place is None:
                place = Place(self._store.control.tail().offset, 0, _NOTHING, 0)
                self._producer.begin(place)
            return place

    def _lead_after(self, last: Place, number: int, count: int) -> Lead:
        def make(at: Offset) -> bytes:
            if self._producer.newest != last:
                raise _OvertakenError
            return self._producer.record(SINK, Place(at, 0, number + 1, count), last)

        return Lead(self._producer.record_size, make)
