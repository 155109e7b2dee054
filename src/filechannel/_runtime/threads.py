"""Threads of our own for work that blocks, shared by every channel of the process, and threads that keep time.

They are started and given work by threads that run user code, among them the main thread, on which a signal handler may
raise an exception between any two bytecodes. `Condition`, `Semaphore`, `Event`, `Future`, `Executor.submit` and
`Thread.start` stay locked, or half done, when that happens inside them. So here a thread is started by one call of a C
function (`start_new_thread`), and work is handed over by another (`SimpleQueue.put`); everything that takes more than
one step is done by the new thread, on which no handler runs. A thread too many is harmless, and a thread is there
before there is work for it.

The threads are daemons: they keep no process from ending. What was handed over before the interpreter exits is done
first, if that takes no longer than ten seconds.
"""

from __future__ import annotations

import atexit
import logging
import math
import os
import sys
import time
from _thread import start_new_thread
from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Lock, Thread, get_ident, main_thread
from typing import TypeAlias, final

from .._format import holds_mutex

_THREADS = 4
_AT_ONCE = 8
_ERRANDS = 40
_HANDLERS = 10_000  # services limit them
_CLOSING = 1000  # the main thread waits for one at a time, unless it is interrupted
_MANY = 4  # things to do; the file system does them together in the time of a few, if asked for all at once
_IDLE = 10.0  # seconds after which a thread without work ends, unless it is the last one
_PAUSE = 0.005
_LOOKS = 3
_LONGEST_EXIT = 10.0  # seconds
_logger = logging.getLogger("filechannel")

Work: TypeAlias = Callable[[], object]


class NoThreadError(RuntimeError):
    """There is no thread to be had: the process has as many as it may have, or the interpreter is shutting down."""


def start_thread(run: Work, name: str) -> None:
    """Start a daemon thread, by one call of a C function; `NoThreadError` if there is none to be had.

    A second thread, started by the first, runs: only a `Thread` has a name, and starting one takes many steps.
    """
    try:
        start_new_thread(_start, (run, name))
    except RuntimeError as error:
        if "thread" not in str(error):
            raise  # it is one that a signal handler has raised
        raise NoThreadError(str(error)) from error


def _start(run: Work, name: str) -> None:
    try:
        Thread(target=run, name=name, daemon=True).start()
    except RuntimeError:  # there is this one
        run()


@final
class ThreadPool:
    """A few threads that do what they are given, started when needed. All but one end when there is nothing to do."""

    def __init__(self, name: str, most: int) -> None:
        self._name = name
        self._most = most
        self._queue: SimpleQueue[Work] = SimpleQueue()
        self._counting = Lock()  # only taken by threads of the pool
        self._threads = 0
        self._idle = 0
        self._started = False

    def do(self, work: Work) -> None:
        """Do something in another thread, soon. What it raises is logged.

        `NoThreadError`, and nothing will be done, if there is no thread and none can be started.
        """
        if not self._started:
            # First: what is in the queue has a thread that takes it. If this is interrupted before the next line, there
            # is one thread too many, which ends when it is idle.
            start_thread(self._run, self._name)
            self._started = True
            self._queue.put(work)
            return
        self._queue.put(work)
        if self._queue.qsize() > self._idle and self._threads < self._most:
            try:
                start_thread(self._run, self._name)
            except NoThreadError:  # no more threads: those that there are do it
                pass

    def _run(self) -> None:
        with self._counting:
            if self._threads >= self._most:
                return
            self._threads += 1
            self._idle += 1
        while True:
            try:
                work = self._queue.get(timeout=_IDLE)
            except Empty:
                if self._end():
                    return
                continue
            with self._counting:
                self._idle -= 1
            self._do(work)
            del work  # or it would be kept until there is more
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
            _logger.exception("work in the background failed")

    @property
    def is_busy(self) -> bool:
        """Whether there is something that was handed over and not done yet."""
        return not self._queue.empty() or self._idle < self._threads

    @property
    def was_used(self) -> bool:
        """Whether there was ever something to do."""
        return self._started

    def renewed(self) -> ThreadPool:
        """Return another one, without threads."""
        return ThreadPool(self._name, self._most)


