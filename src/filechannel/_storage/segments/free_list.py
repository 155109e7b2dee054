"""Files that wait to become segments: those of consumed segments, and such as were made ahead of time.

A spare is called `spare-*.seg` and has the size of an ordinary segment. What it holds means nothing: the magic number
of a segment that was given up is overwritten, and its records validate at no offset that is still to come. So a spare
that somebody left behind, whole or half made, is as good as any other.

Spares are taken under the writer word only, so whoever holds the word and finds the file under its name may write to
it. It may be removed at any time: then it cannot be renamed, and nothing was lost.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, final

from .._errors import DiskFullError, UnexpectedFileError
from .._format import Mutex
from .._format.layout import SEGMENT_MAGIC
from .files import Files
from .maps import Inode, OpenFile
from .segment import HALF_MADE, begin_of

SPARE: Final = "spare-"
_MOSTLY = 3 / 4  # of its disk space: then it was written to the end, and the rest is a rounding


def spare_names(files: Files, directory: Path) -> list[str]:
    """Return the names of the spare files in a directory."""
    return [name for name in files.list(directory) if name.startswith(SPARE)]


@final
@dataclass(frozen=True, slots=True)
class Spare:
    """A file that waits."""

    path: Path
    inode: Inode
    is_whole: bool
    """Whether it is known to have all its disk space."""


@final
class Spares:
    """The spare files of one channel, as far as this process knows them."""

    def __init__(
        self,
        files: Files,
        directory: Path,
        size: int,
        mode: int,
        most: Callable[[], int],
        fit_from: Callable[[], int],
    ) -> None:
        """*most* says how many may wait; files of segments that begin below *fit_from* are not to be used again."""
        self._files = files
        self._directory = directory
        self.size = size
        self._mode = mode
        self._most = most
        self._fit_from = fit_from
        self._changing = Mutex()  # a signal handler may send in the middle, and need the room
        self._waiting: list[Spare] = []  # the one that was written to last at the end: its pages are still there
        self.check_place: Callable[[], object] = lambda: None
        """Called before a file is made; raises if the directory is not the channel's any more."""

    def names(self) -> list[str]:
        """Return the names of all that wait, whoever put them there."""
        return spare_names(self._files, self._directory)

    @property
    def most(self) -> int:
        """How many may wait."""
        return self._most()

    @property
    def next(self) -> Spare | None:
        """The one that is taken next, as far as this process knows."""
        waiting = self._waiting[-1:]
        return waiting[0] if waiting else None

    # Coming

    def recycle(self, path: Path, begin: int) -> None:
        """Let the file of a consumed segment wait, or remove it if enough do or it cannot be used again.

        Nobody may rely on it any more: what it held lies below the oldest offset, or elsewhere too.
        """
        with self._changing.held():
            spare, names = None, self.names()
            self._waiting = [each for each in self._waiting if each.path.name in names]  # others have taken the rest
            if begin >= self._fit_from() and len(names) < self._most():
                with suppress(OSError, DiskFullError):  # then it is of no use
                    spare = self._take_out_of_use(path)
            if spare is None:
                self._files.unlink(path)
            else:
                self._waiting.append(spare)

    def _take_out_of_use(self, path: Path) -> Spare | None:
        try:
            descriptor = self._files.open(path)
        except (FileNotFoundError, UnexpectedFileError):
            return None
        file = OpenFile(self._files, descriptor)
        if file.size != self.size or file.links != 1:  # under another name it may be somebody's backup
            return None
        # Others may be giving it up as well, and whoever is late must not touch what it has become by then. So it gets
        # a name first that nobody looks for, and only one of them succeeds in that.
        taken = path.with_name(HALF_MADE + path.name)
        self._files.replace(path, taken)
        try:
            # Before anything else in it changes: a reader that stumbles looks here whether it still is what it was.
            self._files.write_at(descriptor, bytes(len(SEGMENT_MAGIC)), 0)
            spare = Spare(path.with_name(SPARE + path.name), file.inode, is_whole=False)
            if self._files.disk_space(taken) >= self.size * _MOSTLY:
                spare = self._made_whole(spare, file)
            self._files.replace(taken, spare.path)
        except BaseException:
            self._files.unlink(taken)
            raise
        return spare

    def _made_whole(self, spare: Spare, file: OpenFile) -> Spare:
        with suppress(DiskFullError):  # whoever writes to it asks again, and is told
            file.allocate(spare.path, 0, self.size)
            return replace(spare, is_whole=True)
        return spare

    def prepare(self, active: str) -> Spare | None:
        """See to it that one waits that has all its disk space, and return it; None if none may wait.

        *active* is the name of the segment that it is to follow. `DiskFullError` if there is no room. Not on a
        sender's thread.
        """
        with self._changing.held():
            if not self._most():
                return None
            # Not in the list while we work on it: who wants one now takes another.
            spare = self.take()
            if spare is None:
                self._look()
                spare = self.take()
            if spare is None:
                # A name that never comes again: whoever has looked at it and gives it another one moves the same file.
                spare = self._make(self._directory / f"{SPARE}{secrets.token_hex(8)}-after-{active}")
            elif not spare.is_whole:
                with suppress(FileNotFoundError):  # another process has taken it
                    spare = self._made_whole(spare, OpenFile(self._files, self._files.open(spare.path)))
            self._waiting.append(spare)
            return spare

    def _look(self) -> list[str]:
        """Learn what others have left, and return the names of all that wait."""
        known, names = {spare.path.name for spare in self._waiting}, self.names()
        for name in names:
            path = self._directory / name
            with suppress(OSError):
                if name in known:
                    continue
                file = OpenFile(self._files, self._files.open(path))
                if file.size == self.size and file.links == 1:
                    self._waiting.append(Spare(path, file.inode, is_whole=False))
        return names

    def _make(self, path: Path) -> Spare:
        self.check_place()
        descriptor = self._files.create(path, self._mode)
        file = OpenFile(self._files, descriptor)
        try:
            self._files.grow(descriptor, self.size)
            file.allocate(path, 0, self.size)
        except BaseException:
            self._files.unlink(path)
            raise
        return Spare(path, file.inode, is_whole=True)

    # Going

    def take(self) -> Spare | None:
        """Return one that nobody has taken; None if this process knows none.

        Only who holds the writer word may write to it.
        """
        while True:
            try:
                spare = self._waiting.pop()
            except IndexError:
                return None
            if self._files.identity_of(spare.path) == spare.inode:
                return spare

    def forget(self, inode: Inode) -> None:
        """Somebody has taken this one."""
        for spare in [each for each in self._waiting if each.inode == inode]:
            with suppress(ValueError):  # taken in this moment
                self._waiting.remove(spare)

    def remove_all(self) -> None:
        """Remove all that wait, for the room they take. Whoever is about to take one finds out, and makes a file."""
        with self._changing.held():  # one that is being made has its room until then
            self._waiting.clear()
            for name in self.names():
                self._files.unlink(self._directory / name)

    def sweep(self, oldest: int) -> None:
        """Remove what somebody left who died while giving up a segment that began before an offset."""
        for name in self._files.list(self._directory):
            begin = begin_of(name.removeprefix(HALF_MADE)) if name.startswith(HALF_MADE) else None
            if begin is not None and begin < oldest:
                self._files.unlink(self._directory / name)

    def trim(self) -> None:
        """Learn what the dead have left, and remove what is too much or half made. Only for a lone process."""
        with self._changing.held():
            names = self._look()
            known = {spare.path.name for spare in self._waiting}
            surplus = [spare.path.name for spare in self._waiting[self._most() :]]
            del self._waiting[self._most() :]
            for name in [name for name in names if name not in known] + surplus:
                self._files.unlink(self._directory / name)
