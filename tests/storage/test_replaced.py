"""A directory whose files are those of another channel, or that another one replaces while it is opened."""

from __future__ import annotations

import shutil
from pathlib import Path
from threading import Barrier, Thread
from typing import Any

import pytest

from filechannel import FileChannelError, StorageError
from filechannel._format import PURE
from filechannel._maintenance.repair.repair import repair
from filechannel._maintenance.verify.verification import verify
from filechannel._storage.open_stores import STORES
from filechannel._storage.system.os_calls import Files
from filechannel.blocking import open_channel
from tests.file_systems import run_or_skip
from tests.storage.channels import opened, payloads_of

MINE = [b"mine %d" % number for number in range(70)]
OTHERS = [b"other %d" % number for number in range(300)]


def _fill(path: Path, payloads: list[bytes], *, purged: bool = False) -> None:
    with opened(path) as store:
        for payload in payloads:
            store.log.append([payload])
        if purged:
            store.purge()
        store.flusher.flush()


@pytest.fixture
def foreign(path: Path) -> Path:
    """A channel whose control file was replaced by that of a channel whose messages are lost."""
    _fill(path, MINE)
    _fill(path.with_name("other"), OTHERS, purged=True)
    shutil.copyfile(path.with_name("other") / "control", path / "control")
    return path


@pytest.mark.parametrize("readonly", [False, True], ids=["to write", "to read"])
def test_the_control_file_of_another_channel_is_refused(foreign: Path, readonly: bool) -> None:
    """A control file of another channel is refused with the repair command, because recovery would delete messages."""
    before = sorted(foreign.rglob("*.seg"))
    with pytest.raises(StorageError, match=r"belongs to another channel.*repair"), opened(foreign, readonly=readonly):
        pass
    assert sorted(foreign.rglob("*.seg")) == before


def test_a_repair_finds_the_messages_without_the_control_file_of_another_channel(foreign: Path) -> None:
    """The foreign file is moved to quarantine, and every message of the channel can be read."""
    report = verify(foreign)
    assert [finding.kind for finding in report.findings if finding.severity == "error"] == ["control"]
    repair(foreign)
    with opened(foreign) as store:
        assert payloads_of(store) == MINE
    assert any(name.name.endswith("control") for name in (foreign / "quarantine").iterdir())


class SwappingFiles(Files):
    """The real file system, in which another channel replaces the opened one before the n-th call."""

    def __init__(self, path: Path, at: int) -> None:
        self._path, self._at, self.came = path, at, False

    def __getattribute__(self, name: str) -> Any:
        """Return a method, and exchange the channels before the n-th call."""
        found = super().__getattribute__(name)
        if name.startswith("_") or not callable(found) or self._at < 0:
            return found
        self._at -= 1
        if not self._at:
            self._path.rename(self._path.with_name("old"))
            self._path.with_name("next").rename(self._path)
            self._at, self.came = -1, True
        return found


def test_a_channel_may_be_replaced_at_any_moment_of_an_open(path: Path) -> None:
    """If a channel is replaced during an open one of the two is opened, or none, and no message is lost."""
    for at in range(1, 1000):
        shutil.rmtree(path.parent)
        path.parent.mkdir()
        _fill(path, MINE)
        _fill(path.with_name("next"), OTHERS, purged=True)
        with opened(path.with_name("next")) as store:
            store.log.append([b"more"])
        files = SwappingFiles(path, at)
        try:
            with opened(path, files=files, create=False):
                pass
        except (FileChannelError, OSError):
            pass
        if not files.came:
            break
        for place, expected in ((path.with_name("old"), MINE), (path, [b"more"])):
            with opened(place) as store:
                assert payloads_of(store) == expected, at
    assert at > 20, "there were that many calls"


@pytest.mark.skipif(PURE, reason="the pure implementation opens a directory once")
def test_a_directory_may_be_mounted_at_two_paths(tmp_path: Path) -> None:
    """Threads that open one directory by two mounts share a store, and none loses it while it is in use."""
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    run_or_skip("mount", "--bind", first, second)
    errors = list[Exception]()
    try:
        with open_channel(first / "channel", bytes):
            pass
        for _ in range(20):
            barrier = Barrier(4)
            places = [first / "channel", second / "channel"] * 2
            threads = [Thread(target=_use, args=(place, barrier, errors)) for place in places]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert errors == []
        assert not STORES._open
    finally:
        run_or_skip("umount", second)


def _use(path: Path, barrier: Barrier, errors: list[Exception]) -> None:
    barrier.wait()
    try:
        with open_channel(path, bytes) as channel, channel.sender() as sender:
            for _ in range(20):
                sender.send(b"more")
    except Exception as error:
        errors.append(error)
