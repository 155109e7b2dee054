"""Finding the way past damage inside a segment."""

from __future__ import annotations

import time
from pathlib import Path
from random import Random

import pytest

from filechannel import ChannelOptions, CorruptRecordError
from filechannel._format import PURE
from filechannel._format.layout import RECORD_HEADER, RECORD_HEADER_SIZE
from filechannel._offset import LogPosition, Offset
from filechannel._storage.reading.resync import end_of_damaged, next_record
from filechannel._storage.segments.segment import Segment
from filechannel._storage.segments.segment_index import index_path
from filechannel._storage.store import Store
from tests.storage.channels import Message, opened, read_all

LARGE = ChannelOptions(segment_size=1 << 20)


def _fill(store: Store, count: int = 100, size: int = 100) -> tuple[Segment, list[Message]]:
    for number in range(count):
        store.log.append([b"%d:" % number + Random(number).randbytes(size)])
    return store.segments.get(Offset(0)), read_all(store)


def _damage(segment: Segment, offset: int, size: int, content: bytes | None = None) -> None:
    position = segment.position(offset)
    segment.map[position : position + size] = content or Random(offset).randbytes(size)


def test_a_damaged_payload_costs_one_message(path: Path) -> None:
    """A damaged payload costs one message, because its header says where the next one begins."""
    with opened(path, LARGE) as store:
        segment, messages = _fill(store)
        _damage(segment, messages[7].offset + RECORD_HEADER_SIZE + 5, 1)
        assert end_of_damaged(segment, messages[7].offset, store.control.write_offset) == messages[8].offset
        with pytest.raises(CorruptRecordError) as caught:
            read_all(store)
        assert caught.value.offset == messages[7].offset
        assert read_all(store, skip=True) == messages[:7] + messages[8:]


@pytest.mark.parametrize("number", [0, 50, 99])
def test_a_damaged_length_costs_one_message(path: Path, number: int) -> None:
    """If length and payload are damaged one message is lost, because the next record is searched for."""
    with opened(path, LARGE) as store:
        segment, messages = _fill(store)
        _damage(segment, messages[number].offset, 4, (3 << 20).to_bytes(4, "little"))
        left = read_all(store, skip=True)
        assert [message[:2] for message in left] == [message[:2] for message in messages if message.sequence != number]


def test_a_claimed_end_is_believed_only_if_a_record_begins_there(path: Path) -> None:
    """A length that does not end at a record is not used."""
    with opened(path, LARGE) as store:
        segment, messages = _fill(store)
        _damage(segment, messages[3].offset, 4, (50).to_bytes(4, "little"))
        end = store.control.write_offset
        assert end_of_damaged(segment, messages[3].offset, end) is None
        assert next_record(segment, messages[3].offset + 1, end, []) == messages[4].offset


def test_a_claimed_end_may_be_the_end_of_the_segment(path: Path) -> None:
    """The claimed end of the last record may be the end of the segment."""
    with opened(path, LARGE) as store:
        segment, messages = _fill(store)
        end = store.control.write_offset
        _damage(segment, messages[-1].offset + RECORD_HEADER_SIZE, 1)
        assert end_of_damaged(segment, messages[-1].offset, end) == end
        assert end_of_damaged(segment, Offset(end - 3), end) is None


@pytest.mark.parametrize("size", [1, 512, 4096, 20_000])
def test_what_damage_does_not_touch_is_found(path: Path, size: int) -> None:
    """However much is overwritten, every message outside is read, with its sequence if the index has it."""
    with opened(path, LARGE) as store:
        segment, messages = _fill(store, 300, 300)
        start = messages[20].offset + 17
        _damage(segment, start, size)
        kept = [
            message
            for message in messages
            if message.offset >= start + size or message.offset + RECORD_HEADER_SIZE + len(message.payload) <= start
        ]
        assert [message[:2] for message in read_all(store, skip=True)] == [message[:2] for message in kept]


