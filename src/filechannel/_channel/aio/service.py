"""Handlers in an event loop: what `AnyService` does, and waiting."""

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

from .._errors import ConsumerError, DataExpiredError, DecodeError
from .._format import NOTHING, Nothing
from .._storage.background import handler_threads
from .._wakeup.loops import in_trio, make_waiter, notice_cancellation, run_in_thread, run_through_cancellation
from .ack_source import AckSource
from .any_service import AnyService, Tally, Terms, UnfinishedError
from .dead_letter import DeadLetter
from .delivery import Delivery, Handed
from .sender import Sender
from .turns import begin_turn, give_way_if_due, turn_is_over


@final
class Service(AnyService):
    """Gives every message to a handler, and acknowledges it when that has returned. Made by `FileChannel.serve`.

    `async with service` runs it beside the body; at the end nothing new is begun, and what is being handled goes on to
    its end. `await service` runs it until `stop`, or the end of a sealed channel. It runs once.

    An error that ends it cancels the body and is raised where that ends; together with an error of the body, in an
    `ExceptionGroup`. Cancelled, it cancels the handlers: their messages come again, and the attempt does not count.
    """

    def __init__(
        self,
        source: AckSource,
        handler: Callable[[object], object],
        terms: Terms,
        dead_letter: Sender[DeadLetter] | None,
    ) -> None:
        super().__init__(source, handler, terms)
        self._dead_letter = dead_letter
        self._call = handler if is_async(handler) else self._call_in_thread
        self._threads: set[CancelScope] = set()

    # Running

    async def __aenter__(self) -> Self:
        """Run it beside the body."""
        self._begin()
        self._running: AbstractAsyncContextManager[None] = self._beside()
        await self._running.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> bool | None:
        """Wait until what is being handled has ended."""
        return await self._running.__aexit__(kind, error, where)

    def __await__(self) -> Generator[object, None, None]:
        """Run it until it is stopped."""
        return self._run().__await__()

    async def _run(self) -> None:
        async with self:
            await self._ended.wait()

    @asynccontextmanager
    async def _beside(self) -> AsyncGenerator[None]:
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
            except BaseException as error:  # kept from the task group, which would cancel them for any error
                failure = error
                if not isinstance(error, Exception):
                    tasks.cancel_scope.cancel()
            finally:
                self.stop()
        if self._error is None:
            if failure is not None:
                raise failure
        elif isinstance(failure, Exception) and isinstance(self._error, Exception):
            raise ExceptionGroup("the service and what ran beside it have failed", [self._error, failure])
        else:
            raise self._error

    async def _serve(self) -> None:
        self._intake, self._passing = anyio.Lock(fast_acquire=True), anyio.Lock(fast_acquire=True)
        self._limiter = CapacityLimiter(self._terms.concurrency)
        try:
            async with anyio.create_task_group() as tasks:
                async with anyio.create_task_group() as workers:
                    if self._terms.grace is not None:
                        tasks.start_soon(self._limit_drain, self._terms.grace, workers.cancel_scope)
                    for _ in range(self._terms.concurrency):
                        workers.start_soon(self._work_or_fail, self._hire())
                tasks.cancel_scope.cancel()
        finally:
            self.close()
            self._ended.set()

    async def _limit_drain(self, grace: float, workers: CancelScope) -> None:
        """Wait for handlers no longer than so when it stops; a thread cannot be cancelled, and is left alone."""
        await self._until(lambda: self._stopping)
        await anyio.sleep(grace)
        workers.cancel()
        for thread in list(self._threads):
            thread.cancel()

    async def _work_or_fail(self, tally: Tally) -> None:
        try:
            with self._source.keeping_current(lambda: tally.current):
                await self._work(tally)
        except BaseException as error:
            cancelled, failure = _apart(error)
            if cancelled is not None and anyio.current_effective_deadline() != -math.inf:
                # Whoever cancels the service cancels a scope around this task: that was the handler, or a stranger.
                failure, cancelled = failure or _cancelled_alone(cancelled), None
            if failure is not None:
                self._fail(failure)
                self._body.cancel()
            if cancelled is not None:
                raise cancelled from None

    # Working

    async def _work(self, tally: Tally) -> None:
        """Handle one message after the other."""
        # What every message takes is in this loop: no task, no scope and no checkpoint, each of which costs more.
        take, call, ack = self._take, cast("Callable[[object], Awaitable[object]]", self._call), self._ack
        most = self._most
        alone = self._terms.concurrency == 1
        settles = self._source.must_settle_acks
        while True:
            try:
                found = NOTHING if self._halted or turn_is_over() else take()
                if found is NOTHING and (found := await self._next()) is NOTHING:
                    return
            except DecodeError as error:
                await self._pass(error, tally)
                continue
            except DataExpiredError as error:
                self._miss(error, tally)
                continue
            tally.current = found
            try:
                if found[3] > most:
                    raise UnfinishedError
                await call(found[0])
            except Exception as error:
                await self._after(found, error, tally)
            except BaseException as error:
                if not _is_stray(error):
                    self._release(found)
                    raise
                await self._after(found, _strayed(error), tally)
            else:
                try:
                    if not (alone and ack(1)):
                        self._settle(found)
                    tally.handled += 1
                except ConsumerError as error:
                    self._lose(error, tally)
                if settles:
                    await run_through_cancellation(self._source.settle_position)

    async def _next(self) -> Handed[object] | Nothing:
        """Wait for the next message, and return NOTHING when there is nothing more to do."""
        while True:
            await give_way_if_due()
            if self._source.must_settle_acks:
                await notice_cancellation()
            while self._paused and not self._stopping:
                await self._until(lambda: self._stopping or not self._paused)
                begin_turn()
            if self._stopping:
                return NOTHING
            async with self._intake:  # one waits for messages, the others for it: each message wakes two of them
                try:
                    if (found := self._look()) is not NOTHING:
                        return found
                except EndOfStream:
                    return NOTHING
                await self._source.wait(self._has_news)
                begin_turn()

    async def _call_in_thread(self, value: object) -> None:
        """Let a handler block a thread. Cancellation waits for it, since it cannot be told."""
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
            await checkpoint()  # which raises: its time is over
        elif inspect.isawaitable(result):  # a lambda, say, that calls an async function
            await result

    def _handle(self, value: object) -> tuple[object]:
        return (self._handler(value),)  # wrapped: trio takes an awaitable that a thread returns for a mistake

    async def _until(self, condition: Callable[[], bool], seconds: float | None = None) -> None:
        """Sleep until something is told that may make it so, or for so long."""
        waiter = make_waiter()
        self._sleepers.add(waiter)
        try:
            if not condition():
                with anyio.move_on_after(seconds):
                    await waiter.wait()
        finally:
            self._sleepers.discard(waiter)

    # Failing

    async def _after(self, found: Handed[object], error: Exception, tally: Tally) -> None:
        """Do what has to be done about a message whose handler has failed."""
        delivery = self._delivery(found)
        pause = self._judge(delivery, error, tally)
        if pause is None:
            await self._bury(delivery, found, error, tally)
        elif not self._terms.ordered:
            self._try_again(delivery, pause)
        else:
            try:
                await self._until(lambda: self._halted, pause)
            finally:
                self._try_again(delivery)

    async def _bury(self, delivery: Delivery[object], found: Handed[object], error: Exception, tally: Tally) -> None:
        """Send the letter about a message that is given up, and only then acknowledge it."""
        try:
            if self._dead_letter is None:
                raise self._giving_up(delivery, error) from error
            await self._dead_letter.send(await self._source.errands.run(partial(self._write_letter, delivery, error)))
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

    async def _pass(self, error: DecodeError, tally: Tally) -> None:
        """Send the letter about a message that does not decode, and only then go on behind it."""
        async with self._passing:  # several workers may have come to it
            if not self._source.stands_before(error):
                return
            if self._dead_letter is None:
                raise error
            await self._dead_letter.send(await self._source.errands.run(partial(self._write_about_undecodable, error)))
            await run_through_cancellation(partial(self._source.errands.do, partial(self._source.pass_by, error)))
            tally.dead += 1


