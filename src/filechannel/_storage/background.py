"""The threads that wait for the kernel, shared by every channel of the process and started when first needed."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache

_THREADS = 4
_AT_ONCE = 8
_MANY = 4  # things to do; the file system does them together in the time of a few, if asked for all at once


@lru_cache(maxsize=1)
def background_threads() -> ThreadPoolExecutor:
    """Return the threads."""
    return ThreadPoolExecutor(_THREADS, thread_name_prefix="filechannel")


@lru_cache(maxsize=1)
def _waiting_threads() -> ThreadPoolExecutor:
    """Return others, which never wait for each other: those above may wait for them."""
    return ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="filechannel-flush")


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
