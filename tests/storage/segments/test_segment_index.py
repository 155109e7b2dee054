"""The sparse index of a segment."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from filechannel._format.layout import INDEX_ENTRY
from filechannel._offset import Offset
from filechannel._storage.files import Files
from filechannel._storage.index import (
    ActiveIndex,
    IndexWriter,
    Mark,
    index_path,
    last_mark_at_or_before,
    read_marks,
)
from tests.storage.clocks import Clock, packed
from tests.storage.faults import NEEDING_ROOM, FaultyFiles, disk_full, input_output_error

files = Files()


def _mark(offset: int) -> Mark:
    return Mark(Offset(offset), offset // 10, offset + 1)


def _write(segment: Path, *offsets: int, end: int = 0) -> None:
    writer = IndexWriter(files, segment, 0o600, end)
    if offsets:
        writer.add([_mark(offset) for offset in offsets])
    writer.close()


@pytest.fixture
def segment(tmp_path: Path) -> Path:
    """The path of a segment; its index lies beside it."""
    return tmp_path / "00000000000000000000.seg"


def test_marks_are_read_as_they_were_written(segment: Path) -> None:
    """Offset, sequence and time come back in order."""
    _write(segment, 0, 100, 300)
    assert read_marks(files, segment) == [_mark(0), _mark(100), _mark(300)]


def test_a_segment_without_an_index_has_no_marks(segment: Path) -> None:
    """Losing an index loses nothing but speed."""
    assert read_marks(files, segment) == []


def test_a_directory_is_no_index(segment: Path) -> None:
    """Something else of that name is no index either."""
    index_path(segment).mkdir()
    assert read_marks(files, segment) == []


@pytest.mark.parametrize("position", range(INDEX_ENTRY.size - 4))
def test_a_damaged_mark_is_left_out(segment: Path, position: int) -> None:
    """A flipped bit anywhere in an entry costs that entry only."""
    _write(segment, 0, 100, 300)
    content = bytearray(index_path(segment).read_bytes())
    content[INDEX_ENTRY.size + position] ^= 4
    index_path(segment).write_bytes(content)
    assert read_marks(files, segment) == [_mark(0), _mark(300)]


def test_zeros_are_no_marks(segment: Path) -> None:
    """What a power cut left empty says nothing."""
    index_path(segment).write_bytes(bytes(10 * INDEX_ENTRY.size))
    assert read_marks(files, segment) == []


@pytest.mark.parametrize("size", range(1, INDEX_ENTRY.size))
def test_a_torn_mark_is_written_over(segment: Path, size: int) -> None:
    """Whoever goes on after a torn entry writes in its place, so that all that follow line up."""
    _write(segment, 0, 100)
    content = index_path(segment).read_bytes()
    index_path(segment).write_bytes(content[: INDEX_ENTRY.size + size])
    _write(segment, 100, 200, end=100)
    assert read_marks(files, segment) == [_mark(0), _mark(100), _mark(200)]


def test_marks_of_records_that_were_taken_back_are_forgotten(segment: Path) -> None:
    """A mark at or behind the end speaks of a record that is not there, and another may begin elsewhere."""
    _write(segment, 0, 100, 200, 300)
    _write(segment, end=200)
    assert read_marks(files, segment) == [_mark(0), _mark(100)]
    _write(segment, 250, end=200)
    assert read_marks(files, segment) == [_mark(0), _mark(100), _mark(250)]


def test_the_nearest_mark_before_an_offset_is_found() -> None:
    """Walking forward from it reaches the offset."""
    marks = [_mark(100), _mark(200), _mark(300)]
    assert last_mark_at_or_before(marks, 99) is None
    assert last_mark_at_or_before(marks, 100) == _mark(100)
    assert last_mark_at_or_before(marks, 299) == _mark(200)
    assert last_mark_at_or_before(marks, 10**9) == _mark(300)


# What the writer marked


def test_marks_are_appended_to_the_index_of_the_active_segment(tmp_path: Path, segment: Path) -> None:
    """Closing the index of one segment makes room for that of the next."""
    index = ActiveIndex(files, 0o600)
    index.store(segment, b"", 1000)
    assert not index_path(segment).exists()
    index.store(segment, packed([(0, 0, 1), (100, 10, 101)]), 1000)
    index.store(segment, packed([(300, 30, 301)]), 1000)
    index.close()
    other = tmp_path / "00000000000000000400.seg"
    index.store(other, packed([(400, 40, 401)]), 1000)
    index.close()
    assert read_marks(files, segment) == [_mark(0), _mark(100), _mark(300)]
    assert read_marks(files, other) == [_mark(400)]


def test_a_mark_is_due_every_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """A channel with little traffic is marked by time."""
    clock, index = Clock.install(monkeypatch), ActiveIndex(files, 0o600)
    answers: list[bool] = []
    for _ in range(8):
        answers.append(index.is_due())
        clock.pass_seconds(0.4)
    assert answers == [True, False, False, True, False, False, True, False]


@pytest.mark.parametrize("error", [disk_full, input_output_error])
@pytest.mark.parametrize("at", [1, 2])
def test_a_mark_that_cannot_be_written_is_left_out(segment: Path, error: Callable[[Path], Exception], at: int) -> None:
    """A message is worth more than a mark: a full or broken disk is no error here, and the next mark is tried again."""
    faulty = FaultyFiles()
    index = ActiveIndex(faulty, 0o600)
    faulty.fail(NEEDING_ROOM, error, at=at)
    index.store(segment, packed([(0, 0, 1)]), 1000)
    faulty.work()
    index.store(segment, packed([(100, 10, 101)]), 1000)
    index.close()
    assert [mark.offset for mark in read_marks(files, segment)] == [100]
