"""Where a process is killed: before each of its steps, one by one, or before the first one of every kind.

A step is of the same kind as another if it is done by the same lines of the package. A run without a death comes first,
and counts the steps and their kinds.
"""

from __future__ import annotations

import mmap
import os
import signal
import sys
import time
from collections.abc import Callable
from zlib import crc32

import pytest

from filechannel._format import load_u64, store_u64

NEVER = 0
"""No process dies before this step: the first one is number 1."""
DEPTH = 3
"""So many of the lines that led to a step, the innermost ones, define its kind."""
_NAMES = ("sent", "consumed", "flushed", "steps", "purged", "sealed", "life")
_MOST_STEPS = 4096


WHICH = ["kinds", pytest.param("each", marks=pytest.mark.soak)]
"""For tests: before the first step of every kind, and in a soak before each."""


class Counts:
    """What a process has announced, in memory that outlives it."""

    def __init__(self) -> None:
        self._words = mmap.mmap(-1, 8 * (len(_NAMES) + _MOST_STEPS))

    def __getitem__(self, name: str) -> int:
        return load_u64(self._words, 8 * _NAMES.index(name))

    def __setitem__(self, name: str, value: int) -> None:
        store_u64(self._words, 8 * _NAMES.index(name), value)

    def step(self, last: int, name: str = "") -> None:
        """Count a step, and die before the last one. In a run without a death, note its kind: where it is, and its
        *name*.
        """
        self["steps"] = number = self["steps"] + 1
        if number == last:
            os.kill(os.getpid(), signal.SIGKILL)
        if last == NEVER:
            store_u64(self._words, self._kind_at(number), _kind(name))

    def steps(self, *, each: bool) -> list[int]:
        """Return every step that was taken, or the first one of each kind."""
        numbers = range(1, self["steps"] + 1)
        if each:
            return list(numbers)
        first = {load_u64(self._words, self._kind_at(number)): number for number in reversed(numbers)}
        return sorted(first.values())

    @staticmethod
    def _kind_at(number: int) -> int:
        assert number <= _MOST_STEPS, "more steps than there is room for"
        return 8 * (len(_NAMES) + number - 1)


def _kind(name: str) -> int:
    """Return a number for the name and the lines of the package that called the caller's caller."""
    lines = [name]
    frame = sys._getframe(2)
    while frame is not None and len(lines) <= DEPTH:
        if frame.f_globals.get("__name__", "").startswith("filechannel."):
            lines.append(f"{frame.f_code.co_filename}:{frame.f_lineno}")
        frame = frame.f_back  # type: ignore[assignment]
    return crc32("\n".join(lines).encode())


def die_at_each_step(live: Callable[[int], Counts], *, each: bool) -> int:
    """Let a life pass, then let others end before each of its steps, or the first of every kind; return how many."""
    steps = live(NEVER).steps(each=each)
    for step in steps:
        live(step)
    return len(steps)


def die_in_child(work: Callable[[], object], *, after: float | None = None) -> bool:
    """Fork and work in the child. Kill it after so many seconds, unless it dies before; return whether it finished."""
    child = os.fork()
    if not child:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    if after is not None:
        time.sleep(after)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL, f"died of signal {os.WTERMSIG(status)}"
        return False
    assert os.WEXITSTATUS(status) == 0, "failed before it was killed"
    return True
