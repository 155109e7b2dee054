"""The largest offset and the largest sequence: what says a larger one is damaged, and no append gets there."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from filechannel import ConsumerDamagedError, StorageError
from filechannel._format import crc32c
from filechannel._format.layout import (
    CHECKPOINT,
    CHECKPOINT_CHECKED,
    CHECKPOINT_SLOTS,
    COMPRESSED,
    COMPRESSED_EXTRA,
    COMPRESSED_TABLE,
    GROUP_NEXT,
    LARGEST_OFFSET,
    OFFSET_GAP,
    POISONED_BEFORE,
    POSITION,
    POSITION_CHECKED,
    POSITION_SIZE,
    PRODUCER_RECORD,
    SEGMENT_HEADER_SIZE,
    TAIL_CHECKED,
    TAIL_SLOT,
    TAIL_SLOTS,
    TRANSACTION,
    WRITE_TAIL,
)
from filechannel._maintenance.repair.repair import repair
from filechannel._maintenance.verify.verification import verify
from filechannel._offset import Offset
from filechannel._storage.consumers.cursor_file_format import read_position
from filechannel._storage.consumers.group_file_format import ring_problem
from filechannel._storage.control.control_page import Control, Tail
from filechannel._storage.log.batch_parts import HeaderRecord
from filechannel._storage.producers.producer_positions import slots_in
from filechannel._storage.recovery.stale_control import used_offsets
from filechannel._storage.segments.compressed_segment import CompressedSegment, table_crc
from filechannel._storage.segments.segment import Header, Segment, begin_of, segment_name, valid_end
from filechannel._storage.store import Store
from filechannel._storage.system.os_calls import Files
from filechannel.blocking import open_channel
from tests.storage.channels import SMALL, opened, payloads_of
from tests.storage.compressing import compress_all, compressed_file
from tests.storage.segment_files import create_segment

TOO_LARGE = [LARGEST_OFFSET + 1, (1 << 63) - 1, (1 << 63) + 5, (1 << 64) - 4096, (1 << 64) - 8, (1 << 64) - 1]
too_large = pytest.mark.parametrize("number", TOO_LARGE)
each_field = pytest.mark.parametrize("field", [0, 1, 2])
SENT = [b"%0100d" % number for number in range(100)]


def _fields(field: int, number: int) -> tuple[int, int, int]:
    """Return three numbers, one of which is *number*."""
    fields = [100, 2, 100]
    fields[field] = number
    return fields[0], fields[1], fields[2]


def _filled(path: Path) -> None:
    with opened(path) as store:
        for payload in SENT:
            store.log.append([payload])


def _write(path: Path, position: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(content)


# Parsing


def _checkpoint(generation: int, offset: int, sequence: int, oldest: int) -> bytes:
    fields = (generation, offset, sequence, oldest, 1, 0)
    return CHECKPOINT.pack(*fields, crc32c(CHECKPOINT_CHECKED.pack(*fields)))


def _tail(offset: int, sequence: int, segment: int) -> bytes:
    return TAIL_SLOT.pack(offset, sequence, segment, crc32c(TAIL_CHECKED.pack(offset, sequence, segment)))


def _store_tail(control: Path, tail: tuple[int, int, int]) -> None:
    _write(control, WRITE_TAIL, tail[0].to_bytes(8, "little"))
    for distance in TAIL_SLOTS:
        _write(control, WRITE_TAIL + distance, _tail(*tail))


@pytest.fixture
def page(tmp_path: Path) -> Control:
    """A control file of its own."""
    files = Files()
    control = Control(files, files.open(tmp_path / "control", create=True), path=tmp_path / "control")
    control.start_over(Tail(Offset(0), 0, Offset(0)), 0, sealed=False)
    return control


@too_large
@each_field
def test_a_tail_with_a_number_that_is_too_large_is_damaged(page: Control, field: int, number: int) -> None:
    """A tail with a number that is too large raises a `StorageError` with the control file and the repair command."""
    _store_tail(page.file.path, _fields(field, number))
    with pytest.raises(StorageError, match=rf"{page.file.path} is damaged: .*filechannel repair .* --apply"):
        page.tail()
    assert not page.has_tail


@too_large
@each_field
def test_a_checkpoint_with_a_number_that_is_too_large_does_not_count(page: Control, field: int, number: int) -> None:
    """Of two checkpoints one with a number that is too large is damaged, and the other counts."""
    _write(page.file.path, CHECKPOINT_SLOTS[1], _checkpoint(1, 50, 1, 0))
    _write(page.file.path, CHECKPOINT_SLOTS[0], _checkpoint(2, *_fields(field, number)))
    found = page.checkpoints.newest()
    assert found is not None
    assert found.offset == 50
    assert page.checkpoints.damaged_slots() == [CHECKPOINT_SLOTS[0]]


@too_large
@each_field
def test_a_segment_header_with_a_number_that_is_too_large_is_damaged(field: int, number: int) -> None:
    """A segment header is damaged if any of its numbers is too large."""
    begin, sequence, previous_end = _fields(field, number)
    with pytest.raises(ValueError, match="larger than an offset or a sequence may be"):
        Header.unpack(Header.new(begin, sequence, previous_end).pack())


@too_large
def test_an_end_or_a_name_with_an_offset_that_is_too_large_is_none(number: int) -> None:
    """An end that is too large counts as none, and a name that is too large is not a segment."""
    header = Header.new(0, 0, 0)
    assert valid_end(header, header.pack(end=LARGEST_OFFSET)) == LARGEST_OFFSET
    assert valid_end(header, header.pack(end=number)) is None
    assert begin_of(segment_name(LARGEST_OFFSET)) == LARGEST_OFFSET
    assert begin_of(segment_name(number)) is None


@too_large
def test_a_compressed_segment_with_a_sequence_that_is_too_large_is_damaged(path: Path, number: int) -> None:
    """A compressed segment is damaged if a sequence of it, or the one after it, is too large."""
    _filled(path)
    with opened(path) as store:
        file = compressed_file(store, compress_all(store)[0])
    content = file.read_bytes()
    _, *extra, _ = COMPRESSED.unpack_from(content, COMPRESSED_EXTRA)
    fields = COMPRESSED.pack(number, *extra, 0)[:-4]
    table = content[COMPRESSED_TABLE : COMPRESSED_TABLE + extra[2] * 16]
    _write(file, COMPRESSED_EXTRA, fields + table_crc(fields, table).to_bytes(4, "little"))
    with pytest.raises(ValueError, match="larger than a sequence may be"):
        CompressedSegment.open(Files(), file)


@too_large
@pytest.mark.parametrize("field", [0, 1])
def test_a_position_with_a_number_that_is_too_large_does_not_count(path: Path, field: int, number: int) -> None:
    """A cursor slot with a number that is too large does not count, and without another one the consumer is damaged."""
    _filled(path)
    offset, sequence, _ = _fields(field, number)
    with opened(path) as store:
        cursor = store.cursors.open("consumer")
        cursor.store(0, 0, 1)
        cursor.store(offset, sequence, 1)
        found = read_position(cursor.map)
        assert found is not None
        assert found.offset == 0
        cursor.map[:128] = bytes(128)
        cursor.store(offset, sequence, 1)
        store.cursors.close(cursor)
    with opened(path) as store, pytest.raises(ConsumerDamagedError, match="filechannel repair"):
        store.cursors.open("consumer")
    repair(path)
    with opened(path) as store:
        assert store.cursors.open("consumer").position is not None


@too_large
@each_field
def test_a_position_of_a_producer_with_a_number_that_is_too_large_does_not_count(field: int, number: int) -> None:
    """A slot of a producer with a number that is too large is not valid."""
    record, sequence, offset = _fields(field, number)
    fields = (1, record, 7, offset, sequence, 0)
    content = POSITION.pack(*fields, crc32c(POSITION_CHECKED.pack(*fields))).ljust(POSITION_SIZE, b"\0")
    assert slots_in(content) == []


def _header_record(content: bytes, _: Offset) -> bytes:
    return content


@too_large
def test_a_control_record_with_a_number_that_is_too_large_does_not_count(path: Path, number: int) -> None:
    """A control record with a number that is too large does not count, and the record before it does."""
    with opened(path) as store:
        for offset in (5, number):
            content = PRODUCER_RECORD.pack(TRANSACTION, bytes(7), 0, 7, offset, 1) + b"key"
            store.log.append([b"x"], HeaderRecord(len(content), partial(_header_record, content)))
        with store.log.writing():
            found = store.producers.open("key").find()
        assert found is not None
        assert found.offset == 5


@too_large
def test_a_ring_with_a_next_offset_that_is_too_large_is_damaged(path: Path, number: int) -> None:
    """A ring with a next offset that is too large is damaged, and after a repair the group begins at its position."""
    with open_channel(path, int, options=SMALL) as channel, channel.sender() as tx:
        tx.send_many(range(5))
        with channel.group("g") as rx:
            assert rx.receive() == 0
    group = path / "consumers" / "g.group"
    _write(group, GROUP_NEXT, number.to_bytes(8, "little"))
    assert ring_problem(group.read_bytes()) is not None
    with open_channel(path, int) as channel, pytest.raises(ConsumerDamagedError), channel.group("g"):
        pass
    repair(path)
    with open_channel(path, int) as channel, channel.group("g") as rx:
        assert rx.receive_many(9) == list(range(5))


def test_a_group_whose_position_cannot_be_read_is_damaged(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group whose position differs from what was stored raises `ConsumerDamagedError`."""
    with open_channel(path, int) as channel:
        monkeypatch.setattr("filechannel._storage.consumers.cursor.read_position", lambda _: None)
        with pytest.raises(ConsumerDamagedError), channel.group("g"):
            pass


