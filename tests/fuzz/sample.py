"""A small channel with every kind of file, of which a target replaces one."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from functools import cache
from pathlib import Path

from filechannel import ChannelOptions, Compression
from filechannel._maintenance.background.compress_segment import compress
from filechannel._storage.producers.producer_positions import POSITION_SUFFIX, PRODUCERS
from filechannel.blocking import open_channel

KEY = "sink.p"
_KINDS = (
    "channel.json",
    "control",
    "consumers/*.group",
    "consumers/*.cursor",
    "producers/*.position",
    "segments/0*.seg",
    "segments/0*.seg.z",
    "segments/0*.idx",
)
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None


def make(path: Path) -> None:
    """Make the channel: compressed and plain segments with indexes, a cursor, a group, and a producer."""
    options = ChannelOptions(segment_size=4096, mode=0o600)
    with open_channel(path, int, options=options) as channel, channel.sender() as tx:
        tx.send_many(range(800))
    compress(path, Compression(method="gzip"))
    with open_channel(path, int) as channel, channel.sender() as tx:
        with channel.receiver("single") as single, channel.group("many") as many:
            tx.send_many(range(800, 1300))
            single.receive_many(3)
            for delivery in (many.receive_delivery(), many.receive_delivery()):
                delivery.nack()
    (path / PRODUCERS).mkdir(mode=0o700, exist_ok=True)
    (path / PRODUCERS / f"{KEY}{POSITION_SUFFIX}").write_bytes(b"\1" * 4096)


@cache
def files() -> tuple[Path, tuple[str, ...]]:
    """Return the directory of the channel, made once in a process, and the name of one file of each kind."""
    scratch = Path(tempfile.mkdtemp(dir=MEMORY))
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    path = scratch / "channel"
    make(path)
    return path, tuple(str(max(path.glob(kind)).relative_to(path)) for kind in _KINDS)


def with_file(path: Path, name: str, content: bytes) -> None:
    """Make a copy of the channel at a path, in which one file has other content; the others are hard links."""
    source, _ = files()
    for each in sorted(source.rglob("*")):
        target = path / each.relative_to(source)
        if each.is_dir():
            target.mkdir(parents=True)
        elif str(each.relative_to(source)) != name:
            target.parent.mkdir(parents=True, exist_ok=True)
            os.link(each, target)
    (path / name).write_bytes(content)
