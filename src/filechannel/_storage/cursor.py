"""The cursor of one name, open: where a consumer stands, in a file that it has mapped.

The kernel's lock on the file says whether the name has a live owner; the note beside it only says who.
"""

from __future__ import annotations

import mmap
import time
from pathlib import Path

from .._errors import ConsumerDamagedError
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
    is_damaged,
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
_LOOKS = 100  # at a position that other members of a group may be writing


class Cursor:
    """The open cursor of one name, owned by this object until it is closed."""

    def __init__(self, name: str, content: mmap.mmap, locks: KernelLocks) -> None:
        self.name = name
        self.map: mmap.mmap = content
        self._locks = locks

    @classmethod
    def open(cls, files: Files, path: Path, name: str, mode: int) -> Cursor:
        """Own the name; `ConsumerBusyError` if somebody does already, `ConsumerDamagedError` if nobody can."""
        return cls(name, *own(files, path, name, mode, CURSOR_SIZE))

    @property
    def position(self) -> Position | None:
        """The newest whole position; None for a name that is new."""
        return read_position(self.map)

    def store(self, offset: int, sequence: int, time: int) -> None:
        """Write a position into the slot that does not count. Not while a reader does."""
        store_position(self.map, offset, sequence, time)

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


def store_position(content: mmap.mmap, offset: int, sequence: int, time: int) -> None:
    """Write a position into the slot of a file that does not count."""
    generation = max((slot[0] for slot in read_slots(content)), default=0) + 1
    fields = (generation, offset, sequence, time)
    CURSOR.pack_into(content, CURSOR_SLOTS[generation & 1], *fields, crc32c(CURSOR_CHECKED.pack(*fields)))


def own(
    files: Files, path: Path, name: str, mode: int, size: int, *, shared: bool = False
) -> tuple[mmap.mmap, KernelLocks]:
    """Own a name, or share it with others who do; return what is stored under it, and the locks.

    Raises `ConsumerBusyError` if somebody has it for themselves, and `ConsumerDamagedError`, with nothing changed, if
    nobody can tell where it stood.
    """
    patience, was_made = time.monotonic() + BRIEFLY, False
    while True:
        try:
            locks = KernelLocks(files, path)
        except FileNotFoundError:
            if was_made and time.monotonic() > patience and files.exists(path.parent):
                raise  # something has the name that leads nowhere
            was_made = True
            # With an owner before it has a name: a file with neither that nor a position is one that lost both.
            files.make(path, size, describe_this_process(), CURSOR_OWNER, mode)
            continue
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
            # Nobody has a group for itself but for a moment: who leaves, or removes it.
            if is_patient and (shared or locks.is_taken(CURSOR_REMOVER) or not locks.is_taken(CURSOR_OWNER)):
                time.sleep(_PAUSE)
                return None
            raise busy(path, name, files.read_at(descriptor, HEAD_SIZE, 0))
        if not locks.are_of(descriptor):
            return None
        if all(is_damaged(files.read_at(descriptor, HEAD_SIZE, 0)) for _ in range(_LOOKS)):
            raise ConsumerDamagedError(name, path=path.parent.parent)
        files.allocate(path, descriptor, 0, size)
        files.write_at(descriptor, describe_this_process(), CURSOR_OWNER)
        return files.map(descriptor, size)
    finally:
        files.close(descriptor)
