"""Making a channel, and refusing to make one of something else."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from random import Random

import pytest

from filechannel import (
    ChannelLockedError,
    ChannelNotFoundError,
    ChannelOptions,
    DiskFullError,
    NotAChannelError,
    StorageError,
)
from filechannel._format import PURE
from filechannel._storage.manifest import MANIFEST
from filechannel._storage.system.os_calls import Files
from tests.storage.channels import SMALL, open_store, opened, payloads_of, read_all
from tests.storage.faults import FLUSHING, NEEDING_SPACE, FaultyFiles, disk_full, input_output_error
from tests.storage.power import PowerFiles
from tests.storage.resources import descriptors_under


def _content(path: Path) -> dict[str, bytes | None]:
    return {str(file.relative_to(path)): file.read_bytes() if file.is_file() else None for file in path.rglob("*")}


def test_a_channel_is_made_with_everything_it_needs(path: Path) -> None:
    """A new channel has manifest, control file, lock file and three directories, and nothing else."""
    with opened(path):
        assert sorted(os.listdir(path)) == [MANIFEST, "consumers", "control", "lock", "segments", "wake"]


@pytest.mark.parametrize(("mode", "directory_mode"), [(0o600, 0o700), (0o640, 0o750), (0o660, 0o770)])
def test_the_mode_is_that_of_the_options(path: Path, mode: int, directory_mode: int) -> None:
    """Files have the mode that was requested, directories the matching one, and the lock file that of writers."""
    umask = os.umask(0o022)
    try:
        with opened(path, ChannelOptions(segment_size=4096, mode=mode)) as store:
            store.log.append([b"one"])
            store.cursors.close(store.cursors.open("consumer"))
            found = {path, *path.rglob("*")}
            assert path / "wake" / "1" in found
            for file in found:
                expected = directory_mode if file.is_dir() else mode
                if file in (path / "lock", path / "wake" / "1"):
                    expected = {0o640: 0o600}.get(mode, mode)
                assert stat.S_IMODE(file.stat().st_mode) == expected, file
    finally:
        os.umask(umask)


def test_a_channel_is_on_disk_when_it_exists(tmp_path: Path) -> None:
    """Creating a channel flushes every directory on the path, and the manifest last."""
    files = FaultyFiles()
    path = tmp_path / "a" / "b"
    with opened(path, files=files):
        assert files.flushed[:2] == [tmp_path, tmp_path / "a"]
        assert {path, path / "control", path / f"{MANIFEST}.new"} <= set(files.flushed)
        assert files.flushed.index(path / "control") < files.flushed.index(path / f"{MANIFEST}.new")


@pytest.mark.parametrize("calls", [NEEDING_SPACE, FLUSHING], ids=["full", "broken"])
def test_a_channel_that_could_not_be_made_is_made_the_next_time(memory: Path, calls: frozenset[str]) -> None:
    """After an error at any step of creating a channel, opening it again succeeds."""
    error = disk_full if calls is NEEDING_SPACE else input_output_error
    at = 0
    while True:
        at += 1
        files, path = FaultyFiles(), memory / str(at)
        files.fail(calls, error, at=at)
        try:
            open_store(path, SMALL, files=files).close()
        except (DiskFullError, OSError):
            assert files.failures
        files.work()
        with opened(path, files=files) as store:
            store.log.append([b"one"])
            assert payloads_of(store) == [b"one"]
        if not files.failures:
            break
    assert at > 3


def test_a_missing_channel_is_not_made_without_being_asked(path: Path) -> None:
    """A missing channel is not created without `create`, and nothing is left behind."""
    with pytest.raises(ChannelNotFoundError), opened(path, create=False):
        pass
    with pytest.raises(ChannelNotFoundError), opened(path, readonly=True):
        pass
    assert not path.exists()


def test_a_file_is_not_a_channel(path: Path) -> None:
    """The error says that a channel is a directory, and the file is not changed."""
    path.write_text("precious")
    for create in (True, False):
        with pytest.raises(NotAChannelError, match="it is a file"), opened(path, create=create):
            pass
    assert path.read_text() == "precious"


def test_a_directory_of_something_else_is_left_alone(path: Path) -> None:
    """The error names what is there."""
    path.mkdir()
    (path / "thesis.tex").write_text("precious")
    with pytest.raises(NotAChannelError, match=r"thesis\.tex"), opened(path):
        pass
    assert os.listdir(path) == ["thesis.tex"]


def test_a_lost_manifest_is_not_replaced(path: Path) -> None:
    """A directory with segments was a channel: creating a new one there would destroy them."""
    with opened(path) as store:
        store.log.append([b"precious"])
    (path / MANIFEST).unlink()
    before = _content(path)
    for create in (True, False):
        with pytest.raises(NotAChannelError, match=f"{MANIFEST} is missing"), opened(path, create=create):
            pass
    assert _content(path) == before


def test_a_damaged_manifest_is_refused_before_anything_changes(path: Path) -> None:
    """The error names the file, and the rest is not touched."""
    with opened(path) as store:
        store.log.append([b"precious"])
    (path / MANIFEST).write_text("{")
    before = _content(path)
    with pytest.raises(NotAChannelError, match=r"channel\.json is damaged"), opened(path):
        pass
    assert _content(path) == before


def test_an_empty_directory_becomes_a_channel(path: Path) -> None:
    """The user may have created it for us."""
    path.mkdir(parents=True)
    with opened(path) as store:
        store.log.append([b"one"])


def test_a_half_made_channel_is_completed(path: Path) -> None:
    """What a process that died while creating it left behind is not an obstacle."""
    (path / "segments").mkdir(parents=True)
    (path / "control").write_bytes(b"half")
    (path / f"{MANIFEST}.new").write_bytes(b"{ half")
    with opened(path) as store:
        store.log.append([b"one"])
        assert payloads_of(store) == [b"one"]


def test_missing_directories_are_created_again(path: Path) -> None:
    """Missing directories are created again; without that of consumers the channel has none."""
    with opened(path) as store:
        store.log.append([b"one"])
    (path / "consumers").rmdir()
    with opened(path) as store:
        assert store.cursors.names() == []
        store.cursors.close(store.cursors.open("consumer"))


@pytest.mark.skipif(PURE, reason="the pure implementation has a channel for itself")
def test_processes_share_a_channel(path: Path) -> None:
    """Processes that have one channel open all write to it and see the same messages."""
    with opened(path) as first, opened(path) as second:
        for number in range(20):
            (first if number % 3 else second).log.append([b"%d" % number + b"." * 1000])
        assert read_all(first) == read_all(second)
        assert [payload.split(b".")[0] for payload in payloads_of(second)] == [b"%d" % number for number in range(20)]
        third = subprocess.run([sys.executable, "-c", _APPEND, path], capture_output=True, text=True, check=False)
        assert third.stdout == "sent\n", third.stderr
        assert payloads_of(first)[20:] == [b"from another process"]
        assert read_all(first) == read_all(second)


_APPEND = """
import sys
from pathlib import Path
from random import Random
from filechannel import ChannelLockedError
from tests.storage.channels import opened
try:
    with opened(Path(sys.argv[1]), create=False) as store:
        store.log.append([b"from another process"])
    print("sent")
