"""The durable consumers of a channel: one small mapped file per name, for a single consumer or a group."""

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

from ..._errors import (
    ConsumerBusyError,
    ConsumerMismatchError,
    UnexpectedFileError,
    UnknownConsumerError,
    storage_error,
)
from ..._format import Mutex
from ..._format.layout import CURSOR_DEPARTURE, CURSOR_SIZE, GROUP_SIZE, NAME_OWNER
from ..._offset import LogPosition
from ..._runtime.threads import do_in_parallel
from ..control.live_processes import Processes
from ..control.lock_file import lock_of
from ..store_events import StoreEvents
from ..system.kernel_locks import KernelLocks
from ..system.os_calls import Files
from .cursor import Cursor, store_position
from .cursor_file_format import (
    HEAD_SIZE,
    StoredPosition,
    file_name,
    group_file_name,
    is_group,
    is_overdue,
    name_of,
    pack_departure,
    path_of,
    read_position,
)
from .group_cursor import Group
from .group_file_format import reset_ring
from .name_lock import briefly_locked, busy, name_locked

C = TypeVar("C", bound=Cursor)

_logger = logging.getLogger("filechannel")


class CreateWithReserve(Protocol):
    """Creates the file of a name, on a full disk with the disk reserve."""

    def __call__(self, create: Callable[[], C], /) -> C:
        """Call *create*, possibly twice."""
        ...