def is_async(handler: Callable[..., object]) -> bool:
    """Tell whether calling it gives something to await: a function, a partial of one, or an object with such a call."""
    while isinstance(handler, partial):
        handler = handler.func
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(getattr(handler, "__call__", None))  # noqa: B004


def _apart(error: BaseException) -> tuple[BaseException | None, BaseException | None]:
    """Return what of an error is a cancellation, and what is not; a nursery of trio's may raise both in one."""
    cancelled = anyio.get_cancelled_exc_class()
    if isinstance(error, BaseExceptionGroup):
        return cast("BaseExceptionGroup[BaseException]", error).split(cancelled)
    return (error, None) if isinstance(error, cancelled) else (None, error)


def _is_stray(error: BaseException) -> bool:
    """Tell whether a cancellation is none of ours: the handler has awaited something that was cancelled."""
    if not isinstance(error, asyncio.CancelledError) or in_trio():
        return False
    task = asyncio.current_task()
    return task is not None and not task.cancelling()


def _cancelled_alone(error: BaseException) -> Exception:
    failure = RuntimeError("the task of a handler was cancelled by itself, not by its service; to end that, stop() it")
    failure.__cause__ = error
    return failure


def _strayed(error: BaseException) -> Exception:
    failure = RuntimeError("the handler has awaited something that was cancelled")
    failure.__cause__ = error
    return failure
