"""One segment file: its header, its end, its life."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from filechannel import DiskFullError, UnsupportedFormatError
from filechannel._format import crc32c
from filechannel._format.layout import (
    FORMAT_VERSION,
    LARGEST_OFFSET,
    SEGMENT_CRC,
    SEGMENT_END,
    SEGMENT_END_CRC,
    SEGMENT_HEADER_SIZE,
)
from filechannel._offset import Offset
from filechannel._storage.segments.segment import Header, Segment, begin_of, segment_name
from filechannel._storage.system.os_calls import Files
from tests.storage.faults import NEEDING_SPACE, FaultyFiles, disk_full, input_output_error
from tests.storage.resources import descriptors_under, maps_under
from tests.storage.segment_files import create_segment

files = Files()
SIZE = 16 << 10


def _create(directory: Path, begin: int = 4096, *, files: Files = files, size: int = SIZE) -> Segment:
    path = directory / segment_name(begin)
    return create_segment(files, path, Header.new(begin, 7, begin), size, size)


# Names


@pytest.mark.parametrize("begin", [0, 1, 4096, 1 << 40, LARGEST_OFFSET])
def test_a_name_is_the_begin_in_20_digits(begin: int) -> None:
    """The name of a segment is its begin in 20 digits, so that names sort like offsets."""
    assert segment_name(begin) == f"{begin:020}.seg"
    assert begin_of(segment_name(begin)) == begin


_ZERO = "0" * 20
_OTHERS = ["0.seg", _ZERO, f"{_ZERO}.idx", f"{_ZERO}.seg.z", f"new-{_ZERO}.seg", f"0{_ZERO}.seg", f"-{_ZERO[1:]}.seg"]


@pytest.mark.parametrize("name", [*_OTHERS, "x" * 20 + ".seg", "\u0660" * 20 + ".seg", ""])
def test_other_names_are_not_segments(name: str) -> None:
    """Files with other names are not segments."""
    assert begin_of(name) is None


# Headers


def test_a_header_survives() -> None:
    """Every field of a header is read as it was written."""
    header = Header.new(1 << 40, 12345, (1 << 40) - 99)
    assert len(header.pack()) == SEGMENT_HEADER_SIZE
    assert Header.unpack(header.pack()) == header


@pytest.mark.parametrize("position", [*range(SEGMENT_END), *range(SEGMENT_END + 8, SEGMENT_END_CRC)])
def test_a_flipped_bit_in_a_header_is_noticed(position: int) -> None:
    """A flipped bit in a header is found by the magic number or the checksum."""
    content = bytearray(Header.new(0, 0, 0).pack())
    content[position] ^= 1
    with pytest.raises(ValueError, match=r"no segment header|checksum mismatch"):
        Header.unpack(bytes(content))


@pytest.mark.parametrize("size", [0, 1, 63])
def test_a_short_header_is_noticed(size: int) -> None:
    """A file that was cut off inside its header has none."""
    with pytest.raises(ValueError, match="shorter than a segment header"):
        Header.unpack(Header.new(0, 0, 0).pack()[:size])


def test_a_newer_header_is_refused() -> None:
    """A segment of a newer version is refused and not changed."""
    content = bytearray(Header.new(0, 0, 0).pack())
    struct.pack_into("<I", content, 8, FORMAT_VERSION + 1)
    checked = bytes(content[:SEGMENT_END] + content[SEGMENT_END + 8 : SEGMENT_CRC])
    struct.pack_into("<I", content, SEGMENT_CRC, crc32c(checked))
    with pytest.raises(UnsupportedFormatError):
        Header.unpack(bytes(content))


# Files


def test_a_segment_is_opened_as_it_was_made(tmp_path: Path) -> None:
    """An open finds the same header, size and an active segment."""
    created = _create(tmp_path)
    opened = Segment.open(files, created.path)
    assert opened.header == created.header
    assert opened.space_end == created.space_end == 4096 + SIZE - SEGMENT_HEADER_SIZE
    assert opened.end is None
    assert opened.is_valid


def test_a_segment_with_a_wrong_name_is_refused(tmp_path: Path) -> None:
    """A file that was renamed is not the segment its name says."""
    path = _create(tmp_path).path.rename(tmp_path / segment_name(8192))
    with pytest.raises(ValueError, match="the header is of the segment at 4096"):
        Segment.open(files, path)


@pytest.mark.parametrize("size", [0, 10, 63])
def test_a_segment_that_was_cut_off_is_refused(tmp_path: Path, size: int) -> None:
    """Without a complete header it is not a segment; mapping it would be an error of another kind."""
    path = _create(tmp_path).path
    os.truncate(path, size)
    with pytest.raises(ValueError, match="shorter than a segment header"):
        Segment.open(files, path)


def test_a_directory_is_not_a_segment(tmp_path: Path) -> None:
    """A directory of that name is refused like anything else that is not a segment."""
    (tmp_path / segment_name(0)).mkdir()
    with pytest.raises(ValueError, match="directory"):
        Segment.open(files, tmp_path / segment_name(0))


@pytest.mark.parametrize("at", range(1, 6))
def test_a_segment_is_made_whole_or_not_at_all(tmp_path: Path, at: int) -> None:
    """A full disk at any step leaves neither the file nor anything half-made, nor an open descriptor."""
    faulty = FaultyFiles()
    before = descriptors_under(tmp_path)
    faulty.fail(NEEDING_SPACE, disk_full, at=at)
    try:
        segment = _create(tmp_path, files=faulty)
    except DiskFullError:
        assert files.list(tmp_path) == []
    else:
        assert not faulty.failures
        del segment
    assert descriptors_under(tmp_path) == before


def test_a_segment_that_replaces_another_is_on_disk_first(tmp_path: Path) -> None:
    """After a power cut the name is that of the old file or of the new one, both complete."""
    faulty = FaultyFiles()
    first = _create(tmp_path, files=faulty)
    assert faulty.flushed == []
    second = _create(tmp_path, files=faulty, size=2 * SIZE)
    assert faulty.flushed == [tmp_path / f"new-{segment_name(4096)}"]
    assert len(first.map) == SIZE
    assert len(second.map) == 2 * SIZE


def test_a_replacement_that_cannot_be_flushed_changes_nothing(tmp_path: Path) -> None:
    """The old segment stays under its name."""
    faulty = FaultyFiles()
    first = _create(tmp_path, files=faulty)
    faulty.fail(frozenset({"flush"}), input_output_error)
    with pytest.raises(OSError, match="Input/output"):
        _create(tmp_path, files=faulty)
    assert Segment.open(files, first.path).header == first.header
    assert files.list(tmp_path) == [first.path.name]


def test_the_file_is_closed_with_its_last_user(tmp_path: Path) -> None:
    """A descriptor and a map are closed when the segment and every view of it are deleted."""
    segment = _create(tmp_path)
    view = memoryview(segment.map)
    del segment
    assert maps_under(tmp_path) == 1
    assert view[: len(b"fchan")] == b"fchan"
    view.release()
    assert (maps_under(tmp_path), descriptors_under(tmp_path)) == (0, 0)


# Ends


def test_an_end_can_be_checked(tmp_path: Path) -> None:
    """The end of a finished segment is stored with a checksum."""
    segment = _create(tmp_path)
    assert not segment.has_valid_end
    assert segment.limit == segment.space_end
    segment.finish(5000)
    assert segment.end == segment.limit == 5000
    assert segment.has_valid_end
    assert segment.is_valid


def test_a_finished_segment_can_be_reopened(tmp_path: Path) -> None:
    """A finished segment can be reopened if nothing beyond it was published."""
    segment = _create(tmp_path)
    segment.finish(5000)
    segment.reopen()
    assert segment.end is None
    assert not segment.has_valid_end


@pytest.mark.parametrize("position", range(SEGMENT_END, SEGMENT_END + 8))
def test_a_damaged_end_is_noticed(tmp_path: Path, position: int) -> None:
    """An end with a wrong checksum, or beyond the file, is not trusted."""
    segment = _create(tmp_path)
    segment.finish(5000)
    segment.map[position] ^= 0x20
    assert not segment.has_valid_end
    assert segment.limit <= segment.space_end


@pytest.mark.parametrize("end", [4096, 4095, 4096 + SIZE, 1 << 60])
def test_an_end_outside_the_segment_is_not_valid(tmp_path: Path, end: int) -> None:
    """The checksum alone does not make an end plausible."""
    segment = _create(tmp_path)
    segment.finish(end)
    assert not segment.has_valid_end


def test_an_invalidated_segment_is_noticed_through_every_map(tmp_path: Path) -> None:
    """A process that has the file mapped notices that it is not the segment any more."""
    segment = _create(tmp_path)
    other = Segment.open(files, segment.path)
    segment.invalidate()
    assert not other.is_valid
    with pytest.raises(ValueError, match="no segment header"):
        Segment.open(files, segment.path)


# Bytes


def test_wipe_zeroes_between_two_offsets(tmp_path: Path) -> None:
    """Only what lies between the offsets becomes zero, over several pages, up to the end of the file."""
    segment = _create(tmp_path)
    segment.map[SEGMENT_HEADER_SIZE:] = b"x" * (SIZE - SEGMENT_HEADER_SIZE)
    segment.wipe(Offset(4096 + 100), 4096 + 9000)
    position = SEGMENT_HEADER_SIZE
    assert segment.map[position : position + 100] == b"x" * 100
    assert segment.map[position + 100 : position + 9000] == bytes(8900)
    assert segment.map[position + 9000 : position + 9001] == b"x"
    segment.wipe(Offset(4096 + 9000), 1 << 60)
    assert not segment.map[position + 100 :].strip(b"\0")


@pytest.mark.disk
def test_wipe_uses_no_disk_space(tmp_path: Path) -> None:
    """A hole stays a hole: writing to it could fail on a full disk, and through a map that is fatal."""
    path = tmp_path / segment_name(0)
    segment = create_segment(files, path, Header.new(0, 0, 0), 1 << 20, 4096)
    before = files.disk_space(path)
    segment.wipe(Offset(0), 1 << 20)
    segment.flush()
    assert files.disk_space(path) == before


def test_allocate_takes_disk_space_between_two_offsets(tmp_path: Path) -> None:
    """Disk space is allocated by offsets of the log."""
    path = tmp_path / segment_name(4096)
    segment = create_segment(files, path, Header.new(4096, 0, 4096), 1 << 20, 4096)
    before = files.disk_space(path)
    segment.allocate(Offset(4096), 4096 + (64 << 10))
    assert files.disk_space(path) >= before + (60 << 10)


def test_only_the_size_limits_where_an_offset_may_lie(tmp_path: Path) -> None:
    """Offsets from the header to the end of the file have a position in the segment."""
    segment = _create(tmp_path)
    assert segment.position(4096) == SEGMENT_HEADER_SIZE
    assert segment.position(segment.space_end) == SIZE
