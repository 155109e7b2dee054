"""Shipping segments while others remove them."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from filechannel import CorruptRecordError, StorageError
from filechannel._format.layout import COMPRESSED, COMPRESSED_BLOCK, COMPRESSED_EXTRA, COMPRESSED_TABLE
from filechannel._maintenance.ship import ship_segments
from filechannel._offset import Offset
from filechannel._storage.archive.remote_files import MemoryFiles, RemoteFile, RemoteFiles
from filechannel._storage.segments.compressed_segment import table_crc
from filechannel._storage.store import Store
from tests.maintenance.stores import fill
from tests.storage.channels import opened
from tests.storage.compressing import compress_all


class Archive(RemoteFiles):
    """A directory of this machine."""

    def describe(self, path: Path) -> str:
        """Return the path."""
        return str(path)

    def open_file(self, path: Path) -> RemoteFile:
        """Read it."""
        return MemoryFiles(path, path.read_bytes()).open_file(path)

    def upload(self, local: Path, path: Path) -> None:
        """Copy it."""
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(local, path)


class LimitedArchive(Archive):
    """The same, which knows how large the largest file was that was put there."""

    largest = 0

    def upload(self, local: Path, path: Path) -> None:
        """Look at its size before it is copied."""
        self.largest = max(self.largest, local.stat().st_size)
        assert self.largest < 1 << 20
        super().upload(local, path)


def _compressed(path: Path) -> list[Path]:
    """Return the files of a channel whose finished segments are compressed."""
    with opened(path) as store:
        fill(store, 5)
        compress_all(store)
    return sorted((path / "segments").glob("*.seg.z"))


def _sizes(directory: Path) -> list[int]:
    return [file.stat().st_size for file in sorted(directory.rglob("*")) if file.is_file()]


@pytest.mark.parametrize("suffix", [".idx", ".seg.z"])
def test_a_hole_is_not_copied(path: Path, tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The archive has no byte after the index entries or blocks of a file, and none is copied in between."""
    _compressed(path)
    for file in (path / "segments").glob(f"*{suffix}"):
        os.truncate(file, 1 << 40)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    archive = LimitedArchive()
    with opened(path) as store:
        shipped = ship_segments(store, archive, tmp_path / "archive", verify=True)
        assert shipped.segments >= 4
        again = ship_segments(store, archive, tmp_path / "archive", verify=True)
        assert (again.segments, again.present) == (0, shipped.segments)
    assert max(_sizes(tmp_path / "archive")) < 8192
    assert archive.largest < 8192


def _cut(file: Path) -> None:
    os.truncate(file, file.stat().st_size - 1)


def _empty(file: Path) -> None:
    file.write_bytes(bytes(4096))


def _claim_long_blocks(file: Path) -> None:
    """Let the last block be longer than its records can be, in a file that is a hole there."""
    content = bytearray(file.read_bytes())
    blocks: int = COMPRESSED.unpack_from(content, COMPRESSED_EXTRA)[3]
    last = COMPRESSED_TABLE + (blocks - 1) * COMPRESSED_BLOCK.size
    position, _, crc = COMPRESSED_BLOCK.unpack_from(content, last)
    COMPRESSED_BLOCK.pack_into(content, last, position, 1 << 31, crc)
    extra = bytes(content[COMPRESSED_EXTRA : COMPRESSED_TABLE - 4])
    table = bytes(content[COMPRESSED_TABLE : last + COMPRESSED_BLOCK.size])
    content[COMPRESSED_TABLE - 4 : COMPRESSED_TABLE] = table_crc(extra, table).to_bytes(4, "little")
    file.write_bytes(content)
    os.truncate(file, position + (1 << 31))


@pytest.mark.parametrize("damage", [_cut, _empty, _claim_long_blocks])
def test_a_damaged_compressed_segment_is_named_and_not_shipped(
    path: Path, tmp_path: Path, damage: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`CorruptRecordError` names its file and the command that repairs the channel, and nothing of it was copied."""
    files = _compressed(path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with opened(path) as store:
        damage(files[1])
        with pytest.raises(CorruptRecordError, match=rf"{files[1].name} is damaged.*filechannel repair {path}"):
            ship_segments(store, Archive(), tmp_path / "archive")
    assert len(list((tmp_path / "archive").rglob("*.seg.z"))) <= 1
    assert max(_sizes(tmp_path / "archive")) < 8192


def test_a_consumer_that_never_gets_a_position_ends_it(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shipping under a consumer that never gets a position raises `StorageError` instead of looping for ever."""
    with opened(path) as store:
        fill(store, 5)
        monkeypatch.setattr(store.low_watermark, "retain_from", lambda _: False)
        with pytest.raises(StorageError, match=r"control is damaged: consumer 'archive' found no valid position"):
            ship_segments(store, Archive(), tmp_path / "archive", consumer="archive")


def _lose_segments(store: Store, patch: pytest.MonkeyPatch, *, poisoned_before: bool) -> None:
    """Remove all but the newest one between the listing of the segments and the read of the second."""
    following, begins = store.segments.following, store.segments.begins

    def look_and_lose(begin: int) -> Offset | None:
        found = following(begin)
        if begin != begins[0]:
            return found
        patch.undo()
        for other in begins[:-1]:
            store.segments.path(other).unlink()
        if poisoned_before:
            store.control.oldest_offset = begins[-1]
        store.segments._mapped.clear()
        store.segments._headers.clear()
        return found

    patch.setattr(store.segments, "following", look_and_lose)


def test_what_is_reclaimed_during_the_listing_is_not_shipped(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Segments that are retired while they are listed are left out, and later ones are shipped."""
    with opened(path) as store:
        fill(store, 5)
        _lose_segments(store, monkeypatch, poisoned_before=True)
        assert ship_segments(store, Archive(), tmp_path / "archive").segments == 0
        fill(store, 5)
        assert ship_segments(store, Archive(), tmp_path / "archive").segments >= 4


def test_a_lost_segment_is_an_error(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment that is missing though it was not retired is damage."""
    with opened(path) as store:
        fill(store, 5)
        _lose_segments(store, monkeypatch, poisoned_before=False)
        with pytest.raises(CorruptRecordError, match="missing"):
            ship_segments(store, Archive(), tmp_path / "archive")
