"""The free list: files of reclaimed segments, and files created in advance, which become segments later.

A free file is called `spare-*.seg` and has the size of an ordinary segment. Its content has no meaning: the magic
number of a retired segment is overwritten, and its records validate at no offset that is still to come. So a free file
that a dead process left, complete or not, can be used like any other.

Free files are taken only with the writer lock held. So the lock holder that finds the file under its name may write to
it. Any process may delete a free file at any time: then the rename fails, and nothing is lost.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, final

from ..._errors import DiskFullError, UnexpectedFileError
from ..._format import Mutex
from ..._format.layout import SEGMENT_MAGIC
from ..system.mapped_files import Inode, OpenFile
from ..system.os_calls import Files
from .segment import HALF_MADE, begin_of

FREE_FILE_PREFIX: Final = "spare-"
_MOSTLY = 3 / 4  # of its disk space: then the file was written to the end, and the rest is rounding


def free_file_names(files: Files, directory: Path) -> list[str]:
    """Return the names of the free files in a directory."""
    return [name for name in files.list(directory) if name.startswith(FREE_FILE_PREFIX)]


@final
@dataclass(frozen=True, slots=True)
class FreeFile:
    """A file of the free list."""

    path: Path
    inode: Inode
    is_whole: bool
    """Whether all its disk space is known to be allocated."""


@final
class FreeList:
    """The free list of one channel, as far as this process knows it."""

    def __init__(
        self,
        files: Files,
        directory: Path,
        size: int,
        mode: int,
        most: Callable[[], int],
        fit_from: Callable[[], int],
        check_directory: Callable[[], object],
    ) -> None:
        """*most* returns the maximum length of the list; files of segments that begin below *fit_from* are deleted.

        *check_directory* is called before a file is created; it raises if the directory is not the channel's any more.
        """
        self._files = files
        self._directory = directory
        self.size = size
        self._mode = mode
        self._most = most
        self._fit_from = fit_from
        self._check_directory = check_directory
        self._changing = Mutex()  # a signal handler may send while its thread is inside, and need the disk space
        self._waiting: list[FreeFile] = []  # the most recently written file last: its pages are still cached

    def names(self) -> list[str]:
        """Return the names of all free files, of this and other processes."""
        return free_file_names(self._files, self._directory)

    @property
    def most(self) -> int:
        """The maximum length of the list."""
        return self._most()

    @property
    def next(self) -> FreeFile | None:
        """The file that is taken next, as far as this process knows."""
        waiting = self._waiting[-1:]
        return waiting[0] if waiting else None

    # Adding

    def recycle(self, path: Path, begin: int) -> None:
        """Add the file of a retired segment, or delete it if the list is full or the file cannot be recycled.

        The file must not be needed any more: its records lie below the oldest offset, or are stored elsewhere, too.
        """
        with self._changing.held():
            free_file, names = None, self.names()
            self._waiting = [each for each in self._waiting if each.path.name in names]  # the rest was taken or deleted
            if begin >= self._fit_from() and len(names) < self._most():
                with suppress(OSError, DiskFullError):  # then it cannot be recycled
                    free_file = self._take_out_of_use(path)
            if free_file is None:
                self._files.unlink(path)
            else:
                self._waiting.append(free_file)

    def _take_out_of_use(self, path: Path) -> FreeFile | None:
        try:
            descriptor = self._files.open(path)
        except (FileNotFoundError, UnexpectedFileError):
            return None
        file = OpenFile(self._files, descriptor)
        if file.size != self.size or file.links != 1:  # a file with a second name may be part of a backup
            return None
        # Other processes may be retiring the same segment, and a late one must not change what the file has become by
        # then. So the file first gets a name that no process looks for, and only one process succeeds in that rename.
        taken = path.with_name(HALF_MADE + path.name)
        self._files.replace(path, taken)
        try:
            # Before anything else in the file changes: a reader that finds an invalid record checks here whether the
            # file is still the same segment.
            self._files.write_at(descriptor, bytes(len(SEGMENT_MAGIC)), 0)
            free_file = FreeFile(path.with_name(FREE_FILE_PREFIX + path.name), file.inode, is_whole=False)
            if self._files.disk_space(taken) >= self.size * _MOSTLY:
                free_file = self._allocate_all(free_file, file)
            self._files.replace(taken, free_file.path)
        except BaseException:
            self._files.unlink(taken)
            raise
        return free_file

    def _allocate_all(self, free_file: FreeFile, file: OpenFile) -> FreeFile:
        with suppress(DiskFullError):  # the process that writes to it allocates again, and gets the error
            file.allocate(free_file.path, 0, self.size)
            return replace(free_file, is_whole=True)
        return free_file

    def prepare(self, active: str) -> FreeFile | None:
        """Ensure that the list has a file with all its disk space, and return it; None if the list must stay empty.

        *active* is the name of the segment that the file is to follow. Raises `DiskFullError` if there is not enough
        disk space. Does file system work, so it must not be called on a sender's thread.
        """
        with self._changing.held():
            if not self._most():
                return None
            # Taken out of the list during the allocation: a sender that needs a file now takes another one.
            free_file = self.take()
            if free_file is None:
                self._add_unknown()
                free_file = self.take()
            if free_file is None:
                # A name that is never used again: a process that saw it and renames it later moves this file, and no
                # other.
                free_file = self._create(self._directory / f"{FREE_FILE_PREFIX}{secrets.token_hex(8)}-after-{active}")
            elif not free_file.is_whole:
                with suppress(FileNotFoundError):  # another process has taken it
                    free_file = self._allocate_all(free_file, OpenFile(self._files, self._files.open(free_file.path)))
            self._waiting.append(free_file)
            return free_file

    def _add_unknown(self) -> list[str]:
        """Add the files that other processes left, and return the names of all free files."""
        known, names = {free_file.path.name for free_file in self._waiting}, self.names()
        for name in names:
            path = self._directory / name
            with suppress(OSError):
                if name in known:
                    continue
                file = OpenFile(self._files, self._files.open(path))
                if file.size == self.size and file.links == 1:
                    self._waiting.append(FreeFile(path, file.inode, is_whole=False))
        return names

    def _create(self, path: Path) -> FreeFile:
        self._check_directory()
        descriptor = self._files.create(path, self._mode)
        file = OpenFile(self._files, descriptor)
        try:
            self._files.grow(descriptor, self.size)
            file.allocate(path, 0, self.size)
        except BaseException:
            self._files.unlink(path)
            raise
        return FreeFile(path, file.inode, is_whole=True)

    # Removing

    def take(self) -> FreeFile | None:
        """Return a file that no process has taken; None if this process knows none.

        Only the holder of the writer lock may write to it.
        """
        while True:
            try:
                free_file = self._waiting.pop()
            except IndexError:
                return None
            if self._files.identity_of(free_file.path) == free_file.inode:
                return free_file

    def forget(self, inode: Inode) -> None:
        """Remove a file that was taken, by this or another process."""
        for free_file in [each for each in self._waiting if each.inode == inode]:
            with suppress(ValueError):  # another thread takes it at this moment
                self._waiting.remove(free_file)

    def remove_all(self) -> None:
        """Delete all free files, to free their disk space. A process that is about to take one creates a new file."""
        with self._changing.held():  # a file that is being created is deleted once it is complete
            self._waiting.clear()
            for name in self.names():
                self._files.unlink(self._directory / name)

    def sweep(self, oldest: int) -> None:
        """Delete files left by processes that died while they retired a segment that begins before an offset."""
        for name in self._files.list(self._directory):
            begin = begin_of(name.removeprefix(HALF_MADE)) if name.startswith(HALF_MADE) else None
            if begin is not None and begin < oldest:
                self._files.unlink(self._directory / name)

    def trim(self) -> None:
        """Add the files that dead processes left, and delete surplus and unusable ones. For a process that is alone."""
        with self._changing.held():
            names = self._add_unknown()
            known = {free_file.path.name for free_file in self._waiting}
            surplus = [free_file.path.name for free_file in self._waiting[self._most() :]]
            del self._waiting[self._most() :]
            for name in [name for name in names if name not in known] + surplus:
                self._files.unlink(self._directory / name)
