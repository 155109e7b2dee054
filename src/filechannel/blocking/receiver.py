"""Receiving without an event loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Generic, TypeVar, cast, final

from anyio import EndOfStream

from .._channel.any_receiver import AnyReceiver, Named, Record, check_count, check_linger
from .._channel.places import Start
from .._format import NOTHING
from .._offset import Offset
from .waiting import deadline

T_co = TypeVar("T_co", covariant=True)


class Receiver(AnyReceiver[T_co], Generic[T_co]):
    """Takes messages out of a channel in order. Any thread may use it; clones share its position."""

    if TYPE_CHECKING:

        def receive(self, timeout: float | None = None) -> T_co:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
            """Return the next message, waiting for it if need be; `TimeoutError` if none comes in time.

            Raises `EndOfStream` after the last message of a sealed channel and where a replay stops,
            `ClosedResourceError` if this receiver was closed, `DecodeError` for a message that does not decode.
            """
            ...

    else:
        receive = AnyReceiver._receive_here

    def _receive_here_slowly(self, timeout: float | None) -> object:
        until = deadline(timeout)
        item = self._take()
        item = self._wait_for(self._take, until) if item is NOTHING else item
        self._settle_position()
        return item

    def _settle_position(self) -> None:
        """Wait until the position is on disk, if the options say so."""
        if self._source.must_settle_position:
            self._source.settle_position()

    def receive_record(self, timeout: float | None = None) -> Record[T_co]:
        """Return the next message with its offset and sequence, waiting for it if need be."""
        until = deadline(timeout)
        found = self._take_record()
        found = self._wait_for(self._take_record, until) if found is NOTHING else found
        self._settle_position()
        value, offset, sequence = cast("tuple[T_co, Offset, int]", found)
        return Record(value, offset, sequence)

    def receive_many(self, max_items: int, linger: float = 0.0, timeout: float | None = None) -> list[T_co]:
        """Return at least one message and at most *max_items*: what is there, and what comes within *linger* seconds.

        *timeout* is for the first one.
        """
        check_count("max_items", max_items)
        check_linger(linger)
        until = deadline(timeout)
        while True:
            if linger > 0:
                self._until_news(until)
                self._source.sleep(lambda: self._has_enough(max_items), time.monotonic() + linger)
                self._check_open()
            items = self._take_many(max_items)
            if items:
                self._settle_position()
                return items
            if not self._source.watch_until(self._has_news, until):
                self._until_news(until)

    def __iter__(self) -> Iterator[T_co]:
        """Receive one message after the other, until the end of the stream."""
        return self

    def __next__(self) -> T_co:
        """Return the next message of a `for`, which ends where `receive` raises `EndOfStream`."""
        try:
            return self.receive()
        except EndOfStream:
            raise StopIteration from None

    def _wait_for(self, take: Callable[[], object], until: float | None) -> object:
        while True:
            if self._source.watch_until(self._has_news, until) and (item := take()) is not NOTHING:
                return item
            self._until_news(until)
            if (item := take()) is not NOTHING:
                return item

    def _until_news(self, until: float | None) -> None:
        self._check_open()
        if not self._source.has_news() and not self._source.sleep(self._has_news, until):
            raise TimeoutError("no message came in time")
        self._check_open()
        self._check_end()

    def seek(self, to: Start) -> None:
        """Go on at another place; clones go along. `ValueError` if no message begins at that offset."""
        self._check_open()
        while not self._move(self._source.errands.do(lambda: self._source.find(to, "to"))):
            pass


@final
class FanOutReceiver(Named, Receiver[T_co], Generic[T_co]):
    """A receiver with a durable name: every name gets every message, and goes on where it stopped."""

    def unsubscribe(self) -> None:
        """Forget the name, and close this receiver and its clones."""
        self._check_open()
        self._source.errands.do_undisturbed(self._source.forget)
