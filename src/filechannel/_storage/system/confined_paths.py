"""The confinement of paths: no link inside a channel's directory is ever followed.

A channel's directory is not trusted: a user who can write to it, or who supplied it, may have put anything there. So
paths are resolved in two parts. The path of the channel itself comes from the caller, and links in it are followed.
Below it, no link is followed: the directory that holds a name is opened with `O_NOFOLLOW`, component by component, and
the operation is relative to that descriptor. So replacing a directory by a link meanwhile has no effect. A file
directly in the channel's directory needs no descriptor: only its last component does not come from the caller.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import final

from ..._errors import UnexpectedFileError

DIRECTORY = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
"""The flags to open a directory inside a channel."""
KINDS = {
    stat.S_IFREG: "a regular file",
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


@final
class ChannelRoot:
    """The open directory of a channel: names below it are looked up in this directory, wherever its path leads now.

    It is closed with the last reference, so that no call can use the descriptor after that.
    """

    __slots__ = ("descriptor",)

    def __init__(self, path: str) -> None:
        self.descriptor = -1
        self.descriptor = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        """Close the descriptor."""
        if self.descriptor >= 0:
            close(self.descriptor)


@final
class ParentDirectory:
    """The directory that holds a name: entering it returns the name to use, and the descriptor it is relative to."""

    __slots__ = ("_base", "_descriptor", "_pinned", "_roots", "_text")

    def __init__(self, path: Path, roots: frozenset[str], pinned: Mapping[str, ChannelRoot]) -> None:
        self._text = os.fspath(path)
        self._roots = roots
        self._pinned = pinned
        self._base: ChannelRoot | None = None
        self._descriptor: int | None = None

    @property
    def _at(self) -> int | None:
        """The descriptor that the next component is relative to."""
        return self._descriptor if self._descriptor is not None or self._base is None else self._base.descriptor

    def __enter__(self) -> tuple[str, int | None]:
        directory, _, name = self._text.rpartition("/")
        below, step = list[str](), ""
        at = directory
        while at and at not in self._roots:
            at, _, part = at.rpartition("/")
            below.append(part)
        if not at or self._text in self._roots:
            return self._text, None  # outside a channel, or the path of a channel itself
        self._base = self._pinned.get(at)
        if not below:
            return (self._text, None) if self._base is None else (name, self._base.descriptor)
        try:
            while below:
                at = f"{at}/{below[-1]}"
                step = at if self._at is None else below[-1]
                descriptor = os.open(step, os.O_PATH | DIRECTORY, dir_fd=self._at)
                self.__exit__()
                self._descriptor = descriptor
                below.pop()
        except NotADirectoryError:
            found = kind_of(step, self._at)
            self.__exit__()
            if found == "nothing":
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), at) from None
            raise UnexpectedFileError(at, found, "a directory", channel=channel_of(at, self._roots)) from None
        except OSError as error:
            self.__exit__()
            error.filename = at
            raise
        return name, self._descriptor

    def __exit__(self, _kind: object = None, error: BaseException | None = None, _trace: object = None) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)
        if isinstance(error, OSError) and error.filename is not None and (descriptor is not None or self._base):
            error.filename = self._text  # the path that the caller passed


def channel_of(path: str, roots: frozenset[str]) -> str | None:
    """Return which of the channels a path lies in, or is the path of; None if in none of them."""
    while path and path not in roots:
        path = path.rpartition("/")[0]
    return path or None


def kind_of(name: str, directory: int | None) -> str:
    """Return what kind of file has a name, in words."""
    try:
        return KINDS[stat.S_IFMT(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode)]
    except OSError:
        return "nothing"
