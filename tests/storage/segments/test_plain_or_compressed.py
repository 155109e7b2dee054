"""Recovering and opening a channel with segments that are compressed, or exist in both encodings."""

from __future__ import annotations

import errno
import logging
import os
import shutil
from pathlib import Path

import pytest

from filechannel._format.layout import COMPRESSED_TABLE, CONTROL_SIZE
from filechannel._offset import Offset
from filechannel._storage.control.checkpoints import Checkpoint
from filechannel._storage.control.control_page import Tail
from filechannel._storage.segments.compressed_segment import CompressedSegment
from filechannel._storage.segments.plain_or_compressed import keep_one_encoding
from filechannel._storage.segments.segment import Segment
from filechannel._storage.system.os_calls import Files
from tests.storage.boots import Boots
from tests.storage.channels import Message, opened, payloads_of, read_all
from tests.storage.compressing import compress_all, compressed_file

pytestmark = pytest.mark.usefixtures("background")

Filled = tuple[Path, list[Message], list[Offset]]


@pytest.fixture
def filled(path: Path) -> Filled:
    """A channel all of whose finished segments are compressed; its content, and where they begin."""
    with opened(path) as store:
        for number in range(60):
            store.log.append([b"%d " % number + b"text " * 60])
        before = read_all(store)
        begins = compress_all(store)
        assert len(begins) == len(store.segments.begins) - 1
        return path, before, begins


def _is_compressed(path: Path) -> list[bool]:
    with opened(path) as store:
        return [isinstance(store.segments.get(begin), CompressedSegment) for begin in store.segments.begins]


def test_it_survives_a_power_cut(filled: Filled, boots: Boots) -> None:
    """After a power cut compressed segments are not read by the recovery, and the log continues."""
    path, before, begins = filled
    boots.again()
    with opened(path) as store:
        assert read_all(store) == before
        assert store.segments.begins[: len(begins)] == begins
        store.log.append([b"resumes"])
        assert payloads_of(store)[-1] == b"resumes"
        assert store.control.tail().sequence == len(before) + 1


@pytest.mark.parametrize("what", ["removed", "zeros"])
def test_it_is_believed_without_a_checkpoint(filled: Filled, boots: Boots, what: str) -> None:
    """Without the control file compressed segments are complete, and nothing else is lost."""
    path, before, _ = filled
    if what == "removed":
        (path / "control").unlink()
    else:
        (path / "control").write_bytes(bytes(CONTROL_SIZE))
    boots.again()
    with opened(path) as store:
        assert read_all(store) == before
        store.log.append([b"resumes"])
        assert store.control.tail().sequence == len(before) + 1
    assert not (path / "quarantine").exists()


def test_a_lost_tail_reuses_no_sequence(filled: Filled, boots: Boots) -> None:
    """The segment after the compressed ones is missing, and so is the control file: the next
    sequence is still known.
    """
    path, before, begins = filled
    with opened(path) as store:
        last = store.segments.begins[-1]
        store.segments.path(last).unlink()
    (path / "control").unlink()
    boots.again()
    left = [message for message in before if message.offset < last]
    with opened(path) as store:
        assert read_all(store) == left
        assert store.control.tail().sequence == len(left)
        store.log.append([b"resumes"])
        assert [message.sequence for message in read_all(store)] == list(range(len(left) + 1))
        assert store.segments.begins[: len(begins)] == begins


def test_damage_in_a_block_cuts_nothing(filled: Filled, boots: Boots) -> None:
    """Damage in a compressed block does not end the log in recovery, and readers get the error."""
    path, before, begins = filled
    with opened(path) as store:
        file = compressed_file(store, begins[2])
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    (path / "control").unlink()
    boots.again()
    with opened(path) as store:
        found = [message[:2] for message in read_all(store, skip=True)]
        assert len(before) - 3 <= len(found) < len(before)
        assert found[-1] == before[-1][:2]
        assert store.control.tail().sequence == len(before)


def test_a_checkpoint_that_is_too_old_is_not_believed(filled: Filled, boots: Boots) -> None:
    """A checkpoint of an old control file does not cut off compressed segments."""
    path, before, _ = filled
    with opened(path) as store:
        control, first = store.control, before[3]
        control.checkpoints.write(_checkpoint_at(first))
        control.checkpoints.write(_checkpoint_at(first))
        assert control.checkpoints.newest() is not None
    boots.again()
    with opened(path) as store:
        assert read_all(store) == before
        assert store.control.tail().sequence == len(before)


def _checkpoint_at(message: Message) -> Checkpoint:
    return Checkpoint(Offset(message.offset), message.sequence, Offset(0))


def test_a_tail_that_is_too_old_is_not_believed(filled: Filled) -> None:
    """A tail of an old control file does not let the log resume inside compressed segments."""
    path, before, _ = filled
    with opened(path) as store:
        store.control.publish(Tail(Offset(before[3].offset), 3, Offset(0)))
    with opened(path) as store:
        found = read_all(store)
        assert found[: len(before) - 12] == before[: len(before) - 12]
        store.log.append([b"resumes"])
        assert payloads_of(store)[-1] == b"resumes"


@pytest.fixture
def both(filled: Filled, tmp_path: Path) -> Filled:
    """The same with the first segment in both encodings."""
    path, before, begins = filled
    with opened(tmp_path / "other") as store:
        for number in range(60):
            store.log.append([b"%d " % number + b"text " * 60])
        store.flusher.flush()
        source, header = store.segments.path(0), store.segments.get(Offset(0)).header
        assert header.begin == 0
    shutil.copy(source, path / "segments" / source.name)
    return path, before, begins


