"""Who consumes a channel: the registered names, and what the file of each one says. Changes nothing.

What has the name of a consumer's file and is not a regular file, such as a link, counts as a damaged one: a person has
replaced it, and what the consumer has not received must not be removed.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

from .._errors import UnexpectedFileError
from .._format import Mutex
from .._format.layout import CURSOR_OWNER, NAME_MEMBERS, NAME_OWNER, PROCESS_SLOT_COUNT
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
from .kernel_locks import KernelLocks
from .lock_file import Sight, lock_of, looking

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
    is_owner_known: bool = True
    """False for a user who may not open the lock file: no owner and no member is named then."""


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
        self.locks: KernelLocks | None = None
        """Those of the channel, for a process that has it open for writing."""
        self._lock = Mutex()
        self._known: int | None = None
        self._names: list[str] = []

    def names(self) -> list[str]:
        """Return the names that are registered, in order."""
        with self._lock.held():
            registrations = self._registrations()  # before the look: a change that comes later is seen the next time
            if registrations != self._known:
                names = {name_of(file) for file in self._files.list(self._directory)}
                self._names = sorted(name for name in names if name is not None)
                self._known = registrations
            return list(self._names)

    def _path(self, name: str) -> Path:
        return path_of(self._files, self._directory, name)

    def registrations(self) -> list[Registration]:
        """Return everybody who is registered."""
        self._check_place()
        with self._looking() as sight:
            found = [self._look(name, sight) for name in self.names()]
        return [registration for registration in found if registration is not None]

    def positions(self) -> dict[str, Position | None]:
        """Return where everybody stands who is registered; None for one whose position cannot be read.

        Whoever is about to be registered and stands nowhere yet is left out: it looks again after it was put somewhere.
        """
        self._check_place()
        found: dict[str, Position | None] = {}
        for name in self.names():
            with suppress(FileNotFoundError):
                head = self._head(self._path(name))
                if not is_unsettled(head):
                    found[name] = read_position(head)
        return found

    def _head(self, path: Path) -> bytes:
        """Return what counts of a file; of what is not a regular file, as of one that is damaged, nothing."""
        try:
            with self._opened(path) as descriptor:
                return self._read(descriptor)
        except UnexpectedFileError:
            return b""

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
        with self._looking() as sight:
            return self._look(name, sight)

    def _looking(self) -> AbstractContextManager[Sight]:
        if self.locks is not None:
            return nullcontext(Sight(self.locks, is_complete=True))
        return looking(self._files, self._directory.parent)

    def _look(self, name: str, sight: Sight) -> Registration | None:
        path = self._path(name)
        lock = lock_of(path)
        with suppress(FileNotFoundError):
            # Who lives before who left: an owner that goes in between is one who has not left yet.
            is_owned = sight.is_taken(lock + NAME_OWNER)
            head = self._head(path)
            if not is_unsettled(head):
                owner = read_owner(head) if is_owned else None
                members = _members(sight, lock + NAME_MEMBERS) if is_group(path) else None
                return Registration(
                    name,
                    read_position(head),
                    owner,
                    read_term(head),
                    read_departure(head),
                    members,
                    sight.is_complete,
                )
        return None

    def watch(self, name: str) -> mmap.mmap | None:
        """Return a map in which `read` finds the position of a name from now on; None if it is not registered yet."""
        self._check_place()
        path = self._path(name)
        try:
            with self._opened(path) as descriptor:
                head = self._read(descriptor)
                if not is_damaged(head):
                    size = min(HEAD_SIZE, self._files.size(descriptor))
                    return None if is_unsettled(head) else self._files.map(descriptor, size, writable=False)
        except FileNotFoundError:
            return None
        except UnexpectedFileError:
            pass
        return mmap.mmap(-1, HEAD_SIZE)  # in which there is no position either; a file may be too short to map

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


def _members(sight: Sight, first: int) -> tuple[int, ...]:
    return tuple(byte - first for byte in sight.taken(first, first + PROCESS_SLOT_COUNT - 1))
