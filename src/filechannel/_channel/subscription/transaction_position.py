"""A consumer's position that travels in another channel, with what was made of its messages.

The outputs of a step and a control record with the position behind its inputs are one batch: both are there, or
neither. Only then does the cursor move. Whoever comes next looks for the newest such record first, and lets the cursor
follow it. Two rules keep that exact:

- A batch is appended only by whoever owns the consumer's name, which is looked at under the writer word of the output.
  Whoever looks for the record owns the name already, and takes that word: an owner before it has appended by then, and
  is found, or never will.
- Under `FSYNC` a batch may have been appended, by somebody who died, and not be visible yet. So everything appended is
  committed before the record is looked for.

Which records speak of a position is said by its origin, a random number in the cursor's file. A name that is registered
anew, or a seek, has none until the next step draws one.
"""

from __future__ import annotations

import secrets
from typing import final

from anyio import ClosedResourceError

from .._errors import AckError, ConsumerMismatchError
from .._format.layout import TRANSACTION
from .._offset import Offset
from .._storage.cursor import Cursor
from .._storage.cursor_file import Origin, encoded_name
from .._storage.parts import Lead
from .._storage.producers import Place, Producer
from .._storage.store import Store
from .ack_source import AckSource


@final
class Transfer:
    """From one consumer into one channel."""

    def __init__(self, source: AckSource, output: Store) -> None:
        assert source.cursor is not None
        self._source = source
        self._cursor: Cursor = source.cursor
        self.output = output
        self._id = bytes.fromhex(output.manifest.id)
        self._origin: Origin | None = None
        self._producer: Producer | None = None
        self._last = self._next = Place(Offset(0), 0, 0, 0)
        self._in_doubt = False

    @property
    def is_ready(self) -> bool:
        """Whether the cursor is known to stand where the output says, and nobody sought another place since."""
        return self._origin is not None and not self._in_doubt and self._cursor.origin == self._origin

    def prepare(self) -> None:
        """Let the cursor stand where the output says. Touches files, and blocks.

        Raises `ConsumerMismatchError` if steps of the consumer went into another channel, and nobody in this process
        has had a look there: what is in it, and not in the cursor, would be done again.
        """
        if self._source.is_closed:
            raise ClosedResourceError
        origin = self._cursor.origin
        if origin is not None and origin.output != self._id:
            self._leave(origin)
            origin = None
        producer = self.output.producers.open(f"{self._source.store.manifest.id}.{encoded_name(self._cursor.name)}")
        if self.output.control.deferred:
            self.output.flusher.commit()
        with self.output.log.writing():
            tail = self.output.control.tail()
            place = None if origin is None else producer.find()
            number = (secrets.randbits(64) or 1) if origin is None else origin.number
            if place is None or place.origin != number:
                place = Place(tail.offset, number, 0, 0)
                producer.begin(place)
        if origin is None:
            producer.flush()
            self._cursor.origin = origin = Origin(number, self._id)
        # Before the first record that speaks of the origin. Also of one that was found: whoever drew it may have died.
        self._source.store.cursors.flush_one(self._cursor.name)
        self._source.catch_up(Offset(place.offset), place.sequence)
        self._producer, self._origin, self._last, self._in_doubt = producer, origin, place, False

    def _leave(self, origin: Origin) -> None:
        """Make sure that nothing of the consumer is in another output which its cursor does not know of."""
        other = self._source.transfer
        if other is None or other is self or other._id != origin.output:
            where = f"into channel {origin.output.hex()}"
            raise ConsumerMismatchError(
                self._cursor.name,
                f"the input of transactions {where}",
                f"into {self.output.path}; let one into the former channel come first",
                path=self._source.store.path,
            )
        if not other.is_ready:
            other.prepare()

    def append(self, payloads: list[bytes]) -> Offset:
        """Append outputs and the position behind what is outstanding, as one batch; all of it, or an error and none.

        From the first byte until `settle`, which is called when it is visible, whether it is there is in doubt.
        """
        if self._cursor.origin != self._origin:
            raise AckError(self._cursor.name, "somebody sought another place in the middle of a transaction")
        if not self._source.outlook()[0]:
            return Offset(self.output.log.writer.append_all(payloads))
        assert self._producer is not None
        return self.output.log.append(payloads, Lead(self._producer.record_size, self._lead))

    def _lead(self, at: Offset) -> bytes:
        assert self._producer is not None
        assert self._origin is not None
        _, offset, sequence = self._source.outlook()
        self._in_doubt = True
        self._next = Place(at, self._origin.number, offset, sequence)
        return self._producer.record(TRANSACTION, self._next, self._last)

    def settle(self) -> None:
        """Acknowledge what is outstanding: the batch is visible, if there is one."""
        if self._in_doubt:
            self._last = self._next
            self._source.settle_before(Offset(self._next.offset))
            self._in_doubt = False
        else:
            self._source.settle_before(self._source.outlook()[1])