# Whole channels


def _damage_tail(path: Path, number: int) -> None:
    _store_tail(path / "control", (number, 100, 0))


def _damage_poisoned(path: Path, number: int) -> None:
    _write(path / "control", POISONED_BEFORE, number.to_bytes(8, "little"))


def _damage_checkpoints(path: Path, number: int) -> None:
    for generation, slot in enumerate(CHECKPOINT_SLOTS, 100):
        _write(path / "control", slot, _checkpoint(generation, number, 100, number))
    _write(path / "control", 32, bytes(16))  # of another boot: the words are not believed


@too_large
@pytest.mark.parametrize("damage", [_damage_tail, _damage_poisoned, _damage_checkpoints])
def test_a_channel_with_an_end_that_no_log_has_is_recovered(
    path: Path, damage: Callable[[Path, int], None], number: int
) -> None:
    """Opening a channel with an impossible end recovers the end of its records, and it accepts messages."""
    _filled(path)
    damage(path, number)
    with opened(path) as store:
        store.log.append([b"more"])
        store.flusher.flush()
        assert payloads_of(store) == [*SENT, b"more"]
        assert store.control.write_offset < 2 * OFFSET_GAP
    with opened(path) as store:
        assert payloads_of(store) == [*SENT, b"more"]


@too_large
@pytest.mark.parametrize("damage", [_damage_tail, _damage_poisoned, _damage_checkpoints])
def test_a_repair_fixes_an_end_that_no_log_has(path: Path, damage: Callable[[Path, int], None], number: int) -> None:
    """`verify` reports an impossible end and changes nothing, and after `repair` it reports nothing."""
    _filled(path)
    damage(path, number)
    assert any(finding.file == "control" and finding.severity != "note" for finding in verify(path).findings)
    repaired = repair(path)
    assert repaired.actions
    assert [finding for finding in repaired.report.findings if finding.severity != "note"] == []
    with opened(path) as store:
        assert payloads_of(store) == SENT


