"""The id of a mount, how many names a file has, and which file has a name."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from filechannel._format import mount
from tests.file_systems import mounted_image


def _mount_id(twin: SimpleNamespace, path: Path) -> int:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return int(twin.mount_id(descriptor))
    finally:
        os.close(descriptor)


def test_both_implementations_agree(both: tuple[SimpleNamespace, SimpleNamespace], tmp_path: Path) -> None:
    """A mount has one id, whichever implementation asks."""
    pure, native = both
    assert _mount_id(pure, tmp_path) == _mount_id(native, tmp_path)


def test_what_is_no_descriptor_is_refused(twin: SimpleNamespace) -> None:
    """A descriptor that is not open has no mount; other values are errors."""
    assert twin.mount_id(2**31 - 1) == 0
    with pytest.raises(OverflowError):
        twin.mount_id(2**31)
    with pytest.raises(OverflowError):
        twin.mount_id(-1)
    with pytest.raises(TypeError):
        twin.mount_id("0")


def test_names_are_counted(twin: SimpleNamespace, tmp_path: Path) -> None:
    """A file has as many names as it was given and not lost; one that is not open has none to count."""
    descriptor = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    try:
        assert twin.link_count(descriptor) == 1
        (tmp_path / "other").hardlink_to(tmp_path / "file")
        assert twin.link_count(descriptor) == 2
        (tmp_path / "file").unlink()
        (tmp_path / "other").unlink()
        assert twin.link_count(descriptor) == 0
    finally:
        os.close(descriptor)
    with pytest.raises(OSError, match="Bad file descriptor"):
        twin.link_count(2**31 - 1)


def test_names_are_counted_without_statx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A C library or a sandbox without `statx` changes nothing."""
    monkeypatch.setattr(mount, "_statx", None)
    with (tmp_path / "file").open("w") as file:
        assert mount.link_count(file.fileno()) == 1


def test_a_name_leads_to_a_file(twin: SimpleNamespace, tmp_path: Path) -> None:
    """It is told by device and number, as `stat` does; a link is told as itself, and a missing name is an error."""
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "inner").mkdir()
    directory = os.open(tmp_path / "inner", os.O_RDONLY)
    try:
        for name in ("file", "link", "inner"):
            status = (tmp_path / name).lstat()
            assert twin.named_inode(directory, b"../" + name.encode()) == (status.st_dev, status.st_ino)
        with pytest.raises(FileNotFoundError):
            twin.named_inode(directory, b"file")
        with pytest.raises(NotADirectoryError):
            twin.named_inode(directory, b"../file/name")
        with pytest.raises(ValueError, match="null byte"):
            twin.named_inode(directory, b"a\0b")
    finally:
        os.close(directory)
    with pytest.raises(OSError, match="Bad file descriptor"):
        twin.named_inode(2**31 - 1, b"file")


def test_a_name_leads_to_a_file_without_statx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A C library or a sandbox without `statx` changes nothing here either."""
    monkeypatch.setattr(mount, "_statx", None)
    (tmp_path / "file").touch()
    directory = os.open(tmp_path, os.O_RDONLY)
    try:
        status = (tmp_path / "file").lstat()
        assert mount.named_inode(directory, b"file") == (status.st_dev, status.st_ino)
    finally:
        os.close(directory)


@pytest.mark.disk
def test_a_remount_has_another_id(twin: SimpleNamespace, tmp_path: Path) -> None:
    """Device and inode are the same after a remount of the same device; the id of the mount is not."""
    with mounted_image(tmp_path, "ext4") as image:
        (image.path / "file").touch()
        before = _mount_id(twin, image.path / "file")
        if not before:
            pytest.skip("needs Linux 6.8 for the unique id of a mount")
        assert _mount_id(twin, image.path) == before
        image.remount()
        assert _mount_id(twin, image.path / "file") != before
