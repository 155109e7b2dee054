"""Files that disappear, and descriptors that run out, under an open channel: typed errors that say what to do."""

from __future__ import annotations

import logging
import mmap
import os
import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from anyio import ClosedResourceError, EndOfStream

from filechannel import ChannelOptions, ConsumerDamagedError, Durability, FileChannelError, StorageError
from filechannel._format import crc32c
from filechannel._format.layout import CURSOR, CURSOR_CHECKED, CURSOR_SIZE, CURSOR_SLOTS
from filechannel._maintenance.repair.repair import repair
from filechannel.blocking import FileChannel, open_channel
from tests.blocking.threads import until
from tests.storage.compressing import compress_all

Channel = FileChannel[bytes]
SMALL = ChannelOptions(segment_size=65536, durability=Durability.OS)
FSYNC = ChannelOptions(segment_size=65536, durability=Durability.FSYNC)
BOTH = pytest.mark.parametrize("options", [SMALL, FSYNC], ids=["os", "fsync"])


def segments_of(path: Path) -> list[Path]:
    """Return the files of the segments, the oldest first."""
    return sorted(each for each in (path / "segments").glob("*.seg") if each.stem.isdigit())


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Leave what is logged about it to the tests that look at it."""
    caplog.set_level(logging.CRITICAL, logger="filechannel")


def back_up(path: Path) -> Path:
    """Make a backup by hard links, as `cp -al` does: every file keeps a name when the channel's name is deleted."""

    def link(subscription: str, target: str) -> None:
        with suppress(FileNotFoundError):  # reclaimed in this moment
            os.link(subscription, target)

    backup = path.with_name("backup")
    shutil.copytree(path, backup, copy_function=link, ignore=shutil.ignore_patterns("wake"))
    return backup


def send_and_flush(channel: Channel) -> None:
    """Send a message, and wait until it is on disk."""
    with channel.sender() as tx:
        tx.send(b"1")
    channel.flush()


# Deleted while in use


@BOTH
@pytest.mark.parametrize("which", [slice(-1, None), slice(None)], ids=["active", "all"])
def test_a_deleted_segment_is_noticed_by_the_next_flush(path: Path, options: ChannelOptions, which: slice) -> None:
    """The next flush reports a deleted segment once; from then on the log continues in a new file."""
    with open_channel(path, bytes, options=options) as channel, channel.sender() as tx:
        for _ in range(300):
            tx.send(bytes(300))
        lost = segments_of(path)[which]
        for segment in lost:
            segment.unlink()
        with pytest.raises(StorageError, match="deleted or replaced while the channel was open") as raised:
            send_and_flush(channel)
        assert any(str(segment) in str(raised.value) for segment in lost)
        if options is FSYNC:
            with pytest.raises(StorageError, match="deleted or replaced"):
                channel.flush()  # once, for a process that did not send
            send_and_flush(channel)
        else:  # readers have seen what is lost: every flush raises until it is reclaimed
            with pytest.raises(StorageError, match="deleted or replaced"):
                send_and_flush(channel)
            channel.purge()
            send_and_flush(channel)
        assert segments_of(path)[-1] not in lost


@BOTH
def test_a_replaced_segment_is_noticed(path: Path, options: ChannelOptions) -> None:
    """A flush reports that a segment was replaced by a copy, in which messages that are sent here are missing."""
    with open_channel(path, bytes, options=options) as channel:
        send_and_flush(channel)
        (segment,) = segments_of(path)
        copy = path / "copy"
        shutil.copy(segment, copy)
        copy.replace(segment)
        with pytest.raises(StorageError, match="deleted or replaced while the channel was open"):
            send_and_flush(channel)


@BOTH
@pytest.mark.parametrize("which", [slice(-1, None), slice(None)], ids=["active", "all"])
@pytest.mark.parametrize("how", ["deleted", "moved", "replaced"])
def test_a_segment_that_a_backup_keeps_is_noticed(path: Path, options: ChannelOptions, which: slice, how: str) -> None:
    """A flush reports a segment whose only name is in a backup: what is flushed to it is not in the channel."""
    with open_channel(path, bytes, options=options) as channel, channel.sender() as tx:
        for _ in range(300):
            tx.send(bytes(300))
        if how != "moved":
            back_up(path)
        for segment in segments_of(path)[which]:
            if how == "replaced":
                copy = path / "copy"
                shutil.copy(segment, copy)
                copy.replace(segment)
            elif how == "moved":
                segment.rename(path.with_name(segment.name))
            else:
                segment.unlink()
        with pytest.raises(StorageError, match="deleted or replaced while the channel was open"):
            send_and_flush(channel)


