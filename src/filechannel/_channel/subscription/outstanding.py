"""The position of receivers that acknowledge: what they were given stays theirs, and may come again."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Generator, Iterable
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING
from weakref import ref

import anyio
from anyio import ClosedResourceError

from .._errors import AckError, DecodeError, LeaseExpiredError
from .._offset import Offset
from .._options import OpenOptions
from .._storage.cursor import Cursor
from .._storage.index import Mark
from .._storage.log_reader import LogReader
from .._storage.store import Store
from .delivery import Handed
from .errands import Errands
from .source import Source

if TYPE_CHECKING:
    from .transfer import Transfer

NANOSECOND = 1e-9


class AckSource(Source):
    """A source whose cursor follows the oldest message that is not acknowledged."""

    def __init__(
        self,
        store: Store,
        options: OpenOptions,
        errands: Errands,
        open_reader: Callable[[Cursor | None, Mark | None], LogReader],
        cursor: Cursor | None,
        place: Mark,
        stop: Mark | None,
        on_close: Callable[[Source], object],
    ) -> None:
        super().__init__(store, options, errands, open_reader, cursor, place, stop, on_close)
        self._begin_to_hold()

    def _begin_to_hold(self) -> None:
        self.reader.native.hold()
        self._step: ref[object] | None = None
        self.transfer: Transfer | None = None
        """Into which channel the last step went, in this process."""

    def _wake(self) -> None:
        """Let everybody look again who shares the position."""
        self.arrivals.wake_all()

    # Settling: a nack, and the last ack of a sealed channel, are what others may wait for

    def nack(self, count: int | None) -> bool:
        """Let the newest ones outstanding come again, None: all; tell whether there are so many."""
        done = self.reader.native.nack(count)
        if done:
            self._wake()
        return done

    def ack(self, count: int) -> bool:
        """Acknowledge the oldest ones outstanding; tell whether there are so many."""
        self.check_position()
        done = self.reader.native.ack(count)
        if done:
            self._acked(count)
        return done

    def settle(self, offset: Offset, token: int) -> None:
        """Acknowledge one message; `AckError` if it is not outstanding since that call."""
        self._check_open()
        self.check_position()
        self._settle(offset, token)

    def _settle(self, offset: Offset, token: int) -> None:
        self._check_open()
        self._check(offset, token, self.reader.native.settle(offset, token))
        self._acked(1)

    def _acked(self, count: int) -> None:
        if self.is_counted:
            super().took(count)
            super().settle_position_soon()
        if self.reader.native.must_tell():
            self.tell()

    def tell(self) -> None:
        """Others may wait for what was acknowledged: the last message of a sealed channel, for one."""
        self._wake()

    def give_back(self, offset: Offset, token: int, delay: float = 0.0, *, counted: bool = True) -> None:
        """Let one message come again, so many seconds later; `AckError` if it is not outstanding since that call."""
        self._check_open()
        due = time.monotonic_ns() + int(delay / NANOSECOND) if delay else 0
        self._check(offset, token, self.reader.native.give_back(offset, token, due, counted))
        self._wake()

    def extend(self, offset: Offset, token: int) -> None:
        """Do nothing: there is no lease."""
        self._check_open()

    def take_back(self, taken: Iterable[tuple[Offset, int]]) -> None:
        """Let messages come again that nobody has got; what was settled meanwhile is left out."""
        for offset, token in taken:
            self.reader.native.give_back(offset, token, 0, False)
        self._wake()

    @contextmanager
    def settling(self, offset: Offset, token: int) -> Generator[None]:
        """Acknowledge a message if the body ends well, and otherwise let it come again.

        What is no `Exception`, such as cancellation, says nothing about the message: that attempt does not count.
        """
        try:
            yield
        except BaseException as error:
            with suppress(
                AckError, LeaseExpiredError, ClosedResourceError
            ):  # the body has settled it, or it comes again anyway
                self.give_back(offset, token, counted=isinstance(error, Exception))
            raise
        self._settle(offset, token)  # a flush that failed is told to the next one: this message is done

    def keeping(self, offset: Offset, token: int) -> AbstractContextManager[None]:
        """Let a message stay ours while the body runs: it does anyway."""
        return nullcontext()

    def _check_open(self) -> None:
        if self._closed:  # in a forked child not even a look is taken
            raise ClosedResourceError

    def _check(self, offset: Offset, token: int, done: bool) -> None:
        """Raise if one could not be settled by its token."""
        if not done:
            self._check_open()  # closed by another thread in this moment
            raise AckError(self.name, f"the message at offset {offset} was settled already, or has come again since")

    @property
    def name(self) -> str:
        """The consumer's name."""
        assert self.cursor is not None
        return self.cursor.name

    def abandon(self) -> None:
        """Close the receivers in a forked child, and refuse what deliveries ask for: the cursor is the parent's."""
        self._closed = True
        super().abandon()

    # Steps: what is outstanding at their end is acknowledged together with what was made of it

    def begin_step(self, step: object) -> None:
        """Keep what is received from here on for one step, until `end_step` or until *step* is deleted.

        `AckError`, and nothing begun, if that cannot be told.
        """
        self._check_open()
        native = self.reader.native
        if self._step is not None and self._step() is None:  # an exception of a signal handler has left it half-way
            self.give_back_all(counted=False)
        if native.outstanding:
            count = native.outstanding
            raise AckError(self.name, f"{count} messages were received before the transaction; ack or nack them first")
        if native.next_due:
            raise AckError(
                self.name, "a message was nacked with a delay, and a transaction acknowledges in order; wait for it"
            )
        with self._lock.held():
            # A step that was deleted, because an exception of a signal handler ended it, is over.
            if self._step is not None and self._step() is not None:
                raise AckError(self.name, "it is in the middle of a transaction already; wait for its end")
            self._step = ref(step)

    def end_step(self) -> None:
        """Let another one begin."""
        self._step = None

    def outlook(self) -> tuple[int, Offset, int]:
        """Return how many are outstanding, and where the position goes when they are acknowledged.

        `AckError` if something older comes again: then it cannot go behind them.
        """
        self._check_open()
        outlook = self.reader.native.outlook()
        if outlook is None:
            self._check_open()
            raise AckError(self.name, "a message before those received comes again, and a transaction acks in order")
        count, offset, sequence = outlook
        return count, Offset(offset), sequence

    def settle_before(self, offset: Offset) -> None:
        """Acknowledge whatever begins before an offset."""
        count = self.reader.native.outstanding
        self.reader.native.settle_before(offset)
        self._acked(count)

    def catch_up(self, offset: Offset, sequence: int) -> None:
        """Go to a place if that is further on; what begins before it is acknowledged. Never beyond the end."""
        self.reader.native.settle_before(offset)
        if self.reader.native.offset < offset:
            self.reader.move(min(Mark(offset, sequence, 0), self.store.places.latest(), key=lambda mark: mark.offset))

    def give_back_all(self, *, counted: bool) -> None:
        """Let everything outstanding come again."""
        if counted:
            self.reader.native.nack(None)
        else:
            self.reader.native.give_back_all()
        self.arrivals.wake_all()

    @property
    def is_closed(self) -> bool:
        """Whether nobody uses it any more: the name may be somebody else's."""
        return self._closed

    # The position moves when messages are acknowledged, not when they are taken

    @property
    def must_settle_position(self) -> bool:
        """Never: there is nothing to wait for when a message is handed out."""
        return False

    @property
    def must_settle_acks(self) -> bool:
        """Whether whoever may wait goes on after an ack only after `settle_position`."""
        return super().must_settle_position

    def took(self, messages: int) -> None:
        """So many messages were taken, which moves nothing."""

    def settle_position_soon(self) -> None:
        """Do nothing: see `took`."""

    # What comes next

    def has_news(self) -> bool:
        """Tell whether a look at the log would find something, or something comes again, or this is the end."""
        return self.reader.native.ready > 0 or super().has_news()

    def has_ended(self) -> bool:
        """Tell whether everything that will ever come has been taken, and acknowledged: it could come again."""
        return super().has_ended() and self.reader.native.drained

    @property
    def has_leases(self) -> bool:
        """Whether a message may be somebody else's before it is acknowledged."""
        return False

    def keeping_current(self, current: Callable[[], Handed[object] | None]) -> AbstractContextManager[None]:
        """Keep the lease of whatever is being worked on while the body runs; here there is none."""
        return nullcontext()

    def stands_before(self, error: DecodeError) -> bool:
        """Tell whether what does not decode is still what comes next: another worker may have passed it."""
        return self.reader.native.offset == error.offset

    def pass_by(self, error: DecodeError) -> None:
        """Go on behind what does not decode. Touches files."""
        self.reader.move(self.find(error.next_offset, "to"))
        self.arrivals.wake_all()

    def peek(self, most: int) -> list[object]:
        """Return up to so many of the messages that come next; an error waits until it is what comes next."""
        scout, items = self.scout(), list[object]()
        try:
            for offset, sequence in self.reader.native.coming(most):
                scout.move(Mark(Offset(offset), sequence, 0))
                items += scout.take_many(1)
            if len(items) < most:
                scout.stand_beside(self.reader)
                items += scout.take_many(most - len(items))
        except Exception:
            if not items:
                raise
        finally:
            scout.close()
        return items

    # Waiting, also for the end of a delay

    def wait(self, has_news: Callable[[], bool]) -> Coroutine[object, object, None]:
        """Sleep until there may be news, or the next delay is over."""
        due = self.reader.native.next_due
        return self._wait_until(due, has_news) if due else super().wait(has_news)

    async def _wait_until(self, due: int, has_news: Callable[[], bool]) -> None:
        with anyio.move_on_after((due - time.monotonic_ns()) * NANOSECOND):
            await super().wait(lambda: has_news() or self.reader.native.next_due != due)

    def sleep(self, has_news: Callable[[], bool], until: float | None) -> bool:
        """Let the thread sleep until there are news, or the monotonic clock says *until*; tell whether there are."""
        while not has_news():
            due = self.reader.native.next_due
            ends = [end for end in (until, due * NANOSECOND) if end]
            if until is not None and time.monotonic() >= until:
                return False
            super().sleep(lambda: has_news() or self.reader.native.next_due != due, min(ends, default=None))  # noqa: B023
        return True
