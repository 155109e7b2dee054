"""Act three: much more data passes through a channel than it ever occupies on disk."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from ... import Capacity, ChannelOptions, blocking
from ..._format import PURE

_MESSAGE: Final = 8 << 10
TOTAL: Final = 64 << 20 if PURE else 1 << 30
"""How many bytes are sent. The pure implementation would take minutes for a gigabyte."""
CAPACITY: Final = TOTAL // 64
"""How many bytes may be stored and not consumed."""
_SEGMENT: Final = CAPACITY // 4
LIMIT: Final = TOTAL // 4
"""How much the channel may occupy: the capacity, consumed data that is not reclaimed yet, and the free list."""
_STEPS: Final = 64


@final
@dataclass(frozen=True, slots=True)
class Usage:
    """How much was sent and received so far, and how much disk space that took at most."""

    sent: int
    received: int
    on_disk: int
    most: int

    @property
    def is_fine(self) -> bool:
        """Whether everything was received, within the limit."""
        return self.sent == self.received == TOTAL and self.most <= LIMIT


def stay_small(path: Path) -> Iterator[Usage]:
    """Send everything to a receiver in another thread, and yield the disk usage while it receives."""
    options = ChannelOptions(segment_size=_SEGMENT, capacity=Capacity(max_bytes=CAPACITY, on_full="wait"))
    payload, received, most = bytes(_MESSAGE), [0], 0
    with blocking.open_channel(path, bytes, options=options) as channel, channel.receiver() as rx:
        consumer = threading.Thread(target=_receive, args=(rx, received))
        consumer.start()
        with channel.sender() as tx:
            for sent in range(0, TOTAL, TOTAL // _STEPS):
                on_disk = _on_disk(path)
                most = max(most, on_disk)
                yield Usage(sent, received[0], on_disk, most)
                for _ in range(TOTAL // _STEPS // _MESSAGE):
                    tx.send(payload)
        consumer.join()
        on_disk = _on_disk(path)
        yield Usage(TOTAL, received[0], on_disk, max(most, on_disk))


def _receive(rx: blocking.FanOutReceiver[bytes], received: list[int]) -> None:
    while received[0] < TOTAL:
        received[0] += sum(map(len, rx.receive_many(256)))


def _on_disk(path: Path) -> int:
    """Return the allocated bytes of the segments on disk, which may be fewer than their file sizes."""
    total = 0
    with os.scandir(path / "segments") as entries:
        for entry in entries:
            try:
                total += entry.stat().st_blocks * 512
            except FileNotFoundError:
                pass  # renamed or deleted since the directory was listed
    return total
