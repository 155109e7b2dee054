"""Messages that identify themselves with every byte, and processes that send, replay and retire them.

A message repeats its own sequence: a reader that gets bytes of two messages, or a message out of order, notices it.
"""

from __future__ import annotations

from pathlib import Path

from anyio import EndOfStream

from filechannel import ChannelOptions, DataExpiredError, Record, blocking
from tests.processes.workers import Link
from tests.storage.channels import opened
from tests.storage.reclaiming import reclaim

_LONGEST = 900
_KEPT = 2  # segments before the one that is written to


def numbered(sequence: int) -> bytes:
    """Return the message with a number."""
    size = 8 + sequence * 7919 % _LONGEST
    return (sequence.to_bytes(8, "little") * (size // 8 + 1))[:size]


def check(record: Record[bytes]) -> None:
    """Fail if a message is not the one that it should be."""
    assert record.value == numbered(record.sequence), f"a wrong message at offset {record.offset}"


def send_numbered(link: Link, path: Path, total: int) -> None:
    """Send so many messages, and seal the channel."""
    with blocking.open_channel(path, bytes, create=False) as channel, channel.sender() as tx:
        link.meet()
        for sequence in range(0, total, 4):
            tx.send_many([numbered(number) for number in range(sequence, sequence + 4)])
        channel.seal()


def replay_numbered(link: Link, path: Path, readonly: bool) -> tuple[int, int]:
    """Replay until the end, as often overtaken as it may be; return how many messages came, and how often it was."""
    options = ChannelOptions(max_mapped_segments=4, poll_interval=0.001)
    seen = expired = 0
    with blocking.open_channel(path, bytes, create=False, readonly=readonly, options=options) as channel:
        with channel.replay(stop=None) as rx:
            link.meet()
            last = -1
            while True:
                try:
                    record = rx.receive_record()
                except DataExpiredError:
                    expired += 1
                    continue
                except EndOfStream:
                    return seen, expired
                check(record)
                assert record.sequence > last, "a message came again"
                last = record.sequence
                seen += 1


def retire_old_segments(link: Link, path: Path) -> int:
    """Retire all but the newest segments until the channel is sealed; return how many files are in the free list."""
    with opened(path, create=False) as store:
        assert store.segments.free_list is not None
        link.meet()
        while not store.control.sealed:
            begins = store.segments.begins
            if len(begins) > _KEPT:
                reclaim(store, begins[-1 - _KEPT], flush=False)
        return len(store.segments.free_list.names())