@too_large
def test_a_reader_of_a_channel_whose_checkpoints_are_damaged_gets_advice(path: Path, number: int) -> None:
    """`StorageError` names the control file and the command; with a damaged tail alone the channel can be read."""
    _filled(path)
    _damage_tail(path, number)
    with opened(path, readonly=True) as store:
        assert payloads_of(store) == SENT
    _damage_checkpoints(path, number)
    with pytest.raises(StorageError, match=r"control does not say where the log ends; .*filechannel repair"):
        opened(path, readonly=True).__enter__()


def test_a_position_without_offsets_for_a_gap_is_not_evidence(path: Path) -> None:
    """A segment or consumer just before the largest offset does not prevent a recovery."""
    _filled(path)
    with opened(path) as store:
        cursor = store.cursors.open("consumer")
        cursor.store(LARGEST_OFFSET - 10, 5, 0)
        store.cursors.close(cursor)
    (path / "segments" / segment_name(LARGEST_OFFSET - 4096)).touch()
    _write(path / "control", 0, bytes(64))  # as in a copy: the end of the log has to be found
    with opened(path) as store:
        store.log.append([b"more"])
        assert payloads_of(store) == [*SENT, b"more"]
        assert max(used_offsets(Files(), path, store.control, store.segments)) < 3 * OFFSET_GAP