except ChannelLockedError as error:
    print(error.pid, error.host, error.since is not None, error.since and error.since.isoformat())
"""


@pytest.mark.parametrize("other", ["native", "pure"])
def test_a_process_that_cannot_share_has_the_channel_for_itself(path: Path, other: str) -> None:
    """A process that cannot share refuses others and is refused, and the error names the other process."""
    if not PURE and other == "native":
        pytest.skip("they share")
    environment = {**os.environ, "FILECHANNEL_PURE": "1" if other == "pure" else ""}
    command = [sys.executable, "-c", _APPEND, str(path)]
    before = datetime.now(UTC)
    with opened(path) as store:
        store.log.append([b"one"])
        held = descriptors_under(path)
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        pid, host, known, since = done.stdout.split()
        assert (int(pid), host, known) == (os.getpid(), socket.gethostname()[:40], "True")
        assert before <= datetime.fromisoformat(since) <= datetime.now(UTC)
        assert descriptors_under(path) == held
        store.log.append([b"two"])
        assert payloads_of(store) == [b"one", b"two"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == "sent\n", done.stderr
    with opened(path) as store:
        assert payloads_of(store) == [b"one", b"two", b"from another process"]


def test_a_process_that_is_refused_leaves_nothing_behind(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is refused leaves no descriptor, slot or lock behind."""
    with opened(path) as store:
        store.log.append([b"one"])
        held, waiting = descriptors_under(path), os.listdir(path / "wake")
        monkeypatch.setattr("filechannel._storage.control.joining.PURE", True)
        for _ in range(3):
            with pytest.raises(ChannelLockedError) as caught, opened(path):
                pass
            assert caught.value.pid == os.getpid()
            assert caught.value.host == socket.gethostname()[:40]
            assert caught.value.since is not None
            del caught  # its traceback holds the map
        assert descriptors_under(path) == held
        assert os.listdir(path / "wake") == waiting
        assert store.processes is not None
        assert store.processes.others() == []
    with opened(path) as store:
        assert payloads_of(store) == [b"one"]


