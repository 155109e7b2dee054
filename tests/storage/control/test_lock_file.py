"""The lock file: which users may open it, and what happens when it is deleted, missing, copied or half made."""

from __future__ import annotations

import logging
import os
import shutil
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from filechannel import ChannelLockedError, ChannelOptions, ConsumerBusyError, StorageError
from filechannel._format import PURE
from filechannel._format.layout import NAME_LOCK_SIZE, NAME_LOCKS, OPENING_BYTE, PROCESS_SLOT_SIZE, PROCESS_SLOTS
from filechannel._storage.control import joining
from filechannel._storage.control.live_processes import living_in
from filechannel._storage.control.lock_file import LOCK, inspecting_locks, lock_mode, name_lock
from filechannel._storage.store import Store
from filechannel._storage.system import kernel_locks
from filechannel._storage.system.kernel_locks import KernelLocks
from filechannel._storage.system.os_calls import Files
from tests.storage.channels import open_store, opened, payloads_of
from tests.storage.forks import Fork, killed_with_a_child

files = Files()
shares = pytest.mark.skipif(PURE, reason="the pure implementation shares with no other process")


@pytest.mark.parametrize(
    ("mode", "expected"),
    [(0o600, 0o600), (0o640, 0o600), (0o644, 0o600), (0o660, 0o660), (0o664, 0o660), (0o666, 0o666), (0o620, 0o600)],
)
def test_only_users_with_read_and_write_access_may_open_it(mode: int, expected: int) -> None:
    """A lock file can be opened only by owner, group or others with both read and write access."""
    assert lock_mode(mode) == expected


def test_names_have_ranges_of_their_own(tmp_path: Path) -> None:
    """The range of a name follows from the name alone and ends with the largest position."""
    found = {name_lock(f"name{number}") for number in range(1000)}
    assert len(found) == 1000
    assert all(NAME_LOCKS <= lock < 1 << 63 and not lock % NAME_LOCK_SIZE for lock in found)
    assert name_lock("default") == 6_715_108_788_871_360_512
    locks = KernelLocks(files, tmp_path / LOCK, create=True, base=(1 << 63) - NAME_LOCK_SIZE)
    assert locks.take(NAME_LOCK_SIZE - 1), "the kernel takes the last byte there is"
    locks.close()


# Deleting it


def _recovered(path: Path) -> bool:
    """Return whether a process that opens a channel is alone; `ChannelLockedError` if it is refused."""
    with opened(path, create=False) as store:
        return store.processes is not None and not store.processes.others()


@pytest.mark.parametrize("again", [False, True])
def test_a_deleted_lock_file_leaves_no_process_alone(path: Path, again: bool) -> None:
    """While a process has a deleted lock file open no other one is alone, and the next ones find its name again."""
    holding = Fork(lambda: _used(path))
    (path / LOCK).unlink()
    for _ in range(2):
        if again:
            (path / LOCK).touch(0o600)
        with pytest.raises(ChannelLockedError, match=r"lock was deleted while it was in use") as caught:
            open_store(path, create=False)
        assert caught.value.pid == holding.pid
    holding.kill()
    assert _recovered(path)
    with opened(path, create=False) as store:
        assert payloads_of(store) == [b"one"]


def _used(path: Path) -> Store:
    store = open_store(path)
    store.log.append([b"one"])
    return store


@shares
def test_processes_continue_with_a_deleted_lock_file(path: Path) -> None:
    """Processes with a deleted lock file see each other die, and a new consumer waits until all have closed."""
    with opened(path) as store:
        kept = store.cursors.open("kept")
        other = Fork(lambda: open_store(path, create=False))
        (path / LOCK).unlink()
        assert store.processes is not None
        assert len(store.processes.others()) == 1
        store.log.append([b"two"])
        for _ in range(2):
            with pytest.raises(StorageError, match=r"lock was deleted or replaced.*close the channel in every process"):
                store.cursors.open("new")
            (path / LOCK).touch()
        other.kill()
        assert store.processes.others() == []
        assert [(each.name, each.owner is not None) for each in store.consumer_listing.registrations()] == []
        kept.store(0, 0, 0)
        assert [(each.name, each.owner is not None) for each in store.consumer_listing.registrations()] == [
            ("kept", True)
        ]
        store.cursors.close(kept)
    with opened(path, create=False) as store:
        store.cursors.open("new").close()
        store.cursors.open("kept").close()


class Deleting(Files):
    """Deletes the lock file, and perhaps lets another process open the channel, before the n-th look at its name."""

    def __init__(self, path: Path, look: int, *, rival: bool) -> None:
        self._lock = path / LOCK
        self._look = look
        self._rival = rival
        self.rival: Store | None = None
        self.refused = False

    def leads_to(self, path: Path, descriptor: int) -> bool:
        """Delete it at the right moment."""
        if path == self._lock:
            self._look -= 1
            if not self._look:
                self._lock.unlink()
                try:
                    self.rival = open_store(self._lock.parent, create=False) if self._rival else None
                except ChannelLockedError:
                    self.refused = True
        return super().leads_to(path, descriptor)