def test_of_both_encodings_the_compressed_one_stays(both: Filled, boots: Boots) -> None:
    """If both encodings exist the compressed file, which is complete, is kept."""
    path, before, _ = both
    assert (path / "segments" / f"{0:020}.seg").exists()
    boots.again()
    with opened(path) as store:
        assert read_all(store) == before
        assert isinstance(store.segments.get(Offset(0)), CompressedSegment)
    assert not (path / "segments" / f"{0:020}.seg").exists()


@pytest.mark.parametrize("position", [3, 30, COMPRESSED_TABLE - 10, COMPRESSED_TABLE + 3, -1])
def test_of_both_encodings_the_plain_one_stays_if_the_other_is_damaged(
    both: Filled, boots: Boots, position: int
) -> None:
    """If both encodings exist and the compressed file is damaged anywhere, the plain one is kept."""
    path, before, begins = both
    file = path / "segments" / f"{0:020}.seg.z"
    content = bytearray(file.read_bytes())
    content[position] ^= 4
    file.write_bytes(content)
    boots.again()
    with opened(path) as store:
        assert read_all(store) == before
        assert isinstance(store.segments.get(Offset(0)), Segment)
        assert store.segments.begins[: len(begins)] == begins
    assert not file.exists()


@pytest.mark.parametrize("content", [b"", bytes(4096), b"something else" * 300])
def test_an_incomplete_plain_file_is_ignored(both: Filled, boots: Boots, content: bytes) -> None:
    """An incomplete plain file is ignored, and the compressed one is read and kept."""
    path, before, _ = both
    (path / "segments" / f"{0:020}.seg").write_bytes(content)
    with opened(path) as store:
        assert read_all(store) == before
    boots.again()
    with opened(path) as store:
        assert read_all(store) == before
        assert isinstance(store.segments.get(Offset(0)), CompressedSegment)


def test_an_unreadable_compressed_segment_is_quarantined(
    filled: Filled, boots: Boots, caplog: pytest.LogCaptureFixture
) -> None:
    """An unreadable compressed segment is quarantined with a reason, and the others are read."""
    caplog.set_level(logging.WARNING, "filechannel")
    path, before, begins = filled
    file = path / "segments" / f"{begins[1]:020}.seg.z"
    file.write_bytes(file.read_bytes()[:70])
    boots.again()
    with opened(path) as store:
        left = [message[:2] for message in before if not begins[1] <= message.offset < begins[2]]
        assert [message[:2] for message in read_all(store, skip=True)] == left
    assert any(name.endswith(f"{begins[1]:020}.seg.z") for name in os.listdir(path / "quarantine"))
    assert "moved to" in caplog.text


def test_positions_are_found_while_the_plain_file_is_recycled(path: Path) -> None:
    """While its plain file is recycled, a segment is read from the compressed file in processes that map the former."""
    with opened(path) as store:
        for number in range(60):
            store.log.append([b"%d " % number + b"text " * 60])
        store.flusher.flush()
        before = read_all(store)
    with opened(path) as store, opened(path, readonly=True) as other:
        plain = other.segments.get(Offset(0))
        assert isinstance(plain, Segment)
        compress_all(store)
        with (path / "segments" / f"spare-{0:020}.seg").open("r+b") as spare:
            spare.write(bytes(4096))  # as the writer of the next segment does
        assert not plain.is_valid
        assert other.lookup.at(before[5].offset).sequence == 5
        assert other.lookup.numbered(7).offset == before[7].offset
        assert read_all(other) == before


def test_positions_are_found_while_this_process_drops_the_plain_file(path: Path) -> None:
    """If another thread compresses a segment during a lookup, the lookup finds the compressed file."""
    with opened(path) as store:
        for number in range(60):
            store.log.append([b"%d " % number + b"text " * 60])
        before = read_all(store)

        def compress_now() -> None:
            store.lookup._store_index_entries = None
            compress_all(store)
            with (path / "segments" / f"spare-{0:020}.seg").open("r+b") as spare:
                spare.write(bytes(4096))  # as the writer of the next segment does

        store.lookup._store_index_entries = compress_now
        assert store.lookup.numbered(7).offset == before[7].offset
        assert isinstance(store.segments.get(Offset(0)), CompressedSegment)


def test_what_is_half_made_is_ignored(filled: Filled, boots: Boots) -> None:
    """A temporary file of a compressor that died is ignored."""
    path, before, begins = filled
    (path / "segments" / f"new-{begins[1]:020}.seg.z").write_bytes(b"half")
    (path / "segments" / "0.seg.z").write_bytes(b"another")
    (path / "segments" / f"{7:020}.seg.zz").write_bytes(b"another")
    boots.again()
    with opened(path) as store:
        assert read_all(store) == before
    assert _is_compressed(path)[: len(begins)] == [True] * len(begins)


@pytest.mark.parametrize(("number", "stays"), [(errno.EMFILE, "both"), (errno.EIO, "plain")])
def test_neither_encoding_is_removed_for_want_of_a_descriptor(both: Filled, number: int, stays: str) -> None:
    """Neither encoding is deleted because no descriptor is free, only because the compressed file is unreadable."""

    class Refusing(Files):
        def open(self, path: Path, *, create: bool = False, writable: bool = True, mode: int = 0o600) -> int:
            if path.suffix == ".z":
                raise OSError(number, os.strerror(number))
            return super().open(path, create=create, writable=writable, mode=mode)

    path, before, _ = both
    with opened(path) as store:
        if stays == "both":
            with pytest.raises(OSError, match=os.strerror(number)):
                keep_one_encoding(Refusing(), store.segments, Offset(0))
        else:
            keep_one_encoding(Refusing(), store.segments, Offset(0))
        assert store.segments.path(0).exists()
        assert compressed_file(store, 0).exists() == (stays == "both")
        assert read_all(store) == before
