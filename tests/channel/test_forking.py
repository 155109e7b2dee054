"""A forked child drops what it inherited, and takes nothing away from its parent."""

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
    from filechannel._format import PURE

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

    def locked_out(call):
        def work():
            try:
                call()
            except ChannelLockedError as error:
                assert error.pid == os.getppid()
            else:
                raise AssertionError("opened")
        return work

    async def main(path):
        def use_the_channel():
            pids = {writer.pid for writer in channel.statistics().writers}
            assert pids == {os.getpid(), os.getppid()}, pids
            with channel.replay() as history:
                assert history.receive_many_nowait(10) == [1, 2]
            channel.close()

        async with open_channel(path, int) as channel, channel.sender() as tx, channel.receiver() as rx:
            await tx.send(1)
            in_child(lambda: refuse(rx.receive_nowait, rx.peek, rx.clone))
            if PURE:
                in_child(locked_out(lambda: tx.send_nowait(2)))
                tx.send_nowait(2)
            else:
                in_child(lambda: tx.send_nowait(2))
                in_child(use_the_channel)
            assert await rx.receive() == 1
            assert await rx.receive() == 2
            await tx.send(3)
            assert await rx.receive() == 3

    asyncio.run(main(sys.argv[1]))
    print("fine")
    """
)


def test_a_forked_child_opens_the_channel_again(tmp_path: Path) -> None:
    """Channel and senders register the child separately, receivers are closed there, and the parent
    is not disturbed.
    """
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", PROGRAM, str(tmp_path / "channel")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "fine\n"), done.stderr