@pytest.mark.parametrize("rival", [False, True])
@pytest.mark.parametrize("look", [1, 2])
def test_a_lock_file_that_is_deleted_while_it_is_locked_is_opened_again(path: Path, look: int, rival: bool) -> None:
    """A process whose lock file was deleted while it locked opens it again, and at most one believes to be alone."""
    open_store(path).close()
    deleting = Deleting(path, look, rival=rival)
    if PURE and rival and look == 1:
        with pytest.raises(ChannelLockedError):
            open_store(path, create=False, files=deleting)
        assert deleting.rival is not None
        deleting.rival.close()
        return
    store = open_store(path, create=False, files=deleting)
    assert KernelLocks(files, path / LOCK).inode == store.control.identity.lock_file
    assert deleting.refused == (rival and look == 2), "it saw the mark of the other, which had a slot already"
    assert store.processes is not None
    assert bool(store.processes.others()) == (deleting.rival is not None)
    if deleting.rival is not None:
        assert deleting.rival.processes is not None
        assert deleting.rival.processes.others() == [store.processes.slot]
        assert deleting.rival.processes.is_alive(store.processes.own_word)
        assert store.processes.is_alive(deleting.rival.processes.own_word)
        deleting.rival.close()
    store.close()
    assert _recovered(path)


# Missing, copied, half made


@pytest.mark.parametrize("lock", [True, False])
def test_a_copied_channel_is_opened(path: Path, tmp_path: Path, lock: bool) -> None:
    """A copy of a channel in use can be opened, with or without its lock file, and has its own locks."""
    with opened(path) as store:
        store.log.append([b"one"])
        ignore = shutil.ignore_patterns("wake", *(() if lock else (LOCK,)))
        shutil.copytree(path, tmp_path / "copy", ignore=ignore)
        assert _recovered(tmp_path / "copy")
        assert stat.S_IMODE((tmp_path / "copy" / LOCK).stat().st_mode) == 0o600


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o660])
@pytest.mark.parametrize("left", [0o000, 0o600, 0o644, 0o666])
def test_a_half_made_lock_file_gets_its_permissions(path: Path, mode: int, left: int) -> None:
    """The permissions of a lock file, left empty by a process that died, are corrected by the next one."""
    if not left and os.geteuid():
        pytest.skip("only root opens a file whose mode lets no user in")
    open_store(path, ChannelOptions(mode=mode)).close()
    (path / LOCK).unlink()
    (path / LOCK).touch()
    (path / LOCK).chmod(left)
    assert _recovered(path)
    assert stat.S_IMODE((path / LOCK).stat().st_mode) == lock_mode(mode)


class Dying(Files):
    """Ends the process before or after one of the calls that have to do with locks."""

    def __init__(self, step: int) -> None:
        self._steps = step

    def _step(self) -> None:
        self._steps -= 1
        if not self._steps:
            os._exit(9)

    def open(self, path: Path, *, create: bool = False, writable: bool = True, mode: int = 0o600) -> int:
        """Open a file; a new one may not have its mode yet."""
        self._step()
        if path.name == LOCK and create and not path.exists():
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o400))
            self._step()
            path.chmod(mode)
        descriptor = super().open(path, create=create, writable=writable, mode=mode)
        self._step()
        return descriptor

    def share_like(self, descriptor: int, other: int, permissions: Callable[[int], int]) -> None:
        """Let others in."""
        super().share_like(descriptor, other, permissions)
        self._step()

    def lock(self, descriptor: int, position: int, *, shared: bool = False) -> bool:
        """Lock a byte."""
        taken = super().lock(descriptor, position, shared=shared)
        self._step()
        return taken

    def unlock(self, descriptor: int, position: int, size: int = 1) -> None:
        """Unlock a byte."""
        super().unlock(descriptor, position, size)
        self._step()

    def leads_to(self, path: Path, descriptor: int) -> bool:
        """Look a name up."""
        self._step()
        return super().leads_to(path, descriptor)


@pytest.mark.parametrize("missing", [True, False], ids=["made", "found"])
def test_a_process_may_die_at_each_step_of_locking(path: Path, missing: bool) -> None:
    """If a process dies at any step of joining, the next one is alone and has every message."""
    with opened(path, ChannelOptions(mode=0o660)) as store:
        store.log.append([b"one"])
    for step in range(1, 500):
        if missing:
            (path / LOCK).unlink(missing_ok=True)
        child = os.fork()
        if not child:
            try:
                open_store(path, create=False, files=Dying(step)).close()
            finally:
                os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code == 0:
            break
        assert code == 9
        assert _recovered(path)
        assert stat.S_IMODE((path / LOCK).stat().st_mode) == 0o660
    assert 15 < step < 499
    with opened(path, create=False) as store:
        assert payloads_of(store) == [b"one"]


