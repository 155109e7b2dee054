"""Kernel locks on the bytes of a file, which the kernel frees when their holder dies, however it dies.

The locks belong to an open file, and live as long as it is open anywhere: through a duplicate of the descriptor, a map,
or a forked child. So a file is opened once more for its locks alone and is never mapped through that descriptor, and a
forked child closes it before it does anything else.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from ..._errors import ClosedResourceError, StorageError
from ..._format import Mutex, close_in_child, keep_in_child
from ..._runtime.fork_registry import hold_while_forking
from .os_calls import Files

_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.0002, 0.01  # seconds
DELAY = 2.0
"""Seconds of waiting after which the delay is reported."""
_EVERYTHING = 0  # as a size, it means: to the end of the file, and beyond


class UnwantedError(Exception):
    """The caller does not want any more what was to be opened."""


class KernelLocks:
    """The locks of one file that this object holds, through a descriptor of its own."""

    def __init__(
        self,
        files: Files,
        path: Path,
        *,
        create: bool = False,
        mode: int = 0o600,
        writable: bool = True,
        base: int = 0,
        linked: bool = False,
    ) -> None:
        """Count bytes from *base* on. With *linked*, the file may have names outside the channel."""
        self._files = files
        self._path = path
        self._base = base
        with _opening.held():
            self._opened: int = -1
            if linked and files.link_problem(path) is not None:
                self._opened = files.open_for_locks(path)
            else:
                self._opened = files.open(path, create=create, mode=mode, writable=writable)
            self._ours = close_in_child(self._descriptor)

    @property
    def _descriptor(self) -> int:
        """The open file; raises `ClosedResourceError` after `close`: the number may belong to another file then."""
        if self._opened < 0:
            raise ClosedResourceError
        return self._opened

    def beside(self, base: int) -> KernelLocks:
        """Return other locks of the same file, from a byte on, which conflict with these.

        Raises `StorageError` if the file was deleted: what another process opens under its name has other locks.
        """
        try:
            locks = KernelLocks(self._files, self._path, base=base)
        except FileNotFoundError:
            raise self._replaced() from None
        if not locks.are_of(self._descriptor):
            locks.close()
            raise self._replaced()
        return locks

    def check_name(self) -> None:
        """Raise `StorageError` if another process that opens the file would not see these locks."""
        if not self.are_named():
            raise self._replaced()

    def _replaced(self) -> StorageError:
        return StorageError(
            f"{self._path} was deleted or replaced while the channel was open; "
            "close the channel in every process, then open it again"
        )

    def let_in(self, like: int, permissions: Callable[[int], int]) -> None:
        """Give the file the owner of another open file, and permission bits that are derived from that file's."""
        self._files.share_like(self._descriptor, like, permissions)

    @property
    def inode(self) -> int:
        """The inode number of the file, which no other file has as long as this one is open."""
        return self._files.inode(self._descriptor)[1]

    def are_of(self, descriptor: int) -> bool:
        """Return whether these are locks of the file that a descriptor has open."""
        return self._files.inode(self._descriptor) == self._files.inode(descriptor)

    def are_named(self) -> bool:
        """Return whether the file still has its name, so that another process that opens it sees these locks."""
        return self._files.leads_to(self._path, self._descriptor)

    def take(self, byte: int, *, shared: bool = False) -> bool:
        """Lock a byte until `release`; return whether that succeeded. Never waits."""
        return self._files.lock(self._descriptor, self._base + byte, shared=shared)

    def release(self, byte: int) -> None:
        """Unlock a byte."""
        self._files.unlock(self._descriptor, self._base + byte)

    @contextmanager
    def holding(
        self, byte: int, wanted: Callable[[], bool] = lambda: True, on_delay: Callable[[], object] = lambda: None
    ) -> Generator[None]:
        """Hold a byte, waiting for it if necessary; raise `UnwantedError` if *wanted* returns False meanwhile.

        A wait of seconds calls *on_delay*, once. The kernel's own blocking call is not used, because only a signal can
        end it: the process that holds the byte may be stopped.
        """
        pause, late = _SHORTEST_PAUSE, time.monotonic() + DELAY
        while not self.take(byte):
            if not wanted():
                raise UnwantedError
            if time.monotonic() > late:
                late = math.inf
                on_delay()
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        try:
            yield
        finally:
            self.release(byte)

    def is_taken(self, byte: int, *, shared: bool = True) -> bool:
        """Return whether a byte is locked through another descriptor; without *shared*, whether exclusively."""
        return self._files.locked_range(self._descriptor, self._base + byte, 1, shared=shared) is not None

    def taken(self, first: int, last: int, *, shared: bool = True) -> list[int]:
        """Return which bytes from first to last are locked through other descriptors."""
        found = taken_bytes(self._files, self._descriptor, self._base + first, self._base + last, shared=shared)
        return [byte - self._base for byte in found]

    def close(self, finish: Callable[[], object] = lambda: None) -> None:
        """Call *finish*, then free all locks and close the file. Does nothing in a forked child, or if called again."""
        if keep_in_child(self._ours):
            finish()
            descriptor, self._opened = self._opened, -1
            self._files.unlock(descriptor, 0, _EVERYTHING)
            self._files.close(descriptor)


def taken_bytes(files: Files, descriptor: int, first: int, last: int, *, shared: bool = True) -> list[int]:
    """Return which bytes from first to last are locked through other descriptors; without *shared*, exclusively."""
    found: list[int] = []
    ranges = [(first, last)]
    while ranges:
        start, end = ranges.pop()
        # The kernel returns any lock in the range, not the first one: look on both sides of it.
        conflict = files.locked_range(descriptor, start, end - start + 1, shared=shared) if start <= end else None
        if conflict is not None:
            begin, size = conflict
            stop = end if size == _EVERYTHING else min(begin + size - 1, end)
            begin = max(begin, start)
            found += range(begin, stop + 1)
            ranges += [(start, begin - 1), (stop + 1, end)]
    return sorted(found)


_opening = Mutex()  # a signal handler may fork while its own thread has it
"""Held from opening a file until it is registered to be closed in a child; no fork happens in between."""

hold_while_forking(_opening.lock, _opening.unlock)
