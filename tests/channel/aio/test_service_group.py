"""Handlers as members of a group: each message to one of them, and again if that one fails, is cancelled or dies."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import anyio
import pytest
from anyio.lowlevel import checkpoint

from filechannel import ConsumerMismatchError, DecodeError, HandlerError, RetryPolicy, open_channel
from tests.channel.aio.test_ack_receiver import SMALL, fill
from tests.channel.base.test_dead_letter import graveyard, letters, mixed
from tests.channel.handling import AT_ONCE, LATER, NEVER, Book, until
from tests.channel.messages import Order
from tests.channel.renewals import BEYOND, LEASE, counted_renewals

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("concurrency", [1, 3])
async def test_each_message_is_delivered_to_one_member(path: Path, concurrency: int) -> None:
    """A free member handles the next message; at the end of a sealed channel all members end."""
    async with open_channel(path, int, options=SMALL) as channel:
        await fill(channel, 1000)
        await channel.seal()
        got: dict[int, list[int]] = {0: [], 1: [], 2: []}

        async def serve(member: int) -> None:
            async def handle(number: int) -> None:
                got[member].append(number)
                await checkpoint()

            await channel.serve(
                handle, name="workers", group=True, ordered=concurrency == 1, concurrency=concurrency, retry=NEVER
            )

        async with anyio.create_task_group() as group:
            for member in got:
                group.start_soon(serve, member)
        assert sorted(chain.from_iterable(got.values())) == list(range(1000))
        assert all(got.values())
        if concurrency == 1:
            assert all(numbers == sorted(numbers) for numbers in got.values())


async def test_attempts_are_counted_for_the_whole_group(path: Path) -> None:
    """After a failure any member may retry; when the attempts are used up there is one dead letter."""
    async with open_channel(path, int) as channel, graveyard(path) as (dead, box):
        await fill(channel, 20)
        await channel.seal()
        tried = list[int]()

        async def handle(number: int) -> None:
            await checkpoint()
            if number % 5 == 0:
                tried.append(number)
                raise ValueError

        async def serve() -> None:
            retry = RetryPolicy(max_attempts=4, delay=0)
            await channel.serve(handle, name="workers", group=True, retry=retry, dead_letter=box)

        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(serve)
        assert sorted(tried) == sorted([0, 5, 10, 15] * 4)
        found = sorted((letter.sequence, letter.attempts) for letter in await letters(dead))
        assert found == [(0, 4), (5, 4), (10, 4), (15, 4)]


async def test_a_cancelled_handler_counts_no_attempt(path: Path) -> None:
    """A cancelled handler and one whose grace is over count no attempt; a failure between two attempts does."""
    async with open_channel(path, int) as channel:
        await fill(channel, 1)
        entered = anyio.Event()

        async def stay(number: int) -> None:
            entered.set()
            await anyio.sleep_forever()

        with anyio.CancelScope() as scope:
            async with channel.serve(stay, name="workers", group=True):
                await entered.wait()
                scope.cancel()
                await anyio.sleep_forever()
        entered = anyio.Event()
        async with channel.serve(stay, name="workers", group=True, grace=0.0):
            await entered.wait()

        async def fail(number: int) -> None:
            raise ValueError

        async with channel.serve(fail, name="workers", group=True, retry=LATER) as service:
            await until(lambda: service.statistics().failed == 1)
        async with channel.group("workers") as rx:
            assert (await rx.receive_delivery()).attempt == 2


async def test_the_lease_on_what_is_being_handled_is_kept(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler that outlasts its lease keeps its message."""
    renewed = counted_renewals(monkeypatch)
    async with open_channel(path, int) as channel:
        await fill(channel, 2)
        slow, other, gate = Book(), Book(), anyio.Event()

        async def handle(number: int) -> None:
            slow.add(number)
            await gate.wait()

        async with channel.serve(handle, name="workers", group=True, lease=LEASE) as service:
            await slow.until(1)
            async with channel.serve(other, name="workers", group=True, lease=LEASE):
                await other.until(1)
                await until(lambda: len(renewed) > BEYOND)
                assert (slow.got, other.got) == ([0], [1])
                gate.set()
                await until(lambda: service.statistics().handled == 1)
        assert service.statistics().failed == 0


