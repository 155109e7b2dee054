"""The sparse index of a segment."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from filechannel._format import crc32c
from filechannel._format.layout import INDEX_CHECKED, INDEX_ENTRY, LARGEST_OFFSET, LARGEST_TIME
from filechannel._offset import Offset
from filechannel._storage.segments.segment_index import (
    ActiveIndex,
    IndexEntry,
    IndexWriter,
    index_path,
    last_entry_at_or_before,
    latest_time,
    read_entries,
)
from filechannel._storage.system.os_calls import Files
from tests.storage.clocks import Clock, packed
from tests.storage.faults import NEEDING_SPACE, FaultyFiles, disk_full, input_output_error

files = Files()


def _index_entry(offset: int) -> IndexEntry:
    return IndexEntry(Offset(offset), offset // 10, offset + 1)


def _write(segment: Path, *offsets: int, end: int = 0) -> None:
    writer = IndexWriter(files, segment, 0o600, end)
    if offsets:
        writer.add([_index_entry(offset) for offset in offsets])
    writer.close()


@pytest.fixture
def segment(tmp_path: Path) -> Path:
    """The path of a segment; its index lies beside it."""
    return tmp_path / "00000000000000000000.seg"


def test_marks_are_read_as_they_were_written(segment: Path) -> None:
    """Marks are read as they were written, with offset, sequence and time, in order."""
    _write(segment, 0, 100, 300)
    assert read_entries(files, segment) == [_index_entry(0), _index_entry(100), _index_entry(300)]


def test_a_segment_without_an_index_has_no_marks(segment: Path) -> None:
    """A segment without an index has no marks, and is only slower to search."""
    assert read_entries(files, segment) == []


def test_a_directory_is_not_an_index(segment: Path) -> None:
    """Something else of that name is not an index either."""
    index_path(segment).mkdir()
    assert read_entries(files, segment) == []


@pytest.mark.parametrize("position", range(INDEX_ENTRY.size - 4))
def test_a_damaged_mark_is_left_out(segment: Path, position: int) -> None:
    """A flipped bit anywhere in an entry costs that entry only."""
    _write(segment, 0, 100, 300)
    content = bytearray(index_path(segment).read_bytes())
    content[INDEX_ENTRY.size + position] ^= 4
    index_path(segment).write_bytes(content)
    assert read_entries(files, segment) == [_index_entry(0), _index_entry(300)]


@pytest.mark.parametrize(
    "fields",
    [(LARGEST_OFFSET + 1, 1, 1), (10, LARGEST_OFFSET + 1, 1), (10, 1, LARGEST_TIME + 1), ((1 << 64) - 1,) * 3],
)
def test_a_mark_with_a_number_that_is_too_large_is_left_out(segment: Path, fields: tuple[int, int, int]) -> None:
    """A mark with a number that is too large is ignored, and later marks have the time of the clock."""
    _write(segment, 0)
    with index_path(segment).open("ab") as file:
        file.write(INDEX_ENTRY.pack(*fields, crc32c(INDEX_CHECKED.pack(*fields)), 0))
    assert latest_time(files, segment) == 0
    _write(segment, 70, 80, end=100)
    assert read_entries(files, segment) == [_index_entry(0), _index_entry(70), _index_entry(80)]


def test_times_do_not_get_beyond_the_largest_one(segment: Path) -> None:
    """While the clock is behind a mark with the largest time, later marks have that time, too."""
    writer = IndexWriter(files, segment, 0o600, 0)
    for offset in range(3):
        assert writer.add([(offset, 0, LARGEST_TIME if not offset else 5)]) == LARGEST_TIME
    writer.close()
    assert [entry.time for entry in read_entries(files, segment)] == [LARGEST_TIME] * 3


def test_zeros_are_not_marks(segment: Path) -> None:
    """Zeros in an index, as after a power cut, are not marks."""
    index_path(segment).write_bytes(bytes(10 * INDEX_ENTRY.size))
    assert read_entries(files, segment) == []


@pytest.mark.parametrize("size", range(1, INDEX_ENTRY.size))
def test_a_torn_mark_is_overwritten(segment: Path, size: int) -> None:
    """The next entry after a torn one overwrites it, so that all that follow are aligned."""
    _write(segment, 0, 100)
    content = index_path(segment).read_bytes()
    index_path(segment).write_bytes(content[: INDEX_ENTRY.size + size])
    _write(segment, 100, 200, end=100)
    assert read_entries(files, segment) == [_index_entry(0), _index_entry(100), _index_entry(200)]


def test_marks_of_rolled_back_records_are_forgotten(segment: Path) -> None:
    """Marks at or after the end, whose records were rolled back, are dropped."""
    _write(segment, 0, 100, 200, 300)
    _write(segment, end=200)
    assert read_entries(files, segment) == [_index_entry(0), _index_entry(100)]
    _write(segment, 250, end=200)
    assert read_entries(files, segment) == [_index_entry(0), _index_entry(100), _index_entry(250)]


def test_the_nearest_mark_before_an_offset_is_found() -> None:
    """The last entry at or before an offset is found, from which a walk reaches the offset."""
    entries = [_index_entry(100), _index_entry(200), _index_entry(300)]
    assert last_entry_at_or_before(entries, 99) is None
    assert last_entry_at_or_before(entries, 100) == _index_entry(100)
    assert last_entry_at_or_before(entries, 299) == _index_entry(200)
    assert last_entry_at_or_before(entries, 10**9) == _index_entry(300)


# What the writer marked


def test_marks_are_appended_to_the_index_of_the_active_segment(tmp_path: Path, segment: Path) -> None:
    """Marks are appended to the index of the active segment, and after a close to that of the next one."""
    index = ActiveIndex(files, 0o600, lambda: None)
    index.store(segment, b"", 1000)
    assert not index_path(segment).exists()
    index.store(segment, packed([(0, 0, 1), (100, 10, 101)]), 1000)
    index.store(segment, packed([(300, 30, 301)]), 1000)
    index.close()
    other = tmp_path / "00000000000000000400.seg"
    index.store(other, packed([(400, 40, 401)]), 1000)
    index.close()
    assert read_entries(files, segment) == [_index_entry(0), _index_entry(100), _index_entry(300)]
    assert read_entries(files, other) == [_index_entry(400)]


def test_a_mark_is_due_every_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mark is due every second, also in a channel with little traffic."""
    clock, index = Clock.install(monkeypatch), ActiveIndex(files, 0o600, lambda: None)
    answers: list[bool] = []
    for _ in range(8):
        answers.append(index.is_due())
        clock.pass_seconds(0.4)
    assert answers == [True, False, False, True, False, False, True, False]


@pytest.mark.parametrize("error", [disk_full, input_output_error])
@pytest.mark.parametrize("at", [1, 2])
def test_a_mark_that_cannot_be_written_is_left_out(segment: Path, error: Callable[[Path], Exception], at: int) -> None:
    """A message is worth more than a mark: a full or broken disk is not an error here, and the next mark is tried
    again.
    """
    faulty = FaultyFiles()
    index = ActiveIndex(faulty, 0o600, lambda: None)
    faulty.fail(NEEDING_SPACE, error, at=at)
    index.store(segment, packed([(0, 0, 1)]), 1000)
    faulty.work()
    index.store(segment, packed([(100, 10, 101)]), 1000)
    index.close()
    assert [entry.offset for entry in read_entries(files, segment)] == [100]