def test_numbers_are_right_again_at_the_next_segment(path: Path) -> None:
    """The next segment header corrects the sequences after damage."""
    with opened(path, ChannelOptions(segment_size=16384)) as store:
        segment, messages = _fill(store, 300, 300)
        _damage(segment, messages[5].offset, 4096)
        second = store.segments.begins[1]
        left = [message for message in read_all(store, skip=True) if message.offset >= second]
        assert left == [message for message in messages if message.offset >= second]


def test_marks_give_the_sequence_behind_damage(path: Path) -> None:
    """After damage a marked record has its exact sequence."""
    with opened(path, LARGE) as store:
        segment, messages = _fill(store, 10)
        mark = LogPosition(Offset(messages[6].offset), 6)
        _damage(segment, messages[2].offset, messages[6].offset - messages[2].offset)
        assert next_record(segment, messages[2].offset, store.control.write_offset, [mark]) == messages[6].offset


def test_zeros_are_skipped_quickly(path: Path) -> None:
    """Megabytes of zeros are skipped quickly."""
    with opened(path, ChannelOptions(segment_size=64 << 20)) as store:
        segment, messages = _fill(store, 3)
        started = time.process_time()
        assert next_record(segment, store.control.write_offset, segment.space_end, []) is None
        assert time.process_time() - started < 5
        assert next_record(segment, 0, segment.space_end, []) == messages[0].offset


@pytest.mark.parametrize("zeros", range(8))
def test_a_record_that_begins_with_zeros_is_found_behind_zeros(path: Path, zeros: int) -> None:
    """A record that begins with zero bytes is found after zeros."""
    with opened(path, LARGE) as store:
        store.log.append([b"x" * (1000 + zeros)])
        store.log.append([b""])
        segment, last = store.segments.get(Offset(0)), read_all(store)[1]
        _damage(segment, 0, last.offset, bytes(last.offset))
        assert next_record(segment, 1, store.control.write_offset, []) == last.offset


def test_garbage_does_not_take_for_ever(path: Path) -> None:
    """Bytes that all look like long records are searched in reasonable time."""
    size = (64 << 10) if PURE else (1 << 20)
    with opened(path, ChannelOptions(segment_size=8 << 20)) as store:
        store.log.append([RECORD_HEADER.pack(100_000, 0) * (size // RECORD_HEADER_SIZE)])
        store.log.append([b"after"])
        segment, messages = store.segments.get(Offset(0)), read_all(store)
        _damage(segment, 0, 4, b"\xff\xff\xff\x3f")
        store.log.store_index_entries()
        index_path(segment.path).unlink(missing_ok=True)
        started = time.process_time()
        assert next_record(segment, 1, store.control.write_offset, []) == messages[1].offset
        assert time.process_time() - started < 20


def test_a_mark_finds_a_record_of_any_size(path: Path) -> None:
    """A mark finds a record that is larger than the range of one search step."""
    with opened(path, ChannelOptions(segment_size=8 << 20)) as store:
        store.log.append([b"damaged"])
        store.log.append([bytes(Random(1).randbytes(1 << 20))])
        segment, messages = store.segments.get(Offset(0)), read_all(store)
        mark = LogPosition(Offset(messages[1].offset), 1)
        assert next_record(segment, 1, store.control.write_offset, [mark]) == messages[1].offset
        assert next_record(segment, 1, store.control.write_offset, []) is None


def test_nothing_is_found_beyond_the_file(path: Path) -> None:
    """A claimed end beyond a file that was cut off is not used."""
    with opened(path, LARGE) as store:
        segment, messages = _fill(store)
        assert next_record(segment, segment.space_end, segment.space_end, []) is None
        _damage(segment, messages[-1].offset, 4, b"\xff\xff\xff\x3f")
        assert end_of_damaged(segment, messages[-1].offset, store.control.write_offset) is None