def test_a_lock_file_that_is_not_a_file_is_refused(path: Path, tmp_path: Path) -> None:
    """Anything but a regular file in place of the lock file is refused, without waiting."""
    open_store(path).close()
    for make in (lambda lock: os.mkfifo(lock), lambda lock: lock.symlink_to(tmp_path / "victim"), Path.mkdir):
        (path / LOCK).unlink()
        make(path / LOCK)
        with pytest.raises((StorageError, OSError), match=LOCK):
            open_store(path, create=False)
    assert not (tmp_path / "victim").exists()


# Marks


def test_a_process_is_seen_through_its_mark(path: Path) -> None:
    """A reader sees a process by its mark, without the lock file, until it has ended, even if its child lives."""
    holding = Fork(lambda: open_store(path))
    (path / LOCK).unlink()
    control = files.open(path / "control", writable=False)
    assert living_in(files, path, control).slots == [1]
    holding.kill()
    assert living_in(files, path, control).slots == []
    with killed_with_a_child(lambda: open_store(path)):
        (path / LOCK).unlink()
        assert living_in(files, path, control).slots == []
        assert _recovered(path)
    files.close(control)


@shares
def test_a_marked_slot_is_not_used(path: Path) -> None:
    """A slot that is marked by a process with a deleted lock file is not used, and a reader's lock is not a mark."""
    open_store(path).close()
    marks = KernelLocks(files, path / "control")
    assert marks.take(PROCESS_SLOTS + PROCESS_SLOT_SIZE)
    with opened(path, create=False) as store:
        assert store.processes is not None
        assert store.processes.slot == 2
    marks.release(PROCESS_SLOTS + PROCESS_SLOT_SIZE)
    assert marks.take(PROCESS_SLOTS + PROCESS_SLOT_SIZE, shared=True)
    with opened(path, create=False) as store:
        assert store.processes is not None
        assert store.processes.slot == 1
    marks.close()


def test_checking_a_lock_does_not_take_it(path: Path) -> None:
    """Checking a lock does not acquire it, and a missing lock file means that nothing is locked."""
    with opened(path) as store:
        cursor = store.cursors.open("name")
        with inspecting_locks(files, path) as visible:
            assert visible.is_complete
            assert visible.is_taken(name_lock("name"))
            assert visible.taken(1, 1023) == [1]
        store.cursors.close(cursor)
    (path / LOCK).unlink()
    with inspecting_locks(files, path) as visible:
        assert (visible.is_complete, visible.is_taken(1), visible.taken(1, 1023)) == (True, False, [])
    assert not (path / LOCK).exists()


# Names


def test_a_name_outlives_its_file(path: Path) -> None:
    """Deleting the file of an owned consumer does not allow a second owner."""
    with opened(path) as store:
        cursor = store.cursors.open("name")
        cursor.store(0, 0, 0)
        (path / "consumers" / "name.cursor").unlink()
        with pytest.raises(ConsumerBusyError):
            store.cursors.open("name")
        store.cursors.close(cursor)
        store.cursors.close(store.cursors.open("name"))


# Waiting


def test_waiting_for_the_open_lock_is_reported(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Waiting for the open lock is logged once with its holder, and a short wait is not."""
    monkeypatch.setattr(kernel_locks, "DELAY", 0.0)
    open_store(path).close()
    reached, logged, pids = threading.Event(), threading.Event(), list[int]()

    class Reporting(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            logged.set()

    handler = Reporting()
    logging.getLogger("filechannel").addHandler(handler)

    def wait() -> None:
        reached.set()
        try:
            open_store(path, create=False).close()
        except ChannelLockedError:
            assert PURE

    def stop_inside() -> object:
        control = files.open(path / "control")
        inside = joining.joining(files, path, control, lambda: True)
        inside.__enter__()
        return inside

    def hold_with_the_note_of_another() -> object:
        locks = KernelLocks(files, path / "lock")
        assert locks.take(OPENING_BYTE)
        return locks

    try:
        for hold in (stop_inside, hold_with_the_note_of_another):
            logged.clear()
            Fork(stop_inside).kill()  # which leaves a note
            holding = Fork(hold)
            waiting = threading.Thread(target=wait)
            waiting.start()
            try:
                assert logged.wait(60)
            finally:
                pids.append(holding.pid)
                holding.kill()
                waiting.join(60)
    finally:
        logging.getLogger("filechannel").removeHandler(handler)
    first, second = [record.getMessage() for record in caplog.records]
    assert f"{path}: waiting for process {pids[0]} on " in first
    assert f"{path}: waiting for another process, which" in second


def test_a_configuring_process_is_named(path: Path) -> None:
    """A process that configures is named while it holds the open lock, and not longer."""
    with opened(path) as store:
        control = files.open(path / "control")
        with joining.described_opener(store.control):
            assert joining.opener_of(files, control).pid == os.getpid()
        assert joining.opener_of(files, control).pid is None
        assert not KernelLocks(files, path / LOCK).is_taken(OPENING_BYTE)
        files.close(control)
