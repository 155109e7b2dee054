"""Processes killed while they serve: the messages they were processing are redelivered, and no others."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path
from random import Random
from threading import Event

import anyio
import pytest

from filechannel import DeadLetter, RetryPolicy, open_channel
from filechannel import blocking as without_async
from filechannel._channel.subscription.outstanding import Outstanding, SingleConsumer
from tests.processes.hooked_files import die
from tests.processes.tasks import SMALL
from tests.processes.workers import Child, Link, Workers, until

MESSAGES = 20_000
KILLS, KILLED_MEMBERS = 10, 6
BACKENDS = pytest.mark.parametrize("backend", ["asyncio", "trio", "threads"])


class Diary:
    """What the handlers of all processes have done, in a file that outlives them."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)

    def write(self, number: int) -> None:
        """Note that a message was handled."""
        os.write(self._descriptor, number.to_bytes(8, "little"))

    def read(self) -> list[int]:
        """Return what was handled, in order."""
        data = os.pread(self._descriptor, 1 << 30, 0)
        return [int.from_bytes(data[at : at + 8], "little") for at in range(0, len(data), 8)]


async def serve(link: Link, path: Path, diary: Path) -> None:
    """Handle everything up to the end."""
    book = Diary(diary)

    async def handle(number: int) -> None:
        if number % 100 == 0:
            await anyio.lowlevel.checkpoint()
        book.write(number)

    async with open_channel(path, int, create=False) as channel:
        link.send("ready")
        await channel.serve(handle)


def serve_in_threads(link: Link, path: Path, diary: Path) -> None:
    """The same without async."""
    with without_async.open_channel(path, int, create=False) as channel:
        link.send("ready")
        channel.serve(Diary(diary).write).run()


def start(workers: Workers, backend: str, path: Path, diary: Path) -> Child:
    """Start one that serves, and wait until it is about to."""
    if backend == "threads":
        child = workers.start(serve_in_threads, path, diary)
    else:
        child = workers.start(serve, path, diary, backend=backend)
    child.meet()
    return child


@BACKENDS
def test_killed_at_any_moment(workers: Workers, path: Path, rng: Random, backend: str) -> None:
    """After a service is killed at any moment nothing is lost, and at most one message is redelivered."""
    diary = path.with_name("diary")
    book = Diary(diary)
    with without_async.open_channel(path, int, options=SMALL) as channel, channel.sender() as tx:
        tx.send_many(range(MESSAGES))
        channel.seal()
    for _ in range(KILLS):
        before = len(book.read())
        child = start(workers, backend, path, diary)
        until(lambda: len(book.read()) > before or child.has_message)  # noqa: B023
        Event().wait(rng.uniform(0, 0.003))
        child.kill()
    start(workers, backend, path, diary).result()
    handled = book.read()
    assert sorted(set(handled)) == list(range(MESSAGES))
    assert all(later - earlier in (0, 1) for earlier, later in pairwise(handled))
    assert len(handled) - MESSAGES <= KILLS


