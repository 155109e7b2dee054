"""Channels that several users share: what users with read access can and cannot do."""

from __future__ import annotations

import logging
import os
import pickle
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from filechannel import ChannelOptions, Compression, StorageError, UnexpectedFileError, UntrustedChannelError
from filechannel._format import PURE
from filechannel._maintenance.background.compress_segment import compress
from filechannel._maintenance.background.reclaim_now import gc
from filechannel._storage.system.os_calls import Files
from filechannel.blocking import FileChannel, open_channel
from tests.blocking.users import GROUP, READER, WRITER, as_root, locking_everything, run_as, share_with_group
from tests.file_systems import mounted_tmpfs, run_or_skip
from tests.storage.forks import Fork

pytestmark = as_root
shares = pytest.mark.skipif(PURE, reason="the pure implementation shares with no other process")


@pytest.fixture(autouse=True)
def shared(tmp_path: Path) -> None:
    """A directory in which users of a group make channels."""
    share_with_group(tmp_path)


def _open(path: Path, mode: int = 0o640) -> FileChannel[int]:
    return open_channel(path, int, options=ChannelOptions(mode=mode, segment_size=4096))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A channel of mode 0640 that its group may read, with a finished segment, a consumer and a group."""
    path = tmp_path / "channel"
    with _open(path) as channel:
        with channel.receiver("known") as rx, channel.group("team"), channel.sender() as tx:
            tx.send_many(list(range(2000)))
            assert rx.receive() == 0
    return path


@pytest.fixture
def reader(path: Path) -> Iterator[Fork]:
    """A process that may only read, and has locked whatever it can."""
    child = locking_everything(path)
    yield child
    child.kill()


@pytest.mark.usefixtures("reader")
def test_a_reader_with_locks_blocks_nothing(path: Path) -> None:
    """While a reader holds locks, others open, send, receive, register, remove, configure, reclaim and compress."""
    with _open(path) as channel, channel.sender() as tx:
        tx.send(2000)
        with channel.receiver("known") as rx:
            assert rx.receive() == 1
        with channel.receiver("new") as rx, channel.group("team") as member, channel.group("new team"):
            assert rx.receive() == member.receive() == 0
            assert [each.name for each in channel.consumers()] == ["known", "new", "new team", "team"]
        for name in ("known", "new", "new team", "team"):
            channel.remove_consumer(name)
        channel.configure(spare_segments=0)
        channel.flush()
        assert len(channel.statistics().writers) == 1
    assert compress(path, Compression(method="gzip")).segments
    assert gc(path).pinned_by is not None, "no consumer is registered any more"
    with _open(path) as channel:
        channel.purge()


@pytest.mark.usefixtures("reader")
@shares
def test_a_reader_with_locks_does_not_keep_processes_apart(path: Path) -> None:
    """Two processes see each other although a reader's lock keeps both from marking their slots."""
    other = Fork(lambda: _open(path))
    with _open(path) as channel, channel.receiver("mine"):
        assert len(channel.statistics().writers) == 2
    other.kill()
    with _open(path) as channel:
        assert len(channel.statistics().writers) == 1


def test_a_reader_that_comes_later_blocks_nothing(path: Path) -> None:
    """When a reader locks what is in use, messages are still sent and wake receivers."""
    with _open(path) as channel, channel.receiver("known") as rx, channel.sender() as tx:
        child = locking_everything(path)
        tx.send_many(list(range(2000)))
        for expected in range(1, 2000):
            assert rx.receive() == expected
        with channel.receiver("late") as late:
            assert late.receive() == 0
        channel.remove_consumer("late")
        child.kill()


def test_only_writers_can_open_the_lock_file_and_the_fifos(path: Path) -> None:
    """Only writers can open the lock file and the FIFOs; the group can read the other files and write none."""
    with _open(path):
        found = [each for each in path.rglob("*") if not each.is_dir()]
        assert path / "wake" / "1" in found
        secret = [each.name for each in found if stat.S_IMODE(each.stat().st_mode) != 0o640]
        assert sorted(secret) == ["1", "lock"]
        assert run_as(READER, lambda: [each.name for each in found if not os.access(each, os.R_OK)]) == secret
        assert run_as(READER, lambda: [each.name for each in found if os.access(each, os.W_OK)]) == []


