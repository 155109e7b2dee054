"""Sending without an event loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Generic, TypeVar, cast, final

from .._channel.any_sender import AnySender
from .._errors import Busy, FileChannelError, NoRoomYetError
from .._offset import Offset
from .._storage.backlog import Batch
from .._wakeup.patience import no_longer_than
from .waiting import busy_writer, deadline

T_contra = TypeVar("T_contra", contravariant=True)
R = TypeVar("R")

_LONGEST_PAUSE = 0.02  # seconds between two looks for room where nobody can be woken
_PAUSE = 0.001  # seconds; only for a thread that runs an event loop, and should not be here


@final
class Sender(AnySender[T_contra], Generic[T_contra]):
    """Puts messages into a channel. Any number of senders, in any thread and any process."""

    if TYPE_CHECKING:

        def send(self, item: T_contra, timeout: float | None = None) -> None:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
            """Send one message. On return every receiver can get it; it is on disk only under `Durability.FSYNC`.

            Raises `TimeoutError`, and nothing was sent, if it was full, or another process kept it, for so long.
            A message that is in the channel is not taken back: from there on it takes as long as the flush does. Other
            errors are those of the async `send`.
            """
            ...

    else:
        send = AnySender._send_here

    def _send_here_slowly(self, item: object, timeout: float | None) -> None:
        self._connection.flusher.refuse_reentry()
        offset = self._patiently(lambda: self._put(item), timeout)
        self._flush_now(offset)

    def send_many(self, items: Iterable[T_contra], timeout: float | None = None) -> Offset:
        """Send messages as one batch and return the offset of the first; all of them or, with an error, none."""
        batch = cast("list[object]", list(items))
        self._connection.flusher.refuse_reentry()
        offset = self._patiently(lambda: self._append(batch), timeout)
        if batch:
            self._flush_now(offset)
        return offset

    def send_payload(self, payload: bytes, timeout: float | None = None) -> None:
        """Send a message that is encoded already, as it is; `CodecError` if it does not decode, else as `send`."""
        self._check_payload(payload)
        self._connection.flusher.refuse_reentry()
        self._flush_now(self._patiently(lambda: self._append_payload(payload), timeout))

    def _patiently(self, append: Callable[[], R], timeout: float | None) -> R:
        """Append, waiting no longer than so for another process that is in the middle of it, or was stopped there."""
        until = deadline(timeout)
        while True:
            try:
                with no_longer_than(until):
                    return append()
            except NoRoomYetError:
                return self._in_line(append, until)
            except Busy:
                if until is not None and time.monotonic() >= until:
                    store = self._connection.store
                    raise TimeoutError(
                        f"{store.path}: {busy_writer(store)} kept it for too long; nothing was sent"
                    ) from None
            time.sleep(_PAUSE)

    def _in_line(self, append: Callable[[], R], until: float | None) -> R:
        """Append when there is room and it is our turn."""
        line = self._connection.line
        place = self._place_in_line()
        try:
            with line.standing(place):
                while line.sleep(place, until, _LONGEST_PAUSE):
                    self._check_open()
                    try:
                        with line.serving(), no_longer_than(until):
                            return append()
                    except NoRoomYetError as full:
                        place.batch = Batch(full.size, full.messages)
                    except Busy:
                        time.sleep(_PAUSE)
                raise TimeoutError(f"{self._owner.path} stayed full for too long; nothing was sent")
        finally:
            line.let_next_try(place)

    def _flush_now(self, offset: int) -> None:
        connection = self._connection
        if not connection.writer.deferred:
            return
        try:
            connection.flusher.commit_for(offset)
        except FileChannelError:
            raise
        except BaseException:
            self._flush_later(offset)  # Ctrl-C: it is in the channel, and does not stay unseen
            raise
