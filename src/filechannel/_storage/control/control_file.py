"""The open file `control`, whose first pages are the control page."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import final

from ..._errors import ClosedResourceError, StorageError
from ..system.mapped_files import Inode, OpenFile
from ..system.os_calls import Files

CONTROL = "control"


@final
class ControlFile:
    """The open control file of one channel. The descriptor belongs to the caller, who closes it."""

    def __init__(self, files: Files, descriptor: int, path: Path) -> None:
        self._files = files
        self.path = path
        """The path of the file, for error messages; relative if the full path is not known."""
        self._opened: int = descriptor
        self._inode: Inode = files.inode(descriptor)

    def close(self) -> None:
        """Forget the descriptor: from now on, every use of the file raises `ClosedResourceError`."""
        self._opened = -1

    @property
    def descriptor(self) -> int:
        """The open file; raises `ClosedResourceError` after `close`: the number may belong to another file then."""
        if self._opened < 0:
            raise ClosedResourceError
        return self._opened

    def check_name(self, directory: OpenFile, name: bytes) -> None:
        """Raise `StorageError` if the file was deleted or replaced: other processes cannot see what is published here.

        *name* is the name of the file, relative to the directory.
        """
        if not directory.holds(name, self.descriptor, self._inode):
            raise replaced(CONTROL)

    @property
    def identity(self) -> tuple[int, int]:
        """Device and inode of the file, queried now."""
        return self._files.identity(self.descriptor)

    @property
    def mount(self) -> int:
        """The id of the mount that the file was opened through; 0 if it is unknown."""
        return self._files.mount(self.descriptor)

    @property
    def size(self) -> int:
        """The size of the file."""
        return self._files.size(self.descriptor)

    @property
    def creation_space(self) -> int:
        """How much free space the file system requires to create a file, but does not use."""
        return self._files.creation_space(self.descriptor)

    def allocate(self, size: int) -> None:
        """Allocate disk space for the first *size* bytes."""
        self._files.allocate(self.path, self.descriptor, 0, size)

    def cut(self, size: int) -> None:
        """Truncate the file, to free disk space. No process may have that part mapped."""
        self._files.cut(self.descriptor, size)

    def map(self, size: int, *, writable: bool, private: bool) -> mmap.mmap:
        """Map the first *size* bytes, shared unless *private*."""
        return self._files.map(self.descriptor, size, writable=writable, private=private)

    def write_at(self, data: bytes, position: int) -> None:
        """Write all of *data* at a position."""
        self._files.write_at(self.descriptor, data, position)

    def flush(self) -> None:
        """Wait until the data of the file is on disk."""
        self._files.flush(self.descriptor)

    def check_running(self) -> None:
        """Raise `OSError` if the file system of the channel has shut down."""
        self._files.check_running(self.descriptor)


def replaced(what: str) -> StorageError:
    """Return the error that says that a part of the channel was deleted or replaced."""
    return StorageError(
        f"{what} was deleted or replaced while the channel was open: processes that open the channel now "
        "cannot receive what is sent here; close it, and open it again"
    )