def test_a_reader_sees_what_it_cannot_know(path: Path) -> None:
    """A reader sees writers, though not for certain, and no owner of a consumer; a user with write access sees both."""

    def look() -> tuple[list[int | None], bool, list[object], list[bool]]:
        with open_channel(path, int, readonly=True) as channel:
            statistics, consumers = channel.statistics(), channel.consumers()
            pids = [each.pid for each in statistics.writers]
            owners: list[object] = [each.owner and each.owner.pid for each in consumers]
            return pids, statistics.writers_known, owners, [each.owner_known for each in consumers]

    with _open(path) as channel, channel.receiver("known"):
        assert run_as(READER, look) == ([os.getpid()], False, [None, None], [False, False])
        assert run_as(0, look) == ([os.getpid()], True, [os.getpid(), None], [True, True])
    assert run_as(READER, look) == ([], False, [None, None], [False, False])
    child = locking_everything(path)
    with _open(path):
        assert run_as(READER, look)[:2] == ([], False), "another reader has prevented the mark"
        assert run_as(0, look)[:2] == ([os.getpid()], True)
    child.kill()


def test_a_reader_cannot_write(path: Path) -> None:
    """Opening a channel for writing without permission raises an error that says how to open it."""
    with pytest.raises(StorageError, match="readonly=True"):
        run_as(READER, lambda: _open(path).close())


def test_a_user_who_cannot_read_is_not_advised_to_open_it_for_reading(tmp_path: Path, path: Path) -> None:
    """The error does not advise to open for reading where no channel can be created or read."""
    tmp_path.chmod(0o755)
    for mode in (0o711, 0o700):
        path.chmod(mode)
        with pytest.raises(StorageError, match="Permission denied") as caught:
            run_as(READER, lambda: _open(path).close())
        assert "readonly" not in str(caught.value)
    with pytest.raises(StorageError, match="Permission denied") as caught:
        run_as(READER, lambda: _open(tmp_path / "new").close())
    assert "readonly" not in str(caught.value)


def test_a_read_only_file_system_can_be_read(tmp_path: Path) -> None:
    """On a read-only file system the error advises to open for reading, unless the channel would have to be created."""
    with mounted_tmpfs(tmp_path, 8 << 20) as mounted:
        open_channel(mounted / "orders", int).close()
        run_or_skip("mount", "-o", "remount,ro", mounted)
        with pytest.raises(StorageError, match=r"for writing, or open it with readonly=True$"):
            open_channel(mounted / "orders", int)
        with pytest.raises(StorageError, match=r"mount the file system for writing$"):
            open_channel(mounted / "new", int)


@shares
def test_users_of_a_group_write_together(tmp_path: Path) -> None:
    """With mode 0660 users of the group can write, whichever user created the lock file with which umask."""
    path = tmp_path / "together"

    def send(number: int) -> int:
        os.umask(0o077)
        with _open(path, 0o660) as channel, channel.receiver(f"user {os.getuid()}"), channel.sender() as tx:
            tx.send(number)
            return len(channel.statistics().writers)

    assert run_as(WRITER, lambda: send(1)) == 1
    with _open(path, 0o660) as channel:
        assert run_as(READER, lambda: send(2)) == 2
        (path / "lock").unlink()
    assert run_as(READER, lambda: send(3)) == 1, "who makes it again is another user than before"
    assert stat.S_IMODE((path / "lock").stat().st_mode) == 0o660
    assert (path / "lock").stat().st_gid == GROUP
    assert run_as(WRITER, lambda: send(4)) == 1
    with _open(path, 0o660) as channel, channel.replay() as messages:
        assert list(messages) == [1, 2, 3, 4]


