"""After a power cut: where the log ends, and what becomes of the rest."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from filechannel import ChannelOptions, ConsumerDamagedError, CorruptRecordError, DiskFullError, UnsupportedFormatError
from filechannel._format import crc32c
from filechannel._format.layout import (
    CHECKPOINT_SLOTS,
    CONTROL_SIZE,
    FORMAT_VERSION,
    SEGMENT_CRC,
    SEGMENT_END,
    SEGMENT_HEADER_SIZE,
)
from filechannel._storage.consumers.cursor_file_format import offsets_in_consumers
from filechannel._storage.segments.segment import segment_name
from filechannel._storage.store import Store
from filechannel._storage.system.os_calls import Files
from tests.storage.background import Background
from tests.storage.boots import Boots
from tests.storage.channels import Message, opened, payloads_of, read_all, reader_of

GAP = 1 << 40
LARGE = ChannelOptions(segment_size=1 << 20)

pytestmark = pytest.mark.usefixtures("background")


def _send(store: Store, count: int, size: int = 1000) -> list[Message]:
    for number in range(count):
        store.log.append([b"%d:" % number + b"." * size])
    return read_all(store)


def _segment(path: Path, begin: int) -> Path:
    return path / "segments" / segment_name(begin)


def _overwrite(file: Path, position: int, content: bytes) -> None:
    with file.open("r+b") as opened_file:
        opened_file.seek(position)
        opened_file.write(content)


def _quarantine(path: Path) -> list[str]:
    return sorted(name.split("-", 1)[1] for name in os.listdir(path / "quarantine"))


# Consumers


@pytest.mark.parametrize("left", [b"", bytes(4096)], ids=["nothing", "zeros"])
def test_a_name_that_never_reached_the_disk_misses_nothing(
    path: Path, boots: Boots, left: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """A name whose file never reached the disk starts at the oldest message with a warning, but only after a reboot."""
    with opened(path) as store:
        _send(store, 5)
        store.cursors.open("single")
        store.cursors.close_all()
    for file in (path / "consumers" / "single.cursor", path / "consumers" / "shared.group"):
        file.write_bytes(left)
    copy = shutil.copytree(path, path.with_name("copy"))
    with opened(path) as store, pytest.raises(ConsumerDamagedError):
        store.cursors.open("single")
    boots.again()
    with opened(copy) as store, pytest.raises(ConsumerDamagedError):
        store.cursors.open("single")
    assert not caplog.records
    with opened(path) as store:
        assert store.cursors.open("single").position is not None
        assert offsets_in_consumers(Files(), path / "consumers") == [0, 0]
        store.cursors.close_all()
    assert sum("starts at the oldest message" in each.message for each in caplog.records) == 2


# The end of the log


def test_everything_that_is_whole_is_kept(path: Path, boots: Boots) -> None:
    """If all of it reached the disk, nothing is lost, flushed or not."""
    with opened(path) as store:
        messages = _send(store, 20)
    boots.again()
    with opened(path) as store:
        assert read_all(store) == messages
        assert not (path / "quarantine").exists()


def test_the_log_resumes_far_beyond_its_end(path: Path, boots: Boots) -> None:
    """No offset is used twice: an offset from before finds what was there, or nothing."""
    with opened(path) as store:
        _send(store, 5)
    for boot in range(1, 4):
        boots.again()
        with opened(path) as store:
            assert store.control.write_offset == boot * GAP
            assert store.log.append([b"boot %d" % boot]) == boot * GAP
            assert payloads_of(store)[4 + boot :] == [b"boot %d" % boot]


def test_booting_without_sending_changes_nothing(path: Path, boots: Boots) -> None:
    """However often the machine boots, the channel stays readable and takes no more files."""
    with opened(path) as store:
        messages = _send(store, 5)
    for _ in range(5):
        boots.again()
        with opened(path) as store:
            assert read_all(store) == messages
            assert len(store.segments.begins) == 3
    with opened(path) as store:
        assert read_all(store) == messages


def test_a_new_channel_is_recovered_too(path: Path, boots: Boots) -> None:
    """A channel without messages comes back without messages, and its first offsets are not used again."""
    with opened(path):
        pass
    boots.again()
    with opened(path) as store:
        assert payloads_of(store) == []
        store.log.append([b"one"])
        assert payloads_of(store) == [b"one"]
        assert store.control.oldest_offset == 0


@pytest.mark.parametrize("number", [0, 1, 10, 19])
def test_the_log_is_cut_before_the_first_damage(path: Path, boots: Boots, number: int) -> None:
    """What follows a damaged record is not believed, but put aside."""
    with opened(path, LARGE) as store:
        messages = _send(store, 20)
    _overwrite(_segment(path, 0), SEGMENT_HEADER_SIZE + messages[number].offset + 50, b"x")
    boots.again()
    with opened(path) as store:
        assert read_all(store) == messages[:number]
        assert store.control.tail().sequence == number
        assert store.log.append([b"resumes"]) == GAP
        assert payloads_of(store)[number:] == [b"resumes"]


def test_a_batch_is_kept_or_cut_as_a_whole(path: Path, boots: Boots) -> None:
    """A batch whose last record is damaged is removed, though the others are whole."""
    with opened(path, LARGE) as store:
        messages = _send(store, 3)
        store.log.append([b"a", b"b", b"c"])
        last = read_all(store)[-1]
    _overwrite(_segment(path, 0), SEGMENT_HEADER_SIZE + last.offset + 8, b"x")
    boots.again()
    with opened(path) as store:
        assert read_all(store) == messages


def test_a_batch_over_several_segments_is_cut_as_a_whole(path: Path, boots: Boots) -> None:
    """The segments after the cut are removed too."""
    with opened(path) as store:
        messages = _send(store, 2)
        store.log.append([b"%d" % number + b"." * 1500 for number in range(10)])
        begins = store.segments.begins
        last = read_all(store)[-1]
    _overwrite(_segment(path, begins[-1]), SEGMENT_HEADER_SIZE + last.offset - begins[-1] + 8, b"x")
    boots.again()
    with opened(path) as store:
        assert read_all(store) == messages
        assert store.segments.begins == [0, GAP]


def test_what_a_checkpoint_covers_is_believed(path: Path, boots: Boots) -> None:
    """Damage in what was flushed is not the end of the log: readers get the error, and what follows is kept."""
    with opened(path) as store:
        messages = _send(store, 20)
        store.flusher.flush()
    _overwrite(_segment(path, 0), SEGMENT_HEADER_SIZE + messages[1].offset + 50, b"x")
    boots.again()
    with opened(path) as store:
        assert store.control.tail().sequence == 20
        with pytest.raises(CorruptRecordError):
            read_all(store)
        assert read_all(store, skip=True) == [messages[0], *messages[2:]]


def test_a_zero_filled_tail_contains_no_messages(path: Path, boots: Boots) -> None:
    """Pages that never reached the disk are zeros, and zeros are not records."""
    with opened(path, LARGE) as store:
        messages = _send(store, 20)
    position = SEGMENT_HEADER_SIZE + messages[7].offset
    _overwrite(_segment(path, 0), position, bytes((1 << 20) - position))
    boots.again()
    with opened(path) as store:
        assert read_all(store) == messages[:7]


def test_a_segment_that_is_missing_ends_the_log(path: Path, boots: Boots) -> None:
    """A name that never reached the disk: what comes after the gap is put aside."""
    with opened(path) as store:
        messages, begins = _send(store, 20), store.segments.begins
    _segment(path, begins[2]).unlink()
    boots.again()
    with opened(path) as store:
        assert read_all(store) == [message for message in messages if message.offset < begins[2]]
        assert len(_quarantine(path)) == 2 * (len(begins) - 3)


@pytest.mark.parametrize("content", [b"", b"x", bytes(64), bytes(4096)], ids=["empty", "short", "zeros", "page"])
def test_a_half_made_segment_is_put_aside(
    path: Path, boots: Boots, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """A file that has its name but not its header yet is moved away, with a word about why."""
    with opened(path) as store:
        messages, end = _send(store, 10), store.control.write_offset
    _segment(path, end).write_bytes(content)
    boots.again()
    with caplog.at_level(logging.WARNING, "filechannel"), opened(path) as store:
        assert read_all(store) == messages
    assert _quarantine(path) == [segment_name(end), f"{segment_name(end)}.json"]
    assert "is not a segment" in caplog.text


def test_a_directory_among_the_segments_is_put_aside(path: Path, boots: Boots) -> None:
    """Whatever has a segment's name and is none cannot stop a channel from opening."""
    with opened(path) as store:
        messages, end = _send(store, 10), store.control.write_offset
    _segment(path, end + 5).mkdir()
    boots.again()
    with opened(path) as store:
        assert read_all(store) == messages


