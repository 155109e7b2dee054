"""`sys.exit()` inside a task ends the interpreter, whatever the channel was doing: no thread of ours keeps it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_PROGRAM = """
import sys
import anyio
from filechannel import ChannelOptions, Durability, open_channel

path, backend, what = sys.argv[1:]


async def use():
    if what == "opened":
        await open_channel(path, int)
        sys.exit(7)
    async with open_channel(path, int, options=ChannelOptions(durability=Durability.FSYNC)) as channel:
        async with channel.sender() as tx:
            await tx.send(1)
            if what == "flushed":
                await channel.flush()
                sys.exit(7)
            if what == "sent":
                sys.exit(7)
    if what == "closed":
        sys.exit(7)


async def nested():
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(use)
        await anyio.sleep(30)


if backend == "trio":
    anyio.run(nested, backend="trio")
elif backend == "asyncio in a task":
    import asyncio

    async def main():
        task = asyncio.create_task(use())
        await asyncio.sleep(30)

    asyncio.run(main())
elif backend == "asyncio in a group":
    import asyncio

    async def main():
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(use())
            await asyncio.sleep(30)

    asyncio.run(main())
elif backend == "a loop that is not closed":
    import asyncio

    loop = asyncio.new_event_loop()
    task = loop.create_task(use())
    loop.run_forever()
else:
    anyio.run(nested, backend_options={"use_uvloop": backend == "uvloop"})
"""


_BACKENDS = [
    "asyncio",
    "asyncio in a task",
    "asyncio in a group",
    "a loop that is not closed",
    "uvloop",
    "trio",
]


@pytest.mark.parametrize("backend", _BACKENDS)
@pytest.mark.parametrize("what", ["opened", "sent", "flushed", "closed"])
def test_a_task_that_exits_ends_the_interpreter(path: Path, backend: str, what: str) -> None:
    """Raising SystemExit in a nested task ends the interpreter, after a channel was opened, used or closed there."""
    if backend in ("uvloop", "trio"):
        pytest.importorskip(backend)
    arguments = [sys.executable, "-W", "ignore", "-c", _PROGRAM, str(path), backend, what]
    try:
        ended = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False)
    except subprocess.TimeoutExpired as error:
        pytest.fail(f"the interpreter does not end: {error.stderr!r}")
    assert ended.returncode in (1, 7), ended.stderr  # trio and anyio put it into a group
    assert "SystemExit: 7" in ended.stderr or ended.returncode == 7
