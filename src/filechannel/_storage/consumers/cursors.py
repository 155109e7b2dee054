"""Durable consumer positions: one small mapped file a name, whether one owns it or a group shares it."""

from __future__ import annotations

import errno
import logging
import stat
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

from .._errors import (
    ConsumerBusyError,
    ConsumerMismatchError,
    UnexpectedFileError,
    UnknownConsumerError,
    storage_error,
)
from .._format import Mutex
from .._format.layout import CURSOR_DEPARTURE, CURSOR_SIZE, GROUP_SIZE, NAME_OWNER
from .background import do_all_at_once
from .cursor import Cursor, store_position
from .cursor_file import (
    HEAD_SIZE,
    Position,
    file_name,
    group_file_name,
    is_group,
    is_overdue,
    name_of,
    pack_departure,
    path_of,
    read_position,
)
from .files import Files
from .group import Group, forget_ring
from .index import Mark
from .kernel_locks import KernelLocks
from .lock_file import lock_of
from .processes import Processes
from .visits import busy, holding, visiting

C = TypeVar("C", bound=Cursor)

_PAUSE = 0.001  # seconds
_logger = logging.getLogger("filechannel")


class Registering(Protocol):
    """What makes the file of a name."""

    def __call__(self, register: Callable[[], C], /) -> C:
        """Call what makes it, perhaps again."""
        ...


def _at_once(register: Callable[[], C]) -> C:
    return register()


