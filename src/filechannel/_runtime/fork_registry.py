"""What happens when the process forks: the only module that calls `os.register_at_fork`.

A forked child has the memory of its parent and one thread, the one that forked. Locks that other threads held stay
locked, threads and timers that the memory describes do not exist, and kernel locks, files and positions belong to the
parent. Modules with such state register a function that resets it in the child.

The order is that of `Phase`, and does not depend on the order of the imports. It matters because a function of one
phase may use what an earlier phase has reset; functions of the same phase do not depend on each other. The handlers of
the C core are not registered here: they are `pthread_atfork` handlers, and run before all of these, also when a library
forks.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from enum import IntEnum
from typing import TypeAlias

Reset: TypeAlias = Callable[[], object]


class Phase(IntEnum):
    """When a function is called in a forked child."""

    PRIMITIVES = 1
    """The locks of the pure implementation's atomic words and futexes. First, because mutexes are built on them, and
    every later function may lock a mutex."""
    DESCRIPTORS = 2
    """Inherited descriptors are closed, because a kernel lock is held as long as any process has its file open. Then
    files may be opened again. Before anything that could open a file of its own, whose number might be closed here."""
    THREADS = 3
    """Thread pools and the lanes of the scheduler. The later functions drop objects, and a finalizer hands its work to
    a pool and waits: with the counters of the parent, the pool would wait for a thread that the child does not have."""
    STORES = 4
    """Locks, tables and timed tasks of the layers that work on stores. Open stores are kept until the child ends."""
    CHANNELS = 5
    """The objects of users. Last: as soon as they are reset, they may open their directory again, and must find neither
    a store nor a waiter of the parent."""


_resets: dict[Phase, list[Reset]] = {phase: [] for phase in Phase}


def reset_in_child(phase: Phase, reset: Reset) -> None:
    """Call *reset* in every process that is forked from now on. It must not wait for another thread."""
    _resets[phase].append(reset)


def hold_while_forking(acquire: Reset, release: Reset) -> None:
    """Let the forking thread hold a lock during each fork; it is released in both processes.

    Both must be C functions. They are registered one by one because a loop in Python could be interrupted: a signal
    handler that raises between two of its bytecodes would leave the lock held.
    """
    os.register_at_fork(before=acquire, after_in_parent=release)
    reset_in_child(Phase.DESCRIPTORS, release)


def _reset_all() -> None:
    """Call every function, also if one of them raises; then raise the first error, which the interpreter reports."""
    resets = iter([reset for phase in Phase for reset in _resets[phase]])
    first: BaseException | None = None
    while True:
        try:
            for reset in resets:  # after an error: resumes after the function that raised it
                reset()
            break
        except BaseException as error:
            first = first or error
    if first is not None:
        raise first


os.register_at_fork(after_in_child=_reset_all)
