"""The identity of the control page: for which channel, boot, file and mount it was written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from filechannel._format.layout import CONTROL_IDENTITY
from filechannel._offset import Offset
from filechannel._storage.control.control_page import Control, Tail
from filechannel._storage.system.os_calls import Files

CHANNEL, BOOT = b"c" * 16, b"b" * 16


@pytest.fixture
def control(tmp_path: Path) -> Iterator[Control]:
    """A control file that says the log is at its beginning."""
    files = Files()
    descriptor = files.open(tmp_path / "control", create=True)
    control = Control(files, descriptor)
    control.start_over(Tail(Offset(0), 0, Offset(0)), 0, sealed=False)
    yield control
    files.close(descriptor)


# Identity


def test_words_are_of_before_a_remount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page is stale after a remount, also if device and inode are the same or the mount is unknown."""
    files = Files()
    descriptor = files.open(tmp_path / "control", create=True)
    control = Control(files, descriptor)
    for mount, is_same in ((7, True), (8, False), (0, False)):
        monkeypatch.setattr(files, "mount", lambda _: 7)
        control.identity.adopt(CHANNEL, BOOT)
        life = bytes(control.map[: CONTROL_IDENTITY.size])
        monkeypatch.setattr(files, "mount", lambda _, mount=mount: mount)
        assert control.identity.belongs_to(CHANNEL, BOOT)
        assert control.identity.is_same_mount == is_same
        assert control.identity.is_of_before(CHANNEL, BOOT) == (not is_same)
        control.identity.adopt(CHANNEL, BOOT)
        assert (bytes(control.map[: CONTROL_IDENTITY.size]) == life) == is_same
    files.close(descriptor)


def test_words_that_are_disowned_are_of_before(control: Control) -> None:
    """A disowned page is stale for its channel and boot, as if it were of another boot."""
    control.identity.adopt(CHANNEL, BOOT)
    assert not control.identity.is_of_before(CHANNEL, BOOT)
    control.identity.disown(BOOT)
    control.identity.disown(BOOT)
    assert not control.identity.belongs_to(CHANNEL, BOOT)
    assert control.identity.is_of_before(CHANNEL, BOOT)
    assert control.identity.is_of_boot(BOOT)
    assert not control.identity.is_of_boot(b"x" * 16)
    assert control.identity.channel_id == CHANNEL


def test_words_belong_to_one_channel_boot_and_file(tmp_path: Path) -> None:
    """Words count only for the channel, boot and file in which they were written."""
    files = Files()
    descriptor = files.open(tmp_path / "control", create=True)
    control = Control(files, descriptor)
    assert not control.identity.belongs_to(CHANNEL, BOOT)
    control.identity.adopt(CHANNEL, BOOT)
    assert control.identity.belongs_to(CHANNEL, BOOT)
    assert not control.identity.belongs_to(CHANNEL, b"x" * 16)
    assert not control.identity.belongs_to(b"x" * 16, BOOT)
    (tmp_path / "copy").write_bytes((tmp_path / "control").read_bytes())
    copy = files.open(tmp_path / "copy")
    assert not Control(files, copy).identity.belongs_to(CHANNEL, BOOT)
    files.close(copy)
    files.close(descriptor)