class Cursors:
    """The consumers of one channel."""

    def __init__(
        self,
        files: Files,
        directory: Path,
        mode: int,
        locks: KernelLocks,
        count_change: Callable[[], object] = lambda: None,
    ) -> None:
        """*locks* are those of the channel; *count_change* tells every process that a name came or went."""
        self._files = files
        self._directory = directory
        self._mode = mode
        self._locks = locks
        self._count_change = count_change
        self._lock = Mutex()
        self.check_place: Callable[[], object] = lambda: None
        """Called before a name is looked for; raises if the directory is not the channel's any more."""
        self.register: Registering = _at_once
        """Registers a name; who knows of disk space that is kept for that knows a better way."""
        self.on_moved: Callable[[], object] = lambda: None
        """Called when the position of a group may have moved."""
        self.on_freed: Callable[[], object] = lambda: None
        """Called when members of a group may go on that had as much as the group can hold."""
        self._open: dict[str, Cursor] = {}
        self._unflushed: set[str] = set()
        self._all_unflushed = True
        """Until the first flush: processes that had the channel open before may have left anything unflushed."""
        self._names_changed = True

    @property
    def is_locked(self) -> bool:
        """Whether a thread of this process is opening or closing a consumer; it may be the one that asks."""
        return self._lock.owner != 0

    def _path(self, name: str) -> Path:
        return path_of(self._files, self._directory, name)

    def open(self, name: str) -> Cursor:
        """Own a name; it is registered when this returns."""
        with self._owning(name):
            return self._register(name, file_name(name), Cursor.open, self._refuse_group)

    def join(self, name: str, processes: Processes) -> Group:
        """Share the name of a group; it is registered when this returns. One object serves all members of a process."""

        def open_group(files: Files, locks: KernelLocks, path: Path, name: str, mode: int) -> Group:
            known = self._open.get(name)
            group = known if isinstance(known, Group) else Group.open(files, locks, path, name, mode, processes)
            group.on_moved, group.on_freed = self.on_moved, self.on_freed
            group.members += 1
            return group

        with self._owning(name):
            return self._register(name, group_file_name(name), open_group, self._refuse_single)

    @contextmanager
    def _owning(self, name: str) -> Generator[None]:
        try:
            yield
        except UnexpectedFileError:
            raise
        except OSError as error:
            what = f"{self._directory.parent}: consumer {name!r} cannot be opened"
            raise storage_error(what, error) from error

    def _register(
        self,
        name: str,
        file: str,
        open_cursor: Callable[[Files, KernelLocks, Path, str, int], C],
        refuse_other_kind: Callable[[str], None],
    ) -> C:
        path = self._directory / file
        self.check_place()
        with self._lock.held():
            for other in (file_name(name), group_file_name(name)):
                self._remove_if_overdue(self._directory / other)
            refuse_other_kind(name)
            self._names_changed |= not self._files.exists(path)
            try:
                cursor = self.register(lambda: open_cursor(self._files, self._locks, path, name, self._mode))
            except ConsumerBusyError:
                refuse_other_kind(name)  # the owner may have registered it meanwhile, and both kinds share the lock
                raise
            if cursor.position is None:
                try:
                    refuse_other_kind(name)  # whoever makes one meanwhile looks for our file, too
                except BaseException as error:
                    if isinstance(error, ConsumerMismatchError):
                        self._files.unlink(path)
                    if not isinstance(cursor, Group) or cursor.leave():
                        cursor.close()
                    raise
                self._count_change()
            self._open[name] = cursor
            return cursor

    def _refuse_group(self, name: str) -> None:
        if self._files.exists(self._directory / group_file_name(name)):
            raise ConsumerMismatchError(name, "a group", "a single consumer", path=self._directory.parent)

    def _refuse_single(self, name: str) -> None:
        if self._files.exists(self._directory / file_name(name)):
            raise ConsumerMismatchError(name, "a single consumer", "a group", path=self._directory.parent)

    def close(self, cursor: Cursor) -> None:
        """Give a name up; its position stays, and so do the other members of a group."""
        with self._lock.held():
            self._unflushed.add(cursor.name)
            if isinstance(cursor, Group) and not cursor.leave():
                return
            self._open.pop(cursor.name, None)
            cursor.close()

    def remove(self, cursor: Cursor) -> None:
        """Forget a name that is owned through this cursor; `ConsumerBusyError` if its group has other members."""
        self.check_place()
        with self._lock.held():
            path = self._path(cursor.name)
            if isinstance(cursor, Group) and not cursor.is_last:
                raise busy(path, cursor.name, bytes(cursor.map[:HEAD_SIZE]), "let its other members close first")
            self._files.unlink(path)
            self._names_changed = True
            self._open.pop(cursor.name, None)
            cursor.close()
        self._count_change()

    def give_up(self, group: Group) -> None:
        """Leave a group that could not be joined; if it has no position yet, nobody knows of it."""
        if group.position is None:
            with suppress(ConsumerBusyError):  # others have come, and it is theirs
                self.remove(group)
                return
        self.close(group)

    def remove_unowned(self, name: str) -> None:
        """Forget a name; `UnknownConsumerError` if there is none, `ConsumerBusyError` if it has a live owner."""
        path = self._path(name)
        self.check_place()
        with self._lock.held(), holding(self._files, self._locks, path, name, patiently=True):
            mode = self._files.mode_of(path)
            if not mode:
                raise UnknownConsumerError(name, path=self._directory.parent)
            if stat.S_ISDIR(mode):
                raise UnexpectedFileError(path, "a directory", channel=self._directory.parent)
            self._files.unlink(path)  # of a link, the link itself
            self._names_changed = True
        self._count_change()

    def remove_overdue(self, name: str) -> bool:
        """Forget a name if its time is over and it has no live owner; tell whether it was so."""
        with self._lock.held():
            removed = self._remove_if_overdue(self._path(name))
        if removed:
            self._count_change()
        return removed

    def _remove_if_overdue(self, path: Path) -> bool:
        try:
            with visiting(self._files, self._locks, path, path.name) as descriptor:
                if descriptor is None or not is_overdue(self._files.read_at(descriptor, HEAD_SIZE, 0), time.time_ns()):
                    return False
                self._files.unlink(path)
                self._names_changed = True
                return True
        except ConsumerBusyError:
            return False

    def note_departure(self, name: str) -> None:
        """Note that a name has no live owner now, if that is so: the last one may have been killed."""
        path = self._path(name)
        try:
            descriptor = self._files.open(path)
        except FileNotFoundError:
            return
        try:
            # Who it was before whether it lives: about an owner that comes later, the note says nothing.
            head = self._files.read_at(descriptor, HEAD_SIZE, 0)
            if not self._locks.is_taken(lock_of(path) + NAME_OWNER) and len(head) == HEAD_SIZE:
                self._files.write_at(descriptor, pack_departure(head, time.time_ns()), CURSOR_DEPARTURE)
        finally:
            self._files.close(descriptor)

    def names(self) -> list[str]:
        """Return every registered name whose file can be changed; what is not a regular file is left alone."""
        names = {name_of(file) for file in self._files.list(self._directory)}
        return sorted(name for name in names if name is not None and self._files.is_file(self._path(name)))

    def move_unowned(self, place: Mark, *, back: bool = False) -> None:
        """Move every name that has no live owner and stands before a place, or, *back*, behind it."""
        for name in self.names():
            try:
                self._move(name, place, back)
            except ConsumerBusyError:
                continue

    def _move(self, name: str, place: Mark, back: bool) -> None:
        path = self._path(name)
        with self._lock.held(), visiting(self._files, self._locks, path, name, patiently=True) as descriptor:
            if descriptor is None:
                return
            position = read_position(self._files.read_at(descriptor, HEAD_SIZE, 0))
            if position is None or _is_beyond(position, place, back):
                return
            self._files.allocate(path, descriptor, 0, CURSOR_SIZE)
            content = self._files.map(descriptor, CURSOR_SIZE)
            store_position(content, place.offset, place.sequence, position.time)
            if is_group(path):
                forget_ring(content)
            content.close()
            self._unflushed.add(name)

    def begin_again(self, place: Mark) -> None:
        """Put every name somewhere whose file never reached the disk before a power cut, so that nothing is missed.

        Only for a lone process.
        """
        for name in self.names():
            path = self._path(name)
            if any(self._files.read(path, HEAD_SIZE)):
                continue
            size = GROUP_SIZE if is_group(path) else CURSOR_SIZE
            descriptor = self._files.open(path)
            try:
                self._files.allocate(path, descriptor, 0, size)
                store_position(self._files.map(descriptor, size), place.offset, place.sequence, time.time_ns())
            finally:
                self._files.close(descriptor)
            self._unflushed.add(name)
            _logger.warning("%s was lost in a power cut: consumer %r begins at the oldest message", path, name)

    def forget_rings(self) -> None:
        """Let every group begin again at its position. Only for a lone process: what they have handed out is lost."""
        for path in map(self._path, self.names()):
            if is_group(path):
                descriptor = self._files.open(path)
                try:
                    self._files.allocate(path, descriptor, 0, GROUP_SIZE)
                    forget_ring(self._files.map(descriptor, CURSOR_SIZE))
                finally:
                    self._files.close(descriptor)

    def start_groups_over(self, place: Mark) -> None:
        """Let the groups that have members here go on at a place: what they have handed out is gone."""
        with self._lock.held():
            groups = [cursor for cursor in self._open.values() if isinstance(cursor, Group)]
        for group in groups:
            group.start_over(place)

    def flush(self) -> None:
        """Wait until the positions that are or were owned here are on disk, names included; the first time, all."""
        with self._lock.held():
            names, names_changed = self._unflushed.union(self._open), self._names_changed
            all_unflushed = self._all_unflushed
            self._unflushed, self._all_unflushed, self._names_changed = set(), False, False
        try:
            if all_unflushed:
                names.update(self.names())
            for name in names:
                self._flush(name)
                self._check_name(name)
            if names_changed:
                self._files.flush_directory(self._directory)
        except BaseException:  # also one that a signal handler raises: the next flush has to do it
            with self._lock.held():
                self._unflushed |= names
                self._all_unflushed |= all_unflushed
                self._names_changed |= names_changed
            raise

    def _check_name(self, name: str) -> None:
        """Raise `FileNotFoundError` if a consumer that is open here has no file any more: no process may remove it."""
        with self._lock.held():
            path = self._path(name)
            if name in self._open and not self._files.exists(path):
                what = "deleted while the consumer was open, its position is lost"
                raise FileNotFoundError(errno.ENOENT, what, str(path))

    def flush_everybody(self) -> None:
        """Wait until every position and name is on disk, whoever owns it: what lies before them may be removed then."""
        do_all_at_once([partial(self._flush, name) for name in self.names()])
        self._files.flush_directory(self._directory)

    def flush_one(self, name: str) -> None:
        """Wait until one position is on disk, whoever owns it, and all names."""
        self._flush(name)
        self._check_name(name)
        with self._lock.held():
            names_changed, self._names_changed = self._names_changed, False
        if names_changed:
            try:
                self._files.flush_directory(self._directory)
            except BaseException:
                self._names_changed = True
                raise

    def _flush(self, name: str) -> None:
        # Through a descriptor of our own: the owner may close its one at any time. Nothing is written, so a backup by
        # hard links does not make it invalid.
        try:
            descriptor = self._files.open(self._path(name), writable=False)
        except FileNotFoundError:
            return
        try:
            self._files.flush(descriptor)
        finally:
            self._files.close(descriptor)

    def close_all(self) -> None:
        """Give every name up."""
        with self._lock.held():
            for cursor in self._open.values():
                cursor.close()
            self._open.clear()


def _is_beyond(position: Position, place: Mark, back: bool) -> bool:
    """Tell whether there is no need to move."""
    return position.offset <= place.offset if back else position.offset >= place.offset