def test_an_open_that_fails_leaves_no_lock(path: Path) -> None:
    """After an open that fails, the next process is not refused for a lock."""
    files = FaultyFiles()
    open_store(path).close()
    files.fail(frozenset({"map"}), input_output_error)
    with pytest.raises(OSError, match="Input/output"):
        open_store(path, files=files)
    with opened(path):
        pass


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "9p", "fuse.sshfs", "virtiofs"])
def test_a_remote_file_system_is_refused(path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A channel on a remote file system is refused, and the error says where to put it."""
    monkeypatch.setattr(Files, "file_system", lambda *_: kind)
    with pytest.raises(StorageError, match=f"is on {kind}.*local disk"), opened(path):
        pass
    assert os.listdir(path) == []


def test_another_machine_takes_the_channel_over(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A channel on a disk that was moved belongs to the machine where it is now."""
    with opened(path) as store:
        store.log.append([b"one"])
    monkeypatch.setattr("filechannel._storage.recovery.create.machine_id", lambda: "another")
    with opened(path) as store:
        assert store.manifest.machine == "another"
        assert payloads_of(store) == [b"one"]


class _MadeMeanwhile(Files):
    """Another process makes the channel, and uses it, when this one has just seen that there is none."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._made = False

    def list(self, directory: Path) -> list[str]:
        """Let the other one be first."""
        if not self._made:
            self._made = True
            with opened(self._path) as store:
                store.log.append([b"one"])
                store.cursors.close(store.cursors.open("consumer"))
        return super().list(directory)


@pytest.mark.parametrize("readonly", [False, True])
@pytest.mark.parametrize("create", [False, True])
def test_a_channel_that_is_being_created_is_opened(path: Path, readonly: bool, create: bool) -> None:
    """The parts of a channel that is being created are not taken for other content."""
    with opened(path, files=_MadeMeanwhile(path), readonly=readonly, create=create) as store:
        assert payloads_of(store) == [b"one"]


class _NotYetOurs(Files):
    """A user of the same group creates the channel, and sets the permissions a moment later."""

    def __init__(self) -> None:
        self.refused = 0

    def open(self, path: Path, *, create: bool = False, writable: bool = True, mode: int = 0o600) -> int:
        """Refuse the control file at first."""
        if path.name == "control" and self.refused < 3:
            self.refused += 1
            raise PermissionError(13, "Permission denied", str(path))
        return super().open(path, create=create, writable=writable, mode=mode)


def test_permissions_are_set_a_moment_after_creation(path: Path) -> None:
    """A process that opens a channel before its permissions are set tries again."""
    path.mkdir()
    files = _NotYetOurs()
    with opened(path, files=files):
        assert files.refused == 3


def test_missing_permissions_of_an_old_channel_are_an_error_at_once(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Missing permissions of an existing channel raise at once."""
    path.mkdir()
    monkeypatch.setattr("filechannel._storage.recovery.create._CREATION_SECONDS", 0.0)
    files = _NotYetOurs()
    with pytest.raises(PermissionError):
        open_store(path, files=files)
    assert files.refused == 1


def test_the_control_file_has_its_mode_from_the_beginning(path: Path) -> None:
    """The control file has its mode from the beginning, so that another user can complete the channel."""
    files, umask = FaultyFiles(), os.umask(0o077)
    try:
        files.fail(frozenset({"replace"}), input_output_error)
        with pytest.raises(OSError, match="Input/output"):
            open_store(path, ChannelOptions(segment_size=4096, mode=0o660), files=files)
        assert stat.S_IMODE((path / "control").stat().st_mode) == 0o660
    finally:
        os.umask(umask)


class DiedError(Exception):
    """The process that creates a channel has died."""


def test_a_channel_whose_creator_died_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A channel whose creator died, also before its name was on disk, is flushed by the next open."""
    monkeypatch.setattr("filechannel._storage.recovery.create.machine_id", lambda: "machine")  # nothing to write again
    files, calls = PowerFiles(tmp_path), list[str]()

    def die(name: str) -> None:
        calls.append(name)
        if name == "flush_directory" and "replace" in calls:
            raise DiedError

    files.on_call = die
    with pytest.raises(DiedError):
        open_store(tmp_path / "channel", files=files)
    files.on_call = lambda _: None
    with opened(tmp_path / "channel", files=files) as store:
        store.log.append([b"accepted"])
        store.flusher.flush()
        files.image().cut_power(tmp_path.with_name("after"), _Pessimist())
    files.stop_watching()
    with opened(tmp_path.with_name("after") / "channel") as store:
        assert payloads_of(store) == [b"accepted"]


class _Pessimist(Random):
    """Nothing is left of what was not flushed."""

    def random(self) -> float:
        return 0.0
