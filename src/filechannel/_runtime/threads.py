"""Thread pools for blocking work, shared by all channels of the process.

Threads that run user code start these threads and hand work to them, among them the main thread, on which a signal
handler may raise an exception between any two bytecodes. `Condition`, `Semaphore`, `Event`, `Future`, `Executor.submit`
and `Thread.start` stay locked, or incomplete, if that happens inside them. So here a thread is started by one call of a
C function (`start_new_thread`), and work is handed over by another (`SimpleQueue.put`). Everything that takes more than
one step is done by the new thread, on which no handler runs. A superfluous thread is harmless, and a thread is started
before there is work for it.

The threads are daemons: they do not keep a process from ending. Work that was handed over before the interpreter exits
is completed first, if that takes no longer than ten seconds.
"""

from __future__ import annotations

import atexit
import logging
import math
import time
from _thread import start_new_thread
from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import TypeAlias, final

from .fork_registry import Phase, reset_in_child

_BACKGROUND_THREADS = 4
_FLUSH_THREADS = 8
_BLOCKING_CALL_THREADS = 40
_HANDLER_THREADS = 10_000  # services limit their number themselves
_CLOSING_THREADS = 1000  # the main thread waits for one at a time, unless it is interrupted
_MANY_CALLS = 4  # the file system does many in the time of a few if they run at the same time
_IDLE_SECONDS = 10.0  # after which a thread without work ends, unless it is the last one
_POLL_SECONDS = 0.005
_IDLE_CHECKS = 3  # in a row, before an exit assumes that all work is done
_LONGEST_EXIT_SECONDS = 10.0
_logger = logging.getLogger("filechannel")

Work: TypeAlias = Callable[[], object]


class NoThreadError(RuntimeError):
    """No thread can be started: the limit of the process is reached, or the interpreter is shutting down."""


def start_thread(run: Work, name: str) -> None:
    """Start a daemon thread with one call of a C function. Raise `NoThreadError` if none can be started.

    A second thread, started by the first, does the work: only a `Thread` has a name, and starting one is not a single C
    call.
    """
    try:
        start_new_thread(_start, (run, name))
    except RuntimeError as error:
        if "thread" not in str(error):
            raise  # a signal handler raised it
        raise NoThreadError(str(error)) from error


def _start(run: Work, name: str) -> None:
    try:
        Thread(target=run, name=name, daemon=True).start()
    except RuntimeError:  # no further thread can be started, but this one runs already
        run()


@final
class ThreadPool:
    """A few threads that do the work they are given, started when needed. All but one end when idle."""

    def __init__(self, name: str, max_threads: int) -> None:
        self._name = name
        self._max_threads = max_threads
        self._queue: SimpleQueue[Work] = SimpleQueue()
        self._counting = Lock()  # only acquired by threads of the pool
        self._threads = 0
        self._idle = 0
        self._started = False

    def do(self, work: Work) -> None:
        """Call *work* in another thread, soon. Errors are logged.

        Raises `NoThreadError`, and the work is not done, if there is no thread and none can be started.
        """
        if not self._started:
            # First: work in the queue must have a thread that takes it. If this is interrupted before the next line,
            # there is one superfluous thread, which ends when it is idle.
            start_thread(self._run, self._name)
            self._started = True
            self._queue.put(work)
            return
        self._queue.put(work)
        if self._queue.qsize() > self._idle and self._threads < self._max_threads:
            try:
                start_thread(self._run, self._name)
            except NoThreadError:  # no more threads: the existing ones do it
                pass

    def _run(self) -> None:
        with self._counting:
            if self._threads >= self._max_threads:
                return
            self._threads += 1
            self._idle += 1
        while True:
            try:
                # If this blocks for longer than it should (see `ThreadWakeup`), work wakes it all the same.
                work = self._queue.get(timeout=_IDLE_SECONDS)
            except Empty:
                if self._end():
                    return
                continue
            with self._counting:
                self._idle -= 1
            self._do(work)
            del work  # otherwise it would be kept alive until there is more work
            with self._counting:
                self._idle += 1

    def _end(self) -> bool:
        with self._counting:
            if self._threads == 1:
                return False
            self._threads -= 1
            self._idle -= 1
            return True

    @staticmethod
    def _do(work: Work) -> None:
        try:
            work()
        except BaseException:  # no signal handler runs on this thread: it is an error of the work
            _logger.exception("background work failed")

    @property
    def is_busy(self) -> bool:
        """Whether there is work that was handed over and not done yet."""
        return not self._queue.empty() or self._idle < self._threads

    @property
    def was_used(self) -> bool:
        """Whether there was ever work to do."""
        return self._started

    def renewed(self) -> ThreadPool:
        """Return a new pool like this one, without threads."""
        return ThreadPool(self._name, self._max_threads)


