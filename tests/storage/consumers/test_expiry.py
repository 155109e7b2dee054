"""Names that stay only for so long without an owner."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from filechannel import ConsumerBusyError, ConsumerMismatchError, UnexpectedFileError, UnknownConsumerError
from filechannel._format.layout import (
    CURSOR_DEPARTURE,
    CURSOR_OWNER,
    CURSOR_SIZE,
    CURSOR_TERM,
    DEPARTURE,
    NAME_OWNER,
    NAME_REMOVER,
    TERM,
)
from filechannel._storage.consumers.cursor_file_format import file_name, is_overdue, read_departure, read_term
from filechannel._storage.consumers.expiry import remove_expired
from filechannel._storage.consumers.listing import ConsumerListing
from filechannel._storage.control.lock_file import lock_of
from filechannel._storage.system.kernel_locks import KernelLocks
from filechannel._storage.system.os_calls import Files
from tests.storage.clocks import Clock
from tests.storage.consumers.cursors_in import cursors_in
from tests.storage.forks import Fork
from tests.storage.resources import descriptors_under


def _locks(directory: Path, files: Files | None = None) -> KernelLocks:
    """Return the locks of the channel that a directory of consumers belongs to."""
    return KernelLocks(files or Files(), directory.with_name(directory.name + "-lock"), create=True)


class Names:
    """The consumers in a directory, and the counter of their changes."""

    def __init__(self, directory: Path) -> None:
        self.changes = 0
        self.locks = _locks(directory)
        self.cursors = cursors_in(directory, Files(), self.locks, self._count)
        self.consumer_listing = ConsumerListing(
            Files(), directory, lambda: self.changes, locks=self.locks, check_directory=lambda: None
        )

    def _count(self) -> None:
        self.changes += 1

    def remove_expired(self) -> list[str]:
        """Remove the expired ones."""
        return remove_expired(self.consumer_listing, self.cursors)

    def register(self, name: str, expires: float | None = None) -> None:
        """Register a name with a position, without an owner."""
        cursor = self.cursors.open(name)
        if expires is not None:
            cursor.expire_after(expires)
        cursor.store(100, 1, 0)
        self.cursors.close(cursor)


@pytest.fixture
def names(tmp_path: Path) -> Names:
    """A directory without consumers."""
    return Names(tmp_path)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The time of day, which does not advance."""
    return Clock.install(monkeypatch)


def test_only_what_is_overdue_is_removed(names: Names, clock: Clock) -> None:
    """Only names whose own expiry time is over are removed, and those without one stay."""
    for name, expires in (("short", 10), ("long", 100), ("stays", None)):
        names.register(name, expires)
    assert names.remove_expired() == []
    clock.pass_seconds(10)
    assert names.remove_expired() == ["short"]
    clock.pass_seconds(90)
    assert names.remove_expired() == ["long"]
    clock.pass_seconds(10**6)
    assert names.remove_expired() == []
    assert names.consumer_listing.names() == ["stays"]


def test_every_change_is_counted(names: Names, clock: Clock) -> None:
    """Registering and removing increment the counter of changes, and owning a name with a position does not."""
    names.register("a", 10)
    assert names.changes == 1
    names.register("a")
    assert names.changes == 1
    clock.pass_seconds(10)
    names.remove_expired()
    assert names.changes == 2
    names.register("a")
    names.cursors.remove_unowned("a")
    assert names.changes == 4
    names.cursors.remove(names.cursors.open("a"))
    assert names.changes == 6


def test_a_clock_that_is_set_back_removes_nothing(names: Names, clock: Clock) -> None:
    """After the clock was set back an owner that left in the future is not expired."""
    names.register("a", 10)
    clock.pass_seconds(-1000)
    assert names.remove_expired() == []


@pytest.mark.parametrize("position", [*range(CURSOR_TERM, CURSOR_TERM + TERM.size)])
def test_a_damaged_expiry_is_none(names: Names, tmp_path: Path, clock: Clock, position: int) -> None:
    """A consumer with a damaged expiry does not expire."""
    names.register("a", 10)
    file = tmp_path / file_name("a")
    content = bytearray(file.read_bytes())
    content[position] ^= 0x10
    file.write_bytes(content)
    assert read_term(content) is None
    clock.pass_seconds(1000)
    assert names.remove_expired() == []


@pytest.mark.parametrize("position", [*range(CURSOR_DEPARTURE, CURSOR_DEPARTURE + DEPARTURE.size)])
def test_a_damaged_departure_is_stored_again(names: Names, tmp_path: Path, clock: Clock, position: int) -> None:
    """A damaged departure time is stored again when a process notices it."""
    names.register("a", 10)
    file = tmp_path / file_name("a")
    content = bytearray(file.read_bytes())
    content[position] ^= 0x10
    file.write_bytes(content)
    clock.pass_seconds(1000)
    assert names.remove_expired() == []
    assert read_departure(file.read_bytes()) == clock.now
    clock.pass_seconds(10)
    assert names.remove_expired() == ["a"]


