"""The open cursor of one consumer name: the stored position, in a mapped file.

The kernel lock on the name, in the lock file of the channel, decides whether the name has a live owner. The owner field
in the cursor file only identifies that owner.
"""

from __future__ import annotations

import mmap
import time
from contextlib import suppress
from pathlib import Path

from ..._errors import ConsumerDamagedError
from ..._format import can_store, write_cursor_slot
from ..._format.layout import (
    CURSOR_DEPARTURE,
    CURSOR_ORIGIN,
    CURSOR_OWNER,
    CURSOR_SIZE,
    CURSOR_TERM,
    DEPARTURE,
    NAME_OWNER,
    NAME_REMOVER,
    ORIGIN,
    TERM,
)
from ..control.lock_file import lock_of
from ..control.lock_holder import describe_this_process
from ..system.kernel_locks import KernelLocks
from ..system.os_calls import Files
from .cursor_file_format import (
    HEAD_SIZE,
    Origin,
    StoredPosition,
    is_damaged,
    pack_departure,
    pack_origin,
    pack_term,
    read_origin,
    read_position,
    read_slots,
    read_term,
)
from .name_lock import BRIEFLY, busy, head_of

_PAUSE = 0.001  # seconds
_MOST_READS = 100  # reads of a position that other members of a group may be writing


class Cursor:
    """The open cursor of one name. This object owns the name until it is closed."""

    def __init__(self, name: str, content: mmap.mmap, locks: KernelLocks) -> None:
        self.name = name
        self.map: mmap.mmap = content
        self._locks = locks

    @classmethod
    def open(cls, files: Files, locks: KernelLocks, path: Path, name: str, mode: int) -> Cursor:
        """Become the owner of a name. Raises as `own` does."""
        return cls(name, *own(files, locks, path, name, mode, CURSOR_SIZE))

    @property
    def position(self) -> StoredPosition | None:
        """The newest valid position; None for a new name."""
        return read_position(self.map)

    @property
    def is_storable(self) -> bool:
        """Whether the map can be written to without killing the process: the file system may have shut down."""
        return can_store(self.map, 0, HEAD_SIZE)

    def store(self, offset: int, sequence: int, time: int) -> None:
        """Write a position into the older slot. Must not run while a reader writes positions."""
        store_position(self.map, offset, sequence, time)

    def expire_after(self, seconds: float) -> None:
        """Let the name expire after it had no live owner for so long."""
        self.map[CURSOR_TERM : CURSOR_TERM + TERM.size] = pack_term(int(seconds * 1e9))

    @property
    def origin(self) -> Origin | None:
        """Which header records carry this position; None if none does."""
        # Slicing raises `ClosedResourceError` if the map is closed.
        return read_origin(self.map[: CURSOR_ORIGIN + ORIGIN.size])

    @origin.setter
    def origin(self, origin: Origin | None) -> None:
        content = bytes(ORIGIN.size) if origin is None else pack_origin(origin)
        self.map[CURSOR_ORIGIN : CURSOR_ORIGIN + ORIGIN.size] = content

    def close(self) -> None:
        """Release the name, and close the file."""
        self._locks.close(self._try_to_note_departure)
        self.map.close()

    def _try_to_note_departure(self) -> None:
        with suppress(OSError):  # else the next process that checks notes it
            self._note_departure()

    def _note_departure(self) -> None:
        if read_term(self.map) is None:
            return
        note = pack_departure(self.map, time.time_ns())
        self.map[CURSOR_DEPARTURE : CURSOR_DEPARTURE + DEPARTURE.size] = note


def store_position(content: mmap.mmap, offset: int, sequence: int, time: int) -> None:
    """Write a position into the older slot of a cursor file."""
    generation = max((slot[0] for slot in read_slots(content)), default=0) + 1
    write_cursor_slot(content, generation, offset, sequence, time)


def own(
    files: Files, locks: KernelLocks, path: Path, name: str, mode: int, size: int, *, shared: bool = False
) -> tuple[mmap.mmap, KernelLocks]:
    """Become the owner of a name, or one of several. Return the map of its file, and the locks of the name.

    *locks* are those of the channel. Raises `ConsumerBusyError` if another process or receiver owns the name alone, and
    `ConsumerDamagedError`, with nothing changed, if its position cannot be read.
    """
    locks = locks.beside(lock_of(path))
    try:
        _acquire_name(files, locks, path, name, shared)
        # Only the holder of the name lock creates or removes the file.
        descriptor = _open_or_create(files, path, size, mode)
        try:
            if all(is_damaged(files.read_at(descriptor, HEAD_SIZE, 0)) for _ in range(_MOST_READS)):
                raise ConsumerDamagedError(name, path=path.parent.parent)
            files.allocate(path, descriptor, 0, size)
            files.write_at(descriptor, describe_this_process(), CURSOR_OWNER)
            return files.map(descriptor, size), locks
        finally:
            files.close(descriptor)
    except BaseException:
        locks.close()
        raise


def _acquire_name(files: Files, locks: KernelLocks, path: Path, name: str, shared: bool) -> None:
    """Acquire the name lock. Wait for a process that holds it briefly, unless that process is stopped."""
    deadline = time.monotonic() + BRIEFLY
    while not locks.take(NAME_OWNER, shared=shared):
        # The lock of a group is held exclusively only briefly: by a member that leaves, or by a process that removes
        # the group.
        is_brief = shared or locks.is_taken(NAME_REMOVER) or not locks.is_taken(NAME_OWNER)
        if not is_brief or time.monotonic() > deadline:
            raise busy(path, name, head_of(files, path))
        time.sleep(_PAUSE)


def _open_or_create(files: Files, path: Path, size: int, mode: int) -> int:
    """Return a descriptor of the file of a name; create the file if it is missing."""
    try:
        return files.open(path)
    except FileNotFoundError:
        # Created with an owner before it gets its name: a file with neither an owner nor a position has lost both.
        files.make(path, size, describe_this_process(), CURSOR_OWNER, mode)
    return files.open(path)
