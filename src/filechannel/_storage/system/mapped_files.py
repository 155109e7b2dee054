"""Files that are mapped, known by what they are and not by their names.

A segment's file that is renamed and written again is the same file. Whoever has it mapped goes on with the pages that
are there, and pays neither for another map nor for the first touch of a page.
"""

from __future__ import annotations

import errno
import mmap
import sys
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias, final

from .._errors import ClosedResourceError
from .._format import Guard, can_store
from .files import Files

Inode: TypeAlias = tuple[int, int]
"""Device and number: what a file is, whatever its name."""


def check_storable(map_: mmap.mmap, position: int, size: int, path: Path) -> None:
    """Raise `OSError` if a store would kill the process."""
    if not can_store(map_, position, size):
        raise OSError(errno.EIO, "cannot be stored to: its file system has shut down, or it was cut off", str(path))


@final
class OpenFile:
    """An open file, closed with the last one who uses it: a map, or a flush that is still to come."""

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
        """What the file is; asked once, because asking for it makes the next flush slower."""
        if self._inode is None:
            self._inode = self._files.inode(self._descriptor)
        return self._inode

    @property
    def size(self) -> int:
        """How long it is."""
        return self._files.size(self._descriptor)

    @property
    def data_end(self) -> int:
        """The position behind which it has only a hole, or nothing."""
        return self._files.data_end(self._descriptor)

    @property
    def links(self) -> int:
        """How many names it has; with none its disk space is free when the last one lets go of it."""
        return self._files.links(self._descriptor)

    def read(self, size: int) -> bytes:
        """Return up to so many bytes from its beginning."""
        return self._files.read_at(self._descriptor, size, 0)

    def map(self, *, writable: bool, most: int = sys.maxsize) -> mmap.mmap:
        """Map all of it, or the beginning if it has more bytes than *most*."""
        return self._files.map(self._descriptor, min(self.size, most), writable=writable)

    def allocate(self, path: Path, position: int, size: int) -> None:
        """Reserve disk space; the path is for an error message."""
        self._files.allocate(path, self._descriptor, position, size)

    def flush(self) -> None:
        """Wait until its data is on disk."""
        self._files.flush(self._descriptor)

    def flush_names(self) -> None:
        """Wait until its names are on disk; it is a directory."""
        self._files.flush_names(self._descriptor)

    def holds(self, name: bytes, descriptor: int, inode: Inode) -> bool:
        """Return whether a name in this directory is that of an open file, whose inode is given."""
        return self._files.has_name(self._descriptor, name, descriptor, inode)

    def close(self) -> None:
        """Close it now, even if this object is still referred to. Closing twice is closing once."""
        self._descriptor = -1
        self._closing = None  # which closes it


@final
class MappedFile:
    """An open file and a map of all of it. Both live as long as anybody uses them."""

    __slots__ = ("file", "inode", "map")

    def __init__(self, file: OpenFile, map_: mmap.mmap) -> None:
        self.file: OpenFile = file
        self.inode: Inode = file.inode
        self.map: mmap.mmap = map_

    def close(self) -> None:
        """Unmap and close it now, even if this object is still referred to."""
        self.map.close()
        self.file.close()


@final
class Maps:
    """A bounded number of mapped files; the one that was not used for longest goes first. Not locked."""

    def __init__(
        self, most: int, is_pinned: Callable[[MappedFile], bool], on_dropped: Callable[[MappedFile], object]
    ) -> None:
        """*on_dropped* has everybody let go of a file, unless it is pinned."""
        self._most = most
        self._is_pinned = is_pinned
        self._on_dropped = on_dropped
        self._kept: OrderedDict[Inode, MappedFile] = OrderedDict()
        self._closed = False

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._kept)

    def get(self, inode: Inode) -> MappedFile | None:
        """Return a file that is mapped already."""
        return self._kept.get(inode)

    def files(self) -> list[MappedFile]:
        """Return all that are mapped."""
        return list(self._kept.values())

    def keep(self, file: MappedFile) -> None:
        """Keep a file that is used now, and drop others if that is one too many.

        `ClosedResourceError`, and the file is closed, if that comes too late: the thread began before `close`.
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
        """Let go of a file, and have everybody do so."""
        if self._kept.get(file.inode) is file:
            del self._kept[file.inode]
        self._on_dropped(file)

    def close(self) -> None:
        """Unmap and close every file, even one in use, and keep none from now on."""
        self._closed = True
        while self._kept:
            _, file = self._kept.popitem()
            file.close()
