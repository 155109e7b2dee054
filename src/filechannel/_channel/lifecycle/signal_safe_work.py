"""`do_undisturbed`: work that a signal handler must not interrupt, such as closing and acquiring kernel locks."""

from __future__ import annotations

import sys
from queue import SimpleQueue
from threading import get_ident, main_thread

from ..._format import holds_mutex
from ..._runtime.threads import Call, NoThreadError, Work, closing_threads


def do_undisturbed(work: Work) -> None:
    """Complete *work* even if a signal handler raises meanwhile, and raise what it raises.

    Signal handlers run on the main thread only. So instead of the main thread another thread does the work, and an
    exception that a handler raises ends the waiting, not the work. A thread that holds a mutex does the work itself: a
    handler or a finalizer interrupted it, and the other thread would wait for that mutex.
    """
    if get_ident() != main_thread().ident or holds_mutex() or sys.is_finalizing():
        work()
        return
    ended: SimpleQueue[tuple[int, BaseException | None]] = SimpleQueue()
    try:
        closing_threads().do(Call(work, 0, ended).do)
    except NoThreadError:
        work()
        return
    _, error = ended.get()
    if error is None:
        return
    try:
        raise error
    finally:
        del error  # its traceback refers to this frame
