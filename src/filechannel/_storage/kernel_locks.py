"""Locks on the bytes of a file that the kernel keeps, and frees when their holder dies, however it dies.

They belong to an open file, and live as long as anybody has it: a duplicate of the descriptor, a map, a forked child.
So a file is opened once more for its locks alone, is never mapped through that descriptor, and a child closes it before
it does anything else.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from threading import RLock

from .._format import close_in_child, keep_in_child
from .files import Files

_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.0002, 0.01  # seconds
_EVERYTHING = 0  # the size that reaches to the end, and beyond


class UnwantedError(Exception):
    """Nobody waits any more for what was to be opened."""


class KernelLocks:
    """The locks of one file that this object holds."""

    def __init__(self, files: Files, path: Path, *, create: bool = False, mode: int = 0o600) -> None:
        self._files = files
        with _opening:
            self._descriptor: int = files.open(path, create=create, mode=mode)
            self._ours = close_in_child(self._descriptor)

    def are_of(self, descriptor: int) -> bool:
        """Tell whether they are locks of the file that a descriptor has open."""
        return self._files.identity(self._descriptor) == self._files.identity(descriptor)

    def are_at(self, path: Path) -> bool:
        """Tell whether they are locks of the file that a path leads to."""
        try:
            descriptor = self._files.open(path, writable=False)
        except FileNotFoundError:
            return False
        try:
            return self.are_of(descriptor)
        finally:
            self._files.close(descriptor)

    def read(self, size: int, position: int) -> bytes:
        """Return up to size bytes of the file."""
        return self._files.read_at(self._descriptor, size, position)

    def take(self, byte: int, *, shared: bool = False) -> bool:
        """Lock a byte until it is given back, and tell whether nobody else has it."""
        return self._files.lock(self._descriptor, byte, shared=shared)

    def give_back(self, byte: int) -> None:
        """Free a byte."""
        self._files.unlock(self._descriptor, byte)

    @contextmanager
    def holding(self, byte: int, wanted: Callable[[], bool] = lambda: True) -> Generator[None]:
        """Hold a byte, waiting for it if need be; `UnwantedError` if that is not wanted any more.

        Not with the kernel's own waiting, which nothing but a signal ends: whoever holds it may be stopped.
        """
        pause = _SHORTEST_PAUSE
        while not self.take(byte):
            if not wanted():
                raise UnwantedError
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        try:
            yield
        finally:
            self.give_back(byte)

    def is_taken(self, byte: int) -> bool:
        """Tell whether somebody else holds a byte."""
        return self._files.locked_range(self._descriptor, byte, 1) is not None

    def taken(self, first: int, last: int) -> list[int]:
        """Return which bytes from first to last somebody else holds."""
        return taken_bytes(self._files, self._descriptor, first, last)

    def close(self, finish: Callable[[], object] = lambda: None) -> None:
        """Finish what they were taken for, and free everything; nothing to do in a forked child, or a second time."""
        if keep_in_child(self._ours):
            finish()
            self._files.unlock(self._descriptor, 0, _EVERYTHING)
            self._files.close(self._descriptor)


def taken_bytes(files: Files, descriptor: int, first: int, last: int) -> list[int]:
    """Return which bytes from first to last are locked through other descriptors of a file."""
    found: list[int] = []
    ranges = [(first, last)]
    while ranges:
        start, end = ranges.pop()
        # The kernel names any lock in the range, not the first one: look on both sides of it.
        conflict = files.locked_range(descriptor, start, end - start + 1) if start <= end else None
        if conflict is not None:
            begin, size = conflict
            stop = end if size == _EVERYTHING else min(begin + size - 1, end)
            begin = max(begin, start)
            found += range(begin, stop + 1)
            ranges += [(start, begin - 1), (stop + 1, end)]
    return sorted(found)


_opening = RLock()  # a signal handler may fork while its own thread has it
"""Held from opening a file until it is known that a child must close it; no fork happens in between."""

os.register_at_fork(before=_opening.acquire, after_in_parent=_opening.release, after_in_child=_opening.release)
