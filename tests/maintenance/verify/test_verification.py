"""Verifying a channel: every kind of damage is found, where it is, and nothing else is."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from pathlib import Path

import pytest

from filechannel import ChannelNotFoundError, Durability, NotAChannelError
from filechannel._format import PURE
from filechannel._maintenance.background.plan_reclaim import reclaim_after
from filechannel._maintenance.repair.repair import plan_repair
from filechannel._maintenance.verify.verification import verify
from filechannel._storage.system.os_calls import Files
from tests.blocking.threads import until
from tests.maintenance.damage import DAMAGES, RECORD, SENT, make_channel, overwrite, segments_of
from tests.maintenance.stores import consume, fill
from tests.storage.background import Background
from tests.storage.boots import Boots
from tests.storage.channels import ChannelOptions, opened
from tests.storage.compressing import compress_all

pytestmark = pytest.mark.usefixtures("background")


def kinds_of(path: Path, **options: object) -> set[str]:
    """Return the kinds of what is found, but for notes."""
    return {each.kind for each in verify(path, **options).findings if each.severity != "note"}  # type: ignore[arg-type]


def contents(path: Path) -> dict[str, bytes]:
    """Return every byte of a channel."""
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def test_a_whole_channel_is_clean(path: Path) -> None:
    """An intact channel with every kind of segment, consumer, group and producer is clean, and all messages are
    counted.
    """
    make_channel(path)
    report = verify(path)
    assert report.findings == ()
    assert report.is_clean
    assert (report.messages, report.segments, report.lost) == (SENT, 11, 0)


def test_an_open_channel_is_clean(path: Path) -> None:
    """A channel that is open, not flushed and in use is clean."""
    with opened(path) as store:
        fill(store, 3)
        store.log.append([b"not flushed"])
        assert verify(path).messages == 10
        assert verify(path).findings == ()


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_found(path: Path, name: str) -> None:
    """Every kind of damage is found and reported as what it is."""
    make_channel(path)
    damage, kinds, _ = DAMAGES[name]
    damage(path)
    assert kinds_of(path) == kinds


@pytest.mark.parametrize("replacement", ["link", "FIFO", "directory"])
def test_a_lock_that_is_not_a_regular_file_is_found(path: Path, replacement: str) -> None:
    """What keeps the channel from being opened for writing is reported, although every message can be read."""
    make_channel(path)
    lock = path / "lock"
    lock.unlink()
    if replacement == "link":
        lock.symlink_to("control")
    elif replacement == "FIFO":
        os.mkfifo(lock)
    else:
        lock.mkdir()
    report = verify(path)
    assert [each.file for each in report.findings if each.kind == "lock"] == ["lock"]
    assert report.messages == SENT
    assert [each.kind for each in plan_repair(path).unrepairable] == ["lock"]


@pytest.mark.parametrize("name", DAMAGES)
def test_nothing_is_changed(path: Path, name: str) -> None:
    """Looking at a channel changes no byte of it, whatever state it is in."""
    make_channel(path)
    DAMAGES[name][0](path)
    before = contents(path)
    verify(path)
    assert contents(path) == before


def test_damage_has_a_position(path: Path) -> None:
    """A finding has file, position, offset and size, and the report counts the missing messages."""
    make_channel(path)
    file = segments_of(path)[1]
    overwrite(file, 64 + RECORD + 100)
    report = verify(path)
    (finding,) = report.findings
    assert (finding.file, finding.position, finding.offset) == (f"segments/{file.name}", 64 + RECORD, 16 * RECORD)
    assert finding.size == RECORD
    assert (report.messages, report.lost) == (SENT - 1, 1)
    assert finding.to_json()["kind"] == "record"


def test_notes_do_not_count(path: Path) -> None:
    """Unknown files are notes, and the channel is clean."""
    make_channel(path)
    for name in ("notes.txt", "segments/notes.txt", "consumers/notes.txt", "producers/notes.txt", "wake/notes.txt"):
        (path / name).write_text("mine")
    report = verify(path)
    assert report.is_clean
    assert {finding.kind for finding in report.findings} == {"stray"}
    assert len(report.findings) == 5


def test_a_copy_is_clean(path: Path) -> None:
    """A copied channel, or one of another boot, is not damaged: its end is where the checkpoint is, or after it."""
    make_channel(path)
    copy = path.with_name("copy")
    shutil.copytree(path, copy)
    report = verify(copy)
    assert report.is_clean
    assert [finding.kind for finding in report.findings] == ["restarted"]
    assert report.messages == SENT


def test_what_no_checkpoint_covers_may_be_torn(path: Path, boots: Boots, background: Background) -> None:
    """After a power cut, records after the checkpoint may be anything; before it they may not."""
    with opened(path) as store:
        fill(store, 2)
        store.log.append([b"a" * 600])
        store.log.append([b"b" * 600])
        background.forget()
    boots.again()
    assert verify(path).messages == 8
    overwrite(segments_of(path)[-1], 64 + 608 + 50)
    assert kinds_of(path) == set()
    overwrite(segments_of(path)[0], 100)
    assert kinds_of(path) == {"record"}


def test_payloads_are_checked(path: Path) -> None:
    """A payload that the caller refuses is found with its offset, and findings of one kind are limited."""
    make_channel(path)
    report = verify(path, check=lambda payload: "not a number" if payload.startswith(b"numbered") else None)
    assert [(finding.kind, finding.severity) for finding in report.findings] == [("payload", "error")]
    many = path.with_name("many")
    with opened(many, ChannelOptions(segment_size=65536)) as store:
        store.log.append([b"x"] * 1000)
    report = verify(many, check=lambda _: "no")
    assert len(report.findings) == 21
    assert report.findings[-1].what.startswith("980 more")


def test_batches_that_run_over_segments_are_counted(path: Path) -> None:
    """Messages of batches across many segments, and those larger than a segment, are counted."""
    with opened(path) as store:
        store.log.append([b"x" * 700] * 50)
        store.log.append([b"y" * 9000])
        store.log.append([b"z" * (5 << 20)])
        store.log.append([b""] * 7)
        store.seal()
    report = verify(path)
    assert report.findings == ()
    assert report.messages == 59


def test_no_such_channel(path: Path) -> None:
    """Verifying a path without a channel, or a file, raises an error."""
    with pytest.raises(ChannelNotFoundError):
        verify(path)
    path.mkdir()
    with pytest.raises(NotAChannelError):
        verify(path)
    (path / "x").write_text("x")
    with pytest.raises(NotAChannelError):
        verify(path / "x")


def test_what_the_disk_refuses_is_a_finding(path: Path) -> None:
    """A page that cannot be read is reported with its position, and the rest is checked."""
    make_channel(path)
    bad = segments_of(path)[1]

    class Failing(Files):
        def __init__(self) -> None:
            self._bad = -1

        def open(self, path: Path, *, create: bool = False, writable: bool = True, mode: int = 0o600) -> int:
            descriptor = super().open(path, create=create, writable=writable, mode=mode)
            self._bad = descriptor if path == bad else -1 if descriptor == self._bad else self._bad
            return descriptor

        def read_at(self, descriptor: int, size: int, position: int) -> bytes:
            if descriptor == self._bad and position < 2000 < position + size and position >= 64:
                raise OSError(errno.EIO, "Input/output error")
            return super().read_at(descriptor, size, position)

    report = verify(path, files=Failing(), threads=1)
    assert {finding.kind for finding in report.findings} == {"record", "disk"}
    assert report.messages >= SENT - 3


def test_progress_reaches_the_end(path: Path) -> None:
    """The callback gets the progress, and at the end that it is complete."""
    make_channel(path)
    steps: list[tuple[int, int]] = []
    report = verify(path, progress=lambda done, total: steps.append((done, total)), threads=1)
    assert steps[0] == (0, report.bytes)
    assert steps[-1] == (report.bytes, report.bytes)


def test_an_error_in_between_ends_all_threads(path: Path) -> None:
    """An error of the progress callback, such as Ctrl-C, ends all threads."""
    make_channel(path)

    def enough(done: int, _total: int) -> None:
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        verify(path, progress=enough)
    # A thread that had not started yet reads nothing, and ends at once.
    until(lambda: not [thread for thread in threading.enumerate() if thread.name.startswith("filechannel-verify")])


@pytest.mark.skipif(PURE, reason="the pure implementation would need minutes")
@pytest.mark.parametrize("durability", [Durability.OS, Durability.FSYNC])
def test_nothing_is_found_while_others_use_it(path: Path, durability: Durability) -> None:
    """Nothing is found while other processes add, compress, retire and recycle segments."""
    with opened(path, ChannelOptions(segment_size=4096, durability=durability)) as store:
        fill(store, 5)
        ended = threading.Event()
        failures: list[object] = []

        def use() -> None:
            try:
                while not ended.is_set():
                    fill(store, 4)
                    compress_all(store)
                    consume(store, 11)
                    with store.maintenance_lock.held():
                        reclaim_after(store, 10.0)
            except BaseException as error:
                failures.append(error)
                raise

        user = threading.Thread(target=use)
        user.start()
        try:
            reports = [verify(path) for _ in range(30)]
        finally:
            ended.set()
            user.join()
        assert not failures
        assert [finding for report in reports for finding in report.findings if finding.severity != "note"] == []