async def test_a_message_that_every_attempt_leaves_unfinished(path: Path) -> None:
    """A message whose last delivery ends unfinished becomes a dead letter without another attempt."""
    async with open_channel(path, int) as channel, graveyard(path) as (dead, box):
        await fill(channel, 1)
        await channel.seal()
        async with channel.group("workers") as rx:
            for _ in range(3):
                (await rx.receive_delivery()).nack()
        book = Book()
        retry = RetryPolicy(max_attempts=3)
        with pytest.raises(HandlerError, match="UnfinishedError: no member finished it in 3 attempts"):
            await channel.serve(book, name="workers", group=True, retry=retry)
        await channel.serve(book, name="workers", group=True, retry=retry, dead_letter=box)
        [letter] = await letters(dead)
        assert (book.got, letter.attempts) == ([], 3)
        why = "the last member died, lost its lease or returned it"
        assert letter.reason == f"UnfinishedError: no member finished it in 3 attempts: {why}"
        assert letter.traceback == ""


@pytest.mark.parametrize("concurrency", [1, 4])
async def test_a_message_that_does_not_decode_has_one_letter(path: Path, concurrency: int) -> None:
    """An undecodable message becomes one dead letter, written by the member that received it."""
    await mixed(path)
    async with open_channel(path, Order) as channel, graveyard(path) as (dead, box):
        got = list[int]()

        async def handle(order: Order) -> None:
            await checkpoint()
            got.append(order.id)

        with pytest.raises(DecodeError):
            await channel.serve(handle, name="strict", group=True)
        got.clear()

        async def serve() -> None:
            await channel.serve(
                handle, name="workers", group=True, ordered=concurrency == 1, concurrency=concurrency, dead_letter=box
            )

        async with anyio.create_task_group() as group:
            for _ in range(2):
                group.start_soon(serve)
        assert sorted(got) == [1, 2, 3, 4, 6, 7, 8]
        assert sorted((letter.sequence, letter.attempts) for letter in await letters(dead)) == [(0, 0), (5, 0), (9, 0)]


async def test_a_single_undecodable_message_becomes_a_letter_while_others_wait(path: Path) -> None:
    """Workers that wait for messages do not delay the one that has read it."""
    async with open_channel(path, object) as channel, channel.sender() as tx:
        await channel.configure(schema=int)
        async with open_channel(path, int) as numbers, graveyard(path) as (dead, box):
            service = numbers.serve(
                Book(), name="workers", group=True, ordered=False, concurrency=3, dead_letter=box, retry=AT_ONCE
            )
            async with service:
                await anyio.wait_all_tasks_blocked()
                for count in range(1, 4):
                    await tx.send("no number")
                    await until(lambda: service.statistics().dead == count)  # noqa: B023
            assert len(await letters(dead)) == 3


async def test_a_paused_member_leaves_everything_to_the_others(path: Path) -> None:
    """Other members handle what a paused member leaves, also what failed in it; after `resume` it takes part again."""
    async with open_channel(path, int) as channel:
        await fill(channel, 10)
        first, second = Book(), Book()

        async def fail(number: int) -> None:
            first.add(number)
            raise ValueError

        async with channel.serve(fail, name="workers", group=True, retry=LATER) as one:
            await first.until(1)
            one.pause()
            async with channel.serve(second, name="workers", group=True):
                assert sorted(await second.until(10)) == list(range(10))
        assert first.got == [0]


async def test_a_name_is_single_or_a_group(path: Path) -> None:
    """A single consumer name cannot be served as a group, nor a group as a single consumer."""
    async with open_channel(path, int) as channel:
        channel.serve(Book(), name="one").close()
        channel.serve(Book(), name="many", group=True).close()
        with pytest.raises(ConsumerMismatchError):
            channel.serve(Book(), name="one", group=True)
        with pytest.raises(ConsumerMismatchError):
            channel.serve(Book(), name="many")
