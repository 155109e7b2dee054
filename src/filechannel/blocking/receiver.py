"""`Receiver` for threads."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Generic, TypeVar, cast, final

from anyio import EndOfStream

from .._channel.base.receiver import BaseReceiver, Named, Record, check_count, check_linger
from .._channel.subscription.start_position import Start
from .._format import NOTHING
from .._offset import Offset
from .deadline import deadline

T_co = TypeVar("T_co", covariant=True)


class Receiver(BaseReceiver[T_co], Generic[T_co]):
    """Receives messages from a channel in order. Any thread may use it; clones share its position."""

    if TYPE_CHECKING:

        def receive(self, timeout: float | None = None) -> T_co:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
            """Return the next message; wait for it if necessary. Raise `TimeoutError` if none comes in time.

            Raises `EndOfStream` after the last message of a sealed channel and at the end of a replay,
            `ClosedResourceError` if this receiver was closed, `DecodeError` for a message that does not decode, and
            `CorruptRecordError` for damaged bytes.
            """
            ...

    else:
        receive = BaseReceiver._receive_here

    def _receive_here_slowly(self, timeout: float | None) -> object:
        until = deadline(timeout)
        item = self._take()
        item = self._wait_for(self._take, until) if item is NOTHING else item
        self._flush_position()
        return item

    def _flush_position(self) -> None:
        """Wait until the position is on disk, if the options require it."""
        if self._subscription.must_flush_position:
            self._subscription.flush_position()

    def receive_record(self, timeout: float | None = None) -> Record[T_co]:
        """Return the next message with its offset and sequence; wait for it if necessary."""
        until = deadline(timeout)
        found = self._take_record()
        found = self._wait_for(self._take_record, until) if found is NOTHING else found
        self._flush_position()
        value, offset, sequence = cast("tuple[T_co, Offset, int]", found)
        return Record(value, offset, sequence)

    def receive_many(self, max_items: int, linger: float = 0.0, timeout: float | None = None) -> list[T_co]:
        """Return between one and *max_items* messages; after the first, wait up to *linger* seconds for more.

        *timeout* limits the wait for the first message.
        """
        check_count("max_items", max_items)
        check_linger(linger)
        until = deadline(timeout)
        while True:
            if linger > 0:
                self._until_data(until)
                self._subscription.sleep(lambda: self._has_enough(max_items), time.monotonic() + linger)
                self._check_open()
            items = self._take_many(max_items)
            if items:
                self._flush_position()
                return items
            if not self._subscription.watch_until(self._has_data, until):
                self._until_data(until)

    def __iter__(self) -> Iterator[T_co]:
        """Iterate over the messages, until the end of the stream."""
        return self

    def __next__(self) -> T_co:
        """Return the next message of a `for` loop, which ends where `receive` raises `EndOfStream`."""
        try:
            return self.receive()
        except EndOfStream:
            raise StopIteration from None

    def _wait_for(self, take: Callable[[], object], until: float | None) -> object:
        while True:
            if self._subscription.watch_until(self._has_data, until) and (item := take()) is not NOTHING:
                return item
            self._until_data(until)
            if (item := take()) is not NOTHING:
                return item

    def _until_data(self, until: float | None) -> None:
        self._check_open()
        if not self._subscription.has_data() and not self._subscription.sleep(self._has_data, until):
            raise TimeoutError("no message arrived in time")
        self._check_open()
        self._check_end()

    def seek(self, to: Start) -> None:
        """Move to another position, together with the clones. Raise `ValueError` if no message begins at the offset."""
        self._check_open()
        while not self._move(self._subscription.blocking_calls.do(lambda: self._subscription.find(to, "to"))):
            pass


@final
class FanOutReceiver(Named, Receiver[T_co], Generic[T_co]):
    """A receiver with a consumer name. Every name receives every message, and resumes where it stopped."""

    def unsubscribe(self) -> None:
        """Remove the consumer, and close this receiver and its clones."""
        self._check_open()
        self._subscription.blocking_calls.do_undisturbed(self._subscription.forget)
