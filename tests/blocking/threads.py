"""Work in other threads, and waiting for what they do."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TypeVar

R = TypeVar("R")
_LONGEST = 60.0


@contextmanager
def in_thread(work: Callable[[], R]) -> Iterator[Future[R]]:
    """Do something in a thread of its own, which has ended when the block has."""
    future: Future[R] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield future
    finally:
        thread.join(_LONGEST)
        assert not thread.is_alive()


def until(condition: Callable[[], bool]) -> None:
    """Wait until something is so, which another thread or process makes so."""
    end = time.monotonic() + _LONGEST
    while not condition():
        assert time.monotonic() < end, "it never came to that"
        time.sleep(0.0005)


def all_at_once(*work: Callable[[], object]) -> None:
    """Run each in its own thread, started together; raise the first error."""
    together = threading.Barrier(len(work))
    errors = list[BaseException]()

    def run(task: Callable[[], object]) -> None:
        try:
            together.wait(_LONGEST)
            task()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(task,)) for task in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * _LONGEST)
        assert not thread.is_alive(), "a thread is stuck"
    if errors:
        raise errors[0]