@final
class Timekeeper:
    """A thread that is started when needed, and asked each time how long it may sleep until there is something to do.

    For threads that run user code: a call may be interrupted anywhere, and the next one works again.
    """

    def __init__(self, name: str, attend: Callable[[], float | None]) -> None:
        """*attend* does what is due and returns the seconds until more is; None if there is nothing left to wait for.

        It is called on the thread. It must not raise.
        """
        self._name = name
        self._attend = attend
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._alone = Lock()  # only taken by threads of ours
        self.is_running = False

    def begin(self) -> None:
        """Start the thread unless it is there; `NoThreadError` if that is not possible.

        What it is for is registered before: a thread that finds nothing to do ends.
        """
        if not self.is_running:
            self.wake()

    def wake(self) -> None:
        """Let it look what is due, and start it if it is not there."""
        self._bell.put(None)
        if not self.is_running:
            start_thread(self._run, self._name)

    def _run(self) -> None:
        # A thread that is not alone ends. The other one may be about to end too; it looks at the bell then, which was
        # rung before this thread was started.
        while self._alone.acquire(blocking=False):
            try:
                self._drain()
                self._attend_until_nothing_is_left()
            finally:
                self._alone.release()
            if self._bell.empty():
                return

    def _attend_until_nothing_is_left(self) -> None:
        pause: float | None = 0.0
        while pause is not None:
            self.is_running = True
            pause = self._attend()
            if pause is None:
                self.is_running = False
                pause = self._attend()  # what was registered by a thread that saw us running is found here
            if pause:
                self._sleep(pause)

    def _sleep(self, seconds: float) -> None:
        try:
            self._bell.get(timeout=seconds)
        except Empty:
            return
        self._drain()

    def _drain(self) -> None:
        try:
            while True:
                self._bell.get_nowait()
        except Empty:
            pass


@final
class Flag:
    """What `threading.Event` is, for threads that run user code. Waiting for it looks again and again."""

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
        """Block until it is set, or for so many seconds; return whether it is."""
        until = math.inf if timeout is None else time.monotonic() + timeout
        while not self._is_set and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, _PAUSE))
        return self._is_set


_pools = {
    name: ThreadPool(f"filechannel-{name}", most)
    for name, most in (
        ("background", _THREADS),
        ("flush", _AT_ONCE),
        ("errands", _ERRANDS),
        ("handler", _HANDLERS),
        ("closing", _CLOSING),
    )
}


def background_threads() -> ThreadPool:
    """Return the threads for brief work. Nothing that is done there waits for another process."""
    return _pools["background"]


def errand_threads() -> ThreadPool:
    """Return the threads for calls that block, for as long as it takes: one task waits for each of them."""
    return _pools["errands"]


def handler_threads() -> ThreadPool:
    """Return the threads that call functions of users."""
    return _pools["handler"]


def do_all_at_once(work: list[Work]) -> None:
    """Do several things that wait for the kernel, and raise the first error when all of them have ended.

    A few are done here, one after the other.
    """
    if len(work) < _MANY:
        for each in work:
            each()
        return
    ended: SimpleQueue[tuple[int, BaseException | None]] = SimpleQueue()
    for number, each in enumerate(work):
        try:
            _pools["flush"].do(_Part(each, number, ended).do)
        except NoThreadError:
            _Part(each, number, ended).do()
    errors = dict(ended.get() for _ in work)
    for number in range(len(work)):
        error = errors[number]
        if error is not None:
            raise error


@final
class _Part:
    """One of several things to do, and the queue that takes its outcome."""

    def __init__(self, work: Work, number: int, ended: SimpleQueue[tuple[int, BaseException | None]]) -> None:
        self._work = work
        self._number = number
        self._ended = ended

    def do(self) -> None:
        """Do it, and hand over its number with what it raised, or None."""
        try:
            self._work()
        except BaseException as error:
            self._ended.put((self._number, error))
        else:
            self._ended.put((self._number, None))


def do_undisturbed(work: Work) -> None:
    """Do something to its end, whatever a signal handler raises meanwhile, and raise what it raises.

    Signal handlers run on the main thread only, so there another thread does it, and an exception that a handler raises
    ends the waiting, not the work. A thread that has locked a mutex does it by itself: a handler or a finalizer has
    interrupted it, and the other thread would wait for that mutex.
    """
    if get_ident() != main_thread().ident or holds_mutex() or sys.is_finalizing():
        work()
        return
    ended: SimpleQueue[tuple[int, BaseException | None]] = SimpleQueue()
    try:
        _pools["closing"].do(_Part(work, 0, ended).do)
    except NoThreadError:
        work()
        return
    _, error = ended.get()
    if error is None:
        return
    try:
        raise error
    finally:
        del error  # it has this frame in its traceback


def _finish() -> None:
    """Let what was handed over be done, for a while. Whatever is not done then is as after the death of the process."""
    waited_for = [pool for pool in _pools.values() if pool.was_used and pool is not handler_threads()]
    if not waited_for:
        return
    until, looks = time.monotonic() + _LONGEST_EXIT, 0
    while looks < _LOOKS and time.monotonic() < until:  # a thread may have taken something and not yet said so
        looks = 0 if any(pool.is_busy for pool in waited_for) else looks + 1
        time.sleep(_PAUSE / _LOOKS)


def _start_over() -> None:
    for name, pool in list(_pools.items()):
        _pools[name] = pool.renewed()


atexit.register(_finish)
os.register_at_fork(after_in_child=_start_over)  # a forked child has none of the threads