@final
class Flag:
    """Replaces `threading.Event` on threads that run user code: it has no lock, and `wait` polls."""

    def __init__(self) -> None:
        self._is_set = False

    def set(self) -> None:
        """Wake the threads that wait."""
        self._is_set = True

    def clear(self) -> None:
        """Let threads wait from now on."""
        self._is_set = False

    def is_set(self) -> bool:
        """Return whether it is set."""
        return self._is_set

    def wait(self, timeout: float | None = None) -> bool:
        """Block until it is set, at most this many seconds. Return whether it is set."""
        until = math.inf if timeout is None else time.monotonic() + timeout
        while not self._is_set and (remaining := until - time.monotonic()) > 0:
            time.sleep(min(remaining, _POLL_SECONDS))
        return self._is_set


_pools = {
    name: ThreadPool(f"filechannel-{name}", max_threads)
    for name, max_threads in (
        ("background", _BACKGROUND_THREADS),
        ("flush", _FLUSH_THREADS),
        ("blocking-call", _BLOCKING_CALL_THREADS),
        ("handler", _HANDLER_THREADS),
        ("closing", _CLOSING_THREADS),
    )
}


def background_threads() -> ThreadPool:
    """Return the threads for brief work. This work never waits for another process."""
    return _pools["background"]


def blocking_call_threads() -> ThreadPool:
    """Return the threads for calls that may block for long: one task waits for each of them."""
    return _pools["blocking-call"]


def handler_threads() -> ThreadPool:
    """Return the threads that call functions of users."""
    return _pools["handler"]


def closing_threads() -> ThreadPool:
    """Return the threads that do what a signal handler must not interrupt: see `do_undisturbed`."""
    return _pools["closing"]


def do_in_parallel(work: list[Work]) -> None:
    """Make several calls that wait for the kernel, and raise the first error when all of them have ended.

    If there are only a few, this thread makes them one after the other.
    """
    if len(work) < _MANY_CALLS:
        for each in work:
            each()
        return
    ended: SimpleQueue[tuple[int, BaseException | None]] = SimpleQueue()
    for number, each in enumerate(work):
        try:
            _pools["flush"].do(Call(each, number, ended).do)
        except NoThreadError:
            Call(each, number, ended).do()
    errors = dict(ended.get() for _ in work)
    for number in range(len(work)):
        error = errors[number]
        if error is not None:
            raise error


@final
class Call:
    """A call in another thread, and the queue for its outcome."""

    def __init__(self, work: Work, number: int, ended: SimpleQueue[tuple[int, BaseException | None]]) -> None:
        self._work = work
        self._number = number
        self._ended = ended

    def do(self) -> None:
        """Call it, and put its number and its error, or None, into the queue."""
        try:
            self._work()
        except BaseException as error:
            self._ended.put((self._number, error))
        else:
            self._ended.put((self._number, None))


def _finish() -> None:
    """Wait for the work that was handed over, for ten seconds at most. What is not done then is lost, as in a crash."""
    waited_for = [pool for pool in _pools.values() if pool.was_used and pool is not handler_threads()]
    if not waited_for:
        return
    until, checks = time.monotonic() + _LONGEST_EXIT_SECONDS, 0
    # Checked several times: a thread may have taken work and not yet updated the counters.
    while checks < _IDLE_CHECKS and time.monotonic() < until:
        checks = 0 if any(pool.is_busy for pool in waited_for) else checks + 1
        time.sleep(_POLL_SECONDS / _IDLE_CHECKS)


def _start_over() -> None:
    for name, pool in list(_pools.items()):
        _pools[name] = pool.renewed()


atexit.register(_finish)
reset_in_child(Phase.THREADS, _start_over)
