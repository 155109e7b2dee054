"""Every call to the operating system, behind one interface."""

from __future__ import annotations

import errno
import mmap
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from filechannel import DiskFullError
from filechannel._storage.system.os_calls import Files, directory_mode
from tests.storage.faults import FaultyFiles, disk_full, input_output_error

pytestmark = pytest.mark.disk

files = Files()


def _failing(number: int) -> Callable[..., int]:
    def fail(*_: object, **__: object) -> int:
        raise OSError(number, os.strerror(number))

    return fail


def test_list_returns_sorted_names(tmp_path: Path) -> None:
    """The names in a directory come in order."""
    for name in ("b", "c", "a"):
        (tmp_path / name).touch()
    assert files.list(tmp_path) == ["a", "b", "c"]


def test_list_of_a_missing_directory_is_empty(tmp_path: Path) -> None:
    """A directory that is not there has no names."""
    assert files.list(tmp_path / "missing") == []


def test_make_directory_makes_parents_and_brings_their_names_to_disk(tmp_path: Path) -> None:
    """Every directory that is new is flushed into its parent: what is flushed inside can be found again."""
    faulty = FaultyFiles()
    faulty.make_directory(tmp_path / "a" / "b" / "c", 0o700)
    assert stat.S_IMODE((tmp_path / "a" / "b" / "c").stat().st_mode) == 0o700
    assert faulty.flushed == [tmp_path, tmp_path / "a", tmp_path / "a" / "b"]


def test_make_directory_leaves_one_that_is_there(tmp_path: Path) -> None:
    """Making a directory again does nothing."""
    faulty = FaultyFiles()
    faulty.make_directory(tmp_path, 0o700)
    assert faulty.flushed == []


@pytest.mark.parametrize(("mode", "expected"), [(0o600, 0o700), (0o640, 0o750), (0o666, 0o777), (0o644, 0o755)])
def test_a_user_who_may_read_files_may_list_the_directory(mode: int, expected: int) -> None:
    """A directory's permissions follow from those of its files."""
    assert directory_mode(mode) == expected


def test_open_makes_a_file_that_only_its_owner_can_read(tmp_path: Path) -> None:
    """A file is made with the mode given, by default for its owner alone, and is not inherited by other programs."""
    descriptor = files.open(tmp_path / "file", create=True)
    assert stat.S_IMODE(os.fstat(descriptor).st_mode) == 0o600
    assert not os.get_inheritable(descriptor)
    files.close(descriptor)


def test_open_without_create_refuses_a_missing_file(tmp_path: Path) -> None:
    """A file that is not there stays that way unless it is asked for."""
    with pytest.raises(FileNotFoundError):
        files.open(tmp_path / "file")
    assert not (tmp_path / "file").exists()


def test_write_at_continues_after_a_short_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel may write less than it was given; all of it arrives in the end."""
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda descriptor, data, position: real(descriptor, data[:3], position))
    descriptor = files.open(tmp_path / "file", create=True)
    files.write_at(descriptor, b"0123456789", 5)
    assert files.read_at(descriptor, 100, 5) == b"0123456789"
    assert files.size(descriptor) == 15
    files.close(descriptor)


def test_grow_never_shortens(tmp_path: Path) -> None:
    """A file that is long enough is not changed: other processes may have it mapped."""
    descriptor = files.open(tmp_path / "file", create=True)
    files.grow(descriptor, 8192)
    files.grow(descriptor, 4096)
    assert files.size(descriptor) == 8192
    files.close(descriptor)


def test_grow_uses_no_disk_space(tmp_path: Path) -> None:
    """A file grows with a hole; `allocate` takes disk space."""
    descriptor = files.open(tmp_path / "file", create=True)
    files.grow(descriptor, 1 << 20)
    assert files.disk_space(tmp_path / "file") == 0
    files.allocate(tmp_path / "file", descriptor, 0, 64 << 10)
    assert 64 << 10 <= files.disk_space(tmp_path / "file") < 1 << 20
    files.close(descriptor)


def test_disk_space_of_a_missing_file_is_none(tmp_path: Path) -> None:
    """A file that was removed uses no disk space."""
    assert files.disk_space(tmp_path / "missing") == 0


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("call", ["posix_fallocate", "pwrite", "open"])
def test_a_full_disk_is_a_typed_error_that_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, call: str
) -> None:
    """No space and no quota are the same to a sender: a DiskFullError with the path."""
    path = tmp_path / "file"
    descriptor = files.open(path, create=True)
    monkeypatch.setattr(os, call, _failing(number))
    attempts: dict[str, Callable[[], object]] = {
        "posix_fallocate": lambda: files.allocate(path, descriptor, 0, 4096),
        "pwrite": lambda: files.write_at(descriptor, b"data", 0),
        "open": lambda: files.open(path, create=True),
    }
    with pytest.raises(DiskFullError, match="no space for") as caught:
        attempts[call]()
    assert caught.value.path == path
    monkeypatch.undo()
    files.close(descriptor)


@pytest.mark.parametrize(("call", "needed"), [("open", 0), ("posix_fallocate", 4096), ("link", 4096)])
def test_a_full_disk_names_what_did_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, needed: int
) -> None:
    """A disk can be out of bytes, or of files; nothing is left of one that cannot be created."""
    monkeypatch.setattr(os, call, _failing(errno.ENOSPC))
    with pytest.raises(DiskFullError) as caught:
        files.make(tmp_path / "file", 4096, b"", 0, 0o600)
    assert (caught.value.path, caught.value.needed) == (tmp_path / "file", needed)
    monkeypatch.undo()
    assert files.list(tmp_path) == []


def test_other_errors_of_the_disk_stay_what_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that has nothing to do with space is not called a full disk."""
    descriptor = files.open(tmp_path / "file", create=True)
    monkeypatch.setattr(os, "pwrite", _failing(errno.EIO))
    with pytest.raises(OSError, match="Input/output"):
        files.write_at(descriptor, b"data", 0)
    files.close(descriptor)


