"""Durable consumer positions: one small mapped file a name.

The kernel's lock on the file says whether the name has a live owner; the note beside it only says who.
"""

from __future__ import annotations

import logging
import mmap
import time
from collections.abc import Callable
from pathlib import Path
from threading import Lock

from .._errors import ConsumerBusyError, ConsumerMismatchError, UnknownConsumerError
from .._format import crc32c
from .._format.layout import (
    CURSOR,
    CURSOR_CHECKED,
    CURSOR_DEPARTURE,
    CURSOR_OWNER,
    CURSOR_REMOVER,
    CURSOR_SIZE,
    CURSOR_SLOTS,
    CURSOR_TERM,
    DEPARTURE,
    TERM,
)
from .._offset import Offset
from .cursor_file import (
    HEAD_SIZE,
    Position,
    file_name,
    group_file_name,
    is_overdue,
    name_of,
    pack_departure,
    pack_term,
    read_position,
    read_slots,
    read_term,
)
from .files import Files
from .holder import describe_this_process
from .index import Mark
from .kernel_locks import KernelLocks
from .visits import BRIEFLY, busy, visiting

_PAUSE = 0.001  # seconds
_logger = logging.getLogger("filechannel")


class Cursor:
    """The open cursor of one name, owned by this object until it is closed."""

    def __init__(self, name: str, content: mmap.mmap, locks: KernelLocks) -> None:
        self.name = name
        self.map: mmap.mmap = content
        self._locks = locks

    @classmethod
    def open(cls, files: Files, path: Path, name: str, mode: int) -> Cursor:
        """Own the name; `ConsumerBusyError` if somebody does already."""
        patience = time.monotonic() + BRIEFLY
        while True:
            locks = KernelLocks(files, path, create=True, mode=mode)
            try:
                content = _own(files, path, name, locks, is_patient=time.monotonic() < patience)
            except BaseException:
                locks.close()
                raise
            if content is not None:
                break
            locks.close()
        cursor = cls(name, content, locks)
        if cursor.position is None and any(cursor.map[:CURSOR_OWNER]):
            _logger.warning("%s is damaged: consumer %r starts anew", path, name)
        return cursor

    @property
    def position(self) -> Position | None:
        """The newest whole position; None for a name that is new."""
        return read_position(self.map)

    def store(self, offset: int, sequence: int, time: int) -> None:
        """Write a position into the slot that does not count. Not while a reader does."""
        found = read_slots(self.map)
        generation = max((slot[0] for slot in found), default=0) + 1
        fields = (generation, offset, sequence, time)
        slot = CURSOR_SLOTS[generation & 1]
        CURSOR.pack_into(self.map, slot, *fields, crc32c(CURSOR_CHECKED.pack(*fields)))

    def expire_after(self, seconds: float) -> None:
        """Let the name go when it had no live owner for so long."""
        self.map[CURSOR_TERM : CURSOR_TERM + TERM.size] = pack_term(int(seconds * 1e9))

    def close(self) -> None:
        """Give the name up."""
        self._locks.close(self._note_departure)

    def _note_departure(self) -> None:
        if read_term(self.map) is None:
            return
        note = pack_departure(self.map, time.time_ns())
        self.map[CURSOR_DEPARTURE : CURSOR_DEPARTURE + DEPARTURE.size] = note


def _own(files: Files, path: Path, name: str, locks: KernelLocks, *, is_patient: bool) -> mmap.mmap | None:
    """Lock a name and return what is stored under it; None if it has to be tried again with other locks.

    Its file may have been removed since they were opened, or somebody who removes it may have it locked.
    """
    owned = locks.take(CURSOR_OWNER)
    try:
        descriptor = files.open(path)
    except FileNotFoundError:
        return None
    try:
        if not owned:
            if is_patient and (locks.is_taken(CURSOR_REMOVER) or not locks.is_taken(CURSOR_OWNER)):
                time.sleep(_PAUSE)
                return None
            raise busy(path, name, files.read_at(descriptor, HEAD_SIZE, 0))
        if not locks.are_of(descriptor):
            return None
        files.allocate(path, descriptor, 0, CURSOR_SIZE)
        files.write_at(descriptor, describe_this_process(), CURSOR_OWNER)
        return files.map(descriptor, CURSOR_SIZE)
    finally:
        files.close(descriptor)


