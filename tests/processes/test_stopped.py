"""A writer that is stopped (SIGSTOP) in the middle of a roll, with the writer lock: it is alive, and keeps the lock."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import pytest
from anyio import WouldBlock

from filechannel import ChannelOptions, Durability, FileChannel, open_channel
from tests.backends import BACKENDS
from tests.processes.order_checker import Message, OrderChecker
from tests.processes.tasks import create, obey, read, stop_in_a_roll
from tests.processes.workers import TIMEOUT, Child, Workers

LOOPS = pytest.mark.parametrize("loop", list(BACKENDS))
STOPPED, WAITING = 1, 2
SOON = 60.0


def beside_a_stopped_writer(
    workers: Workers, path: Path, work: Callable[[FileChannel[bytes], Child], Awaitable[None]], loop: str = "asyncio"
) -> None:
    """Do something while a writer is stopped in a roll, resume it, and check that all is consistent."""

    async def run() -> None:
        async with open_channel(path, bytes) as channel:
            stopped = workers.start(stop_in_a_roll, path, STOPPED)
            stopped.meet()
            stopped.send("go")
            stopped.until_stopped()
            await work(channel, stopped)
            stopped.resume()
            stopped.result()
            checker = OrderChecker()
            with channel.replay() as rx:
                async for payload in rx:
                    checker.add(payload)
            assert checker.counts[STOPPED] == 20

    backend, options = BACKENDS[loop]
    anyio.run(run, backend=backend, backend_options=options)


def message(number: int) -> bytes:
    """The message of a sender that has to wait."""
    return Message(WAITING, number, 0, 1).pack()


@LOOPS
@pytest.mark.parametrize("durability", [Durability.OS, Durability.FSYNC], ids=["os", "fsync"])
def test_others_wait_and_can_be_cancelled(workers: Workers, path: Path, loop: str, durability: Durability) -> None:
    """While a writer is stopped `send` waits and can be cancelled, `send_nowait` raises, and readers continue."""

    async def work(channel: FileChannel[bytes], stopped: Child) -> None:
        with channel.sender() as tx, channel.replay(stop=None) as rx:
            with anyio.move_on_after(0.1) as scope:
                await tx.send(message(0))
            assert scope.cancelled_caught
            with anyio.move_on_after(0.1) as scope:
                await tx.send_many([message(0)] * 2)
            assert scope.cancelled_caught
            with pytest.raises(WouldBlock):
                tx.send_nowait(message(0))
            with pytest.raises(WouldBlock):
                tx.send_many_nowait([message(0)])
            published = channel.statistics().messages
            for number in range(published):
                assert Message.unpack(await rx.receive()).number == number
            with pytest.raises(WouldBlock):
                rx.receive_nowait()
            async with anyio.create_task_group() as group:
                group.start_soon(tx.send, message(0))
                await anyio.wait_all_tasks_blocked()
                assert channel.statistics().messages == published
                stopped.resume()

    anyio.run(create, path, ChannelOptions(segment_size=4096, durability=durability))
    beside_a_stopped_writer(workers, path, work, loop)


@LOOPS
def test_a_flush_that_waits_keeps_no_event_loop_waiting(workers: Workers, path: Path, loop: str) -> None:
    """While a flush in a thread waits for a stopped writer, sends of tasks wait as they do without it."""

    async def work(channel: FileChannel[bytes], stopped: Child) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(channel.flush)
            await anyio.wait_all_tasks_blocked()
            with channel.sender() as tx:
                for _ in range(3):
                    with anyio.fail_after(SOON), anyio.move_on_after(0.1) as scope:
                        await tx.send(message(0))
                    assert scope.cancelled_caught
                    with pytest.raises(WouldBlock):
                        tx.send_nowait(message(0))
            stopped.resume()

    anyio.run(create, path)
    beside_a_stopped_writer(workers, path, work, loop)


def test_readers_of_other_processes_continue(workers: Workers, path: Path) -> None:
    """While a writer is stopped other processes, also new ones, read what is published, and later the rest."""
    anyio.run(create, path)
    early = workers.start(read, path, 20)
    early.meet()
    late = list[Child]()

    async def work(_: FileChannel[bytes], __: Child) -> None:
        late.append(workers.start(read, path, 20))
        late[0].meet()
        for child in (early, late[0]):
            child.send("go")
            assert not child.has_message

    beside_a_stopped_writer(workers, path, work)
    assert early.result() == late[0].result()


def test_another_process_waits_for_a_stopped_one(workers: Workers, path: Path) -> None:
    """What others send arrives after a stopped writer has resumed, and overwrites nothing."""
    anyio.run(create, path)
    other = workers.start(obey, path)
    other.meet()

    async def work(_: FileChannel[bytes], __: Child) -> None:
        other.send(("send", message(0)))
        await anyio.sleep(0.3)  # longer than a waiter sleeps between two checks
        assert not other.has_message

    beside_a_stopped_writer(workers, path, work)
    assert other.receive(SOON) is None


def test_a_stopped_process_can_be_killed(workers: Workers, path: Path) -> None:
    """After a stopped writer is killed waiting senders take its lock over and continue."""

    async def run() -> None:
        async with open_channel(path, bytes) as channel, channel.sender() as tx:
            stopped = workers.start(stop_in_a_roll, path, STOPPED)
            stopped.meet()
            stopped.send("go")
            stopped.until_stopped()
            async with anyio.create_task_group() as group:
                group.start_soon(tx.send, message(0))
                await anyio.wait_all_tasks_blocked()
                published = channel.statistics().messages
                workers.dismiss(stopped)
                with anyio.fail_after(TIMEOUT):
                    with channel.replay("latest", None) as rx:
                        assert Message.unpack(await rx.receive()).writer == WAITING
                assert channel.statistics().messages == published + 1

    anyio.run(create, path)
    anyio.run(run)