# Appending


def _gap_to(store: Store, begin: int) -> None:
    with store.log.writing():
        store.log._gap._resume_at(Offset(begin), store.control.write_offset)
        store.log.appender.announce_change()


def _prepare(store: Store) -> None:
    """Prepare a file, to which the writer rolls on the fast path."""
    active = store.segments.get(store.segments.begins[-1])
    assert isinstance(active, Segment)
    store.segments.prepare_free_file(active)
    store.log.prepare_next_segment()


@pytest.mark.parametrize("is_prepared", [False, True])
def test_no_append_passes_the_largest_offset(path: Path, is_prepared: bool) -> None:
    """An append that would pass the largest offset raises `StorageError` and stores nothing."""
    sent = list[bytes]()

    def send_all(store: Store) -> None:
        while True:
            if is_prepared:
                _prepare(store)
            store.log.writer.append(b"%01000d" % len(sent))
            sent.append(b"%01000d" % len(sent))

    with opened(path) as store:
        _gap_to(store, LARGEST_OFFSET - 3 * 4096)
        with pytest.raises(StorageError, match=f"^{path} has used up its offsets"):
            send_all(store)
        assert len(sent) >= 8
        assert payloads_of(store) == sent
        assert LARGEST_OFFSET - 2 * 4096 < store.control.tail().offset <= LARGEST_OFFSET
    with opened(path) as store:
        assert payloads_of(store) == sent
        with pytest.raises(StorageError, match="has used up its offsets"):
            store.log.append([bytes(4000)])
    assert [finding for finding in verify(path).findings if finding.severity != "note"] == []


def test_no_gap_passes_the_largest_offset(path: Path) -> None:
    """A recovery without free offsets for a gap raises, and the channel can still be read."""
    with opened(path) as store:
        _gap_to(store, LARGEST_OFFSET - 3 * 4096)
        store.log.append([b"x"])
        store.flusher.flush()
    _write(path / "control", 0, bytes(64))
    for _ in range(2):
        with pytest.raises(StorageError, match="has used up its offsets"):
            opened(path).__enter__()
    with opened(path, readonly=True) as store:
        assert payloads_of(store) == [b"x"]


@pytest.mark.parametrize("field", ["begin", "sequence"])
def test_a_segment_has_no_bytes_beyond_the_largest_offset(tmp_path: Path, field: str) -> None:
    """A segment is filled up to the largest offset, and no segment is created beyond it."""
    header = Header.new(LARGEST_OFFSET - 100, 0, 0) if field == "begin" else Header.new(0, LARGEST_OFFSET - 100, 0)
    file = tmp_path / segment_name(header.begin)
    file.write_bytes(header.pack().ljust(4096, b"\0"))
    assert Segment.open(Files(), file).space_end == header.begin + 100
    with pytest.raises(StorageError, match="has used up its offsets"):
        create_segment(Files(), file, header, SEGMENT_HEADER_SIZE + 101, 4096)
    assert create_segment(Files(), file, header, SEGMENT_HEADER_SIZE + 100, 4096).space_end == header.begin + 100
