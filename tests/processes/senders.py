"""What children do that send to a channel with a capacity, or take from it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from random import Random

import anyio
from anyio import EndOfStream

from filechannel import DataExpiredError, MessageTooLargeError, blocking, open_channel
from filechannel._storage.capacity import reserve_or_drop_oldest
from filechannel._wakeup import send_queue, waiters, watchdog
from tests.processes.order_checker import Message
from tests.processes.workers import Link


def never_rescan() -> None:
    """Turn off repeated wakeups: a process that is not woken stays asleep."""
    for module, name in (
        (reserve_or_drop_oldest, "_RECHECK_SECONDS"),
        (waiters, "_LONGEST_SLEEP"),
        (send_queue, "_LONGEST_SLEEP"),
        (watchdog, "_RESCAN_SECONDS"),
    ):
        assert hasattr(module, name)  # it may have been renamed
        setattr(module, name, 3600.0)


async def send_numbers(link: Link, path: Path, first: int, count: int) -> None:
    """Send so many numbers; no process wakes without a wakeup."""
    never_rescan()
    async with open_channel(path, int, create=False) as channel, channel.sender() as tx:
        link.meet()
        for number in range(first, first + count):
            await tx.send(number)


def send_numbers_from_a_thread(link: Link, path: Path, first: int, count: int) -> None:
    """The same without an event loop."""
    never_rescan()
    with blocking.open_channel(path, int, create=False) as channel, channel.sender() as tx:
        link.meet()
        for number in range(first, first + count):
            tx.send(number)


async def send_one_batch(link: Link, path: Path, size: int) -> None:
    """Send a large batch, having said so."""
    async with open_channel(path, int, create=False) as channel, channel.sender() as tx:
        link.meet()
        await tx.send_many([-1] * size)


async def send_small_for_ever(link: Link, path: Path) -> None:
    """Send one small message after the other, until killed."""
    async with open_channel(path, int, create=False) as channel, channel.sender() as tx:
        link.meet()
        while True:
            await tx.send(0)


async def send_in_batches(link: Link, path: Path, writer: int, total: int, seed: int) -> None:
    """Send messages with a sender and a number, some of them in batches of up to four."""
    chance, number = Random(seed), 0
    async with open_channel(path, bytes, create=False) as channel, channel.sender() as tx:
        link.meet()
        while number < total:
            size = min(chance.choice((1, 1, 2, 4)), total - number)
            await tx.send_many([Message(writer, number + i, i, size).pack(chance.randrange(100)) for i in range(size)])
            number += size


async def receive_on_request(link: Link, path: Path, name: str) -> None:
    """Receive as many numbers as the test asks for, repeatedly, and report them."""
    async with open_channel(path, int, create=False) as channel:
        with channel.receiver(name) as rx:
            link.send("ready")
            while count := await link.receive_async():
                link.send([await rx.receive() for _ in range(count)])


async def set_waiting(link: Link, path: Path, number: int) -> None:
    """Send a number to a full channel, and report when it waits in the send queue."""
    async with open_channel(path, int, create=False) as channel, channel.sender() as tx:
        async with anyio.create_task_group() as group:
            group.start_soon(tx.send, number)
            await anyio.wait_all_tasks_blocked()
            assert channel.statistics().room.waiting_senders == 1  # type: ignore[union-attr]
            link.send("ready")


async def wait_with_a_batch(link: Link, path: Path, size: int) -> None:
    """The same with a batch; an error that it can never be sent is accepted, too."""
    async with open_channel(path, int, create=False) as channel, channel.sender() as tx:

        async def send() -> None:
            with suppress(MessageTooLargeError):
                await tx.send_many([-1] * size)

        async with anyio.create_task_group() as group:
            group.start_soon(send)
            await anyio.wait_all_tasks_blocked()
            assert channel.statistics().room.waiting_senders == 1  # type: ignore[union-attr]
            link.send("ready")


def append_and_stay(link: Link, path: Path, count: int) -> None:
    """Append so many numbers under FSYNC, and never come to the flush."""
    with blocking.open_channel(path, int, create=False) as channel:
        for number in range(count):
            channel._store.log.append([bytes([number])])
        link.meet()


async def count_received_and_missed(link: Link, path: Path, name: str) -> tuple[int, int]:
    """Take everything until the channel is sealed; return how many messages came, and how many were missed."""
    received = missed = 0
    async with open_channel(path, int, create=False) as channel:
        with channel.receiver(name) as rx:
            link.meet()
            while True:
                try:
                    await rx.receive()
                    received += 1
                except DataExpiredError as error:
                    missed += error.missed
                except EndOfStream:
                    return received, missed
