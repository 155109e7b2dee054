"""What children do that send to a channel with a capacity, or take from it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from random import Random

import anyio
from anyio import EndOfStream

from filechannel import DataExpiredError, MessageTooLargeError, blocking, open_channel
from filechannel._storage import room
from filechannel._wakeup import arrivals, line, watchdog
from tests.processes.crew import Link
from tests.processes.ledger import Message


def look_again_never() -> None:
    """Whoever is not woken sleeps on."""
    for module, name in (
        (room, "_LOOK"),
        (arrivals, "_LONGEST_SLEEP"),
        (line, "_LONGEST_SLEEP"),
        (watchdog, "_SECONDS"),
    ):
        setattr(module, name, 3600.0)


async def send_numbers(link: Link, path: Path, first: int, count: int) -> None:
    """Send so many numbers; nobody looks again who was not woken."""
    look_again_never()
    async with open_channel(path, int, create=False) as channel, channel.sender() as tx:
        link.meet()
        for number in range(first, first + count):
            await tx.send(number)


def send_numbers_from_a_thread(link: Link, path: Path, first: int, count: int) -> None:
    """The same without an event loop."""
    look_again_never()
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
    """Send messages of a ledger, some of them in batches of up to four."""
    chance, number = Random(seed), 0
    async with open_channel(path, bytes, create=False) as channel, channel.sender() as tx:
        link.meet()
        while number < total:
            size = min(chance.choice((1, 1, 2, 4)), total - number)
            await tx.send_many([Message(writer, number + i, i, size).pack(chance.randrange(100)) for i in range(size)])
            number += size


async def take_when_told(link: Link, path: Path, name: str) -> None:
    """Take as many numbers as the test says, again and again, and say which."""
    async with open_channel(path, int, create=False) as channel:
        with channel.receiver(name) as rx:
            link.tell("ready")
            while count := await link.listen():
                link.tell([await rx.receive() for _ in range(count)])


async def stand_in_line(link: Link, path: Path, number: int) -> None:
    """Send a number to a channel that is full, and say when it stands in line."""
    async with open_channel(path, int, create=False) as channel, channel.sender() as tx:
        async with anyio.create_task_group() as group:
            group.start_soon(tx.send, number)
            await anyio.wait_all_tasks_blocked()
            assert channel.statistics().room.waiting_senders == 1  # type: ignore[union-attr]
            link.tell("ready")


async def stand_in_line_with_a_batch(link: Link, path: Path, size: int) -> None:
    """The same with a batch; if it can never be sent any more, that is as well."""
    async with open_channel(path, int, create=False) as channel, channel.sender() as tx:

        async def send() -> None:
            with suppress(MessageTooLargeError):
                await tx.send_many([-1] * size)

        async with anyio.create_task_group() as group:
            group.start_soon(send)
            await anyio.wait_all_tasks_blocked()
            assert channel.statistics().room.waiting_senders == 1  # type: ignore[union-attr]
            link.tell("ready")


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