def test_a_shared_map_is_the_file(tmp_path: Path) -> None:
    """What is stored through a map is what all processes read."""
    descriptor = files.open(tmp_path / "file", create=True)
    files.grow(descriptor, mmap.PAGESIZE)
    shared = files.map(descriptor, mmap.PAGESIZE)
    shared[:5] = b"hello"
    assert files.read_at(descriptor, 5, 0) == b"hello"
    files.close(descriptor)


def test_a_private_map_changes_nothing_on_disk(tmp_path: Path) -> None:
    """A private map can be written to, and no other process sees it."""
    (tmp_path / "file").write_bytes(bytes(mmap.PAGESIZE))
    descriptor = files.open(tmp_path / "file", writable=False)
    private = files.map(descriptor, mmap.PAGESIZE, private=True)
    private[:5] = b"hello"
    assert files.read(tmp_path / "file", 1 << 20) == bytes(mmap.PAGESIZE)
    files.close(descriptor)


def test_a_map_for_reading_cannot_be_written_to(tmp_path: Path) -> None:
    """A reader cannot change anything by mistake."""
    (tmp_path / "file").write_bytes(bytes(mmap.PAGESIZE))
    descriptor = files.open(tmp_path / "file", writable=False)
    readable = files.map(descriptor, mmap.PAGESIZE, writable=False)
    with pytest.raises(TypeError):
        readable[:5] = b"hello"
    files.close(descriptor)


def test_write_atomically_replaces_the_whole_file(tmp_path: Path) -> None:
    """The new content replaces the old one, with its mode and nothing left over."""
    path = tmp_path / "file"
    path.write_bytes(b"a longer content")
    files.write_atomically(path, b"short", 0o640)
    assert path.read_bytes() == b"short"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert files.list(tmp_path) == ["file"]


def test_write_atomically_flushes_the_content_before_the_name(tmp_path: Path) -> None:
    """The data is on disk before the name refers to it, and the name when it returns."""
    faulty = FaultyFiles()
    faulty.write_atomically(tmp_path / "file", b"data", 0o600)
    assert faulty.flushed == [tmp_path / "file.new", tmp_path]


@pytest.mark.parametrize("call", ["create", "write_at", "flush", "replace"])
def test_write_atomically_that_fails_leaves_the_old_content(tmp_path: Path, call: str) -> None:
    """Whatever goes wrong, the old file is there and complete, nothing else is, and the next attempt succeeds."""
    path, faulty = tmp_path / "file", FaultyFiles()
    faulty.write_atomically(path, b"old", 0o600)
    faulty.fail(frozenset({call}), disk_full)
    with pytest.raises(DiskFullError):
        faulty.write_atomically(path, b"new", 0o600)
    assert path.read_bytes() == b"old"
    assert faulty.list(tmp_path) == ["file"]
    faulty.work()
    faulty.write_atomically(path, b"new", 0o600)
    assert path.read_bytes() == b"new"
    assert faulty.list(tmp_path) == ["file"]


def test_write_atomically_raises_if_the_name_may_not_be_on_disk(tmp_path: Path) -> None:
    """A directory that cannot be flushed is an error, though the new content is there."""
    faulty = FaultyFiles()
    faulty.fail(frozenset({"flush_directory"}), input_output_error)
    with pytest.raises(OSError, match="Input/output"):
        faulty.write_atomically(tmp_path / "file", b"new", 0o600)


