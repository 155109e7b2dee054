"""Intact records after damage at which recovery ends the log."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest

from filechannel import CorruptRecordError
from tests.storage.background import Background
from tests.storage.boots import Boots
from tests.storage.channels import opened, payloads_of, read_all
from tests.storage.copying import DAMAGED, SENT, damaged_copy, flip, make, segments_of

pytestmark = pytest.mark.usefixtures("background")


def test_a_read_only_open_comes_to_the_damage(path: Path) -> None:
    """In a copy, damage that intact records follow is an error for a reader, and not the end of the log."""
    copy, sent = damaged_copy(path)
    with opened(copy, readonly=True) as store:
        with pytest.raises(CorruptRecordError):
            read_all(store)
        found = payloads_of(store, skip=True)
        assert len(found) == SENT - 1
        assert set(found) < set(sent)
        assert store.control.tail().sequence == SENT
        assert store.unreachable is not None
        assert store.unreachable.messages == SENT - 1 - sent.index(next(each for each in sent if each not in found))
        assert store.unreachable.segments == len(segments_of(copy)) - DAMAGED


def test_a_whole_copy_has_nothing_unreachable(path: Path) -> None:
    """A copy without damage shows every message."""
    sent = make(path)
    with opened(shutil.copytree(path, path.with_name("copy")), readonly=True) as store:
        assert store.unreachable is None
        assert payloads_of(store) == sent


def test_a_torn_end_is_the_end(path: Path, boots: Boots, background: Background) -> None:
    """A last record that is not whole, with nothing after it, ends the log for a reader as it does for a writer."""
    make(path)
    with opened(path) as store:
        end, count = store.control.write_offset, len(read_all(store))
        store.log.append([b"torn" * 100])
        background.forget()
    last = segments_of(path)[-1]
    flip(last, 64 + end - int(last.name[:20]) + 50)
    boots.again()
    with opened(path, readonly=True) as store:
        assert store.unreachable is None
        assert len(read_all(store)) == count


def test_an_incomplete_batch_at_the_end_is_not_damage(path: Path, boots: Boots, background: Background) -> None:
    """Whole records of a batch whose last one was lost are not shown, and nothing is reported as unreachable."""
    make(path)
    with opened(path) as store:
        count = len(read_all(store))
        store.log.append([b"first" * 10, b"second" * 10, b"third" * 10])
        end = store.control.write_offset
        background.forget()
    last = segments_of(path)[-1]
    flip(last, 64 + end - int(last.name[:20]) - 5)
    boots.again()
    with opened(path, readonly=True) as store:
        assert store.unreachable is None
        assert len(read_all(store)) == count


@pytest.mark.parametrize("damage", ["header", "missing"])
def test_segments_behind_one_that_is_lost_are_unreachable(path: Path, damage: str) -> None:
    """A segment that is missing in a copy, or has no header there, does not hide those after it."""
    make(path)
    copy = shutil.copytree(path, path.with_name("copy"))
    lost = segments_of(copy)[DAMAGED]
    if damage == "header":
        flip(lost, 20)
    else:
        lost.unlink()
    with opened(copy, readonly=True) as store:
        assert store.unreachable is not None
        assert store.unreachable.segments == len(segments_of(path)) - DAMAGED - 1
        with pytest.raises(CorruptRecordError):
            read_all(store)
        assert read_all(store, skip=True)[-1].sequence == SENT - 1


def test_damage_in_the_segment_at_the_checkpoint_is_found(path: Path) -> None:
    """A damaged header where the walk begins hides nothing after it."""
    make(path)
    copy = shutil.copytree(path, path.with_name("copy"))
    flip(segments_of(copy)[0], 20)
    with opened(copy, readonly=True) as store:
        assert store.unreachable is not None
        with pytest.raises(CorruptRecordError):
            read_all(store)


def test_opening_for_writing_puts_it_aside_and_logs_an_error(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Recovery ends the log at the damage, keeps every intact record in quarantine, and says what would have helped."""
    copy, _ = damaged_copy(path)
    with opened(copy, readonly=True) as store:
        assert store.unreachable is not None
        behind, segments = store.unreachable.messages, store.unreachable.segments
    with caplog.at_level(logging.WARNING, "filechannel"), opened(copy, create=False) as store:
        left = len(read_all(store))
    assert left + behind == SENT - 1
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert f"{behind} records after the valid end" in record.message
    assert f"bytes in {segments} segments" in record.message
    assert f"filechannel verify {copy}" in record.message
    assert f"filechannel repair {copy} --apply" in record.message
    assert len(list((copy / "quarantine").glob("*.records"))) == segments