@pytest.mark.parametrize("size", [0, 1, CURSOR_OWNER, CURSOR_TERM, CURSOR_TERM + 11, CURSOR_DEPARTURE, CURSOR_SIZE])
def test_a_short_file_does_not_expire(names: Names, tmp_path: Path, size: int) -> None:
    """A consumer whose file was cut off before its expiry does not expire, and is listed without a position."""
    content = bytes(size)
    assert read_term(content) is None
    assert not is_overdue(content, 10**20)
    (tmp_path / file_name("a")).write_bytes(content)
    names.changes += 1
    names.cursors.note_departure("a")
    assert names.remove_expired() == []
    assert [each.position for each in names.consumer_listing.registrations()] == [None]


def test_a_child_does_not_let_its_parent_leave(names: Names, tmp_path: Path) -> None:
    """A forked child that closes a name of its parent stores no departure."""
    cursor = names.cursors.open("a")
    cursor.store(100, 1, 0)
    cursor.expire_after(10)
    Fork(cursor.close).end()
    assert read_departure((tmp_path / file_name("a")).read_bytes()) is None
    names.cursors.close(cursor)
    assert read_departure((tmp_path / file_name("a")).read_bytes()) is not None


def test_a_departure_of_an_owner_that_returned_does_not_count(names: Names, tmp_path: Path) -> None:
    """A departure that was stored for an earlier owner does not count while the name has one."""
    names.register("a", 10)
    cursor = names.cursors.open("a")
    names.cursors.note_departure("a")
    assert read_departure(cursor.map) is None
    assert not names.cursors.remove_overdue("a")
    names.cursors.close(cursor)


def test_removing_what_is_owned_or_not_there(names: Names, tmp_path: Path) -> None:
    """Removing a name that is owned, and one that is missing, raise different errors and leave nothing open."""
    cursor = names.cursors.open("a")
    (tmp_path / "directory.cursor").mkdir()
    before = descriptors_under(tmp_path), sorted(os.listdir(tmp_path))
    with pytest.raises(ConsumerBusyError):
        names.cursors.remove_unowned("a")
    with pytest.raises(UnknownConsumerError):
        names.cursors.remove_unowned("b")
    with pytest.raises(UnexpectedFileError):
        names.cursors.remove_unowned("directory")
    names.cursors.note_departure("b")
    assert (descriptors_under(tmp_path), sorted(os.listdir(tmp_path))) == before
    names.cursors.close(cursor)


def test_a_directory_instead_of_a_file_is_a_damaged_consumer(names: Names, tmp_path: Path) -> None:
    """A directory instead of a cursor is a damaged consumer without a position, which holds back everything."""
    (tmp_path / file_name("a")).mkdir()
    names.register("b")
    assert names.consumer_listing.names() == ["a", "b"]
    registration = names.consumer_listing.find("a")
    assert registration is not None
    assert (registration.position, registration.owner, registration.expires) == (None, None, None)
    assert names.consumer_listing.positions()["a"] is None
    watched = names.consumer_listing.watch("a")
    assert watched is not None
    assert names.consumer_listing.read(watched) is None
    with pytest.raises(UnexpectedFileError):
        names.cursors.remove_unowned("a")


class LateGroup(Files):
    """Lets another process make a group of the name while it is registered."""

    def __init__(self, group: Path) -> None:
        self._group = group

    def lock(self, descriptor: int, position: int, *, shared: bool = False) -> bool:
        """Make the group, then lock."""
        self._group.touch()
        return super().lock(descriptor, position, shared=shared)


def test_of_two_kinds_at_once_none_or_one_is_registered(tmp_path: Path) -> None:
    """If both kinds of one name are registered at once, the process that sees the other file gives way."""
    files = LateGroup(tmp_path / "name.group")
    cursors = cursors_in(tmp_path, files, _locks(tmp_path, files))
    with pytest.raises(ConsumerMismatchError):
        cursors.open("name")
    assert os.listdir(tmp_path) == ["name.group"]
    assert descriptors_under(tmp_path) == 0


def test_a_stopped_process_with_a_name_lock_is_not_waited_for(names: Names, tmp_path: Path) -> None:
    """A name lock of a stopped process makes the name busy after a moment, and an expired name is left alone."""
    names.register("a", 1e-9)
    locks = names.locks.beside(lock_of(tmp_path / file_name("a")))
    assert locks.take(NAME_REMOVER)
    assert locks.take(NAME_OWNER)
    assert names.remove_expired() == []
    for call in (names.cursors.open, names.cursors.remove_unowned):
        with pytest.raises(ConsumerBusyError):
            call("a")
    locks.close()
    assert names.remove_expired() == ["a"]