def test_a_segment_of_a_newer_version_is_not_touched(path: Path, boots: Boots) -> None:
    """A process that does not know the format does not move its files."""
    with opened(path) as store:
        begins = (_send(store, 10), store.segments.begins)[1]
    file = _segment(path, begins[-1])
    content = bytearray(file.read_bytes())
    content[8:12] = (FORMAT_VERSION + 1).to_bytes(4, "little")
    checked = bytes(content[:SEGMENT_END] + content[SEGMENT_END + 8 : SEGMENT_CRC])
    content[SEGMENT_CRC : SEGMENT_CRC + 4] = crc32c(checked).to_bytes(4, "little")
    file.write_bytes(content)
    boots.again()
    with pytest.raises(UnsupportedFormatError), opened(path):
        pass
    assert file.read_bytes() == content


def test_a_stale_end_does_not_shorten_a_segment(path: Path, boots: Boots) -> None:
    """If a header on disk is older than its successor's, the successor is right."""
    with opened(path) as store:
        messages, begins = _send(store, 10), store.segments.begins
        store.segments.get(begins[1]).finish(messages[4].offset)
    boots.again()
    with opened(path) as store:
        assert read_all(store) == messages


def test_dying_in_recovery_comes_to_the_same_result(path: Path, tmp_path: Path, boots: Boots) -> None:
    """Recovering what was recovered already changes nothing."""
    with opened(path) as store:
        messages = _send(store, 10)
    _overwrite(_segment(path, 0), SEGMENT_HEADER_SIZE + messages[2].offset + 50, b"x")
    shutil.copytree(path, tmp_path / "copy")
    for copy in (path, tmp_path / "copy"):
        boots.again()
        with opened(copy) as store:
            assert read_all(store) == messages[:2]
    boots.again()
    with opened(path) as store:
        assert read_all(store) == messages[:2]


