"""Remote files: named by paths like local ones, read in ranges, and written as a whole.

Files that never change any more, such as finished compressed segments, can be read from anywhere by the same code.
"""

from __future__ import annotations

import secrets
from abc import abstractmethod
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Final, Protocol, final

from typing_extensions import Buffer

from ..._format import Map
from ..system.os_calls import Files

TEMPORARY: Final = "new-"
"""The prefix of an incomplete file; its own name follows, and a random suffix of the sender."""


class RemoteFile(Protocol):
    """An open remote file."""

    @property
    def size(self) -> int:
        """The size of the file."""
        ...

    def read_at(self, size: int, position: int) -> bytes:
        """Return up to *size* bytes from a position."""
        ...

    def close(self) -> None:
        """Close the file."""
        ...


class RemoteFiles(Files):
    """A remote file system. Operations that only a local one supports are missing: no mapping, growing or locking."""

    def __init__(self) -> None:
        self._opened: dict[int, RemoteFile] = {}
        self._numbers = count(1)

    @abstractmethod
    def open_file(self, path: Path) -> RemoteFile:
        """Open a file for reading; `FileNotFoundError` if it does not exist."""

    @abstractmethod
    def upload(self, local: Path, path: Path) -> None:
        """Copy a local file there, not necessarily atomically. Missing directories are created."""

    @abstractmethod
    def describe(self, path: Path) -> str:
        """Return a path as it is shown to users."""

    def put(self, local: Path, path: Path) -> None:
        """Copy a local file there atomically, replacing an existing one: a reader never sees a part of it.

        Two processes may put the same file at the same time.
        """
        temporary = path.with_name(f"{TEMPORARY}{path.name}-{secrets.token_hex(6)}")
        try:
            self.upload(local, temporary)
            self.replace(temporary, path)
        except BaseException:
            with suppress(OSError):
                self.unlink(temporary)
            raise

    def open(self, path: Path, *, create: bool = False, writable: bool = True, mode: int = 0o600) -> int:
        """Open a file for reading. Return a number that identifies it, like a descriptor."""
        assert not create
        assert not writable
        number = next(self._numbers)
        self._opened[number] = self.open_file(path)
        return number

    def read(self, path: Path, most: int) -> bytes:
        """Return at most *most* bytes of a file."""
        file = self.open_file(path)
        try:
            return file.read_at(min(most, file.size), 0)
        finally:
            file.close()

    def read_at(self, descriptor: int, size: int, position: int) -> bytes:
        """Return up to *size* bytes from a position."""
        return self._opened[descriptor].read_at(size, position)

    def size(self, descriptor: int) -> int:
        """Return the size of an open file."""
        return self._opened[descriptor].size

    def close(self, descriptor: int) -> None:
        """Close an open file."""
        self._opened.pop(descriptor).close()

    def map(self, descriptor: int, size: int, *, writable: bool = True, private: bool = False) -> Map:
        """Return private memory: readers need a page for the words that processes share in a local channel."""
        assert private
        return Map(-1, size)


@final
class MemoryFiles(RemoteFiles):
    """A file system with one file, whose content is in memory."""

    def __init__(self, path: Path, content: Buffer) -> None:
        super().__init__()
        self._path = path
        self._content = memoryview(content)

    def describe(self, path: Path) -> str:
        """Return the path."""
        return str(path)

    def open_file(self, path: Path) -> RemoteFile:
        """Open the file."""
        assert path == self._path
        return _MemoryFile(self._content)

    def upload(self, local: Path, path: Path) -> None:
        """Raise `NotImplementedError`: the file can only be read."""
        raise NotImplementedError


@final
class _MemoryFile:
    """The open file of `MemoryFiles`."""

    def __init__(self, content: memoryview) -> None:
        self._content = content
        self.size: int = content.nbytes

    def read_at(self, size: int, position: int) -> bytes:
        return bytes(self._content[position : position + size])

    def close(self) -> None:
        pass
