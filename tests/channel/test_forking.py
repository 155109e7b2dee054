"""A forked child has nothing of its parent's channels, and takes nothing away from them."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

PROGRAM = textwrap.dedent(
    """
    import asyncio, os, sys
    import anyio
    from filechannel import ChannelLockedError, open_channel

    def in_child(work):
        "Run in a forked child; its exit code is 0 if it did what it should."
        child = os.fork()
        if child:
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            return
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)

    def refuse(*calls):
        for call in calls:
            try:
                call()
            except anyio.ClosedResourceError:
                continue
            raise AssertionError(f"{call} worked")

    async def main(path):
        async with open_channel(path, int) as channel, channel.sender() as tx, channel.receiver() as rx:
            await tx.send(1)
            in_child(lambda: refuse(lambda: tx.send_nowait(2), rx.receive_nowait, rx.peek, channel.statistics))
            assert await rx.receive() == 1
            await tx.send(3)

            def open_anew():
                async def try_it():
                    async with open_channel(path, int):
                        raise AssertionError("opened")
                try:
                    asyncio.run(try_it())
                except ChannelLockedError as error:
                    assert error.pid == os.getppid()

            in_child(open_anew)
            assert await rx.receive() == 3

    asyncio.run(main(sys.argv[1]))
    print("fine")
    """
)


def test_a_forked_child_cannot_use_what_it_inherited(tmp_path: Path) -> None:
    """Its handles are closed, opening anew finds the parent's lock, and the parent goes on undisturbed."""
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", PROGRAM, str(tmp_path / "channel")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "fine\n"), done.stderr
