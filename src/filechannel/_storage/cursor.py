"""The cursor of one name, open: where a consumer stands, in a file that it has mapped.

The kernel's lock on the file says whether the name has a live owner; the note beside it only says who.
"""

from __future__ import annotations

import logging
import mmap
import time
from pathlib import Path

from .._errors import DiskFullError
from .._format import crc32c
from .._format.layout import (
    CURSOR,
    CURSOR_CHECKED,
    CURSOR_DEPARTURE,
    CURSOR_ORIGIN,
    CURSOR_OWNER,
    CURSOR_REMOVER,
    CURSOR_SIZE,
    CURSOR_SLOTS,
    CURSOR_TERM,
    DEPARTURE,
    ORIGIN,
    TERM,
)
from .cursor_file import (
    HEAD_SIZE,
    Origin,
    Position,
    pack_departure,
    pack_origin,
    pack_term,
    read_origin,
    read_position,
    read_slots,
    read_term,
)
from .files import Files
from .holder import describe_this_process
from .kernel_locks import KernelLocks
from .visits import BRIEFLY, busy

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
        cursor = cls(name, *own(files, path, name, mode, CURSOR_SIZE))
        cursor.warn_if_damaged(path)
        return cursor

    def warn_if_damaged(self, path: Path) -> None:
        """Say so if there was a position, and there is none now."""
        if self.position is None and any(self.map[:CURSOR_OWNER]):
            _logger.warning("%s is damaged: consumer %r starts anew", path, self.name)

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

    @property
    def origin(self) -> Origin | None:
        """Which control records speak of this position; None if none does."""
        return read_origin(self.map)

    @origin.setter
    def origin(self, origin: Origin | None) -> None:
        content = bytes(ORIGIN.size) if origin is None else pack_origin(origin)
        self.map[CURSOR_ORIGIN : CURSOR_ORIGIN + ORIGIN.size] = content

    def close(self) -> None:
        """Give the name up."""
        self._locks.close(self._note_departure)

    def _note_departure(self) -> None:
        if read_term(self.map) is None:
            return
        note = pack_departure(self.map, time.time_ns())
        self.map[CURSOR_DEPARTURE : CURSOR_DEPARTURE + DEPARTURE.size] = note


def own(
    files: Files, path: Path, name: str, mode: int, size: int, *, shared: bool = False
) -> tuple[mmap.mmap, KernelLocks]:
    """Own a name, or share it with others who do; return what is stored under it, and the locks.

    Raises `ConsumerBusyError` if somebody has it for themselves.
    """
    patience = time.monotonic() + BRIEFLY
    while True:
        locks = KernelLocks(files, path, create=True, mode=mode)
        try:
            content = _own(files, path, name, locks, size, shared, is_patient=time.monotonic() < patience)
        except BaseException:
            locks.close()
            raise
        if content is not None:
            return content, locks
        locks.close()


def _own(
    files: Files, path: Path, name: str, locks: KernelLocks, size: int, shared: bool, *, is_patient: bool
) -> mmap.mmap | None:
    """Lock a name and return what is stored under it; None if it has to be tried again with other locks.

    Its file may have been removed since they were opened, or somebody who removes it may have it locked.
    """
    owned = locks.take(CURSOR_OWNER, shared=shared)
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
        try:
            files.allocate(path, descriptor, 0, size)
        except DiskFullError:
            if not any(files.read_at(descriptor, HEAD_SIZE, 0)) and locks.take(CURSOR_OWNER):  # alone
                files.unlink(path)  # nobody is registered who could not be
            raise
        files.write_at(descriptor, describe_this_process(), CURSOR_OWNER)
        return files.map(descriptor, size)
    finally:
        files.close(descriptor)