@BOTH
@pytest.mark.parametrize("how", ["deleted", "moved", "replaced"])
def test_a_control_file_that_a_backup_keeps_is_noticed(path: Path, options: ChannelOptions, how: str) -> None:
    """Every flush reports a control file whose only name is in a backup."""
    with open_channel(path, bytes, options=options) as channel:
        send_and_flush(channel)
        control, copy = path / "control", path / "copy"
        if how != "moved":
            back_up(path)
        if how == "replaced":
            shutil.copy(control, copy)
            copy.replace(control)
        elif how == "moved":
            control.rename(path.with_name("control"))
        else:
            control.unlink()
        for _ in range(2):
            with pytest.raises(StorageError, match=r"control was deleted or replaced .*close it, and open it again"):
                send_and_flush(channel)


@BOTH
def test_a_directory_of_segments_that_was_replaced_is_noticed(path: Path, options: ChannelOptions) -> None:
    """Every flush reports a `segments` directory that was replaced: the open files are not in the channel any more."""
    with open_channel(path, bytes, options=options) as channel:
        send_and_flush(channel)
        (path / "segments").rename(path / "old")
        shutil.copytree(path / "old", path / "segments")
        for _ in range(2):
            with pytest.raises(StorageError, match=r"segments was deleted or replaced .*close it, and open it again"):
                send_and_flush(channel)


@BOTH
def test_a_backup_by_hard_links_is_not_an_error(path: Path, options: ChannelOptions) -> None:
    """Flushes succeed while a backup by hard links exists and after its removal, also for reclaimed or compressed
    segments.
    """
    with open_channel(path, bytes, options=options) as channel, channel.sender() as tx, channel.receiver("name") as rx:
        for round_ in range(4):
            for _ in range(250):
                tx.send(bytes(300))
            backup = back_up(path)
            if round_ == 1:
                with channel._store.maintenance_lock.held(lambda: True):  # else the maintenance thread may be at it
                    compress_all(channel._store, "gzip")
            rx.receive_many(250)
            send_and_flush(channel)
            rx.receive()
            shutil.rmtree(backup)
            send_and_flush(channel)
            rx.receive()


@BOTH
def test_a_channel_that_is_moved_while_it_is_open_can_be_flushed(path: Path, options: ChannelOptions) -> None:
    """A flush succeeds after the channel's directory was moved, because its files keep their names in it."""
    with open_channel(path, bytes, options=options) as channel:
        send_and_flush(channel)
        path.rename(path.with_name("moved"))
        send_and_flush(channel)
    with open_channel(path.with_name("moved"), bytes, readonly=True) as channel:
        assert len(list(channel.replay())) == 2


def test_a_deleted_segment_is_noticed_after_others_have_rolled(path: Path) -> None:
    """A flush reports a deleted segment after other processes rolled, also if the directory was scanned since."""
    with open_channel(path, bytes, options=SMALL) as channel, channel.sender() as tx:
        for _ in range(100):
            tx.send(bytes(300))
        segments_of(path)[0].unlink()
        for _ in range(300):
            tx.send(bytes(300))
        channel._store.segments.scan()
        with pytest.raises(StorageError, match="deleted or replaced while the channel was open"):
            channel.flush()


@BOTH
def test_segments_that_the_channel_retires_are_not_an_error(path: Path, options: ChannelOptions) -> None:
    """Flushes succeed when the channel itself has reclaimed, purged, compressed or recycled segments."""
    with open_channel(path, bytes, options=options) as channel, channel.sender() as tx, channel.receiver("name") as rx:
        for round_ in range(4):
            for _ in range(250):
                tx.send(bytes(300))
            if round_ == 1:
                with channel._store.maintenance_lock.held(lambda: True):  # else the maintenance thread may be at it
                    compress_all(channel._store, "gzip")
            rx.receive_many(250)
            channel.flush()
        channel.purge()
        channel.flush()


@BOTH
@pytest.mark.parametrize("replace", [False, True], ids=["deleted", "replaced"])
def test_a_deleted_control_file_is_noticed_by_the_next_flush(
    path: Path, options: ChannelOptions, replace: bool
) -> None:
    """Every flush reports a deleted control file: processes that open the channel now do not see what is sent here."""
    with open_channel(path, bytes, options=options) as channel:
        send_and_flush(channel)
        copy = path / "copy"
        shutil.copy(path / "control", copy)
        copy.replace(path / "control") if replace else (path / "control").unlink()
        for _ in range(2):
            with pytest.raises(StorageError, match=r"control was deleted or replaced .*close it, and open it again"):
                send_and_flush(channel)


def test_a_deleted_cursor_is_noticed_by_the_next_flush(path: Path) -> None:
    """A flush reports the deleted cursor of an open consumer, which no process may have removed."""
    with open_channel(path, bytes, options=SMALL) as channel, channel.receiver("name"):
        send_and_flush(channel)
        (path / "consumers/name.cursor").unlink()
        with pytest.raises(StorageError, match=r"name\.cursor"):
            channel.flush()
    with open_channel(path, bytes) as channel, channel.receiver("name") as rx:
        rx.unsubscribe()
        channel.flush()


