"""`Service` for event loops: `BaseService`, with methods that wait."""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from types import TracebackType
from typing import Self, cast, final

import anyio
from anyio import CancelScope, CapacityLimiter, EndOfStream
from anyio.lowlevel import checkpoint, checkpoint_if_cancelled

from ..._errors import ConsumerError, DataExpiredError, DecodeError
from ..._format import NOTHING, Nothing
from ..._runtime.may_sleep import in_trio
from ..._runtime.threads import handler_threads
from ..._wakeup.event_loops import make_waiter, notice_cancellation, run_in_thread, run_through_cancellation
from ..base.dead_letter import DeadLetter, UnfinishedError
from ..base.retry_or_dead_letter import Decision, RetryInOrder, WorkerStats
from ..base.service import BaseService, ServiceConfig
from ..subscription.delivery import ATTEMPT, VALUE, DeliveryFields
from ..subscription.outstanding import Outstanding
from .cooperative_yield import begin_slice, slice_is_over, yield_if_due
from .sender import Sender


@final
class Service(BaseService):
    """Calls a handler for each message, and acknowledges the message when the handler returns.

    `FileChannel.serve` creates it. `async with service` runs it while the body runs. At the end of the body the service
    starts nothing new, and the block ends when the running handlers have finished. `await service` runs it until
    `stop`, or until the end of a sealed channel. A service runs once.

    An error that ends the service cancels the body and is raised at the end of the block; together with an error of the
    body, as an `ExceptionGroup`. Cancelling the service cancels the handlers: their messages are redelivered, and the
    attempt does not count.
    """

    def __init__(
        self,
        outstanding: Outstanding,
        handler: Callable[[object], object],
        config: ServiceConfig,
        dead_letter: Sender[DeadLetter] | None,
    ) -> None:
        super().__init__(outstanding, handler, config, dead_letters=dead_letter is not None)
        self._dead_letter = dead_letter
        self._call = handler if is_async(handler) else self._call_in_thread
        self._threads: set[CancelScope] = set()

    # Running

    async def __aenter__(self) -> Self:
        """Run the service while the body runs."""
        self._begin()
        self._running: AbstractAsyncContextManager[None] = self._run_alongside()
        await self._running.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> bool | None:
        """Wait until the running handlers have finished."""
        return await self._running.__aexit__(kind, error, where)

    def __await__(self) -> Generator[object, None, None]:
        """Run the service until it is stopped."""
        return self._run().__await__()

    async def _run(self) -> None:
        async with self:
            await self._ended.wait()

    @asynccontextmanager
    async def _run_alongside(self) -> AsyncGenerator[None]:
        failure: BaseException | None = None
        self._ended = anyio.Event()
        self._body = CancelScope()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._serve)
            try:
                with self._body:
                    yield
            except anyio.get_cancelled_exc_class():
                raise  # the handlers are cancelled too
            except BaseException as error:  # hidden from the task group, which would cancel the handlers on any error
                failure = error
                if not isinstance(error, Exception):
                    tasks.cancel_scope.cancel()
            finally:
                self.stop()
        if (ending := self._error_at_end(failure)) is not None:
            raise ending

    async def _serve(self) -> None:
        self._intake, self._skipping = anyio.Lock(fast_acquire=True), anyio.Lock(fast_acquire=True)
        self._limiter = CapacityLimiter(self._config.concurrency)
        try:
            async with anyio.create_task_group() as tasks:
                async with anyio.create_task_group() as workers:
                    if self._config.grace is not None:
                        tasks.start_soon(self._limit_drain, self._config.grace, workers.cancel_scope)
                    for _ in range(self._config.concurrency):
                        workers.start_soon(self._work_or_fail, self._outcomes.add_worker())
                tasks.cancel_scope.cancel()
        finally:
            self.close()
            self._ended.set()

    async def _limit_drain(self, grace: float, workers: CancelScope) -> None:
        """After a stop, wait at most *grace* seconds for handlers. A thread cannot be cancelled, and is abandoned."""
        await self._until(lambda: self._stopping)
        await anyio.sleep(grace)
        workers.cancel()
        for thread in list(self._threads):
            thread.cancel()

    async def _work_or_fail(self, stats: WorkerStats) -> None:
        try:
            with self._renewing(stats):
                await self._work(stats)
        except BaseException as error:
            cancelled, failure = _split_cancellation(error)
            if cancelled is not None and anyio.current_effective_deadline() != -math.inf:
                # Cancelling the service cancels a scope around this task. This cancellation came from the handler or
                # other code.
                failure, cancelled = failure or _direct_cancellation_error(cancelled), None
            if failure is not None:
                self._fail(failure)
                self._body.cancel()
            if cancelled is not None:
                raise cancelled from None

    # Working

    async def _work(self, stats: WorkerStats) -> None:
        """Handle messages one after the other."""
        # This loop runs for every message. It has no task, scope or checkpoint: each of them would cost more than the
        # rest.
        take, call, ack = self._take, cast("Callable[[object], Awaitable[object]]", self._call), self._ack
        most, outcomes = self._most, self._outcomes
        must_flush = self._subscription.must_flush_acks
        while True:
            try:
                found = NOTHING if self._halted or slice_is_over() else take()
                if found is NOTHING and (found := await self._next()) is NOTHING:
                    return
            except DecodeError as error:
                await self._skip_undecodable(error, stats)
                continue
            except DataExpiredError as error:
                outcomes.missed(error, stats)
                continue
            stats.current = found
            try:
                if found[ATTEMPT] > most:
                    raise UnfinishedError(most)
                await call(found[VALUE])
            except Exception as error:
                await self._execute(outcomes.failed(found, error, stats), found, stats)
            except BaseException as error:
                if not _is_foreign_cancellation(error):
                    outcomes.release(found)
                    raise
                await self._execute(outcomes.failed(found, _foreign_cancellation_error(error), stats), found, stats)
            else:
                try:
                    if ack is None or not ack(1):
                        outcomes.acknowledge(found)
                    stats.handled += 1
                except ConsumerError as error:
                    outcomes.lost(error, stats)
                if must_flush:
                    await run_through_cancellation(self._subscription.flush_position)

    async def _next(self) -> DeliveryFields[object] | Nothing:
        """Wait for the next message. Return NOTHING when there is nothing more to do."""
        while True:
            await yield_if_due()
            if self._subscription.must_flush_acks:
                await notice_cancellation()
            while self._paused and not self._stopping:
                await self._until(lambda: self._stopping or not self._paused)
                begin_slice()
            if self._stopping:
                return NOTHING
            # One worker waits for messages, the others wait for this lock. So a message wakes two workers, not all of
            # them.
            async with self._intake:
                try:
                    if (found := self._take_available()) is not NOTHING:
                        return found
                except EndOfStream:
                    return NOTHING
                await self._subscription.wait(self._has_data)
                begin_slice()

    async def _call_in_thread(self, value: object) -> None:
        """Call a handler in a thread. A cancellation waits for it, since a thread cannot be cancelled."""
        await checkpoint_if_cancelled()
        result: object = None
        with CancelScope(shield=True) as scope:
            self._threads.add(scope)
            try:
                async with self._limiter:
                    handle = partial(self._handle, value)
                    [result] = await run_in_thread(handle, abandon_on_cancel=True, threads=handler_threads())
            finally:
                self._threads.discard(scope)
        if scope.cancelled_caught:
            await checkpoint()  # raises the cancellation: the grace period is over
        elif inspect.isawaitable(result):  # for example a lambda that calls an async function
            await result

    def _handle(self, value: object) -> tuple[object]:
        return (self._handler(value),)  # wrapped, because trio treats an awaitable returned by a thread as a mistake

    async def _until(self, condition: Callable[[], bool], seconds: float | None = None) -> None:
        """Sleep until *condition* may have become true, at most *seconds*."""
        waiter = make_waiter()
        self._sleepers.add(waiter)
        try:
            if not condition():
                with anyio.move_on_after(seconds):
                    await waiter.wait()
        finally:
            self._sleepers.discard(waiter)

    # Failing

    async def _execute(self, decision: Decision, found: DeliveryFields[object], stats: WorkerStats) -> None:
        if decision is None:
            return
        if isinstance(decision, RetryInOrder):
            with self._outcomes.retrying(found):
                await self._until(lambda: self._halted, decision.pause)
            return
        with self._outcomes.dead_lettering(found, stats):
            write = partial(self._outcomes.letter, found, decision.error)
            await self._send_letter(await self._subscription.blocking_calls.run(write))

    async def _skip_undecodable(self, error: DecodeError, stats: WorkerStats) -> None:
        """Send a message that does not decode as a dead letter, and only then skip it."""
        async with self._skipping:  # several workers may have reached the same message
            write = partial(self._outcomes.undecodable_letter, error)
            letter = await self._subscription.blocking_calls.run(write)
            if letter is not None:
                await self._send_letter(letter)
                self._outcomes.skip_undecodable(error, letter, stats)

    async def _send_letter(self, letter: DeadLetter) -> None:
        assert self._dead_letter is not None  # otherwise there is no such decision
        await self._dead_letter.send(letter)


