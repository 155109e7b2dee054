"""Memory: after two million messages the process is as small as before.

Measured in a process of its own, as the growth of anonymous memory (`RssAnon`): mapped files belong to the kernel,
which can reclaim their pages at any time.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from filechannel import open_channel

from .harness import Bench, Series
from .messages import BATCH, RAW
from .report import Finding

TITLE = "memory"
_MESSAGES = 2_000_000
_STEP = 100_000
_MIB = 1 << 20


async def measure(bench: Bench) -> list[Finding]:
    with bench.scratch() as directory:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", __name__, str(directory / "raw")),
            cwd=Path(__file__).parent.parent,
            stdout=asyncio.subprocess.PIPE,
        )
        output, _ = await process.communicate()
        if process.returncode:
            raise RuntimeError(f"the process that measures memory ended with {process.returncode}")
    one_by_one, batches = (Series((float(word),)) for word in output.split())
    return [
        Finding("growth over 2M x 12 B, await send, then await receive", one_by_one, "MiB", 32),
        Finding("growth over 2M x 12 B in batches of 1,000", batches, "MiB", 32),
    ]


class Growth:
    """The most anonymous memory seen, beyond what there was at the start."""

    def __init__(self) -> None:
        self._began = _anonymous()
        self.most = 0

    def sample(self) -> None:
        self.most = max(self.most, _anonymous() - self._began)


def _anonymous() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


async def _one_by_one(path: Path) -> int:
    async with open_channel(path, bytes) as channel, channel.sender() as tx, channel.receiver() as rx:
        await tx.send(RAW[0])
        await rx.receive()
        growth = Growth()
        for _ in range(_MESSAGES // _STEP):
            for number in range(_STEP):
                await tx.send(RAW[number % BATCH])
            growth.sample()
        for _ in range(_MESSAGES // _STEP):
            for _ in range(_STEP):
                await rx.receive()
            growth.sample()
    return growth.most


async def _in_batches(path: Path) -> int:
    async with open_channel(path, bytes) as channel, channel.sender() as tx:
        async with channel.receiver("batches", start="latest") as rx:
            await tx.send_many(RAW)
            await rx.receive_many(BATCH)
            growth = Growth()
            for _ in range(_MESSAGES // BATCH):
                await tx.send_many(RAW)
            growth.sample()
            for number in range(_MESSAGES // BATCH):
                assert len(await rx.receive_many(BATCH)) == BATCH
                if number % (_STEP // BATCH) == 0:
                    growth.sample()
    return growth.most


async def _report(path: Path) -> None:
    print(await _one_by_one(path) / _MIB, await _in_batches(path) / _MIB)


if __name__ == "__main__":
    asyncio.run(_report(Path(sys.argv[1])))
