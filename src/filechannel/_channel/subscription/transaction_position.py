"""`TransactionPosition`: storing the input position of a transaction in its output channel.

The outputs of a step and a control record with the position after its inputs are one batch: either both are stored, or
neither. Only then does the cursor move. The next owner first looks for the newest such record, and moves the cursor to
the position in it. Two rules make that exact:

- Only the owner of the consumer's name appends a batch, and it checks the ownership while it holds the writer lock of
  the output. A process that looks for the record already owns the name, and acquires that lock: an earlier owner has
  appended before that, and its record is found, or it never will.
- With `FSYNC`, a process that died may have appended a batch that is not visible yet. So everything appended is
  committed before the record is looked for.

The origin, a random number in the cursor's file, says which records apply to a position. A name that is registered
again, or moved by a seek, has no origin until the next step generates one.
"""

from __future__ import annotations

import secrets
from typing import final
from weakref import ref

from anyio import ClosedResourceError

from ..._errors import AckError, ConsumerMismatchError, counted_messages
from ..._format import Mutex
from ..._format.layout import TRANSACTION
from ..._offset import LogPosition, Offset
from ..._storage.consumers.cursor import Cursor
from ..._storage.consumers.cursor_file_format import Origin, encoded_name
from ..._storage.log.batch_parts import HeaderRecord
from ..._storage.producers.producer_positions import Producer, ProducerPosition
from ..._storage.writable_store import WritableStore, writable
from .subscription import Subscription


@final
class TransactionInput:
    """The input of transactions: what is outstanding at the end of a step is acknowledged together with its output."""

    def __init__(self, subscription: Subscription) -> None:
        self.subscription = subscription
        self._lock = Mutex()
        self._step: ref[object] | None = None
        self.position: TransactionPosition | None = None
        """The position in the output channel of the last step, in this process."""

    def begin_step(self, step: object) -> None:
        """Assign what is received from now on to one step, until `end_step` or until *step* is deleted.

        Raises `AckError`, and starts nothing, if messages are outstanding or delayed, or if another step is active.
        """
        self.subscription.check_open()
        name, native = self.subscription.name, self.subscription.reader.native
        if self._step is not None and self._step() is None:  # an exception of a signal handler interrupted the step
            self.redeliver_all(counted=False)
        if native.outstanding:
            count = native.outstanding
            what = f"{counted_messages(count)} {'was' if count == 1 else 'were'} received before the transaction"
            raise AckError(name, f"{what}; ack or nack {'it' if count == 1 else 'them'} first")
        if native.next_due:
            raise AckError(
                name, "a message was nacked with a delay, and a transaction acknowledges in order; wait for it"
            )
        with self._lock.held():
            # A step that was deleted, because an exception of a signal handler ended it, is over.
            if self._step is not None and self._step() is not None:
                raise AckError(name, "a transaction is already in progress; wait for its end")
            self._step = ref(step)

    def end_step(self) -> None:
        """Allow another step to begin."""
        self._step = None

    def outlook(self) -> tuple[int, Offset, int]:
        """Return how many messages are outstanding, and the log position after they are acknowledged.

        Raises `AckError` if an older message is to be redelivered: then the position cannot move past them.
        """
        self.subscription.check_open()
        outlook = self.subscription.reader.native.outlook()
        if outlook is None:
            self.subscription.check_open()
            what = "a message before those received is redelivered, and a transaction acks in order"
            raise AckError(self.subscription.name, what)
        count, offset, sequence = outlook
        return count, Offset(offset), sequence

    def acknowledge_before(self, offset: Offset) -> None:
        """Acknowledge every message before an offset."""
        native = self.subscription.reader.native
        count = native.outstanding
        native.acknowledge_before(offset)
        self.subscription.acked(count)
        if native.must_wake():
            self.subscription.waiters.wake_all()

    def catch_up(self, offset: Offset, sequence: int) -> None:
        """Move forward to a log position, unless already past it. Messages before it are acknowledged.

        Never moves beyond the end of the log.
        """
        reader = self.subscription.reader
        reader.native.acknowledge_before(offset)
        if reader.native.offset < offset:
            end = self.subscription.store.lookup.latest()
            reader.move(min(LogPosition(offset, sequence), end, key=lambda position: position.offset))

    def redeliver_all(self, *, counted: bool) -> None:
        """Redeliver everything that is outstanding."""
        native = self.subscription.reader.native
        if counted:
            native.nack(None)
        else:
            native.redeliver_all()
        self.subscription.waiters.wake_all()


