"""Raw messages of 8 KiB with a consumer that keeps up: segment files are recycled continuously, on a disk.

The yardstick is `pwrite` of the same bytes to a growing file. Consumed segments are reclaimed in the background, and
their files are then recycled through the existing mappings; each round leaves a moment for that, which is not timed.
The kernel reports how many page faults are left to the sending thread.

Where every call is timed, neither the clock nor `pwrite` releases the interpreter lock: the measurement is about the
call itself, not about another thread of the process, above all one of filechannel's own, that runs in between.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import resource
import time
from collections.abc import Callable
from pathlib import Path

from filechannel import open_channel

from .harness import Bench, Series, run_interleaved
from .harness import working_ns as now
from .report import Finding

TITLE = "raw, 8 KiB, on a disk, with a consumer that keeps up"
_MESSAGE = os.urandom(8192)
_BLOCK = 256
_FILE_SIZE = 1 << 30  # then the bare file is started again
_PAUSE = 0.001  # seconds after each round


class _Bare:
    """A file that is written by hand, always to fresh pages."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = -1
        self._size = _FILE_SIZE

    def begin(self) -> None:
        if self._size < _FILE_SIZE:
            return
        self.close()
        self._file, self._size = os.open(self._path, os.O_RDWR | os.O_CREAT), 0

    def write(self, message: bytes) -> None:
        os.pwrite(self._file, message, self._size)
        self._size += len(message)

    def write_with_lock(self, message: bytes) -> None:
        if _KEEPING_LOCK.pwrite(self._file, message, len(message), ctypes.c_int64(self._size)) != len(message):
            raise OSError("a write failed")
        self._size += len(message)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._path.unlink()


class _Faults:
    """Counts the page faults of this thread while it sends."""

    def __init__(self) -> None:
        self.count = self.messages = 0

    def during(self, work: Callable[[], float]) -> float:
        before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
        result = work()
        self.count += resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before
        self.messages += _BLOCK
        return result


def _timed(send: Callable[[bytes], object]) -> float:
    began = now()
    for _ in range(_BLOCK):
        send(_MESSAGE)
    return (now() - began) / _BLOCK


_KEEPING_LOCK = ctypes.PyDLL(None)


class _Calls:
    """How long each call took, without the time in which other programs had the CPU."""

    def __init__(self) -> None:
        self.times: list[int] = []
        self._text = ctypes.create_string_buffer(100)
        self._schedstat = os.open("/proc/thread-self/schedstat", os.O_RDONLY)

    def _waited(self) -> int:
        size = _KEEPING_LOCK.pread(self._schedstat, self._text, len(self._text), ctypes.c_int64(0))
        return int(self._text.raw[:size].split()[1])

    def of(self, send: Callable[[bytes], object]) -> float:
        clock = time.perf_counter_ns
        for _ in range(_BLOCK):
            before = self._waited()
            began = clock()
            send(_MESSAGE)
            took = clock() - began
            self.times.append(took - self._waited() + before)
        return 0

    def percentile(self) -> Series:
        return Series((float(sorted(self.times)[int(len(self.times) * 0.9999)]),))


async def measure(bench: Bench) -> list[Finding]:
    faults, own, others = _Faults(), _Calls(), _Calls()
    with bench.scratch(disk=True) as directory:
        bare = _Bare(directory / "bare")
        async with open_channel(directory / "channel", bytes) as channel:
            async with channel.sender() as tx, channel.receiver() as rx:

                async def consume() -> None:
                    assert len(rx.receive_many_nowait(2 * _BLOCK)) == _BLOCK
                    await asyncio.sleep(_PAUSE)

                async def write() -> float:
                    bare.begin()
                    return _timed(bare.write)

                async def send() -> float:
                    figure = faults.during(lambda: _timed(tx.send_nowait))
                    await consume()
                    return figure

                async def write_each() -> float:
                    bare.begin()
                    return others.of(bare.write_with_lock)

                async def send_each() -> float:
                    own.of(tx.send_nowait)
                    await consume()
                    return 0

                for _ in range(256):  # until every page was touched
                    await send()
                faults = _Faults()
                found = await run_interleaved({"bare": write, "send": send}, bench.rounds(800))
                await run_interleaved({"bare": write_each, "send": send_each}, bench.rounds(800))
        bare.close()
    send_time, bare_time = found["send"], found["bare"]
    slow, bare_slow = own.percentile(), others.percentile()
    return [
        Finding("pwrite to a fresh file", bare_time.per(bare_time), "P", time=bare_time),
        Finding("send_nowait into recycled segments", send_time.per(bare_time), "P", 0.3, time=send_time),
        Finding(
            "the same as a mean, with every new segment",
            send_time.as_mean().per(bare_time.as_mean()),
            "P",
            time=send_time.as_mean(),
        ),
        Finding("page faults of the sender per message", Series((faults.count / faults.messages,)), ""),
        Finding("99.99th percentile of pwrite", bare_slow.per(bare_slow), "P", time=bare_slow),
        Finding("99.99th percentile of send_nowait", slow.per(bare_slow), "P", 1.0, time=slow),
    ]
