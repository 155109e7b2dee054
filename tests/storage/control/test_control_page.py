"""The control page: the words that all processes share, and the tails."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from filechannel._errors import StorageError
from filechannel._format import load_u32, load_u64, store_u32, store_u64
from filechannel._format.layout import (
    APPEND_TAIL,
    CONTROL_SIZE,
    FAILED_FLUSHES,
    FLUSH_LOCK,
    OFFSET_GAP,
    TAIL_SLOT,
    TAIL_SLOTS,
    WRITE_TAIL,
    WRITER_LOCK,
)
from filechannel._offset import Offset
from filechannel._storage.control.control_page import Control, Tail
from filechannel._storage.system.os_calls import Files


def _tail(offset: int, sequence: int = 0, segment: int = 0) -> Tail:
    return Tail(Offset(offset), sequence, Offset(segment))


@pytest.fixture
def control(tmp_path: Path) -> Iterator[Control]:
    """A control file that says the log is at its beginning."""
    files = Files()
    descriptor = files.open(tmp_path / "control", create=True)
    control = Control(files, descriptor)
    control.start_over(_tail(0), 0, sealed=False)
    yield control
    files.close(descriptor)


# Tails


@pytest.mark.parametrize("deferred", [False, True])
def test_a_published_tail_is_found(control: Control, deferred: bool) -> None:
    """A published tail has its offset, sequence and segment, which change together."""
    for end in range(10, 60, 10):
        control.publish(_tail(end, end // 10, end - 5), deferred=deferred)
        assert control.tail(deferred=deferred) == _tail(end, end // 10, end - 5)


def test_the_two_tails_are_independent(control: Control) -> None:
    """The append tail and the visible tail are independent."""
    control.publish(_tail(100, 5), deferred=True)
    assert control.write_offset == control.tail().offset == 0
    control.publish(_tail(50, 2))
    assert control.tail(deferred=True) == _tail(100, 5)


def test_a_publish_that_was_interrupted_changes_nothing(control: Control) -> None:
    """If a process dies in a publish the slot before counts."""
    control.publish(_tail(100, 5))
    ends = [load_u64(control.map, WRITE_TAIL + distance) for distance in TAIL_SLOTS]
    free = TAIL_SLOTS[1 - ends.index(100)]
    TAIL_SLOT.pack_into(control.map, WRITE_TAIL + free, 200, 6, 0, 12345)
    assert control.tail() == _tail(100, 5)
    control.publish(_tail(200, 6))
    assert control.tail() == _tail(200, 6)


def test_a_tail_can_move_back(control: Control) -> None:
    """The tail can move back, which rolls back uncommitted records."""
    control.publish(_tail(100, 5), deferred=True)
    control.publish(_tail(0), deferred=True)
    assert control.tail(deferred=True) == _tail(0)


def test_damaged_slots_are_noticed(control: Control) -> None:
    """An offset with which no slot agrees raises an error."""
    assert control.has_tail
    store_u64(control.map, WRITE_TAIL, 7)
    assert not control.has_tail
    with pytest.raises(StorageError, match="no tail slot"):
        control.tail()


def test_a_dead_writer_is_forgotten(control: Control) -> None:
    """After a dead writer both lock words are free and uncommitted records are removed, even with damaged slots."""
    control.publish(_tail(50, 3))
    control.publish(_tail(100, 5), deferred=True)
    store_u32(control.map, WRITER_LOCK, 1)
    store_u32(control.map, FLUSH_LOCK, 1)
    control.map[APPEND_TAIL + TAIL_SLOTS[0]] ^= 1
    control.map[APPEND_TAIL + TAIL_SLOTS[1]] ^= 1
    control.forget_the_dead()
    assert load_u32(control.map, WRITER_LOCK) == load_u32(control.map, FLUSH_LOCK) == 0
    assert control.tail() == control.tail(deferred=True) == _tail(50, 3)


def test_start_over_writes_every_word(control: Control) -> None:
    """`start_over` writes every word, whatever was stored."""
    control.map[:] = b"\xff" * CONTROL_SIZE
    control.start_over(_tail(500, 9, 400), 300, sealed=True)
    assert control.tail() == control.tail(deferred=True) == _tail(500, 9, 400)
    assert control.oldest_offset == 300
    assert control.durable_offset == control.reserved_end == control.allocated_end == 500
    assert control.sealed
    assert not control.deferred
    assert load_u32(control.map, WRITER_LOCK) == load_u32(control.map, FLUSH_LOCK) == 0


def test_an_oldest_offset_beyond_the_end_is_not_believed(control: Control) -> None:
    """An oldest offset beyond the end raises, because everything before it would count as deleted."""
    control.oldest_offset = control.write_offset + 1
    assert not control.has_tail
    with pytest.raises(StorageError, match="beyond the end"):
        _ = control.oldest_offset


@pytest.mark.parametrize("poisoned_before", [1, OFFSET_GAP + 1, 3 * OFFSET_GAP, 1 << 63, (1 << 64) - 1])
def test_invalid_offsets_of_poisoned_segments_are_not_believed(control: Control, poisoned_before: int) -> None:
    """Invalid offsets of poisoned segments raise, because the log would resume at any offset."""
    control.poisoned_before = poisoned_before
    with pytest.raises(StorageError, match="resume"):
        _ = control.is_gap_pending


def test_words_are_kept_apart(control: Control) -> None:
    """No two words of the control page share a byte."""
    control.publish(Tail(Offset(9), 1, Offset(0)))
    control.oldest_offset, control.durable_offset = 1, 2
    control.reserved_end, control.allocated_end = 3, 4
    control.mark_sealed()
    assert (control.oldest_offset, control.durable_offset) == (1, 2)
    assert (control.reserved_end, control.allocated_end, control.sealed) == (3, 4, True)
    assert (control.epoch, control.failed_flushes, control.deferred) == (0, 0, False)
    control.deferred = True
    control.count_failed_flush()
    assert (control.failed_flushes, control.deferred, control.sealed) == (1, True, True)
    control.deferred = False
    assert (control.deferred, control.sealed) == (False, True)


def test_failed_flushes_are_counted_for_ever(control: Control) -> None:
    """The counter of failed flushes wraps around to zero."""
    store_u32(control.map, FAILED_FLUSHES, 0xFFFFFFFF)
    control.count_failed_flush()
    assert control.failed_flushes == 0
