"""The ordered segments of a channel."""

from __future__ import annotations

from pathlib import Path

import pytest

from filechannel import CorruptRecordError
from filechannel._offset import Offset
from filechannel._storage.segments.catalog import Segments
from filechannel._storage.segments.segment import Header, Segment, segment_name
from filechannel._storage.segments.segment_index import index_path
from filechannel._storage.system.os_calls import Files
from tests.storage.resources import descriptors_under
from tests.storage.segment_files import create_segment

files = Files()
BEGINS = [Offset(begin) for begin in (0, 1000, 2500, 1 << 40)]


def _make(directory: Path, begin: int) -> Segment:
    path = directory / segment_name(begin)
    return create_segment(files, path, Header.new(begin, 0, begin), 4096, 4096)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A directory with four segments."""
    for begin in BEGINS:
        _make(tmp_path, begin)
    return tmp_path


def _segments(directory: Path, *, writable: bool = True, most_mapped: int = 8) -> Segments:
    return Segments(files, directory, writable=writable, most_mapped=most_mapped)


def test_segments_are_found_by_their_names(directory: Path) -> None:
    """The directory lists them; other files there are left alone."""
    for name in ("spare-1.seg", "notes.txt", "00000000000000000000.idx", "new-00000000000000009999.seg", "7.seg"):
        (directory / name).touch()
    assert _segments(directory).begins == BEGINS


def test_no_directory_means_no_segments(tmp_path: Path) -> None:
    """A new channel without a directory of segments has none."""
    segments = _segments(tmp_path / "missing")
    assert segments.begins == []
    assert segments.covering(5) is None
    assert segments.following(5) is None


@pytest.mark.parametrize(
    ("offset", "covering", "following"),
    [(0, 0, 1000), (999, 0, 1000), (1000, 1000, 2500), (2499, 1000, 2500), (1 << 41, 1 << 40, None)],
)
def test_an_offset_lies_between_two_segments(
    directory: Path, offset: int, covering: int, following: int | None
) -> None:
    """`covering` returns the last segment that begins at or before an offset, and `following` the first after it."""
    segments = _segments(directory)
    assert segments.covering(offset) == covering
    assert segments.following(offset) == following


def test_nothing_covers_what_lies_before_the_first(tmp_path: Path) -> None:
    """No segment covers an offset before the first one, which only follows it."""
    _make(tmp_path, 500)
    segments = _segments(tmp_path)
    assert segments.covering(499) is None
    assert segments.following(499) == 500


def test_a_segment_is_mapped_once(directory: Path) -> None:
    """All callers that ask for a segment get the same map."""
    segments = _segments(directory)
    assert segments.get(BEGINS[1]) is segments.get(BEGINS[1])
    assert segments.mapped == 1


@pytest.mark.parametrize("most_mapped", [2, 3])
def test_no_more_segments_are_mapped_than_allowed(directory: Path, most_mapped: int) -> None:
    """The least recently used one is dropped, never the newest, where the writer is."""
    segments = _segments(directory, most_mapped=most_mapped)
    newest = segments.get(BEGINS[-1])
    for _ in range(3):
        for begin in BEGINS:
            segments.get(begin)
            assert segments.mapped <= most_mapped
    assert segments.get(BEGINS[-1]) is newest


def test_a_reader_of_a_segment_keeps_its_map(directory: Path) -> None:
    """A segment that was dropped stays readable for a reader that has it."""
    segments = _segments(directory, most_mapped=2)
    held = segments.get(BEGINS[0])
    for begin in BEGINS[1:]:
        segments.get(begin)
    assert held.is_valid
    assert segments.get(BEGINS[0]) is not held


def test_descriptors_are_closed_with_the_maps(directory: Path) -> None:
    """However many segments are used one by one, the number of open files does not grow."""
    segments = _segments(directory, most_mapped=2)
    counts = set()
    for _ in range(5):
        for begin in BEGINS:
            segments.get(begin)
        counts.add(descriptors_under(directory))
    assert len(counts) == 1
    segments.close()
    assert segments.mapped == 0


def test_an_added_segment_replaces_another(directory: Path) -> None:
    """An added segment replaces a smaller file of the same name for all callers."""
    segments = _segments(directory)
    old = segments.get(BEGINS[1])
    new = _make(directory, BEGINS[1])
    segments.add(new)
    assert segments.begins == BEGINS
    assert segments.get(BEGINS[1]) is new is not old


def test_an_added_segment_is_put_in_order(directory: Path) -> None:
    """An added segment is listed in order, without another scan of the directory."""
    segments = _segments(directory)
    segments.add(_make(directory, 1500))
    assert segments.begins == sorted([*BEGINS, 1500])
    assert segments.covering(1600) == 1500


def test_a_removed_segment_is_deleted_with_its_index(directory: Path) -> None:
    """Both files are deleted, and a reader of the segment keeps it."""
    segments = _segments(directory)
    held = segments.get(BEGINS[1])
    index_path(held.path).touch()
    segments.remove(BEGINS[1])
    assert segments.begins == [begin for begin in BEGINS if begin != BEGINS[1]]
    assert not held.path.exists()
    assert not index_path(held.path).exists()
    assert held.is_valid


def test_a_scan_while_a_segment_is_removed_does_not_bring_it_back(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread may list the directory between the removal from the list and the deletion of the file."""
    segments, unlink = _segments(directory), Files.unlink

    def scan_and_unlink(files: Files, path: Path) -> None:
        segments.scan()
        unlink(files, path)

    monkeypatch.setattr(Files, "unlink", scan_and_unlink)
    segments.remove(BEGINS[0])
    assert segments.begins == BEGINS[1:]
    segments.remove_before(BEGINS[2])
    assert segments.begins == BEGINS[2:]


