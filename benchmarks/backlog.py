"""Opening a channel with a long backlog: as fast as with a short one, and with the same memory.

A reader sees a real backlog, but it takes no disk space: each segment contains one message of zeros, which are a hole
in the file. Opening reads the file names and the last segment, and maps only what it needs.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from time import perf_counter_ns

from filechannel import open_channel
from filechannel._format import crc32c
from filechannel._format.layout import RECORD_CHECKED, RECORD_HEADER, RECORD_HEADER_SIZE, SEGMENT_HEADER_SIZE
from filechannel._offset import Offset
from filechannel._storage.control.checkpoints import Checkpoint
from filechannel._storage.control.control_page import Control, Tail
from filechannel._storage.segments.segment import Header, Segment, create_segment_file, segment_name
from filechannel._storage.system.os_calls import Files

from .harness import Bench, Series, run_interleaved
from .report import Finding

TITLE = "opening a backlog"
_SEGMENT = 64 << 20
_MIB = 1 << 20
_LONG, _SHORT = 10 << 30, 16 << 20


async def measure(bench: Bench) -> list[Finding]:
    with bench.scratch(disk=True) as directory:
        paths = {"short": directory / "short", "long": directory / "long"}
        await _make(paths["short"], _SHORT)
        await _make(paths["long"], _LONG)

        def opening(path: Path) -> float:
            return asyncio.run(_open(path))[0]

        async def open_short() -> float:
            return await asyncio.to_thread(opening, paths["short"])

        async def open_long() -> float:
            return await asyncio.to_thread(opening, paths["long"])

        found = await run_interleaved({"short": open_short, "long": open_long}, bench.rounds(40))
        short, long = await _memory(paths["short"]), await _memory(paths["long"])
    return [
        Finding("open 16 MiB", found["short"].per(found["short"]), "S", time=found["short"]),
        Finding("open 10 GiB", found["long"].per(found["short"]), "S", 2.0, time=found["long"]),
        Finding("additional memory for 10 GiB", Series(((long - short) / _MIB,)), "MiB", 64),
    ]


async def _open(path: Path) -> tuple[float, int]:
    """Return how long it takes to open a channel, and how much memory the process has afterwards."""
    began = perf_counter_ns()
    async with open_channel(path, bytes, create=False) as channel:
        elapsed = perf_counter_ns() - began
        assert channel.statistics().messages
        return elapsed, _resident()


async def _memory(path: Path) -> int:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", __name__, str(path)), cwd=Path(__file__).parent.parent, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    return int(output)


def _resident() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


async def _make(path: Path, size: int) -> None:
    """Create a channel with *size* bytes of backlog."""
    async with open_channel(path, bytes):
        pass
    files, end, count = Files(), Offset(0), max(size // _SEGMENT, 1)
    length = min(size, _SEGMENT) - SEGMENT_HEADER_SIZE - RECORD_HEADER_SIZE
    zeros = crc32c(bytes(length))
    for number in range(count):
        begin, end = end, Offset(end + RECORD_HEADER_SIZE + length)
        header = Header.new(begin, number, begin)
        file = path / "segments" / segment_name(begin)
        file.unlink(missing_ok=True)
        segment = Segment(file, header, create_segment_file(files, file, file, header, _SEGMENT, 4096, 0o600))
        crc = crc32c(RECORD_CHECKED.pack(length, begin), zeros)
        RECORD_HEADER.pack_into(segment.map, SEGMENT_HEADER_SIZE, length, crc)
        if number + 1 < count:
            segment.finish(end)
    descriptor = files.open(path / "control")
    control = Control(files, descriptor)
    control.start_over(Tail(end, count, begin), 0, sealed=False)
    control.checkpoints.write(Checkpoint(end, count, Offset(0)))
    files.close(descriptor)


if __name__ == "__main__":
    print(asyncio.run(_open(Path(sys.argv[1])))[1])
