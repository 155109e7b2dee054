"""A channel whose messages no checkpoint covers, damaged and copied: its end is found by checksums alone."""

from __future__ import annotations

import shutil
from pathlib import Path

from filechannel import ChannelOptions, Durability
from tests.storage.channels import opened

SENT = 3000
OPTIONS = ChannelOptions(segment_size=16384, durability=Durability.OS)
DAMAGED, POSITION = 2, 5000
"""Which segment has a wrong byte, and where."""


def make(path: Path) -> list[bytes]:
    """Send messages without a flush, and return them."""
    sent = [b"message %d" % number for number in range(SENT)]
    with opened(path, OPTIONS) as store:
        for payload in sent:
            store.log.append([payload])
    return sent


def segments_of(path: Path) -> list[Path]:
    """Return the files of the segments in order."""
    return sorted((path / "segments").glob("0*.seg"))


def flip(file: Path, position: int = POSITION) -> None:
    """Change one bit."""
    with file.open("r+b") as opened_file:
        opened_file.seek(position)
        (byte,) = opened_file.read(1)
        opened_file.seek(position)
        opened_file.write(bytes([byte ^ 1]))


def damaged_copy(path: Path) -> tuple[Path, list[bytes]]:
    """Make a channel, damage one record, and return a copy of it and what was sent."""
    sent = make(path)
    flip(segments_of(path)[DAMAGED])
    return shutil.copytree(path, path.with_name("copy")), sent
