"""`Service` for threads: `BaseService`, with methods that wait."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Protocol, Self, final

from anyio import ClosedResourceError, EndOfStream

from .._channel.base.dead_letter import DeadLetter, UnfinishedError
from .._channel.base.retry_or_dead_letter import Decision, RetryInOrder, WorkerStats
from .._channel.base.service import BaseService, ServiceConfig
from .._channel.subscription.delivery import ATTEMPT, VALUE, DeliveryFields
from .._channel.subscription.outstanding import Outstanding
from .._errors import ConsumerError, DataExpiredError, DecodeError
from .._format import NOTHING, Mutex, Nothing
from .._runtime.thread_wakeup import ThreadWakeup
from .._runtime.threads import start_thread


class DeadLetterSender(Protocol):
    """A sender of dead letters whose `send` blocks the thread."""

    def send(self, item: DeadLetter) -> None:
        """Send one dead letter."""
        ...


@final
class Service(BaseService):
    """Calls a handler for each message, and acknowledges the message when the handler returns.

    `FileChannel.serve` creates it. `with service` runs it in its own threads while the body runs. At the end of the
    body the service starts nothing new, and the block ends when the running handlers have finished. `run()` runs it in
    the calling thread, and in more threads if it is concurrent, until `stop` or the end of a sealed channel. A service
    runs once.

    An error that ends the service is raised at the end of the block, or by `run()`; together with an error of the body,
    as an `ExceptionGroup`. If Ctrl-C interrupts a handler, its message is redelivered, and the attempt does not count.
    """

    def __init__(
        self,
        outstanding: Outstanding,
        handler: Callable[[object], object],
        config: ServiceConfig,
        dead_letter: DeadLetterSender | None,
    ) -> None:
        super().__init__(outstanding, handler, config, dead_letters=dead_letter is not None)
        self._dead_letter = dead_letter
        self._intake, self._skipping = Mutex(), Mutex()
        self._started = 0
        self._ended: list[None] = []
        """One entry for each thread that has ended."""
        self._end_wakeup = ThreadWakeup()

    # Running

    def run(self) -> None:
        """Run the service until it is stopped."""
        self._begin()
        try:
            self._start(self._config.concurrency - 1)
            self._work_or_fail(self._outcomes.add_worker())
        finally:
            self._drain()
        if self._error is not None:
            raise self._error

    def __enter__(self) -> Self:
        """Run the service while the body runs."""
        self._begin()
        self._start(self._config.concurrency)
        return self

    def __exit__(self, kind: object, failure: BaseException | None, where: object) -> None:
        """Wait until the running handlers have finished."""
        self._drain()
        ending = self._error_at_end(failure)
        if ending is not None and ending is not failure:
            raise ending

    def _start(self, count: int) -> None:
        for _ in range(count):
            start_thread(partial(self._work_in_thread, self._outcomes.add_worker()), f"serve {self.name}")
            # If a signal handler raises before this line, `_drain` does not wait for the thread, which ends by itself.
            self._started += 1

    def _drain(self) -> None:
        """Wait for the handlers, at most for the grace period. A thread that still runs afterwards is abandoned."""
        self.stop()
        grace = self._config.grace
        until = None if grace is None else time.monotonic() + grace
        try:
            while len(self._ended) < self._started:
                if not self._end_wakeup.wait(None if until is None else until - time.monotonic()):
                    break
        finally:
            self.close()

    def _work_in_thread(self, stats: WorkerStats) -> None:
        try:
            self._work_or_fail(stats)
        finally:
            self._ended.append(None)
            self._end_wakeup.wake()

    def _work_or_fail(self, stats: WorkerStats) -> None:
        try:
            with self._renewing(stats):
                self._work(stats)
        except BaseException as error:
            # Ignore that an abandoned thread, at its end, finds everything closed.
            if not (self._stopping and isinstance(error, ClosedResourceError)):
                self._fail(error)

    # Working

    def _work(self, stats: WorkerStats) -> None:
        """Handle messages one after the other."""
        take, handle, ack = self._take, self._handler, self._ack
        most, outcomes = self._most, self._outcomes
        must_flush = self._subscription.must_flush_acks
        while True:
            try:
                found = NOTHING if self._halted else take()
                if found is NOTHING and (found := self._next()) is NOTHING:
                    return
            except DecodeError as error:
                self._skip_undecodable(error, stats)
                continue
            except DataExpiredError as error:
                outcomes.missed(error, stats)
                continue
            stats.current = found
            try:
                if found[ATTEMPT] > most:
                    raise UnfinishedError(most)
                if (result := handle(found[VALUE])) is not None:
                    _refuse_awaitable(result)
            except Exception as error:
                self._execute(outcomes.failed(found, error, stats), found, stats)
            except BaseException:
                outcomes.release(found)
                raise
            else:
                try:
                    if ack is None or not ack(1):
                        outcomes.acknowledge(found)
                    stats.handled += 1
                except ConsumerError as error:
                    outcomes.lost(error, stats)
                if must_flush:
                    self._subscription.flush_position()

    def _next(self) -> DeliveryFields[object] | Nothing:
        """Wait for the next message. Return NOTHING when there is nothing more to do."""
        while True:
            while self._paused and not self._stopping:
                self._until(lambda: self._stopping or not self._paused)
            if self._stopping:
                return NOTHING
            # One worker waits for messages, the others for this lock. So a message wakes two workers, not all.
            with self._intake.held():
                try:
                    if (found := self._take_available()) is not NOTHING:
                        return found
                except EndOfStream:
                    return NOTHING
                if not self._subscription.watch_until(self._has_data, None):
                    self._subscription.sleep(self._has_data, None)

    def _until(self, condition: Callable[[], bool], seconds: float | None = None) -> None:
        """Sleep until *condition* may have become true, at most *seconds*."""
        wakeup = ThreadWakeup()
        self._sleepers.add(wakeup)
        try:
            if not condition():
                wakeup.wait(seconds)
        finally:
            self._sleepers.discard(wakeup)

    # Failing

    def _execute(self, decision: Decision, found: DeliveryFields[object], stats: WorkerStats) -> None:
        if decision is None:
            return
        if isinstance(decision, RetryInOrder):
            with self._outcomes.retrying(found):
                self._until(lambda: self._halted, decision.pause)
            return
        with self._outcomes.dead_lettering(found, stats):
            write = partial(self._outcomes.letter, found, decision.error)
            self._send_letter(self._subscription.blocking_calls.do(write))

    def _skip_undecodable(self, error: DecodeError, stats: WorkerStats) -> None:
        """Send a message that does not decode as a dead letter, and only then skip it."""
        with self._skipping.held():  # several workers may have reached the same message
            write = partial(self._outcomes.undecodable_letter, error)
            letter = self._subscription.blocking_calls.do(write)
            if letter is not None:
                self._send_letter(letter)
                self._outcomes.skip_undecodable(error, letter, stats)

    def _send_letter(self, letter: DeadLetter) -> None:
        assert self._dead_letter is not None  # otherwise there is no such decision
        self._dead_letter.send(letter)


def _refuse_awaitable(result: object) -> None:
    """Raise `TypeError` if a handler returned an awaitable, since no event loop would run it."""
    if inspect.isawaitable(result):
        if isinstance(result, Coroutine):
            result.close()
        raise TypeError("the handler returned an awaitable; use the async FileChannel.serve for such handlers")
