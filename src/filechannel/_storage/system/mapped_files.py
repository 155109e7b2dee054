"""Mapped files, identified by inode and not by name.

A segment file that is renamed and recycled is the same file. A process that has it mapped continues with the pages that
it has, and pays neither for another map nor for the first access to a page.
"""

from __future__ import annotations

import errno
import mmap
import sys
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias, final

from ..._errors import ClosedResourceError
from ..._format import Guard, can_store
from .os_calls import Files

Inode: TypeAlias = tuple[int, int]
"""Device and inode number: they identify a file, whatever its name."""


def check_storable(map_: mmap.mmap, position: int, size: int, path: Path) -> None:
    """Raise `OSError` if a store to this range of a map would kill the process."""
    if not can_store(map_, position, size):
        raise OSError(
            errno.EIO, "cannot be written to: its file system has shut down, or the file was truncated", str(path)
        )


@final
class OpenFile:
    """An open file. It is closed with the last reference: that of a map, or of a flush that is still to come."""

    def __init__(self, files: Files, descriptor: int) -> None:
        self._files = files
        self._descriptor = descriptor
        self._inode: Inode | None = None
        self._closing: Guard | None = files.closing(descriptor)

    @property
    def descriptor(self) -> int:
        """The file's descriptor, valid until this object is closed or deleted."""
        return self._descriptor

    @property
    def inode(self) -> Inode:
        """The identity of the file. It is queried once, because the query makes the next flush slower."""
        if self._inode is None:
            self._inode = self._files.inode(self._descriptor)
        return self._inode

    @property
    def size(self) -> int:
        """The size of the file."""
        return self._files.size(self._descriptor)

    @property
    def data_end(self) -> int:
        """The position after which the file has only a hole, or nothing."""
        return self._files.data_end(self._descriptor)

    @property
    def links(self) -> int:
        """The number of names the file has; if there are none, its disk space is freed with the last reference."""
        return self._files.links(self._descriptor)

    def read(self, size: int) -> bytes:
        """Return up to *size* bytes from the start of the file."""
        return self._files.read_at(self._descriptor, size, 0)

    def map(self, *, writable: bool, most: int = sys.maxsize) -> mmap.mmap:
        """Map the whole file, or its first *most* bytes if it is longer."""
        return self._files.map(self._descriptor, min(self.size, most), writable=writable)

    def allocate(self, path: Path, position: int, size: int) -> None:
        """Allocate disk space; *path* is for an error message."""
        self._files.allocate(path, self._descriptor, position, size)

    def flush(self) -> None:
        """Wait until the data of the file is on disk."""
        self._files.flush(self._descriptor)

    def flush_names(self) -> None:
        """Wait until the names in this directory are on disk."""
        self._files.flush_names(self._descriptor)

    def holds(self, name: bytes, descriptor: int, inode: Inode) -> bool:
        """Return whether a name in this directory is that of an open file, whose inode is given."""
        return self._files.has_name(self._descriptor, name, descriptor, inode)

    def close(self) -> None:
        """Close the file now, even if this object is still referenced. May be called more than once."""
        self._descriptor = -1
        self._closing = None  # dropping the guard closes the file


@final
class MappedFile:
    """An open file and its map. Both live as long as they are referenced."""

    __slots__ = ("file", "inode", "map")

    def __init__(self, file: OpenFile, map_: mmap.mmap) -> None:
        self.file: OpenFile = file
        self.inode: Inode = file.inode
        self.map: mmap.mmap = map_

    def close(self) -> None:
        """Unmap and close the file now, even if this object is still referenced."""
        self.map.close()
        self.file.close()


@final
class Maps:
    """A bounded number of mapped files; the least recently used one is dropped first. Not thread-safe."""

    def __init__(
        self, most: int, is_pinned: Callable[[MappedFile], bool], on_dropped: Callable[[MappedFile], object]
    ) -> None:
        """*on_dropped* makes all users release a file; a pinned file is not dropped when there are too many."""
        self._most = most
        self._is_pinned = is_pinned
        self._on_dropped = on_dropped
        self._kept: OrderedDict[Inode, MappedFile] = OrderedDict()
        self._closed = False

    def __len__(self) -> int:
        """Return the number of mapped files."""
        return len(self._kept)

    def get(self, inode: Inode) -> MappedFile | None:
        """Return a file that is mapped already; None if it is not."""
        return self._kept.get(inode)

    def files(self) -> list[MappedFile]:
        """Return all mapped files."""
        return list(self._kept.values())

    def keep(self, file: MappedFile) -> None:
        """Keep a file that is used now, and drop the least recently used ones if there are too many.

        Raises `ClosedResourceError`, and closes the file, if it comes too late: the thread started before `close`.
        """
        if self._closed:
            file.close()
            raise ClosedResourceError
        self._kept[file.inode] = file
        self._kept.move_to_end(file.inode)
        while len(self._kept) > self._most:
            oldest = next(
                (each for each in self._kept.values() if each is not file and not self._is_pinned(each)), None
            )
            if oldest is None:
                return
            self.drop(oldest)

    def drop(self, file: MappedFile) -> None:
        """Drop a file, and make all users release it."""
        if self._kept.get(file.inode) is file:
            del self._kept[file.inode]
        self._on_dropped(file)

    def close(self) -> None:
        """Unmap and close every file, even one in use, and keep none from now on."""
        self._closed = True
        while self._kept:
            _, file = self._kept.popitem()
            file.close()