def test_root_makes_a_missing_lock_file_for_the_owner(tmp_path: Path) -> None:
    """When root creates a missing lock file it belongs to the owner of the channel."""
    path = tmp_path / "mine"
    run_as(WRITER, lambda: _open(path, 0o600).close())
    (path / "lock").unlink()
    gc(path)
    assert ((path / "lock").stat().st_uid, (path / "lock").stat().st_gid) == (WRITER, GROUP)
    run_as(WRITER, lambda: _open(path, 0o600).close())


@pytest.mark.parametrize("mode", [0o600, 0o660])
def test_what_root_creates_belongs_to_the_owner_of_the_channel(tmp_path: Path, mode: int) -> None:
    """What root creates in the channel of another user belongs to that user, who can use it afterwards."""
    path = tmp_path / "mine"
    run_as(WRITER, lambda: _open(path, mode).close())
    (path / "lock").unlink()
    with _open(path, mode) as channel, channel.receiver("roots") as rx, channel.group("team"), channel.sender() as tx:
        tx.send_many(list(range(4000)))
        assert rx.receive() == 0
        channel.configure(spare_segments=1)
    assert compress(path, Compression(method="gzip")).segments
    gc(path)
    owners = {str(each.relative_to(path)): (each.stat().st_uid, each.stat().st_gid) for each in path.rglob("*")}
    assert set(owners.values()) == {(WRITER, GROUP)}, owners
    files = {each.name: stat.S_IMODE(each.stat().st_mode) for each in path.rglob("*") if each.is_file()}
    assert set(files.values()) == {mode}, files

    def use() -> tuple[int, int]:
        with _open(path, mode) as channel, channel.receiver("roots") as rx, channel.group("team") as team:
            with channel.sender() as tx:
                tx.send_many(list(range(4000)))
            return rx.receive(), team.receive()

    assert run_as(WRITER, use) == (1, 0)


def test_root_creates_directories_for_the_owner(tmp_path: Path) -> None:
    """Root creates missing directories for the owner of the channel, and keeps one that has content."""
    path, files = tmp_path / "mine", Files()
    run_as(WRITER, lambda: _open(path, 0o600).close())
    files.confine(path)
    files.make_directory(path / "producers", 0o700)
    assert ((path / "producers").stat().st_uid, (path / "producers").stat().st_gid) == (WRITER, GROUP)
    (path / "roots").mkdir(mode=0o700)
    files.make_directory(path / "roots", 0o700)
    assert (path / "roots").stat().st_uid == 0, "it was there before"


def test_root_changes_the_owner_of_no_existing_file(tmp_path: Path) -> None:
    """Root never changes the owner of an existing file, or of the target of a link."""
    path, victim, files = tmp_path / "mine", tmp_path / "victim", Files()
    run_as(WRITER, lambda: _open(path, 0o600).close())
    files.confine(path)
    victim.write_text("secret")
    (path / "file").write_text("secret")
    (path / "link").symlink_to(victim)
    files.close(files.open(path / "file", create=True))
    with pytest.raises(UnexpectedFileError):
        files.open(path / "link", create=True)
    files.make(path / "file", 4096, b"x", 0, 0o600)
    files.close(files.create(path / "link", 0o600))
    assert (path / "link").stat().st_uid == WRITER, "created in place of the link"
    assert {each.stat().st_uid for each in (path / "file", victim)} == {0}
    assert victim.read_text() == (path / "file").read_text() == "secret"


def test_what_root_creates_in_its_own_channel_stays_its_own(tmp_path: Path) -> None:
    """What root creates in its own channel keeps root as owner, and the group that the directory gives it."""
    path = tmp_path / "roots"
    _open(path).close()
    assert {each.stat().st_uid for each in path.rglob("*")} == {0}