def test_segments_before_an_offset_are_removed(directory: Path) -> None:
    """Segments that begin before an offset are deleted, and one that begins there stays."""
    segments = _segments(directory)
    segments.remove_before(Offset(2500))
    assert segments.begins == BEGINS[2:]
    segments.remove_before(Offset(1 << 50))
    assert segments.begins == []


def test_a_missing_file_is_damage(directory: Path) -> None:
    """A missing segment raises an error that names it."""
    segments = _segments(directory)
    (directory / segment_name(BEGINS[1])).unlink()
    with pytest.raises(CorruptRecordError, match="the file is missing") as caught:
        segments.get(BEGINS[1])
    assert (caught.value.segment, caught.value.offset) == (segment_name(BEGINS[1]), BEGINS[1])


def test_a_damaged_header_is_damage(directory: Path) -> None:
    """A segment whose header does not validate is named."""
    segments = _segments(directory)
    (directory / segment_name(BEGINS[1])).write_bytes(bytes(4096))
    with pytest.raises(CorruptRecordError, match="no segment header"):
        segments.get(BEGINS[1])


def test_a_dropped_segment_is_opened_again(directory: Path) -> None:
    """A segment that was dropped from the cache is opened again, also if another file has its name."""
    segments = _segments(directory)
    old = segments.get(BEGINS[1])
    new = _make(directory, BEGINS[1])
    assert segments.get(BEGINS[1]) is old
    segments.forget(BEGINS[1])
    assert segments.get(BEGINS[1]).header == new.header


class Epoch:
    """An epoch that replaces the word of the control page."""

    def __init__(self) -> None:
        self.value = 7

    def __call__(self) -> int:
        """Return the epoch that other processes see."""
        return self.value

    def count_up(self) -> None:
        """Be another one."""
        self.value += 1