# Quarantine


def test_what_was_cut_is_in_quarantine(path: Path, boots: Boots, caplog: pytest.LogCaptureFixture) -> None:
    """Every whole record after the cut is kept, and one warning says how many and where."""
    with opened(path, LARGE) as store:
        messages = _send(store, 10)
    _overwrite(_segment(path, 0), SEGMENT_HEADER_SIZE + messages[4].offset + 50, b"x")
    boots.again()
    with caplog.at_level(logging.WARNING, "filechannel"), opened(path):
        pass
    name = f"{messages[4].offset:020}.records"
    assert _quarantine(path) == [name, f"{name}.json"]
    (file,) = (path / "quarantine").glob("*.records")
    content = file.read_bytes()
    for message in messages[5:]:
        assert message.offset.to_bytes(8, "little") in content
        assert message.payload in content
    assert messages[4].payload not in content
    assert caplog.text.count("5 records after the valid end") == 1


def test_what_was_quarantined_is_quarantined_once(path: Path, tmp_path: Path, boots: Boots) -> None:
    """A process that died or found no space after that finds it, and makes no second copy."""
    with opened(path) as store:
        messages = _send(store, 10)
    _overwrite(_segment(path, 0), SEGMENT_HEADER_SIZE + messages[2].offset + 50, b"x")
    copy = tmp_path / "copy"
    shutil.copytree(path, copy)
    boots.again()
    with opened(path):
        pass
    shutil.copytree(path / "quarantine", copy / "quarantine")
    before = os.listdir(copy / "quarantine")
    boots.again()
    with opened(copy):
        pass
    assert sorted(os.listdir(copy / "quarantine")) == sorted(before)


