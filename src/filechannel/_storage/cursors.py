"""Durable consumer positions: one small mapped file a name.

The kernel's lock on the file says whether the name has a live owner; the note beside it only says who.
"""

from __future__ import annotations

import logging
import mmap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from urllib.parse import quote, unquote

from typing_extensions import Buffer

from .._errors import ConsumerBusyError
from .._format import crc32c
from .._format.layout import (
    CURSOR,
    CURSOR_CHECKED,
    CURSOR_OWNER,
    CURSOR_SIZE,
    CURSOR_SLOTS,
    HOLDER,
)
from .._offset import Offset
from .files import Files
from .holder import Holder, describe_this_process
from .index import Mark
from .kernel_locks import KernelLocks

CONSUMERS = "consumers"
_SUFFIX = ".cursor"
_LONGEST_NAME = 200
_logger = logging.getLogger("filechannel")


def file_name(name: str) -> str:
    """Return the file name for a consumer's name; `ValueError` if it cannot be one."""
    if not name:
        raise ValueError("a consumer's name must not be empty")
    try:
        encoded = quote(name, safe="").replace(".", "%2E")
    except UnicodeEncodeError:
        raise ValueError(f"consumer name {name[:20]!r} cannot be stored: it has a lone surrogate") from None
    if len(encoded) > _LONGEST_NAME:
        raise ValueError(f"consumer name {name[:20]!r}… is too long: at most {_LONGEST_NAME} bytes once encoded")
    return encoded + _SUFFIX


def name_of(file: str) -> str | None:
    """Return the consumer's name in a file name; None if it is some other file."""
    try:
        name = unquote(file.removesuffix(_SUFFIX), errors="strict")
        return name if file_name(name) == file else None
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class Position:
    """Where a consumer stands, and since when (ns since the epoch)."""

    offset: Offset
    sequence: int
    time: int


class Cursor:
    """The open cursor of one name, owned by this object until it is closed."""

    def __init__(self, name: str, content: mmap.mmap, locks: KernelLocks) -> None:
        self.name = name
        self.map: mmap.mmap = content
        self._locks = locks

    @classmethod
    def open(cls, files: Files, path: Path, name: str, mode: int) -> Cursor:
        """Own the name; `ConsumerBusyError` if somebody does already."""
        while True:
            locks = KernelLocks(files, path, create=True, mode=mode)
            try:
                content = _own(files, path, name, locks)
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
        found = _slots(self.map)
        generation = max((slot[0] for slot in found), default=0) + 1
        fields = (generation, offset, sequence, time)
        slot = CURSOR_SLOTS[generation & 1]
        CURSOR.pack_into(self.map, slot, *fields, crc32c(CURSOR_CHECKED.pack(*fields)))

    def close(self) -> None:
        """Give the name up."""
        self._locks.close()


def _own(files: Files, path: Path, name: str, locks: KernelLocks) -> mmap.mmap | None:
    """Lock a name and return what is stored under it; None if its file was removed since the locks were opened."""
    owned = locks.take(CURSOR_OWNER)
    try:
        descriptor = files.open(path)
    except FileNotFoundError:
        return None
    try:
        if not owned:
            owner = Holder.unpack(files.read_at(descriptor, HOLDER.size, CURSOR_OWNER))
            raise ConsumerBusyError(name, owner.pid, owner.host, owner.since)
        if not locks.are_of(descriptor):
            return None
        files.allocate(path, descriptor, 0, CURSOR_SIZE)
        files.write_at(descriptor, describe_this_process(), CURSOR_OWNER)
        return files.map(descriptor, CURSOR_SIZE)
    finally:
        files.close(descriptor)


class Cursors:
    """The consumers of one channel."""

    def __init__(self, files: Files, directory: Path, mode: int) -> None:
        self._files = files
        self._directory = directory
        self._mode = mode
        self._lock = Lock()
        self.check_place: Callable[[], object] = lambda: None
        """Called before a name is looked for; raises if the directory is not the channel's any more."""
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
            self._names_changed |= not self._files.exists(path)
            cursor = Cursor.open(self._files, path, name, self._mode)
            self._open[name] = cursor
            return cursor

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

    def names(self) -> list[str]:
        """Return every registered name; other files are left alone."""
        names = map(name_of, self._files.list(self._directory))
        return [name for name in names if name is not None and self._files.is_file(self._path(name))]

    def offsets(self) -> list[Offset]:
        """Return where every registered name stands that stands anywhere."""
        positions = [read_position(self._files.read(self._path(name))) for name in self.names()]
        return [position.offset for position in positions if position is not None]

    def move_unowned(self, place: Mark) -> None:
        """Move every name that has no live owner and stands before a place."""
        for name in self.names():
            try:
                cursor = self.open(name)
            except ConsumerBusyError:
                continue
            position = cursor.position
            if position is not None and position.offset < place.offset:
                cursor.store(place.offset, place.sequence, position.time)
            self.close(cursor)

    def flush(self) -> None:
        """Wait until the positions that are or were owned here are on disk, names included."""
        with self._lock:
            names, names_changed = self._unflushed.union(self._open), self._names_changed
            self._unflushed, self._names_changed = set(), False
        for name in names:
            self._flush(name)
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


def read_position(content: Buffer) -> Position | None:
    """Return the newest whole position in a cursor file."""
    found = _slots(content)
    if not found:
        return None
    _, offset, sequence, time = max(found)
    return Position(Offset(offset), sequence, time)


def _slots(content: Buffer) -> list[tuple[int, int, int, int]]:
    found: list[tuple[int, int, int, int]] = []
    for slot in CURSOR_SLOTS:
        if slot + CURSOR.size > memoryview(content).nbytes:
            continue
        generation, offset, sequence, time, crc = CURSOR.unpack_from(content, slot)
        if generation and crc == crc32c(CURSOR_CHECKED.pack(generation, offset, sequence, time)):
            found.append((generation, offset, sequence, time))
    return found