def test_a_byte_has_one_holder(tmp_path: Path) -> None:
    """A locked byte is refused to every other open file, and other bytes are free."""
    first = files.open(tmp_path / "file", create=True)
    second = files.open(tmp_path / "file")
    assert files.lock(first, 7)
    assert not files.lock(second, 7)
    assert files.lock(second, 8)
    files.close(first)
    assert files.lock(second, 7)
    files.close(second)


def test_unlock_frees_a_byte_although_the_file_is_mapped(tmp_path: Path) -> None:
    """A map may keep the open file alive; the lock is released all the same."""
    first = files.open(tmp_path / "file", create=True)
    files.grow(first, mmap.PAGESIZE)
    kept = files.map(first, mmap.PAGESIZE)
    second = files.open(tmp_path / "file")
    assert files.lock(first, 0)
    files.unlock(first, 0)
    files.close(first)
    assert files.lock(second, 0)
    files.close(second)
    kept.close()


def test_lock_passes_other_errors_on(tmp_path: Path) -> None:
    """Only a locked byte is an answer; a bad descriptor is an error."""
    descriptor = files.open(tmp_path / "file", create=True)
    files.close(descriptor)
    with pytest.raises(OSError, match="Bad file descriptor"):
        files.lock(descriptor, 0)


def test_unlink_of_a_missing_file_is_not_an_error(tmp_path: Path) -> None:
    """Removing a missing file is done."""
    files.unlink(tmp_path / "missing")


def test_identity_distinguishes_files(tmp_path: Path) -> None:
    """Two files have two identities, and one file has one however it was opened."""
    first, second = (files.open(tmp_path / name, create=True) for name in "ab")
    again = files.open(tmp_path / "a")
    assert files.identity(first) == files.identity(again) != files.identity(second)
    for descriptor in (first, second, again):
        files.close(descriptor)


def test_is_file_distinguishes_files_from_directories(tmp_path: Path) -> None:
    """A directory exists, but it is not a file."""
    (tmp_path / "file").touch()
    assert files.is_file(tmp_path / "file")
    assert files.exists(tmp_path)
    assert not files.is_file(tmp_path)
    assert not files.is_file(tmp_path / "missing")


def test_file_system_names_the_kind(tmp_path: Path) -> None:
    """The file system of a directory has a name, the one of /proc is proc."""
    assert files.file_system(tmp_path)
    assert files.file_system(Path("/proc")) == "proc"


def test_file_system_is_unknown_without_proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the mounts cannot be read the answer is empty, not an error."""
    monkeypatch.setattr(Path, "open", _failing(errno.ENOENT))
    assert files.file_system(tmp_path) == ""


def test_a_closed_file_has_no_names_to_count() -> None:
    """The descriptor of a file that was closed is an `OSError`, as for the operating system."""
    with pytest.raises(OSError, match="Bad file descriptor"):
        Files().links(-1)
    with pytest.raises(OSError, match="Bad file descriptor"):
        Files().has_name(-1, b"name", 0, (0, 0))


@pytest.fixture
def named(tmp_path: Path) -> Iterator[tuple[int, int]]:
    """Return descriptors of a directory and of a file in it with the name `file`."""
    (tmp_path / "file").touch()
    directory, descriptor = os.open(tmp_path, os.O_RDONLY), os.open(tmp_path / "file", os.O_RDWR)
    try:
        yield directory, descriptor
    finally:
        os.close(directory)
        os.close(descriptor)


def test_a_name_of_another_file_is_not_its_own(tmp_path: Path, named: tuple[int, int]) -> None:
    """Whether it is missing, a link to the file, or another file; another name of the same file counts."""
    directory, descriptor = named
    inode = files.inode(descriptor)
    (tmp_path / "same").hardlink_to(tmp_path / "file")
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "other").touch()
    found = [
        name
        for name in (b"file", b"same", b"link", b"other", b"missing", b"file/below")
        if files.has_name(directory, name, descriptor, inode)
    ]
    assert found == [b"file", b"same"]


def test_a_file_system_that_renumbers_a_file_does_not_take_its_name(named: tuple[int, int]) -> None:
    """What counts in the end is whether name and descriptor are one file now, not the number that it had."""
    directory, descriptor = named
    assert files.has_name(directory, b"file", descriptor, (0, 0))


def test_a_name_that_may_not_be_looked_up_is_taken_for_existing(
    tmp_path: Path, named: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that has dropped its privileges sees only whether the file has a name anywhere."""
    directory, descriptor = named
    monkeypatch.setattr("filechannel._storage.system.os_calls.named_inode", _failing(errno.EACCES))
    assert files.has_name(directory, b"file", descriptor, (0, 0))
    (tmp_path / "file").unlink()
    assert not files.has_name(directory, b"file", descriptor, (0, 0))
