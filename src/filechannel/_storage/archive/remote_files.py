"""Files that are not on this machine: named by paths as here, read in parts, and put there as a whole.

What never changes any more, finished segments in their compressed form, can be read from anywhere by the same code.
"""

from __future__ import annotations

import secrets
from abc import abstractmethod
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Final, Protocol, final

from typing_extensions import Buffer

from .._format import Map
from .files import Files

TEMPORARY: Final = "new-"
"""How the name of a file begins that is still on its way; behind its own it has something of the sender's."""


class RemoteFile(Protocol):
    """One that is open."""

    @property
    def size(self) -> int:
        """How many bytes it has."""
        ...

    def read_at(self, size: int, position: int) -> bytes:
        """Return up to so many bytes from a position."""
        ...

    def close(self) -> None:
        """Let go of it."""
        ...


class RemoteFiles(Files):
    """A file system elsewhere. What only a local one can do is left out: nothing there is mapped, grown or locked."""

    def __init__(self) -> None:
        self._opened: dict[int, RemoteFile] = {}
        self._numbers = count(1)

    @abstractmethod
    def open_file(self, path: Path) -> RemoteFile:
        """Open a file to read; `FileNotFoundError` if it is not there."""

    @abstractmethod
    def upload(self, local: Path, path: Path) -> None:
        """Copy a file of this machine there, not necessarily at once. Directories are made."""

    @abstractmethod
    def describe(self, path: Path) -> str:
        """Return what a user calls a path."""

    def put(self, local: Path, path: Path) -> None:
        """Copy a file of this machine there, in place of what may be there: whoever finds it finds all of it.

        Two may put the same file at the same time.
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
        """Return a number that stands for an open file."""
        assert not create
        assert not writable
        number = next(self._numbers)
        self._opened[number] = self.open_file(path)
        return number

    def read(self, path: Path, most: int) -> bytes:
        """Return the content of a file, but not more bytes of it than that."""
        file = self.open_file(path)
        try:
            return file.read_at(min(most, file.size), 0)
        finally:
            file.close()

    def read_at(self, descriptor: int, size: int, position: int) -> bytes:
        """Return up to size bytes from a position."""
        return self._opened[descriptor].read_at(size, position)

    def size(self, descriptor: int) -> int:
        """Return the size of an open file."""
        return self._opened[descriptor].size

    def close(self, descriptor: int) -> None:
        """Close an open file."""
        self._opened.pop(descriptor).close()

    def map(self, descriptor: int, size: int, *, writable: bool = True, private: bool = False) -> Map:
        """Return memory of our own: whoever reads wants a page for words that other processes share elsewhere."""
        assert private
        return Map(-1, size)


@final
class HeldFiles(RemoteFiles):
    """One file whose content is in memory already."""

    def __init__(self, path: Path, content: Buffer) -> None:
        super().__init__()
        self._path = path
        self._content = memoryview(content)

    def describe(self, path: Path) -> str:
        """Return the path."""
        return str(path)

    def open_file(self, path: Path) -> RemoteFile:
        """Open it."""
        assert path == self._path
        return _Held(self._content)

    def upload(self, local: Path, path: Path) -> None:
        """Refuse: it is there to be read."""
        raise NotImplementedError


@final
class _Held:
    def __init__(self, content: memoryview) -> None:
        self._content = content
        self.size: int = content.nbytes

    def read_at(self, size: int, position: int) -> bytes:
        return bytes(self._content[position : position + size])

    def close(self) -> None:
        pass
