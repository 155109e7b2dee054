"""Locks on the bytes of a file: the kernel frees them when their holder dies, however it dies."""

from __future__ import annotations

import fcntl
import mmap
import os
import random
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from filechannel._storage.system.kernel_locks import KernelLocks
from filechannel._storage.system.os_calls import Files
from tests.storage.forks import Fork, killed_with_a_child
from tests.storage.resources import descriptors_under

files = Files()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file of one page."""
    path = tmp_path / "file"
    path.write_bytes(bytes(4096))
    return path


@pytest.fixture
def locks(file: Path) -> Iterator[Callable[[], KernelLocks]]:
    """How to open the locks of the file, as another process would; all are closed afterwards."""
    opened: list[KernelLocks] = []

    def open_locks() -> KernelLocks:
        opened.append(KernelLocks(files, file))
        return opened[-1]

    yield open_locks
    for each in opened:
        each.close()


def test_a_byte_has_one_holder(locks: Callable[[], KernelLocks]) -> None:
    """A locked byte has one holder until that unlocks it, and locking it again has no effect."""
    first, second = locks(), locks()
    assert first.take(7)
    assert first.take(7)
    assert not second.take(7)
    assert second.take(8)
    first.release(7)
    assert second.take(7)


def test_a_byte_can_be_shared(locks: Callable[[], KernelLocks]) -> None:
    """Any number of holders can share a byte that no process locks exclusively."""
    first, second, third = locks(), locks(), locks()
    assert first.take(7, shared=True)
    assert second.take(7, shared=True)
    assert not third.take(7)
    first.release(7)
    assert not third.take(7)
    second.release(7)
    assert third.take(7)
    assert not first.take(7, shared=True)


def test_a_waiter_for_a_byte_gets_it(locks: Callable[[], KernelLocks]) -> None:
    """A waiter gets a byte when its holder unlocks it, and unlocks it at the end of its block."""
    first, second = locks(), locks()
    order: list[str] = []

    def wait() -> None:
        with second.holding(3):
            order.append("second")

    with first.holding(3):
        thread = threading.Thread(target=wait)
        thread.start()
        assert second.is_taken(3)
        order.append("first")
    thread.join(60)
    assert order == ["first", "second"]
    with pytest.raises(LookupError), second.holding(3):
        raise LookupError
    assert first.take(3)


def test_only_locks_of_others_are_reported(locks: Callable[[], KernelLocks]) -> None:
    """Shared and exclusive locks of others are reported, and those of this process are not."""
    first, second = locks(), locks()
    first.take(5)
    second.take(6, shared=True)
    assert [first.is_taken(byte) for byte in (4, 5, 6, 7)] == [False, False, True, False]
    assert [second.is_taken(byte) for byte in (4, 5, 6, 7)] == [False, True, False, False]
    assert first.taken(0, 100) == [6]
    assert second.taken(0, 100) == [5]


def test_every_locked_byte_is_found(locks: Callable[[], KernelLocks], rng: random.Random) -> None:
    """Every locked byte in a range and beyond is found, whichever process holds it."""
    others, asking = [locks() for _ in range(5)], locks()
    taken = {0, 1, 2, 63, 64, 100, 199, 200, *rng.sample(range(300), 40)}
    for byte in sorted(taken, key=lambda _: rng.random()):
        rng.choice(others).take(byte, shared=rng.random() < 0.3)
    for first, last in [(0, 299), (0, 0), (1, 1), (64, 199), (65, 99), (200, 250), (1000, 2000)]:
        assert asking.taken(first, last) == [byte for byte in sorted(taken) if first <= byte <= last]


def test_a_lock_of_the_whole_file_holds_every_byte(file: Path, locks: Callable[[], KernelLocks]) -> None:
    """A lock without an end counts for every byte up to the end of the range."""
    descriptor = files.open(file)
    whole = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, 10, 0, 0)
    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, whole)
    assert locks().taken(5, 15) == list(range(10, 16))
    files.close(descriptor)


def test_closing_frees_everything_once(file: Path, locks: Callable[[], KernelLocks]) -> None:
    """Closing unlocks everything and closes the descriptor once."""
    first = locks()
    for byte in (1, 5, 4000):
        first.take(byte)
    before = descriptors_under(file)
    first.close()
    assert descriptors_under(file) == before - 1
    second, third = locks(), locks()
    assert second.take(5)
    first.close()
    assert descriptors_under(file) == before + 1
    assert third.taken(0, 4095) == [5]


def test_the_file_is_made_if_asked_for(tmp_path: Path) -> None:
    """The lock file is created with its mode on request, and otherwise a missing one raises."""
    with pytest.raises(FileNotFoundError):
        KernelLocks(files, tmp_path / "new")
    KernelLocks(files, tmp_path / "new", create=True, mode=0o640).close()
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o640


def test_locks_know_their_file(file: Path, tmp_path: Path, locks: Callable[[], KernelLocks]) -> None:
    """Locks compare the identity of their file, also when another file has its name."""
    mine = locks()
    descriptor = files.open(file)
    assert mine.are_of(descriptor)
    files.close(descriptor)
    file.unlink()
    descriptor = files.open(file, create=True)
    assert not mine.are_of(descriptor)
    files.close(descriptor)


# Death


def test_the_locks_of_a_killed_process_are_free(file: Path, locks: Callable[[], KernelLocks]) -> None:
    """The locks of a killed process are free at once, and so are those of one that ends without closing."""
    asking = locks()
    for how in ("kill", "end"):
        other = Fork(lambda: _take(file, 9))
        assert asking.taken(0, 100) == [9]
        getattr(other, how)()
        assert asking.taken(0, 100) == []


def _take(file: Path, byte: int) -> object:
    locks = KernelLocks(files, file)
    assert locks.take(byte)
    return locks


def test_a_child_of_a_killed_process_keeps_nothing_locked(file: Path, locks: Callable[[], KernelLocks]) -> None:
    """A live child of a killed process, with all its maps, holds no lock."""

    def work() -> object:
        descriptor = files.open(file)
        return _take(file, 9), files.map(descriptor, 4096)

    with killed_with_a_child(work):
        assert locks().taken(0, 100) == []


def test_a_child_takes_nothing_away_from_its_parent(file: Path, locks: Callable[[], KernelLocks]) -> None:
    """A forked child that closes what it inherited, or ends, releases no lock of its parent."""
    mine, asking = locks(), locks()
    mine.take(9)

    def close_inherited() -> object:
        theirs = KernelLocks(files, file)  # may have the number that ours had
        assert theirs.take(10)
        mine.close()
        assert theirs.taken(0, 100) == [9]
        return theirs

    child = Fork(close_inherited)
    assert asking.taken(0, 100) == [9, 10]
    child.end()
    assert asking.taken(0, 100) == [9]


def test_a_map_does_not_keep_a_lock(file: Path, locks: Callable[[], KernelLocks]) -> None:
    """A map does not keep a lock, because it is not made from the descriptor with the locks."""
    mine = locks()
    mine.take(9)
    descriptor = files.open(file)
    kept = files.map(descriptor, mmap.PAGESIZE)
    files.close(descriptor)
    mine.close()
    assert not locks().is_taken(9)
    kept.close()