def test_segments_of_other_processes_are_found_in_another_epoch(directory: Path) -> None:
    """Names that another process created or removed are seen when the epoch changes, and not before: a scan is slow."""
    epoch = Epoch()
    segments = Segments(files, directory, writable=True, most_mapped=8, epoch=epoch)
    _make(directory, 1 << 41)
    (directory / segment_name(BEGINS[0])).unlink()
    assert segments.begins == BEGINS
    epoch.value += 1
    assert segments.begins == [*BEGINS[1:], 1 << 41]
    assert segments.covering(1 << 42) == 1 << 41
    assert segments.following(1 << 40) == 1 << 41
    assert segments.covering(999) is None


@pytest.mark.parametrize("look", ["begins", "covering", "following"])
def test_every_question_notices_another_epoch(directory: Path, look: str) -> None:
    """Every method of the catalog notices a changed epoch, whichever is called first."""
    epoch = Epoch()
    segments = Segments(files, directory, writable=True, most_mapped=8, epoch=epoch)
    _make(directory, 1 << 41)
    epoch.value = 0
    found = {
        "begins": lambda: segments.begins[-1],
        "covering": lambda: segments.covering(1 << 42),
        "following": lambda: segments.following(1 << 40),
    }
    assert found[look]() == 1 << 41


def test_a_change_of_our_own_needs_no_scan(directory: Path) -> None:
    """Announcing it keeps a list current that was current; what other processes change is found the next time."""
    epoch = Epoch()
    segments = Segments(files, directory, writable=True, most_mapped=8, epoch=epoch)
    _make(directory, 1 << 41)
    segments.announce_change(epoch.count_up)
    assert segments.begins == BEGINS
    epoch.count_up()
    assert segments.begins == [*BEGINS, 1 << 41]


def test_a_change_of_our_own_hides_no_segment_of_another_process(directory: Path) -> None:
    """A list that was out of date when we announced a change is scanned again."""
    epoch = Epoch()
    segments = Segments(files, directory, writable=True, most_mapped=8, epoch=epoch)
    _make(directory, 1 << 41)
    epoch.count_up()
    segments.announce_change(epoch.count_up)
    assert segments.begins == [*BEGINS, 1 << 41]


def test_an_interrupted_scan_is_done_again_after_a_change_of_our_own(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal handler that raises in a scan leaves no incomplete list behind, whatever this process changes next."""
    epoch = Epoch()
    segments = Segments(files, directory, writable=True, most_mapped=8, epoch=epoch)
    _make(directory, 1 << 41)
    epoch.count_up()
    with monkeypatch.context() as patch:
        patch.setattr(Files, "list", _interrupt)
        with pytest.raises(KeyboardInterrupt):
            segments.scan()
    segments.announce_change(epoch.count_up)
    assert segments.begins == [*BEGINS, 1 << 41]


def _interrupt(*_: object) -> list[str]:
    raise KeyboardInterrupt


def test_a_file_that_took_the_name_of_another_is_opened(directory: Path) -> None:
    """A file that took the name of another one is opened instead of it."""
    epoch = Epoch()
    segments = Segments(files, directory, writable=True, most_mapped=8, epoch=epoch)
    before = segments.get(BEGINS[1])
    kept = segments.get(BEGINS[2])
    (directory / segment_name(BEGINS[1])).unlink()
    _make(directory, BEGINS[1])
    before.invalidate()
    epoch.value += 1
    assert segments.begins == BEGINS
    assert segments.get(BEGINS[1]).header.id != before.header.id
    assert segments.get(BEGINS[2]) is kept


def test_what_another_process_removed_can_be_removed(directory: Path) -> None:
    """A segment that another process deleted can be deleted again."""
    epoch = Epoch()
    segments = Segments(files, directory, writable=True, most_mapped=8, epoch=epoch)
    (directory / segment_name(BEGINS[3])).unlink()
    epoch.value += 1
    assert segments.begins == BEGINS[:3]
    segments.remove(BEGINS[3])
    assert segments.begins == BEGINS[:3]


def test_the_disk_space_of_all_segments_is_summed(directory: Path) -> None:
    """Bytes on disk are what the files take, not how long they are."""
    assert _segments(directory).bytes_on_disk() == 4 * 4096