@final
class TransactionPosition:
    """The position of one consumer in one output channel of its transactions."""

    def __init__(self, transaction: TransactionInput, output: WritableStore) -> None:
        assert transaction.subscription.cursor is not None
        self._input = transaction
        self._cursor: Cursor = transaction.subscription.cursor
        self.output = output
        self.output_id: bytes = bytes.fromhex(output.manifest.id)
        self._origin: Origin | None = None
        self._producer: Producer | None = None
        self._last = self._next = ProducerPosition(Offset(0), 0, 0, 0)
        self._outcome_unknown = False

    @property
    def is_ready(self) -> bool:
        """Whether the cursor is known to be at the position stored in the output, and no seek has moved it since."""
        return self._origin is not None and not self._outcome_unknown and self._cursor.origin == self._origin

    def prepare(self) -> None:
        """Move the cursor to the position stored in the output. Accesses files, and blocks.

        Raises `ConsumerMismatchError` if earlier steps of the consumer went into another channel, and this process has
        not checked that one: steps that are stored there, but not in the cursor, would be repeated.
        """
        if self._input.subscription.is_closed:
            raise ClosedResourceError
        origin = self._cursor.origin
        if origin is not None and origin.output != self.output_id:
            self._leave(origin)
            origin = None
        producer = self.output.producers.open(
            f"{self._input.subscription.store.manifest.id}.{encoded_name(self._cursor.name)}"
        )
        if self.output.control.deferred:
            self.output.flusher.commit()
        with self.output.log.writing():
            tail = self.output.control.tail()
            producer_position = None if origin is None else producer.find()
            number = (secrets.randbits(64) or 1) if origin is None else origin.number
            if producer_position is None or producer_position.origin != number:
                producer_position = ProducerPosition(tail.offset, number, 0, 0)
                producer.begin(producer_position)
        if origin is None:
            producer.flush()
            self._cursor.origin = origin = Origin(number, self.output_id)
        # Before the first record with this origin. Also if the origin was found: the process that generated it may
        # have died.
        writable(self._input.subscription.store).cursors.flush_one(self._cursor.name)
        self._input.catch_up(Offset(producer_position.offset), producer_position.sequence)
        self._producer, self._origin, self._last, self._outcome_unknown = producer, origin, producer_position, False

    def _leave(self, origin: Origin) -> None:
        """Make sure that no other output has steps of the consumer that its cursor does not include."""
        other = self._input.position
        if other is None or other is self or other.output_id != origin.output:
            where = f"into channel {origin.output.hex()}"
            raise ConsumerMismatchError(
                self._cursor.name,
                f"the input of transactions {where}",
                f"into {self.output.path}; run a transaction into the former channel first",
                path=self._input.subscription.store.path,
            )
        if not other.is_ready:
            other.prepare()

    def append(self, payloads: list[bytes]) -> Offset:
        """Append outputs and the position after the outstanding messages as one batch; on an error, nothing.

        From the first byte until `acknowledge`, which is called when the batch is visible, it is unknown whether it is
        stored.
        """
        if self._cursor.origin != self._origin:
            raise AckError(self._cursor.name, "a seek moved the position in the middle of a transaction")
        if not self._input.outlook()[0]:
            return Offset(self.output.log.writer.append_all(payloads))
        assert self._producer is not None
        return self.output.log.append(payloads, HeaderRecord(self._producer.record_size, self._header_record))

    def _header_record(self, at: Offset) -> bytes:
        assert self._producer is not None
        assert self._origin is not None
        _, offset, sequence = self._input.outlook()
        self._outcome_unknown = True
        self._next = ProducerPosition(at, self._origin.number, offset, sequence)
        return self._producer.record(TRANSACTION, self._next, self._last)

    def acknowledge(self) -> None:
        """Acknowledge what is outstanding: the batch, if there is one, is visible."""
        if self._outcome_unknown:
            self._last = self._next
            self._input.acknowledge_before(Offset(self._next.offset))
            self._outcome_unknown = False
        else:
            self._input.acknowledge_before(self._input.outlook()[1])