def is_async(handler: Callable[..., object]) -> bool:
    """Return whether calling it returns an awaitable: an async function, a partial of one, or an object like that."""
    while isinstance(handler, partial):
        handler = handler.func
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(getattr(handler, "__call__", None))  # noqa: B004


def _split_cancellation(error: BaseException) -> tuple[BaseException | None, BaseException | None]:
    """Split an error into the cancellation and the rest: a trio nursery may raise both in one group."""
    cancelled = anyio.get_cancelled_exc_class()
    if isinstance(error, BaseExceptionGroup):
        return cast("BaseExceptionGroup[BaseException]", error).split(cancelled)
    return (error, None) if isinstance(error, cancelled) else (None, error)


def _is_foreign_cancellation(error: BaseException) -> bool:
    """Return whether a cancellation was not meant for this task: the handler awaited something that was cancelled."""
    if not isinstance(error, asyncio.CancelledError) or in_trio():
        return False
    task = asyncio.current_task()
    return task is not None and not task.cancelling()


def _direct_cancellation_error(error: BaseException) -> Exception:
    failure = RuntimeError(
        "the task of a handler was cancelled directly, not through its service; call stop() to end a service"
    )
    failure.__cause__ = error
    return failure


def _foreign_cancellation_error(error: BaseException) -> Exception:
    failure = RuntimeError("the handler awaited something that was cancelled")
    failure.__cause__ = error
    return failure
