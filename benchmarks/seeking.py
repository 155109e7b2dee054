"""Seeking by time, number and offset in a small and in a large channel: with the index, the size does not matter.

Both channels are filled with messages of 64 KiB, so that their segments have as many index entries as possible. The
targets are spread over the whole history, so most of them are in another segment than the one before.
"""

from __future__ import annotations

import random
import shutil
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from time import time

from filechannel import FileChannel, Receiver, open_channel

from .harness import Bench, Round, run_interleaved
from .harness import working_ns as now
from .report import Finding

TITLE = "seek in a channel of 64 MiB and one of 4 GiB"
_MESSAGE = b"." * (64 * 1024 - 8)
_BATCH = 64
_SMALL, _LARGE = 1_000, 66_000  # messages: one segment almost full, and 4 GiB
_SEEKS = 20
_ROOM = 6 << 30  # bytes


async def measure(bench: Bench) -> list[Finding]:
    on_disk = shutil.disk_usage(bench.memory).free < _ROOM
    if on_disk and shutil.disk_usage(bench.disk).free < _ROOM:
        bench.notes.append(f"Left out, because neither directory has 6 GiB to spare: '{TITLE}'.")
        return []
    with bench.scratch(disk=on_disk) as directory:
        async with AsyncExitStack() as stack:
            small = await stack.enter_async_context(_History(directory / "small", _SMALL))
            large = await stack.enter_async_context(_History(directory / "large", _LARGE))
            contestants = {
                f"{kind}, {size}": seeking
                for size, history in (("small", small), ("large", large))
                for kind, seeking in history.contestants().items()
            }
            found = await run_interleaved(contestants, bench.rounds(60))
    findings = list[Finding]()
    for kind, target in (("time", 1.5), ("number", None), ("offset", None)):
        own, other = found[f"{kind}, small"], found[f"{kind}, large"]
        findings += [
            Finding(f"by {kind}, 64 MiB", own.per(own), "x 64 MiB", time=own),
            Finding(f"by {kind}, 4 GiB", other.per(own), "x 64 MiB", target, time=other),
        ]
    return findings


class _History:
    """A channel with a number of messages, and positions in it to seek to."""

    def __init__(self, path: Path, messages: int) -> None:
        self._path = path
        self._messages = messages
        self._random = random.Random(1)

    async def __aenter__(self) -> _History:
        self._channel: FileChannel[bytes] = await open_channel(self._path, bytes)
        self._started = time()
        with self._channel.sender() as tx:
            for _ in range(0, self._messages, _BATCH):
                await tx.send_many([_MESSAGE] * _BATCH)
        self._ended = time()
        self._receiver: Receiver[bytes] = self._channel.replay()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channel.aclose()

    def contestants(self) -> dict[str, Round]:
        """Return the ways to seek."""
        return {"time": self._by_time, "number": self._by_number, "offset": self._by_offset}

    async def _by_time(self) -> float:
        span = self._started, self._ended
        moments = [datetime.fromtimestamp(self._random.uniform(*span), UTC) for _ in range(_SEEKS)]
        began = now()
        for moment in moments:
            await self._receiver.seek(moment)
        return (now() - began) / _SEEKS

    async def _by_number(self) -> float:
        numbers = [self._random.randrange(self._messages) for _ in range(_SEEKS)]
        began = now()
        for number in numbers:
            await self._channel.offset_of(number)
        return (now() - began) / _SEEKS

    async def _by_offset(self) -> float:
        numbers = [self._random.randrange(self._messages) for _ in range(_SEEKS)]
        offsets = [await self._channel.offset_of(number) for number in numbers]
        began = now()
        for offset in offsets:
            await self._receiver.seek(offset)
        return (now() - began) / _SEEKS
