"""Who consumes a channel: the registered names, and what the file of each one says. Changes nothing."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from .._format.layout import CURSOR_OWNER, GROUP_MEMBERS, PROCESS_SLOT_COUNT
from .cursor_file import (
    HEAD_SIZE,
    Position,
    is_damaged,
    is_group,
    is_unsettled,
    name_of,
    path_of,
    read_departure,
    read_owner,
    read_position,
    read_term,
)
from .files import Files
from .holder import Holder
from .kernel_locks import taken_bytes

_LOOKS = 100


@dataclass(frozen=True, slots=True)
class Registration:
    """What the file of a consumer says, and the kernel about its owner."""

    name: str
    position: Position | None
    """Where it stands; None if that is damaged. Then it holds back everything, until it is repaired or removed."""
    owner: Holder | None
    """Who has it; None if nobody does that lives."""
    expires: int | None
    """How long it stays without a live owner (ns); None if it stays until it is removed."""
    left: int | None
    """When the last owner was known to be gone (ns since the epoch)."""
    members: tuple[int, ...] | None = None
    """The slots of the processes that have members of this group; None if it is not one."""


class Roster:
    """The names of one channel. Looks at the directory only when a shared word says that something changed."""

    def __init__(
        self,
        files: Files,
        directory: Path,
        registrations: Callable[[], int],
        check_place: Callable[[], object] = lambda: None,
    ) -> None:
        """*check_place* is called before a look, and raises if the directory is not the channel's any more."""
        self._files = files
        self._directory = directory
        self._registrations = registrations
        self._check_place = check_place
        self._lock = Lock()
        self._known: int | None = None
        self._names: list[str] = []

    def names(self) -> list[str]:
        """Return the names that are registered, in order."""
        with self._lock:
            registrations = self._registrations()  # before the look: a change that comes later is seen the next time
            if registrations != self._known:
                names = {name_of(file) for file in self._files.list(self._directory)}
                self._names = sorted(name for name in names if name is not None and self._is_file(name))
                self._known = registrations
            return list(self._names)

    def _is_file(self, name: str) -> bool:
        return self._files.is_file(self._path(name))

    def _path(self, name: str) -> Path:
        return path_of(self._files, self._directory, name)

    def registrations(self) -> list[Registration]:
        """Return everybody who is registered."""
        self._check_place()
        found = map(self.look, self.names())
        return [registration for registration in found if registration is not None]

    def positions(self) -> dict[str, Position | None]:
        """Return where everybody stands who is registered; None for one whose position cannot be read.

        Whoever is about to be registered and stands nowhere yet is left out: it looks again after it was put somewhere.
        """
        self._check_place()
        found: dict[str, Position | None] = {}
        for name in self.names():
            with suppress(FileNotFoundError, IsADirectoryError), self._opened(self._path(name)) as descriptor:
                head = self._read(descriptor)
                if not is_unsettled(head):
                    found[name] = read_position(head)
        return found

    def _read(self, descriptor: int) -> bytes:
        """Return what counts of a file, with a position if there is one that can be read."""
        head = self._files.read_at(descriptor, HEAD_SIZE, 0)
        for _ in range(_LOOKS):  # it may be in the middle of being written, twice
            if read_position(head) is not None:
                break
            head = self._files.read_at(descriptor, HEAD_SIZE, 0)
        return head

    def look(self, name: str) -> Registration | None:
        """Return what is known of a name; None if it is not registered, or about to be and stands nowhere yet."""
        path = self._path(name)
        with suppress(FileNotFoundError, IsADirectoryError), self._opened(path) as descriptor:
            # Who lives before who left: an owner that goes in between is one who has not left yet.
            is_owned = self._files.locked_range(descriptor, CURSOR_OWNER, 1) is not None
            head = self._read(descriptor)
            if not is_unsettled(head):
                owner = read_owner(head) if is_owned else None
                members = self._members(descriptor) if is_group(path) else None
                return Registration(name, read_position(head), owner, read_term(head), read_departure(head), members)
        return None

    def _members(self, descriptor: int) -> tuple[int, ...]:
        taken = taken_bytes(self._files, descriptor, GROUP_MEMBERS, GROUP_MEMBERS + PROCESS_SLOT_COUNT - 1)
        return tuple(byte - GROUP_MEMBERS for byte in taken)

    def watch(self, name: str) -> mmap.mmap | None:
        """Return a map in which `read` finds the position of a name from now on; None if it is not registered yet."""
        self._check_place()
        with suppress(FileNotFoundError, IsADirectoryError), self._opened(self._path(name)) as descriptor:
            head = self._read(descriptor)
            if is_damaged(head):
                return mmap.mmap(-1, HEAD_SIZE)  # in which there is no position either; a file may be too short to map
            if not is_unsettled(head):
                return self._files.map(descriptor, min(HEAD_SIZE, self._files.size(descriptor)), writable=False)
        return None

    @contextmanager
    def _opened(self, path: Path) -> Generator[int]:
        descriptor = self._files.open(path, writable=False)
        try:
            yield descriptor
        finally:
            self._files.close(descriptor)

    @staticmethod
    def read(watched: mmap.mmap) -> Position | None:
        """Return the position in a map; None in the moment in which it is written twice, or if it is damaged."""
        return read_position(watched[:CURSOR_OWNER])
