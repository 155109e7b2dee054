"""The registered consumers of a channel, and the content of each file. Read-only.

A link or another file that is not a regular file counts as a damaged consumer file: a person has replaced it, and
messages that the consumer has not received must not be removed.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

from ..._errors import UnexpectedFileError
from ..._format import Mutex
from ..._format.layout import CURSOR_OWNER, NAME_MEMBERS, NAME_OWNER, PROCESS_SLOT_COUNT
from ..control.lock_file import VisibleLocks, inspecting_locks, lock_of
from ..control.lock_holder import Holder
from ..system.kernel_locks import KernelLocks
from ..system.os_calls import Files
from .cursor_file_format import (
    HEAD_SIZE,
    StoredPosition,
    is_being_registered,
    is_damaged,
    is_group,
    name_of,
    path_of,
    read_departure,
    read_owner,
    read_position,
    read_term,
)

_MOST_READS = 100


@dataclass(frozen=True, slots=True)
class Registration:
    """The content of a consumer's file, and the kernel's information about its owner."""

    name: str
    position: StoredPosition | None
    """The stored position; None if it is damaged. Then nothing is reclaimed until it is repaired or removed."""
    owner: Holder | None
    """The live owner, if there is one."""
    expires: int | None
    """After how long without a live owner it expires (ns); None if it stays until it is removed."""
    departed: int | None
    """When the last owner was known to be gone (ns since the epoch)."""
    members: tuple[int, ...] | None = None
    """The slots of the processes that have members of this group; None for a single consumer."""
    is_owner_known: bool = True
    """False if the user may not open the lock file: then neither owner nor members are known."""


class ConsumerListing:
    """The consumer names of one channel. Lists the directory only if a shared word says that it changed."""

    def __init__(
        self,
        files: Files,
        directory: Path,
        registrations: Callable[[], int],
        locks: KernelLocks | None,
        check_directory: Callable[[], object],
    ) -> None:
        """*locks* are those of the channel, if this process has it open for writing.

        *check_directory* is called before files are read; it raises if the path leads to another directory now.
        """
        self._files = files
        self._directory = directory
        self._registrations = registrations
        self._check_directory = check_directory
        self._locks = locks
        self._lock = Mutex()
        self._known: int | None = None
        self._names: list[str] = []

    def names(self) -> list[str]:
        """Return the registered names, sorted."""
        with self._lock.held():
            # Before the directory is read: a later change is seen by the next call.
            registrations = self._registrations()
            if registrations != self._known:
                names = {name_of(file) for file in self._files.list(self._directory)}
                self._names = sorted(name for name in names if name is not None)
                self._known = registrations
            return list(self._names)

    def _path(self, name: str) -> Path:
        return path_of(self._files, self._directory, name)

    def registrations(self) -> list[Registration]:
        """Return all registered consumers."""
        self._check_directory()
        with self._visible_locks() as visible:
            found = [self._find(name, visible) for name in self.names()]
        return [registration for registration in found if registration is not None]

    def positions(self) -> dict[str, StoredPosition | None]:
        """Return the positions of all registered consumers; None for a position that cannot be read.

        A consumer that is being registered and has no position yet is left out: it checks the oldest offset after its
        position is stored.
        """
        self._check_directory()
        found: dict[str, StoredPosition | None] = {}
        for name in self.names():
            with suppress(FileNotFoundError):
                head = self._head(self._path(name))
                if not is_being_registered(head):
                    found[name] = read_position(head)
        return found

    def _head(self, path: Path) -> bytes:
        """Return the fields of a file; empty if it is not a regular file, as for a damaged one."""
        try:
            with self._opened(path) as descriptor:
                return self._read(descriptor)
        except UnexpectedFileError:
            return b""

    def _read(self, descriptor: int) -> bytes:
        """Return the fields of a file, read repeatedly until they contain a valid position."""
        head = self._files.read_at(descriptor, HEAD_SIZE, 0)
        for _ in range(_MOST_READS):  # both slots may be in the middle of being written
            if read_position(head) is not None:
                break
            head = self._files.read_at(descriptor, HEAD_SIZE, 0)
        return head

    def find(self, name: str) -> Registration | None:
        """Return the registration of a name; None if it is not registered, or has no position yet."""
        with self._visible_locks() as visible:
            return self._find(name, visible)

    def _visible_locks(self) -> AbstractContextManager[VisibleLocks]:
        if self._locks is not None:
            return nullcontext(VisibleLocks(self._locks, is_complete=True))
        return inspecting_locks(self._files, self._directory.parent)

    def _find(self, name: str, visible: VisibleLocks) -> Registration | None:
        path = self._path(name)
        lock = lock_of(path)
        with suppress(FileNotFoundError):
            # Check the lock before reading the departure: an owner that leaves in between counts as still present.
            is_owned = visible.is_taken(lock + NAME_OWNER)
            head = self._head(path)
            if not is_being_registered(head):
                owner = read_owner(head) if is_owned else None
                members = _members(visible, lock + NAME_MEMBERS) if is_group(path) else None
                return Registration(
                    name,
                    read_position(head),
                    owner,
                    read_term(head),
                    read_departure(head),
                    members,
                    visible.is_complete,
                )
        return None

    def watch(self, name: str) -> mmap.mmap | None:
        """Return a map in which `read` finds the current position of a name; None if it is not registered yet."""
        self._check_directory()
        path = self._path(name)
        try:
            with self._opened(path) as descriptor:
                head = self._read(descriptor)
                if not is_damaged(head):
                    size = min(HEAD_SIZE, self._files.size(descriptor))
                    return None if is_being_registered(head) else self._files.map(descriptor, size, writable=False)
        except FileNotFoundError:
            return None
        except UnexpectedFileError:
            pass
        return mmap.mmap(-1, HEAD_SIZE)  # a map without a position; the file may be too short to be mapped

    @contextmanager
    def _opened(self, path: Path) -> Generator[int]:
        descriptor = self._files.open(path, writable=False)
        try:
            yield descriptor
        finally:
            self._files.close(descriptor)

    @staticmethod
    def read(watched: mmap.mmap) -> StoredPosition | None:
        """Return the position in a map; None while both slots are being written, or if it is damaged."""
        return read_position(watched[:CURSOR_OWNER])


def _members(visible: VisibleLocks, first: int) -> tuple[int, ...]:
    return tuple(byte - first for byte in visible.taken(first, first + PROCESS_SLOT_COUNT - 1))