def test_root_changes_the_owner_of_a_lock_file_only(tmp_path: Path) -> None:
    """A link to another file instead of it, or a file with content, keeps its owner."""
    path, victim = tmp_path / "mine", tmp_path / "victim"
    run_as(WRITER, lambda: _open(path, 0o600).close())
    victim.write_text("secret")
    victim.chmod(0o600)
    for replace in (os.link, os.symlink, os.rename):
        (path / "lock").unlink()
        replace(victim, path / "lock")
        try:
            gc(path)
        except StorageError:
            pass
        status = os.stat(path / "lock")
        assert (status.st_uid, stat.S_IMODE(status.st_mode)) == (0, 0o600)


# The owner of the channel


def _changeable_states(path: Path) -> dict[Path, tuple[int, ...]]:
    """Everything below `path` with its state, but for access times: listing the directories here updates them."""
    states = {each: each.stat() for each in path.rglob("*")}
    return {each: (*state[:7], state.st_mtime_ns, state.st_ctime_ns) for each, state in states.items()}


def test_a_channel_of_another_user_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Opening a channel of another user is logged once, with user and path; `strict_owner` refuses it."""
    path = tmp_path / "theirs"
    run_as(WRITER, lambda: _open(path, 0o600).close())
    before = _changeable_states(path)
    with pytest.raises(UntrustedChannelError, match=f"belongs to user {WRITER}") as caught:
        open_channel(path, int, strict_owner=True)
    assert (caught.value.path, caught.value.owner, caught.value.mode) == (path, WRITER, 0o600)
    assert _changeable_states(path) == before
    with pytest.raises(UntrustedChannelError):
        open_channel(path, int, strict_owner=True, readonly=True)
    caplog.set_level(logging.WARNING, "filechannel")
    for _ in range(2):
        open_channel(path, int).close()
    [message] = [record.getMessage() for record in caplog.records if str(path) in record.getMessage()]
    assert message.startswith(f"{path} is not under the control of this user alone: it belongs to user {WRITER}, who")
    assert message.endswith("strict_owner=True refuses such a channel")


def test_an_owner_and_root_are_trusted(tmp_path: Path) -> None:
    """Channels of the user itself and of root are trusted; each open checks a channel that is already open."""
    path = tmp_path / "mine"
    run_as(WRITER, lambda: open_channel(path, int, strict_owner=True).close())
    run_as(WRITER, lambda: open_channel(path, int, strict_owner=True, readonly=True).close())
    with open_channel(path, int):
        for readonly in (False, True):
            with pytest.raises(UntrustedChannelError):
                open_channel(path, int, strict_owner=True, readonly=readonly)
    with open_channel(tmp_path / "roots", int, options=ChannelOptions(mode=0o644)):
        pass
    asked = ChannelOptions(mode=0o644)

    def look() -> None:
        open_channel(tmp_path / "roots", int, options=asked, readonly=True, strict_owner=True).close()

    run_as(WRITER, look)


def test_a_directory_of_another_user_is_not_made_a_channel(tmp_path: Path) -> None:
    """With `strict_owner` no channel is created in, or opened from, a directory that belongs to another user."""
    empty = tmp_path / "empty"
    empty.mkdir()
    os.chown(empty, WRITER, -1)
    with pytest.raises(UntrustedChannelError, match=str(WRITER)):
        open_channel(empty, int, strict_owner=True)
    assert os.listdir(empty) == []
    open_channel(tmp_path / "mine", int, strict_owner=True).close()
    os.chown(tmp_path / "mine", WRITER, -1)
    with pytest.raises(UntrustedChannelError, match=str(WRITER)):
        open_channel(tmp_path / "mine", int, strict_owner=True)


def test_an_unrequested_mode_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A mode that the user did not request is logged once per path, and not if the user made the channel private."""
    path, caplog.handler.level = tmp_path / "wide", logging.WARNING
    asked = ChannelOptions(mode=0o660)
    open_channel(path, int, options=asked, strict_owner=True).close()
    open_channel(path, int, options=asked, strict_owner=True).close()
    open_channel(tmp_path / "private", int, strict_owner=True).close()
    with pytest.raises(UntrustedChannelError, match="mode is 0660") as caught:
        open_channel(path, int, strict_owner=True)
    assert (caught.value.owner, caught.value.mode) == (None, 0o660)
    assert caplog.records == []
    open_channel(path, int).close()
    open_channel(path, int).close()
    assert len(caplog.records) == 1