def _is_removed(directory: Path) -> bool:
    """Remove a directory; return False if the maintenance thread has created a file in it."""
    shutil.rmtree(directory, ignore_errors=True)
    return not directory.exists()


@pytest.mark.parametrize("part", ["segments", "consumers", "."])
def test_a_missing_directory_is_a_typed_error(path: Path, part: str) -> None:
    """Every method that needs the missing directory raises a typed error; the others still work."""
    with open_channel(path, bytes, options=SMALL) as channel:
        rx = channel.receiver("name")
        for _ in range(300):
            channel.sender().send(bytes(300))
        until(lambda: _is_removed(path / part))
        methods: list[Callable[[], object]] = [
            lambda: send_and_flush(channel),
            channel.statistics,
            channel.consumers,
            channel.purge,
            channel.seal,
            lambda: channel.receiver("new"),
            lambda: channel.group("new"),
            lambda: channel.remove_consumer("name"),
            lambda: channel.configure(durability=Durability.FSYNC),
            lambda: channel.offset_of(5),
            lambda: rx.receive_many_nowait(400),
            rx.statistics,
            rx.unsubscribe,
        ]
        failed = 0
        for method in methods:
            try:
                method()
            except (FileChannelError, ValueError, ClosedResourceError, EndOfStream):
                failed += 1
        assert failed


# Descriptors


@contextmanager
def no_more_descriptors() -> Iterator[None]:
    """Let this process open nothing."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (128, hard))
    try:
        while True:
            taken.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        pass
    try:
        yield
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_running_out_of_descriptors_is_reported_as_that(path: Path) -> None:
    """Without free descriptors every method raises an error that names the limit to raise, and not the path."""
    with open_channel(path, bytes, options=SMALL) as channel:
        rx = channel.receiver("name")
        channel.sender().send(b"1")
        methods: list[Callable[[], object]] = [
            lambda: open_channel(path.parent / "other", bytes),
            channel.statistics,
            channel.consumers,
            channel.purge,
            lambda: channel.receiver("new"),
            lambda: channel.remove_consumer("name"),
            lambda: channel.configure(durability=Durability.FSYNC),
            rx.unsubscribe,
        ]
        said = list[str]()
        with no_more_descriptors():
            for method in methods:
                try:
                    method()
                except StorageError as error:
                    said.append(str(error))
        assert said
        assert [text for text in said if "ulimit -n" not in text or "check the path" in text] == []
        channel.statistics()
        assert rx.receive() == b"1"


# Damage


@pytest.mark.parametrize(("generation", "offset"), [((1 << 64) - 1, 0), ((1 << 64) - 2, 0), (1, (1 << 64) - 10)])
@pytest.mark.parametrize("kind", ["receiver", "group"])
def test_a_position_out_of_range_is_damage(path: Path, kind: str, generation: int, offset: int) -> None:
    """A valid slot with an impossible position is damage: the error names the consumer and the repair command."""
    with open_channel(path, bytes) as channel:
        channel.sender().send(b"1")
        getattr(channel, kind)("name").close()
    (file,) = (path / "consumers").iterdir()
    with file.open("r+b") as opened, mmap.mmap(opened.fileno(), CURSOR_SIZE) as content:
        fields = (generation, offset, 0, 0)
        for slot in CURSOR_SLOTS:
            CURSOR.pack_into(content, slot, *fields, crc32c(CURSOR_CHECKED.pack(*fields)))
    with open_channel(path, bytes) as channel:
        with pytest.raises(ConsumerDamagedError, match="repair"):
            getattr(channel, kind)("name")
        assert channel.consumers()[0].damaged
        channel.flush()
        channel.purge()


def test_the_number_of_a_message_that_a_repair_left_out(path: Path) -> None:
    """Looking up a message that a repair left out raises `ValueError`, as for every message that is not stored."""
    with open_channel(path, bytes, options=ChannelOptions(segment_size=4096)) as channel:
        for _ in range(40):
            channel.sender().send(bytes(300))
        offsets = [channel.offset_of(number) for number in range(40)]
    segment = segments_of(path)[0]
    with segment.open("r+b") as file:
        file.seek(64 + offsets[5] + 20)
        file.write(b"!")
    repair(path)
    with open_channel(path, bytes) as channel:
        with pytest.raises(ValueError, match="message 5 is not stored: it was damaged or lost"):
            channel.offset_of(5)
        assert [channel.offset_of(number) for number in (4, 6, 39)] == [offsets[4], offsets[6], offsets[39]]
