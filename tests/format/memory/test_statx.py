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
    """Both implementations return the same mount id."""
    pure, native = both
    assert _mount_id(pure, tmp_path) == _mount_id(native, tmp_path)


def test_a_bad_descriptor_is_refused(impl: SimpleNamespace) -> None:
    """A descriptor that is not open has no mount id, and other values raise."""
    assert impl.mount_id(2**31 - 1) == 0
    with pytest.raises(OverflowError):
        impl.mount_id(2**31)
    with pytest.raises(OverflowError):
        impl.mount_id(-1)
    with pytest.raises(TypeError):
        impl.mount_id("0")


def test_names_are_counted(impl: SimpleNamespace, tmp_path: Path) -> None:
    """The number of names of a file is returned, and a closed descriptor has none."""
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
    """Without `statx` in the C library or the sandbox the number of names is the same."""
    monkeypatch.setattr(mount, "_statx", None)
    with (tmp_path / "file").open("w") as file:
        assert mount.link_count(file.fileno()) == 1


def test_a_name_identifies_a_file(impl: SimpleNamespace, tmp_path: Path) -> None:
    """A name gives device and inode as `stat` does: a link is not followed, and a missing name is an error."""
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
    """Without `statx` in the C library or the sandbox device and inode are the same."""
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
    """After a remount device and inode are the same, and the mount id differs."""
    with mounted_image(tmp_path, "ext4") as image:
        (image.path / "file").touch()
        before = _mount_id(impl, image.path / "file")
        if not before:
            pytest.skip("needs Linux 6.8 for the unique id of a mount")
        assert _mount_id(impl, image.path) == before
        image.remount()
        assert _mount_id(impl, image.path / "file") != before
