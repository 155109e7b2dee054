"""Processes killed while they serve: what they were at comes again, and nothing else does."""

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
from filechannel._channel.ack_source import AckSource
from tests.processes.crew import Child, Crew, Link, until
from tests.processes.doors import die
from tests.processes.tasks import SMALL

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
        link.tell("ready")
        await channel.serve(handle)


def serve_in_threads(link: Link, path: Path, diary: Path) -> None:
    """The same without async."""
    with without_async.open_channel(path, int, create=False) as channel:
        link.tell("ready")
        channel.serve(Diary(diary).write).run()


def start(crew: Crew, backend: str, path: Path, diary: Path) -> Child:
    """Start one that serves, and wait until it is about to."""
    if backend == "threads":
        child = crew.start(serve_in_threads, path, diary)
    else:
        child = crew.start(serve, path, diary, backend=backend)
    child.meet()
    return child


@BACKENDS
def test_killed_at_any_moment(crew: Crew, path: Path, rng: Random, backend: str) -> None:
    """In order, nothing is lost; each death brings at most one message again, that which was not acknowledged."""
    diary = path.with_name("diary")
    book = Diary(diary)
    with without_async.open_channel(path, int, options=SMALL) as channel, channel.sender() as tx:
        tx.send_many(range(MESSAGES))
        channel.seal()
    for _ in range(KILLS):
        before = len(book.read())
        child = start(crew, backend, path, diary)
        until(lambda: len(book.read()) > before or child.has_spoken)  # noqa: B023
        Event().wait(rng.uniform(0, 0.003))
        child.kill()
    start(crew, backend, path, diary).result()
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
        link.tell("ready")
        await channel.serve(handle, name="crew", group=True)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_members_of_a_group_killed_at_any_moment(crew: Crew, path: Path, rng: Random, backend: str) -> None:
    """Others go on with what a dead one had: nothing is lost, and each death brings at most one message again."""
    diary = path.with_name("diary")
    book = Diary(diary)
    with without_async.open_channel(path, int, options=SMALL) as channel, channel.sender() as tx:
        tx.send_many(range(MESSAGES))
        members = [crew.start(serve_in_a_group, path, diary, backend=backend) for _ in range(3)]
        for member in members:
            member.meet()
        for number in range(1, KILLED_MEMBERS + 1):
            until(lambda: len(book.read()) >= number * MESSAGES // (2 * KILLED_MEMBERS))  # noqa: B023
            victim = rng.randrange(3)
            members[victim].kill()
            members[victim] = crew.start(serve_in_a_group, path, diary, backend=backend)
            members[victim].meet()
        channel.seal()
        for member in members:
            member.result()
    handled = book.read()
    assert sorted(set(handled)) == list(range(MESSAGES))
    assert len(handled) - MESSAGES <= KILLED_MEMBERS


async def serve_and_block(link: Link, path: Path, last: int) -> None:
    """Tell each message, and get stuck in the handler of one."""

    async def handle(number: int) -> None:
        link.tell(number)
        if number == last:
            await anyio.sleep_forever()

    async with open_channel(path, int, create=False) as channel:
        await channel.serve(handle)


@pytest.mark.parametrize("backend", ["asyncio", "uvloop", "trio"])
def test_killed_in_the_middle_of_a_handler(crew: Crew, path: Path, backend: str) -> None:
    """Its message is the first that the next process gets."""
    with without_async.open_channel(path, int) as channel, channel.sender() as tx:
        tx.send_many(range(10))
        for first, last in ((0, 3), (3, 3), (3, 6)):
            child = crew.start(serve_and_block, path, last, backend=backend)
            assert [child.hear() for _ in range(first, last + 1)] == list(range(first, last + 1))
            child.kill()
            [consumer] = channel.consumers()
            assert (consumer.next_sequence, consumer.owner) == (last, None)


def purge(link: Link, path: Path) -> None:
    """Remove everything."""
    del link
    with without_async.open_channel(path, int, create=False) as channel:
        channel.purge()


def test_a_purge_by_another_process_is_counted(crew: Crew, path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A service goes on with what is there, and says how many messages it has missed."""
    with without_async.open_channel(path, int, options=SMALL) as channel, channel.sender() as tx:
        tx.send_many(range(1000))
        got = list[int]()
        service = channel.serve(got.append)
        service.pause()
        with service:
            crew.start(purge, path).result()
            tx.send(1000)
            service.resume()
            until(lambda: got == [1000])
        assert service.statistics().missed == 1000
        assert "1000 messages were removed before consumer 'default' came to them" in caplog.text


async def bury_and_die(link: Link, path: Path, step: str) -> None:
    """Be killed when a letter was sent and its message is about to be acknowledged, or passed."""
    setattr(AckSource, step, lambda *_: die())
    await bury(link, path)


async def bury(link: Link, path: Path) -> None:
    """Give everything up that can be."""
    del link

    async def refuse(number: int) -> None:
        raise ValueError(number)

    dead_path = path.with_name("dead")
    async with open_channel(path, int) as channel, open_channel(dead_path, DeadLetter) as dead, dead.sender() as box:
        await channel.serve(refuse, retry=RetryPolicy(max_attempts=1), dead_letter=box)


@pytest.mark.parametrize(("step", "doubled"), [("settle", 0), ("pass_by", 1)])
def test_killed_between_a_letter_and_its_ack(crew: Crew, path: Path, step: str, doubled: int) -> None:
    """The letter is there, the message comes again, and has a second letter: at least one each, never none."""
    with without_async.open_channel(path, object) as channel, channel.sender() as tx:
        tx.send_many([0, "one", 2])
        channel.configure(schema=int)
        channel.seal()
    for _ in range(2):
        assert crew.start(bury_and_die, path, step).wait() < 0
    crew.start(bury, path).result()
    with without_async.open_channel(path.with_name("dead"), DeadLetter) as dead, dead.replay() as letters:
        found = [letter.sequence for letter in letters]
    assert sorted(set(found)) == [0, 1, 2]
    assert found.count(doubled) == 3
    assert len(found) == 5
