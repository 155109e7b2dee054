"""Durable consumer positions."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from filechannel import ConsumerBusyError, ConsumerDamagedError, DiskFullError
from filechannel._format.layout import (
    CURSOR,
    CURSOR_OWNER,
    CURSOR_SIZE,
    CURSOR_SLOTS,
    GROUP_SIZE,
    NAME_LOCK_SIZE,
    NAME_LOCKS,
    NAME_OWNER,
    NAME_REMOVER,
)
from filechannel._offset import LogPosition, Offset
from filechannel._storage.consumers.cursor import own
from filechannel._storage.consumers.cursor_file_format import (
    StoredPosition,
    file_name,
    group_file_name,
    name_of,
    offsets_in_consumers,
    read_position,
)
from filechannel._storage.consumers.cursors import Cursors
from filechannel._storage.control.lock_file import lock_of
from filechannel._storage.system.kernel_locks import KernelLocks
from filechannel._storage.system.os_calls import Files
from tests.storage.consumers.cursors_in import cursors_in
from tests.storage.faults import NEEDING_SPACE, FaultyFiles, disk_full
from tests.storage.forks import Fork, killed_with_a_child
from tests.storage.resources import descriptors_under

NAMES = [
    "default",
    "a.b",
    "../../etc/passwd",
    "/",
    ".",
    "..",
    "a b",
    "naïve",
    "日本",
    "%2E",
    "nul\0",
    "\n",
    "~",
    "A" * 200,
]


def _cursors(directory: Path, files: Files | None = None) -> Cursors:
    return cursors_in(directory, files or Files(), _locks(directory, files))


def _locks(directory: Path, files: Files | None = None) -> KernelLocks:
    """Return the locks of the channel that a directory of consumers belongs to."""
    return KernelLocks(files or Files(), directory.with_name(directory.name + "-lock"), create=True)


def _offsets(directory: Path) -> list[Offset]:
    return offsets_in_consumers(Files(), directory)


def _mark(offset: int) -> LogPosition:
    return LogPosition(Offset(offset), offset // 10)


# Names


@pytest.mark.parametrize("name", NAMES)
def test_any_name_becomes_one_safe_file(tmp_path: Path, name: str) -> None:
    """The file of any name lies in the directory, and the name can be read from it."""
    cursors = _cursors(tmp_path / "consumers")
    (tmp_path / "consumers").mkdir()
    cursors.close(cursors.open(name))
    assert cursors.names() == [name]
    assert name_of(file_name(name)) == name
    assert sorted(os.listdir(tmp_path)) == ["consumers", "consumers-lock"]
    assert len(os.listdir(tmp_path / "consumers")) == 1


@pytest.mark.parametrize("name", ["", "A" * 201, "日" * 100, "\ud800"])
def test_some_names_are_refused(tmp_path: Path, name: str) -> None:
    """An empty name, one too long for a file, and one that is not text are refused."""
    with pytest.raises(ValueError, match=r"empty|too long|lone surrogate"):
        _cursors(tmp_path).open(name)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("stray", [".cursor", "a.b.cursor", ".group", "%2e.cursor", "%ff.cursor", "é.cursor", "x"])
def test_other_files_are_not_consumers(tmp_path: Path, stray: str) -> None:
    """A file that belongs to no name is left alone."""
    (tmp_path / stray).touch()
    assert _cursors(tmp_path).names() == []


def test_a_directory_is_not_a_consumer(tmp_path: Path) -> None:
    """A directory under the file name of a consumer is left alone."""
    (tmp_path / "x.cursor").mkdir()
    (tmp_path / "y.group").mkdir()
    assert _cursors(tmp_path).names() == []


# Positions


def test_a_new_consumer_has_no_position(tmp_path: Path) -> None:
    """A new consumer is registered without a position."""
    cursors = _cursors(tmp_path)
    cursor = cursors.open("new")
    assert cursor.position is None
    assert cursors.names() == ["new"]
    assert _offsets(tmp_path) == []
    cursors.close(cursor)


def test_a_position_outlives_its_owner(tmp_path: Path) -> None:
    """The next owner of a name resumes where the last one stopped."""
    for number in range(1, 6):
        cursors = _cursors(tmp_path)
        cursor = cursors.open("name")
        cursor.store(number * 100, number, number * 7)
        assert cursor.position == StoredPosition(Offset(number * 100), number, number * 7)
        cursors.close(cursor)
        assert _offsets(tmp_path) == [number * 100]


def test_a_position_may_move_back(tmp_path: Path) -> None:
    """The newest position counts, not the largest."""
    cursor = _cursors(tmp_path).open("name")
    cursor.store(500, 5, 0)
    cursor.store(100, 1, 0)
    assert cursor.position == StoredPosition(Offset(100), 1, 0)
    cursor.close()


@pytest.mark.parametrize("position", range(CURSOR.size))
def test_a_torn_position_does_not_count(tmp_path: Path, position: int) -> None:
    """If the newest slot is damaged the one before counts, and the next position overwrites the damaged one."""
    cursor = _cursors(tmp_path).open("name")
    cursor.store(100, 1, 0)
    cursor.store(200, 2, 0)
    cursor.map[CURSOR_SLOTS[0] + position] ^= 0x40
    assert cursor.position == StoredPosition(Offset(100), 1, 0)
    cursor.store(300, 3, 0)
    assert cursor.position == StoredPosition(Offset(300), 3, 0)
    cursor.close()


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "emptied": lambda _: b"",
    "cut off": lambda content: content[:20],
    "cut off in the older slot": lambda content: b"?" + content[1:99],
    "zeros": lambda content: bytes(len(content)),
    "other bytes": lambda content: b"x" * len(content),
    "both slots": lambda content: bytes([content[0] ^ 1, *content[1:64], content[64] ^ 1, *content[65:]]),
}


@pytest.mark.parametrize("damage", [pytest.param(damage, id=what) for what, damage in DAMAGES.items()])
def test_a_damaged_cursor_cannot_be_opened(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    """A damaged position is reported to every owner and kept; after removal the name is new."""
    cursors, path = _cursors(tmp_path / "consumers"), tmp_path / "consumers" / file_name("name")
    path.parent.mkdir()
    cursor = cursors.open("name")
    cursor.store(100, 1, 0)
    cursor.store(200, 2, 0)
    cursors.close(cursor)
    damaged = damage(path.read_bytes())
    path.write_bytes(damaged)
    for _ in range(2):
        with pytest.raises(ConsumerDamagedError, match=f"filechannel repair {tmp_path} --apply"):
            cursors.open("name")
    assert path.read_bytes() == damaged
    assert cursors.names() == ["name"]
    cursors.remove_unowned("name")
    assert cursors.open("name").position is None
    cursors.close_all()


def test_a_cursor_that_is_cut_off_behind_its_position_is_completed(tmp_path: Path) -> None:
    """A cursor that was cut off after its position is completed."""
    cursors = _cursors(tmp_path)
    cursor = cursors.open("name")
    cursor.store(100, 1, 0)
    cursors.close(cursor)
    os.truncate(tmp_path / file_name("name"), CURSOR_SLOTS[1] + CURSOR.size)
    cursor = cursors.open("name")
    assert cursor.position == StoredPosition(Offset(100), 1, 0)
    assert len(cursor.map) == CURSOR_SIZE
    cursors.close(cursor)


def test_a_name_whose_owner_died_before_it_had_a_position_is_new(tmp_path: Path) -> None:
    """A name whose owner died before it had a position is new, because no caller got it."""
    cursors = _cursors(tmp_path)
    cursors.close(cursors.open("name"))
    assert cursors.open("name").position is None
    cursors.close_all()


def test_a_file_without_a_name_is_made_where_there_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cursor is created with a temporary name on file systems without unnamed files."""
    wanted, really = list[int](), os.open

    def refuse(path: Path, flags: int, *rest: int, dir_fd: int | None = None) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            wanted.append(flags)
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP), str(path))
        return really(path, flags, *rest, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", refuse)
    cursors = _cursors(tmp_path)
    cursor = cursors.open("name")
    assert wanted
    assert cursor.position is None
    cursors.close(cursor)
    assert cursors.open("name").position is None
    cursors.close_all()


def test_no_process_sees_a_file_before_it_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a temporary name no process sees an incomplete file, and the consumer name is in use meanwhile."""
    really, write = os.open, os.pwrite
    seen: list[list[str]] = []

    def refuse(path: Path, flags: int, *rest: int, dir_fd: int | None = None) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP), str(path))
        return really(path, flags, *rest, dir_fd=dir_fd)

    def look(descriptor: int, content: bytes, position: int) -> int:
        if not seen:
            seen.append(others.names())
            with pytest.raises(ConsumerBusyError):
                others.open("name")
        return write(descriptor, content, position)

    cursors, others = _cursors(tmp_path), _cursors(tmp_path)
    monkeypatch.setattr(os, "open", refuse)
    monkeypatch.setattr(os, "pwrite", look)
    cursors.close(cursors.open("name"))
    assert seen == [[]]
    assert os.listdir(tmp_path) == [file_name("name")]


def test_a_disk_may_be_slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Registering a new name waits for a slow disk."""
    now = 0.0

    def later() -> float:
        nonlocal now
        now += 1
        return now

    monkeypatch.setattr(time, "monotonic", later)
    cursors = _cursors(tmp_path)
    cursors.close(cursors.open("name"))


def test_a_process_that_joins_a_group_waits_for_one_that_leaves_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member that joins waits for one that leaves and has the name to itself for a moment."""
    path, files = tmp_path / group_file_name("name"), Files()
    locks = _locks(tmp_path)
    own(files, locks, path, "name", 0o600, GROUP_SIZE, shared=True)[1].close()
    leaving = locks.beside(lock_of(path))
    assert leaving.take(NAME_OWNER)
    monkeypatch.setattr(time, "sleep", lambda _: leaving.close())
    own(files, locks, path, "name", 0o600, GROUP_SIZE, shared=True)[1].close()


def test_a_short_file_has_no_position() -> None:
    """A file that is too short for a position has none."""
    assert read_position(b"") is None
    assert read_position(bytes(CURSOR_SIZE)) is None


# Owners


def test_a_name_has_one_owner(tmp_path: Path) -> None:
    """A name has one owner, and the error for a second one names it."""
    first, second = _cursors(tmp_path), _cursors(tmp_path)
    cursor = first.open("name")
    for cursors in (first, second):
        with pytest.raises(ConsumerBusyError) as caught:
            cursors.open("name")
        assert (caught.value.name, caught.value.pid) == ("name", os.getpid())
    assert first._open == {"name": cursor}
    first.close(cursor)
    second.close(second.open("name"))


def test_being_refused_costs_no_descriptor(tmp_path: Path) -> None:
    """A refused registration leaves no descriptor open, however often it is repeated."""
    cursors = _cursors(tmp_path)
    cursor = cursors.open("name")
    before = descriptors_under(tmp_path)
    for _ in range(5):
        with pytest.raises(ConsumerBusyError):
            cursors.open("name")
    assert descriptors_under(tmp_path) == before
    cursors.close(cursor)


def test_closing_twice_is_closing_once(tmp_path: Path) -> None:
    """Closing a name twice closes its descriptor once, whose number may be that of another file."""
    cursor = _cursors(tmp_path).open("name")
    cursor.close()
    other = os.open(tmp_path, os.O_RDONLY)
    cursor.close()
    os.close(other)


def test_a_removed_name_is_deleted(tmp_path: Path) -> None:
    """Removing a name deletes its file, and the name can be registered again."""
    cursors = _cursors(tmp_path)
    cursor = cursors.open("name")
    cursor.store(100, 1, 0)
    cursors.remove(cursor)
    assert cursors.names() == []
    again = cursors.open("name")
    assert again.position is None
    cursors.close(again)


def test_all_names_can_be_released(tmp_path: Path) -> None:
    """Closing a channel releases every name it owned."""
    cursors = _cursors(tmp_path)
    for name in "abc":
        cursors.open(name)
    cursors.close_all()
    other = _cursors(tmp_path)
    for name in "abc":
        other.close(other.open(name))


@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_full_disk_registers_no_consumer(tmp_path: Path, at: int) -> None:
    """Without disk space a name is refused and has no owner, and is registered later."""
    files = FaultyFiles()
    cursors = _cursors(tmp_path, files)
    before = descriptors_under(tmp_path)
    files.fail(NEEDING_SPACE, disk_full, at=at)
    with pytest.raises(DiskFullError):
        cursors.open("name")
    assert descriptors_under(tmp_path) == before
    files.work()
    cursor = cursors.open("name")
    assert cursor.position is None
    cursors.close(cursor)


# Moving and flushing


def test_only_names_without_an_owner_are_moved(tmp_path: Path) -> None:
    """A purge moves names with an earlier position, and not those with an owner or without a position."""
    cursors = _cursors(tmp_path)
    for name, offset in (("behind", 10), ("before", 500), ("owned", 10)):
        cursor = cursors.open(name)
        cursor.store(offset, offset // 10, 0)
        if name != "owned":
            cursors.close(cursor)
    cursors.close(cursors.open("nowhere"))
    cursors.move_unowned(_mark(100))
    found = {name: read_position((tmp_path / file_name(name)).read_bytes()) for name in cursors.names()}
    offsets = {name: position and position.offset for name, position in found.items()}
    assert offsets == {"behind": 100, "before": 500, "owned": 10, "nowhere": None}
    cursors.close_all()


def test_a_flush_covers_every_name(tmp_path: Path) -> None:
    """A flush covers every name, owned or not, of this and earlier processes, and new names once."""
    first = _cursors(tmp_path)
    first.close(first.open("before us"))
    files = FaultyFiles()
    cursors = _cursors(tmp_path, files)
    cursors.open("owned")
    cursors.close(cursors.open("closed"))
    cursors.flush()
    expected = {tmp_path, *(tmp_path / file_name(name) for name in ("before us", "owned", "closed"))}
    assert set(files.flushed) == expected
    assert len(files.flushed) == 4
    files.flushed.clear()
    cursors.flush()
    assert files.flushed == [tmp_path / file_name("owned")]
    cursors.close_all()


def test_a_removed_name_needs_no_flush(tmp_path: Path) -> None:
    """A flush accepts that a name was removed, and flushes its removal."""
    files = FaultyFiles()
    cursors = _cursors(tmp_path, files)
    cursors.flush()
    cursors.close(cursors.open("stolen"))
    (tmp_path / file_name("stolen")).unlink()
    cursors.remove(cursors.open("removed"))
    files.flushed.clear()
    cursors.flush()
    assert files.flushed == [tmp_path]


def test_the_owner_is_a_note_beside_the_position() -> None:
    """Describing the owner does not change the position slots."""
    assert CURSOR_SLOTS[-1] + CURSOR.size <= CURSOR_OWNER
    assert CURSOR_SLOTS[-1] + CURSOR.size <= 512  # one sector: never torn between the two slots


# Owners that die


def test_the_name_of_a_killed_owner_is_free_although_its_child_lives(tmp_path: Path) -> None:
    """The name of a killed owner is free, although its child is alive with the map."""

    def own() -> object:
        cursors = _cursors(tmp_path)
        cursors.open("name").store(100, 1, 0)
        return cursors

    with killed_with_a_child(own):
        cursors = _cursors(tmp_path)
        cursor = cursors.open("name")
        assert cursor.position == StoredPosition(Offset(100), 1, 0)
        cursors.close(cursor)


def test_a_child_does_not_take_the_name_away(tmp_path: Path) -> None:
    """A forked child that closes names or ends leaves its parent as their owner."""
    cursors = _cursors(tmp_path)
    cursor = cursors.open("name")

    def close_inherited() -> object:
        theirs = _cursors(tmp_path)
        other = theirs.open("other")
        cursor.close()
        with pytest.raises(ConsumerBusyError):
            _cursors(tmp_path).open("other")
        return theirs, other

    Fork(close_inherited).end()
    with pytest.raises(ConsumerBusyError) as caught:
        _cursors(tmp_path).open("name")
    assert caught.value.pid == os.getpid()
    cursors.close(cursor)


class Removing(Files):
    """Removes the file behind the back of a process that is about to lock its name."""

    def __init__(self, path: Path, *, make_again: bool) -> None:
        self._path = path
        self._make_again = make_again
        self._last: int | None = None
        self.removed = False

    def lock(self, descriptor: int, position: int, *, shared: bool = False) -> bool:
        """Remove the file once, when its name is about to be owned and not only visited; then lock the name."""
        byte = (position - NAME_LOCKS) % NAME_LOCK_SIZE
        is_visit, self._last = self._last == NAME_REMOVER, byte
        if byte == NAME_OWNER and not is_visit and not self.removed:
            self.removed = True
            self._path.unlink()
            if self._make_again:
                _cursors(self._path.parent).open("name").close()
        return super().lock(descriptor, position, shared=shared)


@pytest.mark.parametrize("make_again", [False, True])
def test_a_name_that_is_removed_during_a_registration_is_created_again(tmp_path: Path, make_again: bool) -> None:
    """A name that is removed during its registration is created again, so that its owner has the current file."""
    path = tmp_path / file_name("name")
    _cursors(tmp_path).open("name").close()
    removing = Removing(path, make_again=make_again)
    cursors = _cursors(tmp_path, removing)
    cursor = cursors.open("name")
    assert removing.removed
    cursor.store(100, 1, 0)
    assert _offsets(tmp_path) == [100]
    with pytest.raises(ConsumerBusyError):
        _cursors(tmp_path).open("name")
    cursors.close(cursor)
    assert descriptors_under(path) <= 1, "the map"


def test_a_name_without_disk_space_is_not_registered(tmp_path: Path) -> None:
    """Without disk space a new name leaves nothing behind, and an existing one stays."""
    files = FaultyFiles()
    cursors = _cursors(tmp_path, files)
    known = cursors.open("known")
    known.store(100, 10, 0)
    cursors.close(known)
    files.fail(NEEDING_SPACE, disk_full)
    for name in ("new", "known"):
        with pytest.raises(DiskFullError):
            cursors.open(name)
    assert cursors.names() == ["known"]
    files.work()
    assert cursors.open("known").position == StoredPosition(Offset(100), 10, 0)
    cursors.close_all()
