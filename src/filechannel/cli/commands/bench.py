"""`filechannel bench`: measures a channel on this machine for a few seconds, compared with a queue in memory."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, final

import anyio
import msgspec
import typer

from ..._channel.aio.channel import FileChannel
from ..._channel.aio.open_channel import open_channel
from ..._format import PURE
from ..._options import ChannelOptions, Durability
from ..ui.humanize import number
from ..ui.output import JsonOption, columns, document, remark, show

_BATCH: Final = 1000
_ROUND: Final = 2000
"""Messages between two readings of the clock."""


class _Order(msgspec.Struct):
    id: int
    sku: str
    qty: int


_ORDER: Final = _Order(4711, "fountain pen", 3)


@final
@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the result."""

    what: str
    per_second: int
    microseconds: float
    """For one message."""


def bench(
    directory: Annotated[
        Path, typer.Argument(metavar="DIRECTORY", help="On the disk to measure; nothing is left in it.")
    ] = Path(),
    seconds: Annotated[
        float,
        typer.Option(
            "--seconds", metavar="NUMBER", min=0.05, max=60, help="The time to measure each line of the result."
        ),
    ] = 0.5,
    json: JsonOption = False,
) -> None:
    """Measure how fast a channel is on this machine and disk.

    One task sends and receives a small Struct, one message at a time and in batches. The first line is asyncio.Queue,
    which stores nothing, for comparison. The figures are rough, and other load on the machine changes them.

    \b
    Examples:
      filechannel bench
      filechannel bench /var/lib/myapp --seconds 2 --json
    """
    if not directory.is_dir():
        raise typer.BadParameter(f"{directory} is not a directory", param_hint="DIRECTORY")
    import shutil
    import tempfile

    scratch = Path(tempfile.mkdtemp(prefix=".filechannel-bench-", dir=directory))
    try:
        figures = anyio.run(_measure, scratch, seconds)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    if json:
        document({"directory": directory.absolute(), "native": not PURE, "figures": figures})
        return
    rows = [(each.what, number(each.per_second), f"{each.microseconds:.2f}") for each in figures]
    show(columns(("WHAT", "MESSAGES/S", "US EACH"), rows, right=("MESSAGES/S", "US EACH")))
    if PURE:
        remark("this is the pure-Python implementation: the native core was not built here, or FILECHANNEL_PURE is set")


async def _measure(scratch: Path, seconds: float) -> list[Figure]:
    figures = [await _figure("asyncio.Queue: put and get", seconds, _queue(asyncio.Queue()))]
    async with open_channel(scratch / "os", _Order) as channel:
        figures.append(await _figure("channel: send and receive", seconds, _one_by_one(channel)))
        figures.append(await _figure(f"channel: batches of {_BATCH:,}", seconds, _in_batches(channel)))
    options = ChannelOptions(durability=Durability.FSYNC)
    async with open_channel(scratch / "fsync", _Order, options=options) as channel:
        figures.append(await _figure("on disk: one by one", seconds, _one_by_one(channel, 1)))
        figures.append(await _figure(f"on disk: batches of {_BATCH:,}", seconds, _in_batches(channel)))
    return figures


async def _figure(what: str, seconds: float, work: Callable[[], Awaitable[int]]) -> Figure:
    """Measure for at least *seconds*, after one warm-up round."""
    await work()
    count, started = 0, time.perf_counter()
    while (passed := time.perf_counter() - started) < seconds or not count:
        count += await work()
    passed = time.perf_counter() - started
    return Figure(what, int(count / passed), passed / count * 1e6)


def _queue(queue: asyncio.Queue[_Order]) -> Callable[[], Awaitable[int]]:
    async def work() -> int:
        for _ in range(_ROUND):
            await queue.put(_ORDER)
            await queue.get()
        return _ROUND

    return work


def _one_by_one(channel: FileChannel[_Order], count: int = _ROUND) -> Callable[[], Awaitable[int]]:
    sender, receiver = channel.sender(), channel.receiver()

    async def work() -> int:
        for _ in range(count):
            await sender.send(_ORDER)
            await receiver.receive()
        return count

    return work


def _in_batches(channel: FileChannel[_Order]) -> Callable[[], Awaitable[int]]:
    sender, receiver, batch = channel.sender(), channel.receiver("batches", start="latest"), [_ORDER] * _BATCH

    async def work() -> int:
        await sender.send_many(batch)
        return len(await receiver.receive_many(_BATCH))

    return work