def test_the_quarantine_uses_the_space_kept_for_a_full_disk(path: Path, boots: Boots) -> None:
    """A channel with something to quarantine can be opened, though there is no space for another name."""
    with opened(path, LARGE) as store:
        messages = _send(store, 10)
    _overwrite(_segment(path, 0), SEGMENT_HEADER_SIZE + messages[4].offset + 50, b"x")
    boots.again()

    class FullFiles(Files):
        def make_directory(self, path: Path, mode: int) -> None:
            if path.name == "quarantine" and (path.parent / "control").stat().st_size > CONTROL_SIZE:
                raise DiskFullError(path, 0)
            super().make_directory(path, mode)

    with opened(path, LARGE, files=FullFiles()) as store:
        assert read_all(store) == messages[:4]
    assert _quarantine(path)


# Seals and purges


def test_a_seal_survives(path: Path, boots: Boots) -> None:
    """A channel that was sealed stays sealed, flushed or not, without an offset gap."""
    with opened(path) as store:
        _send(store, 3)
        store.seal()
        store.flusher.flush()
        end = store.control.write_offset
    for _ in range(3):
        boots.again()
        with opened(path) as store:
            assert store.control.sealed
            assert store.has_ended(end)
            assert len(read_all(store)) == 3


def test_a_seal_without_a_checkpoint_survives(path: Path, boots: Boots) -> None:
    """The seal is a record: it is found by walking."""
    with opened(path) as store:
        _send(store, 3)
        store.seal()
    boots.again()
    with opened(path) as store:
        assert store.control.sealed


def test_what_was_purged_stays_purged(path: Path, boots: Boots) -> None:
    """Segments that come back after a power cut are removed again: the checkpoint says where the channel begins."""
    with opened(path) as store:
        _send(store, 10)
        saved = {file.name: file.read_bytes() for file in (path / "segments").iterdir()}
        store.purge()
        store.log.append([b"after"])
        store.flusher.flush()
    for name, content in saved.items():
        if not (path / "segments" / name).exists():
            (path / "segments" / name).write_bytes(content)
    boots.again()
    with opened(path) as store:
        assert payloads_of(store) == [b"after"]
        assert store.lookup.earliest().sequence == 10


# Consumers


def _consume(store: Store, count: int) -> None:
    cursor = store.cursors.open("consumer")
    reader = reader_of(store, cursor)
    reader.move(store.lookup.earliest())
    for _ in range(count):
        reader.native.take()
    reader.close()
    store.cursors.close(cursor)


def test_a_consumer_resumes_where_it_was(path: Path, boots: Boots) -> None:
    """A consumer whose position still exists resumes there."""
    with opened(path) as store:
        messages = _send(store, 10)
        _consume(store, 4)
    boots.again()
    with opened(path) as store:
        cursor = store.cursors.open("consumer")
        assert cursor.position is not None
        assert (cursor.position.offset, cursor.position.sequence) == (messages[4].offset, 4)
        store.cursors.close(cursor)


def test_a_consumer_beyond_the_cut_has_seen_all_that_is_left(path: Path, boots: Boots) -> None:
    """A consumer beyond the cut gets everything that is sent afterwards."""
    with opened(path, LARGE) as store:
        messages = _send(store, 10)
        _consume(store, 8)
    _overwrite(_segment(path, 0), SEGMENT_HEADER_SIZE + messages[4].offset + 50, b"x")
    boots.again()
    with opened(path) as store:
        cursor = store.cursors.open("consumer")
        position = cursor.position
        assert position is not None
        assert position.sequence == 4
        store.log.append([b"next"])
        found = read_all(store, start=position.log_position)
        assert [message.payload for message in found] == [b"next"]
        store.cursors.close(cursor)


