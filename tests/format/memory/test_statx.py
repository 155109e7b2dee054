"""The id of a mount, how many names a file has, and which file has a name."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from filechannel._format.memory import statx as mount
from tests.file_systems import mounted_image


def _mount_id(impl: SimpleNamespace, path: Path) -> int:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return int(impl.mount_id(descriptor))
    finally:
        os.close(descriptor)


def test_both_implementations_agree(both: tuple[SimpleNamespace, SimpleNamespace], tmp_path: Path) -> None:
    """A mount has one id, whichever implementation asks."""
    pure, native = both
    assert _mount_id(pure, tmp_path) == _mount_id(native, tmp_path)


def test_a_bad_descriptor_is_refused(impl: SimpleNamespace) -> None:
    """A descriptor that is not open has no mount; other values are errors."""
    assert impl.mount_id(2**31 - 1) == 0
    with pytest.raises(OverflowError):
        impl.mount_id(2**31)
    with pytest.raises(OverflowError):
        impl.mount_id(-1)
    with pytest.raises(TypeError):
        impl.mount_id("0")


def test_names_are_counted(impl: SimpleNamespace, tmp_path: Path) -> None:
    """A file has as many names as it was given and not lost; one that is not open has none to count."""
    descriptor = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    try:
        assert impl.link_count(descriptor) == 1
        (tmp_path / "other").hardlink_to(tmp_path / "file")
        assert impl.link_count(descriptor) == 2
        (tmp_path / "file").unlink()
        (tmp_path / "other").unlink()
        assert impl.link_count(descriptor) == 0
    finally:
        os.close(descriptor)
    with pytest.raises(OSError, match="Bad file descriptor"):
        impl.link_count(2**31 - 1)


def test_names_are_counted_without_statx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A C library or a sandbox without `statx` changes nothing."""
    monkeypatch.setattr(mount, "_statx", None)
    with (tmp_path / "file").open("w") as file:
        assert mount.link_count(file.fileno()) == 1


def test_a_name_identifies_a_file(impl: SimpleNamespace, tmp_path: Path) -> None:
    """By device and number, as `stat` does; a link is itself, and a missing name is an error."""
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "inner").mkdir()
    directory = os.open(tmp_path / "inner", os.O_RDONLY)
    try:
        for name in ("file", "link", "inner"):
            status = (tmp_path / name).lstat()
            assert impl.named_inode(directory, b"../" + name.encode()) == (status.st_dev, status.st_ino)
        with pytest.raises(FileNotFoundError):
            impl.named_inode(directory, b"file")
        with pytest.raises(NotADirectoryError):
            impl.named_inode(directory, b"../file/name")
        with pytest.raises(ValueError, match="null byte"):
            impl.named_inode(directory, b"a\0b")
    finally:
        os.close(directory)
    with pytest.raises(OSError, match="Bad file descriptor"):
        impl.named_inode(2**31 - 1, b"file")


def test_a_name_identifies_a_file_without_statx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_a_remount_has_another_id(impl: SimpleNamespace, tmp_path: Path) -> None:
    """Device and inode are the same after a remount of the same device; the id of the mount is not."""
    with mounted_image(tmp_path, "ext4") as image:
        (image.path / "file").touch()
        before = _mount_id(impl, image.path / "file")
        if not before:
            pytest.skip("needs Linux 6.8 for the unique id of a mount")
        assert _mount_id(impl, image.path) == before
        image.remount()
        assert _mount_id(impl, image.path / "file") != before
