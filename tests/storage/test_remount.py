"""The disk comes back within one boot: a file system is shut down without its journal, and mounted again.

Device, inode and boot are the same then. What was flushed is there; what was only mapped is lost, such as the control
page.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from filechannel import ChannelOptions, Durability, blocking
from tests.file_systems import MountedImage, mounted_image
from tests.storage.channels import opened, read_all

pytestmark = pytest.mark.disk

COUNT = 300
CONSUMED = 100
_SENDER = """
import sys
from filechannel import ChannelOptions, Durability, blocking

path, durability, segment_size = sys.argv[1], sys.argv[2], int(sys.argv[3])
options = ChannelOptions(durability=getattr(Durability, durability), segment_size=segment_size)
with blocking.open_channel(path, int, options=options) as channel:
    sender, receiver = channel.sender(), channel.receiver("consumer")
    group = channel.group("group")
    for number in range(300):
        sender.send(number)
    for number in range(100):
        assert receiver.receive() == number
        with group.processing() as message:
            assert message == number
    print("sent", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(params=["ext4", "xfs"])
def image(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MountedImage]:
    """A file system of each kind, mounted."""
    with mounted_image(tmp_path, request.param) as image:
        yield image


def _send_and_shut_down(image: MountedImage, durability: str, segment_size: int = 1 << 20) -> Path:
    """Send and receive in another process, lose what only the memory has, kill the process, and mount again."""
    path = image.path / "channel"
    command = [sys.executable, "-c", _SENDER, str(path), durability, str(segment_size)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "sent\n"
            image.shut_down()
        finally:
            os.kill(process.pid, signal.SIGKILL)
    image.remount()
    return path


@pytest.mark.parametrize("segment_size", [4096, 1 << 20])
def test_what_fsync_acknowledged_is_there_after_a_remount(image: MountedImage, segment_size: int) -> None:
    """After a remount every message acknowledged under FSYNC is stored in order, and new offsets were never used."""
    path = _send_and_shut_down(image, "FSYNC", segment_size)
    with blocking.open_channel(path, int, readonly=True) as channel:
        assert list(channel.replay("earliest")) == list(range(COUNT))
    with blocking.open_channel(path, int) as channel:
        assert list(channel.replay("earliest")) == list(range(COUNT))
        receiver = channel.receiver("consumer")
        first = receiver.receive_nowait()
        assert first <= CONSUMED, "a message was skipped"
        assert [receiver.receive_nowait() for _ in range(first + 1, COUNT)] == list(range(first + 1, COUNT))
        channel.sender().send(COUNT)
        assert receiver.receive_nowait() == COUNT
    with opened(path, create=False) as store:
        found = read_all(store)
        assert [message.sequence for message in found] == list(range(COUNT + 1))
        assert found[-1].offset >= 1 << 40, "an offset may have been used twice"


def test_what_os_durability_lost_is_not_replaced(image: MountedImage) -> None:
    """After a remount without FSYNC a prefix is stored, and no lost offset is used again."""
    path = _send_and_shut_down(image, "OS")
    with blocking.open_channel(path, int) as channel:
        found = list(channel.replay("earliest"))
        assert found == list(range(len(found)))
        channel.sender().send(COUNT)
        with channel.receiver("consumer") as receiver:
            first = receiver.receive_nowait()
            assert first <= CONSUMED or first == COUNT
            rest = [*range(first + 1, len(found)), COUNT] if first != COUNT else []
            assert [receiver.receive_nowait() for _ in rest] == rest
    with opened(path, create=False) as store:
        assert read_all(store)[-1].offset >= 1 << 40, "an offset may have been used twice"


def test_an_orderly_remount_changes_nothing_under_fsync(image: MountedImage) -> None:
    """After an orderly remount under FSYNC the log continues without a gap, if the device has the same number."""
    path = image.path / "channel"
    options = ChannelOptions(durability=Durability.FSYNC)
    with blocking.open_channel(path, int, options=options) as channel:
        channel.sender().send_many(range(COUNT))
    device = path.stat().st_dev
    image.remount()
    is_same_device = path.stat().st_dev == device  # other images may have taken its loop device
    with blocking.open_channel(path, int) as channel:
        channel.sender().send(COUNT)
        assert list(channel.replay("earliest")) == list(range(COUNT + 1))
    with opened(path, create=False) as store:
        assert (read_all(store)[-1].offset < 1 << 40) == is_same_device