# The control file


@pytest.mark.parametrize("damage", ["removed", "emptied", "cut off", "zeroed", "overwritten"])
def test_a_lost_control_file_costs_nothing(path: Path, damage: str) -> None:
    """Without its words, everything that is whole is found again, in the same boot too."""
    with opened(path) as store:
        messages = _send(store, 10)
        _consume(store, 4)
    control = path / "control"
    if damage == "removed":
        control.unlink()
    elif damage in ("emptied", "cut off"):
        os.truncate(control, 0 if damage == "emptied" else 1000)
    else:
        control.write_bytes((b"\0" if damage == "zeroed" else b"x") * control.stat().st_size)
    with opened(path) as store:
        assert read_all(store) == messages
        assert store.control.write_offset == GAP
        cursor = store.cursors.open("consumer")
        assert cursor.position is not None
        assert cursor.position.sequence == 4
        store.cursors.close(cursor)


def test_one_lost_checkpoint_costs_nothing(path: Path, boots: Boots) -> None:
    """If the newest checkpoint is damaged, recovery starts from the one before."""
    with opened(path) as store:
        messages = _send(store, 5)
        store.flusher.flush()
        messages = _send(store, 5)
        store.flusher.flush()
    for slot in CHECKPOINT_SLOTS:
        _overwrite(path / "control", slot, b"torn")
        boots.again()
        with opened(path) as store:
            assert read_all(store) == messages


def test_consumers_remember_offsets_when_nothing_else_does(path: Path, boots: Boots) -> None:
    """Without control file and segments, a consumer's position still says which offsets were used."""
    with opened(path) as store:
        for _ in range(6):
            _send(store, 1)
            with store.log.writing():
                store.log.abandon_active()
        _consume(store, 6)
    (path / "control").unlink()
    for file in (path / "segments").iterdir():
        file.unlink()
    with opened(path) as store:
        assert store.control.write_offset > 5 * GAP


def test_a_copy_is_a_separate_channel(path: Path, tmp_path: Path) -> None:
    """A directory that was copied is recovered, and works without the original."""
    with opened(path) as store:
        messages = _send(store, 10)
        subprocess.run(["cp", "-R", path, tmp_path / "copy"], check=True)
        with opened(tmp_path / "copy") as copy:
            assert read_all(copy) == messages
            copy.log.append([b"copy"])
        store.log.append([b"original"])
        assert payloads_of(store)[10:] == [b"original"]
    with opened(tmp_path / "copy") as copy:
        assert payloads_of(copy)[10:] == [b"copy"]


def test_a_recovered_channel_can_be_read_without_writing(path: Path, boots: Boots, background: Background) -> None:
    """A read-only open after a power cut shows valid records, also beyond the checkpoint, and changes nothing."""
    with opened(path) as store:
        _send(store, 5)
        store.flusher.flush()
        _send(store, 5)
        messages = read_all(store)
    background.forget()
    boots.again()
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    with opened(path, readonly=True) as store:
        assert read_all(store) == messages
    assert {file: file.read_bytes() for file in path.rglob("*") if file.is_file()} == before


@pytest.mark.parametrize("size", [100, 1000, 1300])
def test_a_segment_whose_end_is_not_on_disk_can_be_read_without_writing(path: Path, boots: Boots, size: int) -> None:
    """Its records were flushed before its end was stored; the next segment says where they end, also after a gap."""
    with opened(path) as store:
        _send(store, 30, size)
        store.flusher.flush()
    boots.again()
    with opened(path) as store:
        _send(store, 30, size)
        store.flusher.flush()
        messages, (*finished, _) = read_all(store), store.segments.begins
    boots.again()
    for begin in finished:
        _overwrite(_segment(path, begin), SEGMENT_END, bytes(8))
    with opened(path, readonly=True) as store:
        assert read_all(store) == messages
        assert store.lookup.latest().sequence == len(messages)