async def serve_in_a_group(link: Link, path: Path, diary: Path) -> None:
    """Handle what no other member has, up to the end."""
    book = Diary(diary)

    async def handle(number: int) -> None:
        if number % 10 == 0:
            await anyio.lowlevel.checkpoint()
        book.write(number)

    async with open_channel(path, int, create=False) as channel:
        link.send("ready")
        await channel.serve(handle, name="workers", group=True)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_members_of_a_group_killed_at_any_moment(workers: Workers, path: Path, rng: Random, backend: str) -> None:
    """After a member is killed others process its messages, and at most one message is redelivered."""
    diary = path.with_name("diary")
    book = Diary(diary)
    with without_async.open_channel(path, int, options=SMALL) as channel, channel.sender() as tx:
        tx.send_many(range(MESSAGES))
        members = [workers.start(serve_in_a_group, path, diary, backend=backend) for _ in range(3)]
        for member in members:
            member.meet()
        for number in range(1, KILLED_MEMBERS + 1):
            until(lambda: len(book.read()) >= number * MESSAGES // (2 * KILLED_MEMBERS))  # noqa: B023
            victim = rng.randrange(3)
            members[victim].kill()
            members[victim] = workers.start(serve_in_a_group, path, diary, backend=backend)
            members[victim].meet()
        channel.seal()
        for member in members:
            member.result()
    handled = book.read()
    assert sorted(set(handled)) == list(range(MESSAGES))
    assert len(handled) - MESSAGES <= KILLED_MEMBERS


async def serve_and_block(link: Link, path: Path, last: int) -> None:
    """Report each message, and hang in the handler of one."""

    async def handle(number: int) -> None:
        link.send(number)
        if number == last:
            await anyio.sleep_forever()

    async with open_channel(path, int, create=False) as channel:
        await channel.serve(handle)


@pytest.mark.parametrize("backend", ["asyncio", "uvloop", "trio"])
def test_killed_in_the_middle_of_a_handler(workers: Workers, path: Path, backend: str) -> None:
    """After a kill in a handler its message is the first one that the next process gets."""
    with without_async.open_channel(path, int) as channel, channel.sender() as tx:
        tx.send_many(range(10))
        for first, last in ((0, 3), (3, 3), (3, 6)):
            child = workers.start(serve_and_block, path, last, backend=backend)
            assert [child.receive() for _ in range(first, last + 1)] == list(range(first, last + 1))
            child.kill()
            [consumer] = channel.consumers()
            assert (consumer.next_sequence, consumer.owner) == (last, None)


def purge(link: Link, path: Path) -> None:
    """Remove everything."""
    del link
    with without_async.open_channel(path, int, create=False) as channel:
        channel.purge()


def test_a_purge_by_another_process_is_counted(workers: Workers, path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """After a purge by another process a service continues, and counts the messages it missed."""
    with without_async.open_channel(path, int, options=SMALL) as channel, channel.sender() as tx:
        tx.send_many(range(1000))
        got = list[int]()
        service = channel.serve(got.append)
        service.pause()
        with service:
            workers.start(purge, path).result()
            tx.send(1000)
            service.resume()
            until(lambda: got == [1000])
        assert service.statistics().missed == 1000
        assert "1000 messages were deleted before consumer 'default' read them" in caplog.text


async def dead_letter_and_die(link: Link, path: Path, step: str) -> None:
    """Kill this process when a letter was sent and its message is about to be acknowledged or redelivered."""
    setattr(Outstanding if step == "acknowledge" else SingleConsumer, step, lambda *_: die())
    await send_dead_letters(link, path)


async def send_dead_letters(link: Link, path: Path) -> None:
    """Send every message to the dead-letter channel."""
    del link

    async def refuse(number: int) -> None:
        raise ValueError(number)

    dead_path = path.with_name("dead")
    async with open_channel(path, int) as channel, open_channel(dead_path, DeadLetter) as dead, dead.sender() as box:
        await channel.serve(refuse, retry=RetryPolicy(max_attempts=1), dead_letter=box)


@pytest.mark.parametrize(("step", "doubled"), [("acknowledge", 0), ("skip_undecodable", 1)])
def test_killed_between_a_letter_and_its_ack(workers: Workers, path: Path, step: str, doubled: int) -> None:
    """After a kill between a dead letter and its ack the message is redelivered and gets a second letter."""
    with without_async.open_channel(path, object) as channel, channel.sender() as tx:
        tx.send_many([0, "one", 2])
        channel.configure(schema=int)
        channel.seal()
    for _ in range(2):
        assert workers.start(dead_letter_and_die, path, step).wait() < 0
    workers.start(send_dead_letters, path).result()
    with without_async.open_channel(path.with_name("dead"), DeadLetter) as dead, dead.replay() as letters:
        found = [letter.sequence for letter in letters]
    assert sorted(set(found)) == [0, 1, 2]
    assert found.count(doubled) == 3
    assert len(found) == 5