class Cursors:
    """The consumers of one channel."""

    def __init__(
        self,
        files: Files,
        directory: Path,
        mode: int,
        locks: KernelLocks,
        events: StoreEvents,
        *,
        create: CreateWithReserve,
        count_change: Callable[[], object],
        check_directory: Callable[[], object],
    ) -> None:
        """*locks* are those of the channel. *count_change* notifies every process that the set of names changed.

        *check_directory* is called before a name is looked up; it raises if the path leads to another directory now.
        """
        self._files = files
        self._directory = directory
        self._mode = mode
        self._locks = locks
        self._events = events
        self._create = create
        self._count_change = count_change
        self._check_directory = check_directory
        self._lock = Mutex()
        self._open: dict[str, Cursor] = {}
        self._dirty: set[str] = set()
        self._all_unflushed = True
        """True until the first flush: processes that had the channel open before may have left any file unflushed."""
        self._names_changed = True

    @property
    def is_locked(self) -> bool:
        """Whether a thread of this process, possibly the calling one, is opening or closing a consumer."""
        return self._lock.owner != 0

    def _path(self, name: str) -> Path:
        return path_of(self._files, self._directory, name)

    def open(self, name: str) -> Cursor:
        """Become the owner of a name; it is registered when this returns."""
        with self._translated_errors(name):
            return self._register(name, file_name(name), Cursor.open, self._refuse_group)

    def join(self, name: str, processes: Processes) -> Group:
        """Share the name of a group; it is registered when this returns. All members of a process share one object."""

        def open_group(files: Files, locks: KernelLocks, path: Path, name: str, mode: int) -> Group:
            known = self._open.get(name)
            if isinstance(known, Group):
                group = known
            else:
                group = Group.open(files, locks, path, name, mode, processes, self._events)
            group.members += 1
            return group

        with self._translated_errors(name):
            return self._register(name, group_file_name(name), open_group, self._refuse_single)

    @contextmanager
    def _translated_errors(self, name: str) -> Generator[None]:
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
        self._check_directory()
        with self._lock.held():
            for other in (file_name(name), group_file_name(name)):
                self._remove_if_overdue(self._directory / other)
            refuse_other_kind(name)
            self._names_changed |= not self._files.exists(path)
            try:
                cursor = self._create(lambda: open_cursor(self._files, self._locks, path, name, self._mode))
            except ConsumerBusyError:
                refuse_other_kind(name)  # the owner may have registered it just now, and both kinds share the lock
                raise
            if cursor.position is None:
                try:
                    # A process that registers the other kind meanwhile also checks for this file.
                    refuse_other_kind(name)
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
        """Release a name. Its position and the other members of its group stay."""
        with self._lock.held():
            self._dirty.add(cursor.name)
            if isinstance(cursor, Group) and not cursor.leave():
                return
            self._open.pop(cursor.name, None)
            cursor.close()

    def remove(self, cursor: Cursor) -> None:
        """Remove a name that is owned through this cursor; `ConsumerBusyError` if its group has other members."""
        self._check_directory()
        with self._lock.held():
            path = self._path(cursor.name)
            if isinstance(cursor, Group) and not cursor.is_last:
                raise busy(path, cursor.name, bytes(cursor.map[:HEAD_SIZE]), "close its other members first")
            self._files.unlink(path)
            self._names_changed = True
            self._open.pop(cursor.name, None)
            cursor.close()
        self._count_change()

    def leave_after_failed_join(self, group: Group) -> None:
        """Leave a group after a failed join.

        Remove the group if it has no position yet, because no process uses it then.
        """
        if group.position is None:
            with suppress(ConsumerBusyError):  # other members have joined, and the group belongs to them
                self.remove(group)
                return
        self.close(group)

    def remove_unowned(self, name: str) -> None:
        """Remove a name; `UnknownConsumerError` if there is none, `ConsumerBusyError` if it has a live owner."""
        path = self._path(name)
        self._check_directory()
        with self._lock.held(), name_locked(self._files, self._locks, path, name, patiently=True):
            mode = self._files.mode_of(path)
            if not mode:
                raise UnknownConsumerError(name, path=self._directory.parent)
            if stat.S_ISDIR(mode):
                raise UnexpectedFileError(path, "a directory", channel=self._directory.parent)
            self._files.unlink(path)  # of a link, the link itself
            self._names_changed = True
        self._count_change()

    def remove_overdue(self, name: str) -> bool:
        """Remove a name that has expired and has no live owner; return whether it was removed."""
        with self._lock.held():
            removed = self._remove_if_overdue(self._path(name))
        if removed:
            self._count_change()
        return removed

    def _remove_if_overdue(self, path: Path) -> bool:
        try:
            with briefly_locked(self._files, self._locks, path, path.name) as descriptor:
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
            # Read the owner before checking whether it is alive: then the note does not apply to a later owner.
            head = self._files.read_at(descriptor, HEAD_SIZE, 0)
            if not self._locks.is_taken(lock_of(path) + NAME_OWNER) and len(head) == HEAD_SIZE:
                self._files.write_at(descriptor, pack_departure(head, time.time_ns()), CURSOR_DEPARTURE)
        finally:
            self._files.close(descriptor)

    def names(self) -> list[str]:
        """Return every registered name whose file can be changed; only regular files ever are."""
        names = {name_of(file) for file in self._files.list(self._directory)}
        return sorted(name for name in names if name is not None and self._files.is_file(self._path(name)))

    def move_unowned(self, log_position: LogPosition, *, back: bool = False) -> None:
        """Move every name without a live owner forward to a log position, or, with *back*, back to it."""
        for name in self.names():
            try:
                self._move(name, log_position, back)
            except ConsumerBusyError:
                continue

    def _move(self, name: str, log_position: LogPosition, back: bool) -> None:
        path = self._path(name)
        with self._lock.held(), briefly_locked(self._files, self._locks, path, name, patiently=True) as descriptor:
            if descriptor is None:
                return
            position = read_position(self._files.read_at(descriptor, HEAD_SIZE, 0))
            if position is None or _is_beyond(position, log_position, back):
                return
            self._files.allocate(path, descriptor, 0, CURSOR_SIZE)
            content = self._files.map(descriptor, CURSOR_SIZE)
            store_position(content, log_position.offset, log_position.sequence, position.time)
            if is_group(path):
                reset_ring(content)
            content.close()
            self._dirty.add(name)

    def restart_lost(self, log_position: LogPosition) -> None:
        """Store a position for every name whose file lost its content in a power cut: the consumer misses nothing.

        Only for a process that has the channel open alone.
        """
        for name in self.names():
            path = self._path(name)
            if any(self._files.read(path, HEAD_SIZE)):
                continue
            size = GROUP_SIZE if is_group(path) else CURSOR_SIZE
            descriptor = self._files.open(path)
            try:
                self._files.allocate(path, descriptor, 0, size)
                store_position(
                    self._files.map(descriptor, size), log_position.offset, log_position.sequence, time.time_ns()
                )
            finally:
                self._files.close(descriptor)
            self._dirty.add(name)
            _logger.warning("%s was lost in a power cut: consumer %r starts at the oldest message", path, name)

    def reset_rings(self) -> None:
        """Reset the ring of every group; deliveries in it are lost.

        Only for a process that has the channel open alone.
        """
        for path in map(self._path, self.names()):
            if is_group(path):
                descriptor = self._files.open(path)
                try:
                    self._files.allocate(path, descriptor, 0, GROUP_SIZE)
                    reset_ring(self._files.map(descriptor, CURSOR_SIZE))
                finally:
                    self._files.close(descriptor)

    def start_groups_over(self, log_position: LogPosition) -> None:
        """Move the groups that have members in this process to a log position; their deliveries are dropped."""
        with self._lock.held():
            groups = [cursor for cursor in self._open.values() if isinstance(cursor, Group)]
        for group in groups:
            group.start_over(log_position)

    def flush(self) -> None:
        """Flush the positions that are or were owned in this process, and changed names. The first time, flush all."""
        with self._lock.held():
            names, names_changed = self._dirty.union(self._open), self._names_changed
            all_unflushed = self._all_unflushed
            self._dirty, self._all_unflushed, self._names_changed = set(), False, False
        try:
            if all_unflushed:
                names.update(self.names())
            for name in names:
                self._flush(name)
                self._check_name(name)
            if names_changed:
                self._files.flush_directory(self._directory)
        except BaseException:  # including one that a signal handler raises: the next flush must do the work
            with self._lock.held():
                self._dirty |= names
                self._all_unflushed |= all_unflushed
                self._names_changed |= names_changed
            raise

    def _check_name(self, name: str) -> None:
        """Raise `FileNotFoundError` if the file of an open consumer is missing: no process may remove it."""
        with self._lock.held():
            path = self._path(name)
            if name in self._open and not self._files.exists(path):
                what = "it was deleted while the consumer was open, and the position is lost"
                raise FileNotFoundError(errno.ENOENT, what, str(path))

    def flush_all_positions(self) -> None:
        """Flush the positions of all processes, and the directory. Then messages before them may be removed."""
        do_in_parallel([partial(self._flush, name) for name in self.names()])
        self._files.flush_directory(self._directory)

    def flush_one(self, name: str) -> None:
        """Flush one position, whichever process owns it, and the directory if a name changed."""
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
        # Through a separate descriptor: the owner may close its own at any time. Opened read-only, because nothing is
        # written: so the check for hard links, such as those of a backup, does not reject the file.
        try:
            descriptor = self._files.open(self._path(name), writable=False)
        except FileNotFoundError:
            return
        try:
            self._files.flush(descriptor)
        finally:
            self._files.close(descriptor)

    def close_all(self) -> None:
        """Release every name."""
        with self._lock.held():
            for cursor in self._open.values():
                cursor.close()
            self._open.clear()


def _is_beyond(position: StoredPosition, log_position: LogPosition, back: bool) -> bool:
    """Return whether the position need not be moved."""
    return position.offset <= log_position.offset if back else position.offset >= log_position.offset
