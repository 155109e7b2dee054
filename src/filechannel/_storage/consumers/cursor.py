"""The cursor of one name, open: where a consumer stands, in a file that it has mapped.

The kernel's lock on the name, in the lock file of the channel, says whether it has a live owner; the note in its file
only says who.
"""

from __future__ import annotations

import mmap
import time
from contextlib import suppress
from pathlib import Path

from .._errors import ConsumerDamagedError
from .._format import can_store, crc32c
from .._format.layout import (
    CURSOR,
    CURSOR_CHECKED,
    CURSOR_DEPARTURE,
    CURSOR_ORIGIN,
    CURSOR_OWNER,
    CURSOR_SIZE,
    CURSOR_SLOTS,
    CURSOR_TERM,
    DEPARTURE,
    NAME_OWNER,
    NAME_REMOVER,
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
from .lock_file import lock_of
from .visits import BRIEFLY, busy, head_of

_PAUSE = 0.001  # seconds
_LOOKS = 100  # at a position that other members of a group may be writing


class Cursor:
    """The open cursor of one name, owned by this object until it is closed."""

    def __init__(self, name: str, content: mmap.mmap, locks: KernelLocks) -> None:
        self.name = name
        self.map: mmap.mmap = content
        self._locks = locks

    @classmethod
    def open(cls, files: Files, locks: KernelLocks, path: Path, name: str, mode: int) -> Cursor:
        """Own the name; `ConsumerBusyError` if another receiver does, `ConsumerDamagedError` if none can."""
        return cls(name, *own(files, locks, path, name, mode, CURSOR_SIZE))

    @property
    def position(self) -> Position | None:
        """The newest whole position; None for a name that is new."""
        return read_position(self.map)

    @property
    def is_storable(self) -> bool:
        """Whether a store would not kill the process: the file system may have shut down."""
        return can_store(self.map, 0, HEAD_SIZE)

    def store(self, offset: int, sequence: int, time: int) -> None:
        """Write a position into the slot that does not count. Not while a reader does."""
        store_position(self.map, offset, sequence, time)

    def expire_after(self, seconds: float) -> None:
        """Let the name go when it had no live owner for so long."""
        self.map[CURSOR_TERM : CURSOR_TERM + TERM.size] = pack_term(int(seconds * 1e9))

    @property
    def origin(self) -> Origin | None:
        """Which control records speak of this position; None if none does."""
        return read_origin(self.map[: CURSOR_ORIGIN + ORIGIN.size])  # a slice is `ClosedResourceError` if it is closed

    @origin.setter
    def origin(self, origin: Origin | None) -> None:
        content = bytes(ORIGIN.size) if origin is None else pack_origin(origin)
        self.map[CURSOR_ORIGIN : CURSOR_ORIGIN + ORIGIN.size] = content

    def close(self) -> None:
        """Release the name, and close the file."""
        self._locks.close(self._try_to_note_departure)
        self.map.close()

    def _try_to_note_departure(self) -> None:
        with suppress(OSError):  # else the next process that looks does it
            self._note_departure()

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
    files: Files, locks: KernelLocks, path: Path, name: str, mode: int, size: int, *, shared: bool = False
) -> tuple[mmap.mmap, KernelLocks]:
    """Own a name, or share it with others who do; return what is stored under it, and the locks of the name.

    *locks* are those of the channel. Raises `ConsumerBusyError` if another process or receiver has the name for itself,
    and `ConsumerDamagedError`, with nothing changed, if its position cannot be read.
    """
    locks = locks.beside(lock_of(path))
    try:
        _take(files, locks, path, name, shared)
        # Its file is made and removed only by those who hold the name.
        descriptor = _open(files, path, size, mode)
        try:
            if all(is_damaged(files.read_at(descriptor, HEAD_SIZE, 0)) for _ in range(_LOOKS)):
                raise ConsumerDamagedError(name, path=path.parent.parent)
            files.allocate(path, descriptor, 0, size)
            files.write_at(descriptor, describe_this_process(), CURSOR_OWNER)
            return files.map(descriptor, size), locks
        finally:
            files.close(descriptor)
    except BaseException:
        locks.close()
        raise


def _take(files: Files, locks: KernelLocks, path: Path, name: str, shared: bool) -> None:
    """Lock a name; a visitor is waited for, unless it stands still."""
    patience = time.monotonic() + BRIEFLY
    while not locks.take(NAME_OWNER, shared=shared):
        # A group is held exclusively only for a moment: by a member that leaves, or a process that removes it.
        is_brief = shared or locks.is_taken(NAME_REMOVER) or not locks.is_taken(NAME_OWNER)
        if not is_brief or time.monotonic() > patience:
            raise busy(path, name, head_of(files, path))
        time.sleep(_PAUSE)


def _open(files: Files, path: Path, size: int, mode: int) -> int:
    """Return a descriptor of the file of a name, made if it is missing."""
    try:
        return files.open(path)
    except FileNotFoundError:
        # With an owner before it has a name: a file with neither that nor a position is one that lost both.
        files.make(path, size, describe_this_process(), CURSOR_OWNER, mode)
    return files.open(path)
