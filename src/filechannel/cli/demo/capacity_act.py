"""Act three: far more data goes through a channel than it ever takes on disk."""

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
"""What goes through; the pure twin would take minutes for a gigabyte."""
CAPACITY: Final = TOTAL // 64
"""What may wait to be consumed."""
_SEGMENT: Final = CAPACITY // 4
LIMIT: Final = TOTAL // 4
"""What the channel may take: besides that, what was consumed and is not reclaimed yet, and spare segments."""
_STEPS: Final = 64


@final
@dataclass(frozen=True, slots=True)
class Usage:
    """How much went through so far, and the most that it took on disk."""

    sent: int
    received: int
    on_disk: int
    most: int

    @property
    def is_fine(self) -> bool:
        """Whether all came through, within the limit."""
        return self.sent == self.received == TOTAL and self.most <= LIMIT


def stay_small(path: Path) -> Iterator[Usage]:
    """Send all of it to a receiver in another thread, and yield what is on disk meanwhile."""
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
    """Return the bytes of disk that a channel takes, whatever its files claim to be long."""
    total = 0
    with os.scandir(path / "segments") as entries:
        for entry in entries:
            try:
                total += entry.stat().st_blocks * 512
            except FileNotFoundError:
                pass  # renamed or removed meanwhile
    return total