def test_widened_permissions_are_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The mode of the files counts, not that of the manifest; after it is restored the channel is trusted again."""
    path, caplog.handler.level = tmp_path / "mine", logging.WARNING
    asked = ChannelOptions(mode=0o600)
    open_channel(path, int, strict_owner=True).close()
    everything = (path, *path.rglob("*"))
    modes = {each: stat.S_IMODE(each.stat().st_mode) for each in everything}
    for each in everything:
        each.chmod(0o777 if each.is_dir() else 0o666)
    for options in (None, asked):
        with pytest.raises(UntrustedChannelError, match=r"\. has 0777, channel\.json has 0666, control has") as caught:
            open_channel(path, int, strict_owner=True, options=options)
        assert caught.value.parts == (".", "channel.json", "control", "lock", "segments", "consumers", "wake")
        assert "permissions with chmod, or open it without strict_owner=True" in str(caught.value)
    assert caplog.records == []
    for _ in range(2):
        open_channel(path, int).close()
    assert len(caplog.records) == 1
    for each, mode in modes.items():
        each.chmod(mode)
    open_channel(path, int, strict_owner=True).close()


@pytest.mark.parametrize("name", ["segments", "consumers", "wake", "control", "lock", "channel.json"])
def test_each_part_is_checked(tmp_path: Path, name: str) -> None:
    """One part that another user owns or can write is enough for a refusal, also if the channel is already open."""
    path = tmp_path / "mine"
    open_channel(path, int, strict_owner=True).close()
    mode = stat.S_IMODE((path / name).stat().st_mode)
    (path / name).chmod(mode | 0o020)
    with pytest.raises(UntrustedChannelError, match=rf"{name} has 0[67][2-7]0") as caught:
        open_channel(path, int, strict_owner=True)
    assert caught.value.parts == (name,)
    (path / name).chmod(mode)
    with open_channel(path, int, strict_owner=True):
        os.chown(path / name, WRITER, -1)
        with pytest.raises(UntrustedChannelError, match=f"{name} belongs to user {WRITER}.*, who can") as caught:
            open_channel(path, int, strict_owner=True)
    assert caught.value.owner == WRITER


def test_a_directory_that_others_can_write_to_is_not_made_a_channel(tmp_path: Path) -> None:
    """`strict_owner` refuses a directory that others can write to, but not one whose names they can list."""
    path = tmp_path / "mine"
    path.mkdir()
    path.chmod(0o777)
    with pytest.raises(UntrustedChannelError, match=r"\. has 0777"):
        open_channel(path, int, strict_owner=True)
    assert os.listdir(path) == []
    path.chmod(0o755)
    open_channel(path, int, strict_owner=True).close()


def test_parts_that_a_group_has_made_are_trusted_if_it_may_write(tmp_path: Path) -> None:
    """With a group mode, parts that another user of the group created are trusted."""
    path, asked = tmp_path / "together", ChannelOptions(mode=0o660)
    open_channel(path, int, options=asked).close()
    os.chown(path / "lock", WRITER, GROUP)
    open_channel(path, int, options=asked, strict_owner=True).close()
    with pytest.raises(UntrustedChannelError, match=f"lock belongs to user {WRITER}.*; and its mode is 0660"):
        open_channel(path, int, strict_owner=True)


def test_a_pickled_handle_is_as_strict(tmp_path: Path) -> None:
    """A pickled handle keeps `strict_owner` in the process that opens it again."""
    path = tmp_path / "mine"
    channel = open_channel(path, int, strict_owner=True)
    handle = pickle.dumps(channel)
    again = pickle.loads(handle)
    with again.sender() as tx:
        tx.send(1)
    again.close()
    channel.close()
    os.chown(path, WRITER, -1)
    with pytest.raises(UntrustedChannelError), pickle.loads(handle).sender():
        pass
