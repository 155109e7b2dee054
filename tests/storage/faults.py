"""A file system whose calls can be counted and made to fail."""

from __future__ import annotations

import errno
import mmap
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from filechannel import DiskFullError
from filechannel._storage.system.os_calls import Files

NEEDING_SPACE = frozenset({"make_directory", "create", "write_at", "allocate", "replace"})
"""Calls for which a disk can be too full."""
FLUSHING = frozenset({"flush", "flush_directory"})


class FaultyFiles(Files):
    """The real file system, until a call is made to fail.

    `fail` makes the n-th of some calls fail from now on, once or until further notice.
    """

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.flushed: list[Path] = []
        self._failing: frozenset[str] = frozenset()
        self._countdown = 0
        self._error: Callable[[Path], BaseException] = disk_full
        self._once = True
        self.failures = 0

    def fail(
        self, calls: frozenset[str], error: Callable[[Path], BaseException], *, at: int = 1, once: bool = False
    ) -> None:
        """Let the n-th of these calls fail, and all that follow unless it is only once."""
        self._failing, self._error, self._countdown, self._once = calls, error, at, once

    def work(self) -> None:
        """Let everything work again."""
        self._failing = frozenset()

    def _called(self, name: str, where: Path | int) -> None:
        self.calls[name] += 1
        if name not in self._failing:
            return
        self._countdown -= 1
        if self._countdown == 0 or (self._countdown < 0 and not self._once):
            self.failures += 1
            raise self._error(where if isinstance(where, Path) else _path_of(where))

    def make_directory(self, path: Path, mode: int) -> None:
        """Fail or make a directory."""
        self._called("make_directory", path)
        super().make_directory(path, mode)

    def open(self, path: Path, *, create: bool = False, writable: bool = True, mode: int = 0o600) -> int:
        """Fail or open."""
        self._called("create" if create and not path.exists() else "open", path)
        return super().open(path, create=create, writable=writable, mode=mode)

    def create(self, path: Path, mode: int, *, replace: bool = True) -> int:
        """Fail or create."""
        self._called("create", path)
        return super().create(path, mode, replace=replace)

    def make(self, path: Path, size: int, content: bytes, position: int, mode: int) -> None:
        """Fail or make a file."""
        self._called("create", path)
        super().make(path, size, content, position, mode)

    def write_at(self, descriptor: int, data: bytes, position: int) -> None:
        """Fail or write."""
        self._called("write_at", descriptor)
        super().write_at(descriptor, data, position)

    def allocate(self, path: Path, descriptor: int, position: int, size: int) -> None:
        """Fail or allocate."""
        self._called("allocate", path)
        super().allocate(path, descriptor, position, size)

    def map(self, descriptor: int, size: int, *, writable: bool = True, private: bool = False) -> mmap.mmap:
        """Fail or map."""
        self._called("map", descriptor)
        return super().map(descriptor, size, writable=writable, private=private)

    def flush(self, descriptor: int) -> None:
        """Fail or flush."""
        self._called("flush", descriptor)
        self.flushed.append(_path_of(descriptor))
        super().flush(descriptor)

    def flush_directory(self, directory: Path) -> None:
        """Fail or flush."""
        self._called("flush_directory", directory)
        self.flushed.append(directory)
        super().flush_directory(directory)

    def flush_names(self, descriptor: int) -> None:
        """Fail or flush."""
        self._called("flush_directory", descriptor)
        self.flushed.append(_path_of(descriptor))
        super().flush_names(descriptor)

    def links(self, descriptor: int) -> int:
        """Fail or count the names of a file."""
        self._called("links", descriptor)
        return super().links(descriptor)

    def has_name(self, directory: int, name: bytes, descriptor: int, inode: tuple[int, int]) -> bool:
        """Fail or look whether a file has a name."""
        self._called("has_name", descriptor)
        return super().has_name(directory, name, descriptor, inode)

    def replace(self, source: Path, target: Path) -> None:
        """Fail or rename."""
        self._called("replace", target)
        super().replace(source, target)

    @property
    def watch_roll(self) -> Callable[[str], object]:
        """Fail at any step, or continue."""
        return lambda step: self._called(step, Path("the next segment"))

    def unlink(self, path: Path) -> None:
        """Fail or remove."""
        self._called("unlink", path)
        super().unlink(path)


class FewDescriptors(FaultyFiles):
    """A file system for a process that has run out of descriptors, while the test says so."""

    has_none = False

    def open(self, path: Path, *, create: bool = False, writable: bool = True, mode: int = 0o600) -> int:
        """Refuse it, or open."""
        self._refuse(path)
        return super().open(path, create=create, writable=writable, mode=mode)

    def create(self, path: Path, mode: int, *, replace: bool = True) -> int:
        """Refuse it, or create."""
        self._refuse(path)
        return super().create(path, mode, replace=replace)

    def list(self, directory: Path) -> list[str]:
        """Refuse it, or return the names: the directory has to be opened."""
        self._refuse(directory)
        return super().list(directory)

    def read(self, path: Path, most: int) -> bytes:
        """Refuse it, or read."""
        self._refuse(path)
        return super().read(path, most)

    def flush_directory(self, directory: Path) -> None:
        """Refuse it, or flush: the directory has to be opened."""
        self._refuse(directory)
        super().flush_directory(directory)

    def _refuse(self, path: Path) -> None:
        if self.has_none:
            raise too_many_open_files(path)


def disk_full(path: Path) -> Exception:
    """Return what `Files` raises on a full disk."""
    return DiskFullError(path, 4096)


def input_output_error(path: Path) -> Exception:
    """Return what the kernel says about a broken disk."""
    return OSError(errno.EIO, os.strerror(errno.EIO), str(path))


def too_many_open_files(path: Path) -> Exception:
    """Return what the kernel says when descriptors have run out."""
    return OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))


def _path_of(descriptor: int) -> Path:
    return Path(f"/proc/self/fd/{descriptor}").readlink()