class Cursors:
    """The consumers of one channel."""

    def __init__(
        self, files: Files, directory: Path, mode: int, count_change: Callable[[], object] = lambda: None
    ) -> None:
        """*count_change* tells every process that a name was registered or removed."""
        self._files = files
        self._directory = directory
        self._mode = mode
        self._count_change = count_change
        self._lock = Lock()
        self.check_place: Callable[[], object] = lambda: None
        """Called before a name is looked for; raises if the directory is not the channel's any more."""
        self.register: Callable[[Callable[[], Cursor]], Cursor] = lambda register: register()
        """Registers a name; who knows of disk space that is kept for that knows a better way."""
        self._open: dict[str, Cursor] = {}
        # Whoever had the channel open before us may have left anything unflushed.
        self._unflushed: set[str] = set(self.names())
        self._names_changed = True

    def _path(self, name: str) -> Path:
        return self._directory / file_name(name)

    def open(self, name: str) -> Cursor:
        """Own a name; it is registered when this returns."""
        path = self._path(name)
        self.check_place()
        with self._lock:
            self._refuse_group(name)
            self._remove_if_overdue(path)
            self._names_changed |= not self._files.exists(path)
            cursor = self.register(lambda: Cursor.open(self._files, path, name, self._mode))
            if cursor.position is None:
                try:
                    self._refuse_group(name)  # whoever makes one meanwhile looks for our file, too
                except ConsumerMismatchError:
                    self._files.unlink(path)
                    cursor.close()
                    raise
                self._count_change()
            self._open[name] = cursor
            return cursor

    def _refuse_group(self, name: str) -> None:
        if self._files.exists(self._directory / group_file_name(name)):
            raise ConsumerMismatchError(name, "a group", "a single consumer", path=self._directory.parent)

    def close(self, cursor: Cursor) -> None:
        """Give a name up; its position stays."""
        with self._lock:
            self._open.pop(cursor.name, None)
            self._unflushed.add(cursor.name)
            cursor.close()

    def remove(self, cursor: Cursor) -> None:
        """Forget a name that is owned through this cursor."""
        self.check_place()
        with self._lock:
            self._files.unlink(self._path(cursor.name))
            self._names_changed = True
            self._open.pop(cursor.name, None)
            cursor.close()
        self._count_change()

    def remove_unowned(self, name: str) -> None:
        """Forget a name; `UnknownConsumerError` if there is none, `ConsumerBusyError` if it has a live owner."""
        path = self._path(name)
        self.check_place()
        self._refuse_group(name)
        with self._lock, visiting(self._files, path, name, patiently=True) as locks:
            if locks is None:
                raise UnknownConsumerError(name, path=self._directory.parent)
            self._files.unlink(path)
            self._names_changed = True
        self._count_change()

    def remove_overdue(self, name: str) -> bool:
        """Forget a name if its time is over and it has no live owner; tell whether it was so."""
        with self._lock:
            removed = self._remove_if_overdue(self._path(name))
        if removed:
            self._count_change()
        return removed

    def _remove_if_overdue(self, path: Path) -> bool:
        try:
            with visiting(self._files, path, path.name) as locks:
                if locks is None or not is_overdue(locks.read(HEAD_SIZE, 0), time.time_ns()):
                    return False
                self._files.unlink(path)
                self._names_changed = True
                return True
        except ConsumerBusyError:
            return False

    def note_departure(self, name: str) -> None:
        """Note that a name has no live owner now, if that is so: the last one may have been killed."""
        try:
            descriptor = self._files.open(self._path(name))
        except FileNotFoundError:
            return
        try:
            # Who it was before whether it lives: about an owner that comes later, the note says nothing.
            head = self._files.read_at(descriptor, HEAD_SIZE, 0)
            if self._files.locked_range(descriptor, CURSOR_OWNER, 1) is None and len(head) == HEAD_SIZE:
                self._files.write_at(descriptor, pack_departure(head, time.time_ns()), CURSOR_DEPARTURE)
        finally:
            self._files.close(descriptor)

    def names(self) -> list[str]:
        """Return every registered name; other files are left alone."""
        names = map(name_of, self._files.list(self._directory))
        return [name for name in names if name is not None and self._files.is_file(self._path(name))]

    def offsets(self) -> list[Offset]:
        """Return where every registered name stands that stands anywhere."""
        positions = [read_position(self._files.read(self._path(name))) for name in self.names()]
        return [position.offset for position in positions if position is not None]

    def move_unowned(self, place: Mark, *, back: bool = False) -> None:
        """Move every name that has no live owner and stands before a place, or, *back*, behind it."""
        for name in self.names():
            try:
                self._move(name, place, back)
            except ConsumerBusyError:
                continue

    def _move(self, name: str, place: Mark, back: bool) -> None:
        path = self._path(name)
        with self._lock, visiting(self._files, path, name, patiently=True) as locks:
            position = None if locks is None else read_position(locks.read(HEAD_SIZE, 0))
            if locks is None or position is None or _is_beyond(position, place, back):
                return
            descriptor = self._files.open(path)
            try:
                self._files.allocate(path, descriptor, 0, CURSOR_SIZE)
                cursor = Cursor(name, self._files.map(descriptor, CURSOR_SIZE), locks)
            finally:
                self._files.close(descriptor)
            cursor.store(place.offset, place.sequence, position.time)
            self._unflushed.add(name)

    def flush(self) -> None:
        """Wait until the positions that are or were owned here are on disk, names included."""
        with self._lock:
            names, names_changed = self._unflushed.union(self._open), self._names_changed
            self._unflushed, self._names_changed = set(), False
        for name in names:
            self._flush(name)
        if names_changed:
            self._files.flush_directory(self._directory)

    def flush_one(self, name: str) -> None:
        """Wait until one position is on disk, whoever owns it, and all names."""
        self._flush(name)
        with self._lock:
            names_changed, self._names_changed = self._names_changed, False
        if names_changed:
            self._files.flush_directory(self._directory)

    def _flush(self, name: str) -> None:
        # Through a descriptor of our own: the owner may close its one at any time.
        try:
            descriptor = self._files.open(self._path(name))
        except FileNotFoundError:
            return
        try:
            self._files.flush(descriptor)
        finally:
            self._files.close(descriptor)

    def close_all(self) -> None:
        """Give every name up."""
        with self._lock:
            for cursor in self._open.values():
                cursor.close()
            self._open.clear()


def _is_beyond(position: Position, place: Mark, back: bool) -> bool:
    """Tell whether there is no need to move."""
    return position.offset <= place.offset if back else position.offset >= place.offset
