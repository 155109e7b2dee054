"""Damage in a copied channel, whose checkpoint is old: it is checked and repaired like the original."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from filechannel._format.layout import SEGMENT_END, SEGMENT_HEADER_SIZE
from filechannel._maintenance.repair.repair import repair
from filechannel._maintenance.verify.verification import verify
from tests.maintenance.damage import cut, overwrite
from tests.storage.boots import Boots
from tests.storage.channels import opened, payloads_of, read_all
from tests.storage.copying import DAMAGED, SENT, damaged_copy, flip, make, segments_of

pytestmark = pytest.mark.usefixtures("background")


def test_repair_keeps_every_intact_message_of_a_copy(path: Path) -> None:
    """One damaged record of a copy costs one message; all others stay at their offsets, with their numbers."""
    copy, sent = damaged_copy(path)
    with opened(path, create=False) as store:
        in_place = read_all(store, skip=True)
    repaired = repair(copy)
    assert repaired.report.is_clean, repaired.report.findings
    with opened(copy, create=False) as store:
        found = read_all(store)
    assert found == in_place
    assert len(found) == SENT - 1
    assert [each.payload for each in found] == [sent[each.sequence] for each in found]


def test_verify_finds_the_same_in_a_copy_as_in_the_original(path: Path) -> None:
    """A damaged record is one missing message, wherever the channel is; a copy also has messages out of reach."""
    copy, _ = damaged_copy(path)
    here, there = verify(path), verify(copy)
    assert (there.messages, there.lost) == (here.messages, here.lost) == (SENT - 1, 1)
    assert [each.kind for each in here.findings] == ["record"]
    assert [each.kind for each in there.findings] == ["restarted", "record", "unreachable"]
    with opened(copy, readonly=True) as store:
        assert there.findings[-1].what == f"{store.unreachable}: 'filechannel repair {copy} --apply'"


def _last_record(path: Path) -> None:
    file = segments_of(path)[DAMAGED]
    begin, following = int(file.name[:20]), int(segments_of(path)[DAMAGED + 1].name[:20])
    flip(file, SEGMENT_HEADER_SIZE + following - begin - 1)


def _middle_of_the_newest(path: Path) -> None:
    flip(segments_of(path)[-1], SEGMENT_HEADER_SIZE + 500)


def _end_mark_and_record(path: Path) -> None:
    flip(segments_of(path)[DAMAGED])
    overwrite(segments_of(path)[DAMAGED], SEGMENT_END, bytes(8))


def _cut(path: Path) -> None:
    cut(segments_of(path)[DAMAGED], 8000)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "one record": lambda path: flip(segments_of(path)[DAMAGED]),
    "the first record": lambda path: flip(segments_of(path)[0], SEGMENT_HEADER_SIZE + 12),
    "the last record of a segment": _last_record,
    "the newest segment": _middle_of_the_newest,
    "two segments": lambda path: [flip(segments_of(path)[number]) for number in (1, 3)],
    "a header": lambda path: flip(segments_of(path)[DAMAGED], 20),
    "a missing segment": lambda path: segments_of(path)[DAMAGED].unlink(),
    "a segment that is cut off": _cut,
    "an end mark and a record": _end_mark_and_record,
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_copy_is_repaired_as_the_original_is(path: Path, name: str) -> None:
    """Whatever is damaged, repair keeps the same messages in a copy as in the original, and says so before."""
    sent = make(path)
    copy = shutil.copytree(path, path.with_name("copy"))
    DAMAGES[name](path)
    DAMAGES[name](copy)
    assert "unreachable" in {each.kind for each in verify(copy).findings}
    assert repair(path).report.is_clean
    assert repair(copy).report.is_clean
    with opened(path, create=False) as store, opened(copy, create=False) as other:
        assert read_all(other) == read_all(store)
        assert set(payloads_of(other)) <= set(sent)
        other.log.append([b"next"])
        assert payloads_of(other)[-1] == b"next"


def test_a_torn_end_of_a_copy_is_not_damage(path: Path, boots: Boots) -> None:
    """What comes after the last intact record was never written: nothing is found, and repair changes nothing."""
    make(path)
    boots.again()
    last = segments_of(path)[-1]
    with opened(path, readonly=True) as store:
        end = store.control.write_offset
    flip(last, SEGMENT_HEADER_SIZE + end - int(last.name[:20]) - 1)
    assert verify(path).is_clean
    assert not repair(path).actions


def test_records_behind_a_lost_segment_with_the_checkpoint_are_kept(path: Path) -> None:
    """If the segment with the checkpoint is missing, repair keeps those after it in a copy, too."""
    make(path)
    with opened(path, create=False) as store:
        store.flusher.flush()
        for number in range(SENT):
            store.log.append([b"unflushed %d" % number])
        checkpoint = store.control.checkpoints.newest()
    assert checkpoint is not None
    copy = shutil.copytree(path, path.with_name("copy"))
    lost = [file for file in segments_of(copy) if int(file.name[:20]) < checkpoint.offset][-1]
    cut(lost, SEGMENT_HEADER_SIZE + 1)
    assert repair(copy).report.is_clean
    following = segments_of(path)[segments_of(path).index(path / "segments" / lost.name) + 1]
    with opened(path, create=False) as store, opened(copy, create=False) as other:
        begin = int(lost.name[:20])
        spared = [each for each in read_all(store) if not begin <= each.offset < int(following.name[:20])]
        assert read_all(other) == spared
