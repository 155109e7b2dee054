"""Handlers in threads: what `AnyService` does, and waiting."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Protocol, Self, final

from anyio import ClosedResourceError, EndOfStream

from .._errors import ConsumerError, DataExpiredError, DecodeError
from .._format import NOTHING, Mutex, Nothing
from .._storage.background import start_thread
from .ack_source import AckSource
from .any_service import AnyService, Tally, Terms, UnfinishedError
from .dead_letter import DeadLetter
from .delivery import Delivery, Handed


class LetterBox(Protocol):
    """A sender of dead letters that lets its thread wait."""

    def send(self, item: DeadLetter) -> None:
        """Send one."""
        ...


@final
class _Bell:
    """A thread that sleeps until it is woken. An `Event` could stay locked after an exception of a signal handler."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[None] = SimpleQueue()

    def wake(self) -> None:
        """Let it continue. Any thread may call it."""
        self._queue.put(None)

    def wait(self, seconds: float | None) -> None:
        """Sleep until woken, or for so many seconds."""
        with suppress(Empty):
            self._queue.get(timeout=seconds)


@final
class Service(AnyService):
    """Gives every message to a handler, and acknowledges it when that has returned. Made by `FileChannel.serve`.

    `with service` runs it in threads of its own beside the body; at the end nothing new is begun, and what is being
    handled goes on to its end. `run()` runs it in the calling thread, and in others if it is concurrent, until `stop`
    or the end of a sealed channel. It runs once.

    An error that ends it is raised where the body ends, or by `run()`; together with an error of the body, in an
    `ExceptionGroup`. Ctrl-C in a handler says nothing about its message: it comes again, without counting an attempt.
    """

    def __init__(
        self,
        source: AckSource,
        handler: Callable[[object], object],
        terms: Terms,
        dead_letter: LetterBox | None,
    ) -> None:
        super().__init__(source, handler, terms)
        self._dead_letter = dead_letter
        self._intake, self._passing = Mutex(), Mutex()
        self._started = 0
        self._ended: SimpleQueue[None] = SimpleQueue()
        """One for each thread that has ended."""

    # Running

    def run(self) -> None:
        """Run it until it is stopped."""
        self._begin()
        try:
            self._start(self._terms.concurrency - 1)
            self._work_or_fail(self._hire())
        finally:
            self._drain()
        if self._error is not None:
            raise self._error

    def __enter__(self) -> Self:
        """Run it beside the body."""
        self._begin()
        self._start(self._terms.concurrency)
        return self

    def __exit__(self, kind: object, failure: BaseException | None, where: object) -> None:
        """Wait until what is being handled has ended."""
        self._drain()
        if self._error is None:
            return
        if isinstance(failure, Exception) and isinstance(self._error, Exception):
            raise ExceptionGroup("the service and what ran beside it have failed", [self._error, failure])
        raise self._error

    def _start(self, count: int) -> None:
        for _ in range(count):
            start_thread(partial(self._work_in_thread, self._hire()), f"serve {self.name}")
            # If a signal handler raises before this, `_drain` does not wait for the thread, which ends by itself.
            self._started += 1

    def _drain(self) -> None:
        """Wait for the handlers, no longer than it was asked for; a thread that goes on then is left alone."""
        self.stop()
        grace = self._terms.grace
        until = None if grace is None else time.monotonic() + grace
        try:
            for _ in range(self._started):
                self._ended.get(timeout=None if until is None else max(0.0, until - time.monotonic()))
        except Empty:
            pass
        finally:
            self.close()

    def _work_in_thread(self, tally: Tally) -> None:
        try:
            self._work_or_fail(tally)
        finally:
            self._ended.put(None)

    def _work_or_fail(self, tally: Tally) -> None:
        try:
            with self._source.keeping_current(lambda: tally.current):
                self._work(tally)
        except BaseException as error:
            if not (self._stopping and isinstance(error, ClosedResourceError)):  # left alone, and come to its end
                self._fail(error)

    # Working

    def _work(self, tally: Tally) -> None:
        """Handle one message after the other."""
        take, handle, ack, most = self._take, self._handler, self._ack, self._most
        alone = self._terms.concurrency == 1
        settles = self._source.must_settle_acks
        while True:
            try:
                found = NOTHING if self._halted else take()
                if found is NOTHING and (found := self._next()) is NOTHING:
                    return
            except DecodeError as error:
                self._pass(error, tally)
                continue
            except DataExpiredError as error:
                self._miss(error, tally)
                continue
            tally.current = found
            try:
                if found[3] > most:
                    raise UnfinishedError
                if (result := handle(found[0])) is not None:
                    _refuse_awaitable(result)
            except Exception as error:
                self._after(found, error, tally)
            except BaseException:
                self._release(found)
                raise
            else:
                try:
                    if not (alone and ack(1)):
                        self._settle(found)
                    tally.handled += 1
                except ConsumerError as error:
                    self._lose(error, tally)
                if settles:
                    self._source.settle_position()

    def _next(self) -> Handed[object] | Nothing:
        """Wait for the next message, and return NOTHING when there is nothing more to do."""
        while True:
            while self._paused and not self._stopping:
                self._until(lambda: self._stopping or not self._paused)
            if self._stopping:
                return NOTHING
            with self._intake.held():  # one waits for messages, the others for it: each message wakes two of them
                try:
                    if (found := self._look()) is not NOTHING:
                        return found
                except EndOfStream:
                    return NOTHING
                if not self._source.watch_until(self._has_news, None):
                    self._source.sleep(self._has_news, None)

    def _until(self, condition: Callable[[], bool], seconds: float | None = None) -> None:
        """Sleep until something is told that may make it so, or for so long."""
        bell = _Bell()
        self._sleepers.add(bell)
        try:
            if not condition():
                bell.wait(seconds)
        finally:
            self._sleepers.discard(bell)

    # Failing

    def _after(self, found: Handed[object], error: Exception, tally: Tally) -> None:
        """Do what has to be done about a message whose handler has failed."""
        delivery = self._delivery(found)
        pause = self._judge(delivery, error, tally)
        if pause is None:
            self._bury(delivery, found, error, tally)
        elif not self._terms.ordered:
            self._try_again(delivery, pause)
        else:
            try:
                self._until(lambda: self._halted, pause)
            finally:
                self._try_again(delivery)

    def _bury(self, delivery: Delivery[object], found: Handed[object], error: Exception, tally: Tally) -> None:
        """Send the letter about a message that is given up, and only then acknowledge it."""
        try:
            if self._dead_letter is None:
                raise self._giving_up(delivery, error) from error
            self._dead_letter.send(self._source.errands.do(partial(self._write_letter, delivery, error)))
        except DataExpiredError as expired:
            self._lose(expired, tally)
            return
        except BaseException:
            self._release(found)
            raise
        try:
            self._settle(found)
            tally.dead += 1
        except ConsumerError as expired:
            self._lose(expired, tally)

    def _pass(self, error: DecodeError, tally: Tally) -> None:
        """Send the letter about a message that does not decode, and only then go on behind it."""
        with self._passing.held():  # several workers may have come to it
            if not self._source.stands_before(error):
                return
            if self._dead_letter is None:
                raise error
            self._dead_letter.send(self._source.errands.do(partial(self._write_about_undecodable, error)))
            self._source.errands.do(partial(self._source.pass_by, error))
            tally.dead += 1


def _refuse_awaitable(result: object) -> None:
    """Raise if a handler has only promised to do something: nobody would do it."""
    if inspect.isawaitable(result):
        if isinstance(result, Coroutine):
            result.close()
        raise TypeError("the handler has returned something to await; the async FileChannel.serve takes such handlers")
