"""Files that are mapped, known by what they are and not by their names.

A segment's file that is renamed and written again is the same file. Whoever has it mapped goes on with the pages that
are there, and pays neither for another map nor for the first touch of a page.
"""

from __future__ import annotations

import mmap
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias, final

from .files import Files

Inode: TypeAlias = tuple[int, int]
"""Device and number: what a file is, whatever its name."""


@final
class OpenFile:
    """An open file, closed with the last one who uses it: a map, or a flush that is still to come."""

    def __init__(self, files: Files, descriptor: int) -> None:
        self._files = files
        self._descriptor = descriptor

    @property
    def inode(self) -> Inode:
        """What the file is."""
        return self._files.inode(self._descriptor)

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

    def map(self, *, writable: bool) -> mmap.mmap:
        """Map all of it."""
        return self._files.map(self._descriptor, self.size, writable=writable)

    def allocate(self, path: Path, position: int, size: int) -> None:
        """Reserve disk space; the path is for an error message."""
        self._files.allocate(path, self._descriptor, position, size)

    def flush(self) -> None:
        """Wait until its data is on disk."""
        self._files.flush(self._descriptor)

    def flush_names(self) -> None:
        """Wait until its names are on disk; it is a directory."""
        self._files.flush_names(self._descriptor)

    def __del__(self) -> None:
        """Close it."""
        self._files.close(self._descriptor)


@final
class MappedFile:
    """An open file and a map of all of it. Both live as long as anybody uses them."""

    __slots__ = ("file", "inode", "map")

    def __init__(self, file: OpenFile, map_: mmap.mmap) -> None:
        self.file: OpenFile = file
        self.inode: Inode = file.inode
        self.map: mmap.mmap = map_


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
        """Keep a file that is used now, and drop others if that is one too many."""
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

    def clear(self) -> None:
        """Let go of every file; who uses one keeps it."""
        self._kept.clear()
