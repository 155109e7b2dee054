"""What children do to a channel whose segments are compressed and reclaimed while they use it."""

from __future__ import annotations

import random
from pathlib import Path

from filechannel import Compression, DataExpiredError
from filechannel._errors import Busy
from filechannel._format import NOTHING
from filechannel._maintenance.background.compress_segment import SegmentCompressor
from filechannel._offset import LogPosition, Offset
from tests.processes.workers import Link
from tests.storage.channels import Message, opened, reader_of
from tests.storage.compressing import compress_segment

BLOCK = 512
KEPT = 6
"""So many segments stay."""


def payload_of(number: int) -> bytes:
    """Return the payload of message *number*, which differs from every other."""
    return b"%d " % number + bytes(random.Random(number).choices(b"ab ", k=number % 700))


def send(link: Link, path: Path, total: int) -> None:
    """Send so many messages."""
    with opened(path, create=False) as store:
        link.meet()
        for number in range(total):
            store.log.append([payload_of(number)])


def compress_for_ever(link: Link, path: Path) -> int:
    """Compress every segment that can be, until the test ends it; return how many segments that were."""
    count = 0
    with opened(path, create=False) as store:
        compressor = SegmentCompressor(store, Compression(), block_size=BLOCK)
        link.meet()
        while not link.has_message:
            store.flusher.flush()
            for candidate in list(compressor.candidates(Offset(0))):
                try:
                    count += bool(compress_segment(compressor, candidate))
                except Busy:
                    continue
    return count


def reclaim_for_ever(link: Link, path: Path) -> None:
    """Reclaim all but the newest segments, repeatedly, until the test ends it."""
    with opened(path, create=False) as store:
        link.meet()
        while not link.has_message:
            begins = store.segments.begins
            if len(begins) > KEPT:
                store.control.oldest_offset = begins[-KEPT]
                store.segments.remove_before(begins[-KEPT])
                with store.log.writing():
                    store.log.appender.announce_change()


def read_what_is_left(link: Link, path: Path, total: int) -> int:
    """Read to the last message, across reclaimed segments; each must be what was sent. Return how many there were."""
    seen = 0
    with opened(path, create=False) as store:
        reader = reader_of(store)
        reader.move(LogPosition(store.control.oldest_offset, 0))
        reader.move(store.lookup.earliest())
        link.meet()
        while reader.native.sequence < total:
            try:
                record = reader.native.take_record()
            except DataExpiredError:
                continue
            if record is not NOTHING:
                message = Message(*record)
                assert message.payload == payload_of(message.sequence), f"another message at {message.sequence}"
                seen += 1
        reader.close()
    return seen
