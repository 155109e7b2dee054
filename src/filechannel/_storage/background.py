"""The threads that wait for the kernel, shared by every channel of the process and started when first needed."""

# The interpreter itself has no public way to ask whether it is shutting down.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import _thread
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import thread as executors
from contextlib import suppress
from functools import lru_cache
from queue import Empty, SimpleQueue
from threading import current_thread, main_thread
from typing import cast

_THREADS = 4
_AT_ONCE = 8
_MANY = 4  # things to do; the file system does them together in the time of a few, if asked for all at once


class _Threads(ThreadPoolExecutor):
    """Threads that are started where no Ctrl-C arrives.

    One that was started and, by that, not listed is never told to end: the process could not end either.
    """

    def _adjust_thread_count(self) -> None:
        if current_thread() is not main_thread():
            super()._adjust_thread_count()
        elif not self._idle_semaphore.acquire(blocking=False) and len(self._threads) < self._max_workers:
            _thread.start_new_thread(self._start_another, ())

    def _start_another(self) -> None:
        try:
            # As `submit` does, so that none is started when the interpreter has told the others to end.
            with self._shutdown_lock, executors._global_shutdown_lock:
                if not executors._shutdown:
                    super()._adjust_thread_count()
        except RuntimeError:  # there are no more to be had: this one does what somebody may wait for, and ends
            self._do_what_waits()

    def _do_what_waits(self) -> None:
        waiting = cast("SimpleQueue[executors._WorkItem[object] | None]", self._work_queue)
        with suppress(Empty):
            while (item := waiting.get_nowait()) is not None:
                item.run()
            waiting.put(None)  # it tells another thread to end


@lru_cache(maxsize=1)
def background_threads() -> ThreadPoolExecutor:
    """Return the threads."""
    return _Threads(_THREADS, thread_name_prefix="filechannel")


@lru_cache(maxsize=1)
def _waiting_threads() -> ThreadPoolExecutor:
    """Return others, which never wait for each other: those above may wait for them."""
    return _Threads(_AT_ONCE, thread_name_prefix="filechannel-flush")


def do_all_at_once(work: list[Callable[[], object]]) -> None:
    """Do several things that wait for the kernel, and raise the first error when all that were begun have ended.

    A few are done here, one after the other.
    """
    if len(work) < _MANY:
        for each in work:
            each()
        return
    errors = [future.exception() for future in [_begin(each) for each in work]]
    for error in errors:
        if error is not None:
            raise error


def _begin(work: Callable[[], object]) -> Future[object]:
    try:
        return _waiting_threads().submit(work)
    except RuntimeError:  # the interpreter is shutting down: no thread takes anything any more
        done: Future[object] = Future()
        try:
            done.set_result(work())
        except Exception as error:
            done.set_exception(error)
        return done


def _forget_threads() -> None:
    background_threads.cache_clear()
    _waiting_threads.cache_clear()


os.register_at_fork(after_in_child=_forget_threads)  # a forked child has none of them
