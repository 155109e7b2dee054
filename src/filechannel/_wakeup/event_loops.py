"""Waiters: a sleeping task on asyncio, uvloop or trio that any thread can wake.

The task that waits creates a waiter. Waking it is a plain call, from the loop's own thread or another one. A wakeup
before the wait is not lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextvars import copy_context
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar, final
from weakref import WeakSet

import anyio
from anyio.lowlevel import checkpoint, checkpoint_if_cancelled

from .._format import resolve
from .._runtime.may_sleep import in_trio
from .._runtime.thread_wakeup import Sleeper
from .._runtime.threads import ThreadPool, blocking_call_threads

if TYPE_CHECKING:
    import trio

R = TypeVar("R")


class Waiter(Sleeper, Protocol):
    """A task that may sleep until it is woken, once."""

    @property
    def loop(self) -> object:
        """Identifies its event loop."""
        ...

    def wait(self) -> Awaitable[None]:
        """Sleep until woken."""
        ...


@final
class _AsyncioWaiter:
    """A waiter on asyncio or uvloop: a future of the loop."""

    __slots__ = ("_future", "_woken", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._woken = False
        self._future: asyncio.Future[None] = loop.create_future()

    def wake(self) -> None:
        future = self.note_woken()
        if asyncio._get_running_loop() is self.loop:
            resolve(future)
        else:
            _resolve_in(self.loop, [future])

    def note_woken(self) -> asyncio.Future[None]:
        """Make later waits return at once, and return the future of the current one, which the caller resolves."""
        self._woken = True  # first: `wait` replaces the future, then checks this
        return self._future

    def wait(self) -> asyncio.Future[None]:
        if self._future.cancelled():  # with a wait that was cancelled: another wait needs another future
            self._future = self.loop.create_future()
            if self._woken:
                self._future.set_result(None)
        return self._future


@final
class _TrioWaiter:
    """A waiter on trio: an event, and the thread of its loop."""

    __slots__ = ("_event", "_thread", "loop")

    def __init__(self) -> None:
        import trio

        self._thread = get_ident()
        self._event: trio.Event = trio.Event()
        self.loop: trio.lowlevel.TrioToken = trio.lowlevel.current_trio_token()

    def wake(self) -> None:
        import trio

        if get_ident() == self._thread:
            self._event.set()
            return
        try:
            self.loop.run_sync_soon(self._event.set)
        except trio.RunFinishedError:
            pass  # the loop has ended, and so has the task

    async def wait(self) -> None:
        await self._event.wait()


def wake_together(waiters: Iterable[Sleeper | asyncio.Future[None]]) -> None:
    """Wake many tasks with one call into each event loop. Any thread may call this."""
    elsewhere: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
    here = asyncio._get_running_loop()
    for waiter in waiters:
        if isinstance(waiter, asyncio.Future):
            loop = waiter.get_loop()
            if loop is not here:
                elsewhere.setdefault(loop, []).append(waiter)
            else:
                resolve(waiter)
        elif isinstance(waiter, _AsyncioWaiter) and waiter.loop is not here:
            elsewhere.setdefault(waiter.loop, []).append(waiter.note_woken())
        else:
            waiter.wake()
    for loop, futures in elsewhere.items():
        _resolve_in(loop, futures)


def _resolve_in(loop: asyncio.AbstractEventLoop, futures: list[asyncio.Future[None]]) -> None:
    """Let an event loop resolve futures, in a callback that is a C function.

    If a signal handler raised in a callback of Python code, asyncio would log the exception and skip the rest of the
    callback, and the tasks would never wake.
    """
    try:
        loop.call_soon_threadsafe(resolve, *futures)
    except RuntimeError:
        if not loop.is_closed():  # a closed loop has no waiting tasks
            raise


def make_future() -> asyncio.Future[None] | None:
    """Return a future of the event loop that this thread runs; None if it is not asyncio."""
    loop = asyncio._get_running_loop()
    return None if loop is None or in_trio() else loop.create_future()


def make_waiter() -> Waiter:
    """Return a waiter for the calling task."""
    return _TrioWaiter() if in_trio() else _AsyncioWaiter(asyncio.get_running_loop())


async def wait_through_cancellation(waiter: Waiter) -> None:
    """Sleep until woken, even if cancelled, and return normally.

    For operations that have already taken effect and only wait to be reported. A cancellation that arrives meanwhile is
    not lost: a cancel scope delivers it at the next checkpoint by itself, and a plain `Task.cancel()` is delivered
    again when the task next sleeps, unless the code that cancelled (`asyncio.timeout`, for example) has withdrawn it by
    then. A caller that does this repeatedly calls `notice_cancellation` in between.
    """
    if isinstance(waiter, _TrioWaiter):
        with anyio.CancelScope(shield=True):
            await waiter.wait()
        return
    try:
        await waiter.wait()  # without a scope as long as nothing is cancelled: a scope costs more than the rest
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        assert task is not None
        _deferred.add(task)
        if await _wait_on(waiter) or not _is_from_scope(error):
            task.get_loop().call_soon(_cancel_again, task, task.cancelling())


_deferred: WeakSet[asyncio.Task[object]] = WeakSet()
"""Tasks whose cancellation arrived during such a wait and was deferred."""


async def _wait_on(waiter: Waiter) -> bool:
    """Continue to wait. Return whether the task was cancelled again."""
    cancelled = False
    with anyio.CancelScope(shield=True):  # a cancelled scope would cancel again and again
        while not await _is_woken(waiter):
            cancelled = True
    return cancelled


async def _is_woken(waiter: Waiter) -> bool:
    """Wait. Return True if the waiter was woken, False if the wait was cancelled."""
    try:
        await waiter.wait()
    except asyncio.CancelledError:
        return False
    return True


def _is_from_scope(error: asyncio.CancelledError) -> bool:
    """Return whether an anyio scope raised a cancellation. A scope handles only its own, known by the message."""
    return bool(error.args) and str(error.args[0]).startswith("Cancelled via cancel scope ")


def _cancel_again(task: asyncio.Task[object], requests: int) -> None:
    if task.cancelling() >= requests > 0 and not task.done():
        task.uncancel()
        task.cancel()


async def notice_cancellation() -> None:
    """Raise a cancellation that `wait_through_cancellation` deferred; otherwise return without yielding."""
    if in_trio():
        await checkpoint_if_cancelled()
    elif _deferred:
        task = asyncio.current_task()
        if task is not None and task in _deferred:
            _deferred.discard(task)
            await checkpoint()


async def run_through_cancellation(work: Callable[[], R]) -> R:
    """Call a function in another thread and wait for its end, even if the task is cancelled; that is deferred."""
    waiter = make_waiter()
    running = _ThreadCall(work, waiter)
    blocking_call_threads().do(running.run)
    await wait_through_cancellation(waiter)
    return running.result()


async def run_in_thread(
    work: Callable[[], R], *, abandon_on_cancel: bool = False, threads: ThreadPool | None = None
) -> R:
    """Call a function in a thread, as `anyio.to_thread.run_sync` does, but in one that ends with the interpreter.

    A worker thread of anyio ends when the task that runs the event loop does, and the interpreter waits for it at exit.
    """
    await checkpoint()
    waiter = make_waiter()
    running = _ThreadCall(partial(copy_context().run, work), waiter)
    (threads or blocking_call_threads()).do(running.run)
    with anyio.CancelScope(shield=not abandon_on_cancel):
        await waiter.wait()
    return running.result()


@final
class _ThreadCall(Generic[R]):
    """A call that runs in a thread while a task waits for it."""

    def __init__(self, work: Callable[[], R], waiter: Waiter) -> None:
        self._work = work
        self._waiter = waiter
        self._error: BaseException | None = None
        self._results: list[R] = []

    def run(self) -> None:
        """Call the function and wake the task. Runs in the thread."""
        try:
            self._results.append(self._work())
        except BaseException as error:  # of any type: the task raises it
            self._error = error
        finally:
            self._waiter.wake()

    def result(self) -> R:
        """Return the result, or raise the error."""
        error, self._error = self._error, None
        if error is None:
            return self._results.pop()
        try:
            raise error
        finally:
            del error  # its traceback refers to this frame
