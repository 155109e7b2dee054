"""A full channel beside groups, handlers, transactions and retention."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import anyio
import pytest
from anyio.to_thread import run_sync

import filechannel.blocking
from filechannel import (
    AckReceiver,
    Capacity,
    ChannelFullError,
    ChannelOptions,
    DataExpiredError,
    DeadLetter,
    Durability,
    FileChannel,
    RetryPolicy,
    Sender,
    open_channel,
    transaction,
)
from filechannel._format import load_u32, store_u32
from filechannel._format.layout import CAPACITY_WAKE, WAKE_LOOPS
from tests.backends import one_loop
from tests.processes.workers import until

pytestmark = pytest.mark.anyio

FEW = ChannelOptions(capacity=Capacity(max_messages=4), segment_size=4096)
RAISE = ChannelOptions(capacity=Capacity(max_messages=4, on_full="raise"), segment_size=4096)
DROP = ChannelOptions(capacity=Capacity(max_messages=8, on_full="drop_oldest"), segment_size=4096)
DURABILITIES = pytest.mark.parametrize("durability", [Durability.OS, Durability.FSYNC], ids=["os", "fsync"])


async def fill(channel: FileChannel[int], count: int = 4, first: int = 0) -> None:
    """Send so many numbers."""
    with channel.sender() as tx:
        for number in range(first, first + count):
            await tx.send(number)


def used(channel: FileChannel[int]) -> int:
    """Return how many messages count as not consumed."""
    room = channel.statistics().room
    assert room is not None
    return room.messages


@contextmanager
def notifying(channel: FileChannel[int]) -> Iterator[None]:
    """Register a waiter for capacity: it is notified in the block, and does not poll."""
    words = channel._store.control.map
    store_u32(words, CAPACITY_WAKE, load_u32(words, CAPACITY_WAKE) | WAKE_LOOPS)
    yield
    assert not load_u32(words, CAPACITY_WAKE) & WAKE_LOOPS


@asynccontextmanager
async def ends_of_a_step(
    path: Path, *, before: ChannelOptions | None = None, after: ChannelOptions | None = None
) -> AsyncIterator[tuple[FileChannel[int], FileChannel[int], AckReceiver[int], Sender[int]]]:
    """Have two channels, and both ends of a step from one to the other."""
    async with (
        open_channel(path / "in", int, options=before) as numbers,
        open_channel(path / "out", int, options=after) as out,
        numbers.ack_receiver("step") as rx,
        out.sender() as tx,
    ):
        yield numbers, out, rx, tx


# Groups


async def _acks(channel: FileChannel[int]) -> None:
    with channel.group("team") as rx:
        await rx.receive()
        with notifying(channel):
            rx.ack()


async def _acks_a_delivery(channel: FileChannel[int]) -> None:
    with channel.group("team") as rx:
        delivery = await rx.receive_delivery()
        with notifying(channel):
            delivery.ack()


async def _processes(channel: FileChannel[int]) -> None:
    with channel.group("team") as rx, notifying(channel):
        async with rx.processing():
            pass


async def _acks_redelivered_messages(channel: FileChannel[int]) -> None:
    with channel.group("team") as rx:
        await rx.receive_many(2)
        rx.nack()
        delivery = await rx.receive_delivery()
        with notifying(channel):
            delivery.ack()


async def _acks_while_another_has_the_lock(channel: FileChannel[int]) -> None:
    """Then the lock holder moves the position, and notifies."""
    with channel.group("team") as rx:
        delivery = await rx.receive_delivery()

        def ack() -> None:
            delivery.ack()
            assert used(channel) == 4

        with notifying(channel):
            rx._member._group._locked(ack)


async def _seeks(channel: FileChannel[int]) -> None:
    with channel.group("team") as rx, notifying(channel):
        await rx.seek("latest")


async def _unsubscribes(channel: FileChannel[int]) -> None:
    with channel.receiver("other", start="latest"), channel.group("team") as rx, notifying(channel):
        await rx.unsubscribe()


async def _is_removed(channel: FileChannel[int]) -> None:
    with channel.receiver("other", start="latest"), notifying(channel):
        await channel.remove_consumer("team")


async def _is_purged(channel: FileChannel[int]) -> None:
    with notifying(channel):
        await channel.purge()


async def _handles(channel: FileChannel[int]) -> None:
    async with channel.serve(lambda _: None, name="team", group=True, ordered=False):
        await run_sync(until, lambda: used(channel) < 4)


@pytest.mark.parametrize(
    "make_room",
    [
        _acks,
        _acks_a_delivery,
        _processes,
        _acks_redelivered_messages,
        _acks_while_another_has_the_lock,
        _seeks,
        _unsubscribes,
        _is_removed,
        _is_purged,
        _handles,
    ],
)
async def test_a_group_frees_capacity(path: Path, make_room: Callable[[FileChannel[int]], Awaitable[None]]) -> None:
    """The backlog begins at the group's oldest unacked message, and an ack that moves it wakes waiting senders."""
    async with open_channel(path, int, options=FEW) as channel:
        channel.group("team").close()
        await fill(channel)
        assert used(channel) == 4
        with channel.sender() as tx, pytest.raises(ChannelFullError):
            tx.send_nowait(4)
        await make_room(channel)
        assert used(channel) < 4
        await fill(channel, 1, first=4)


async def test_what_a_group_has_not_acknowledged_counts(path: Path) -> None:
    """A message that was acked out of order frees capacity only after those before it are acked."""
    async with open_channel(path, int, options=FEW) as channel, channel.group("team") as rx:
        await fill(channel)
        first, second = [await rx.receive_delivery() for _ in range(2)]
        second.ack()
        assert used(channel) == 4
        first.ack()
        assert used(channel) == 2


async def test_a_sender_waits_for_a_group(path: Path) -> None:
    """A waiting sender continues when any member of the group, in any task, acks."""
    async with open_channel(path, int, options=FEW) as channel:
        taken: list[int] = []

        async def work() -> None:
            with channel.group("team") as rx:
                while len(taken) < 100:
                    async with rx.processing() as item:
                        taken.append(item)

        channel.group("team").close()
        with anyio.fail_after(30):
            async with anyio.create_task_group() as group:
                group.start_soon(work)
                await fill(channel, 100)
        assert sorted(taken) == list(range(100))


async def test_an_overtaken_group_gets_one_error(path: Path) -> None:
    """An overtaken group raises one error, to whichever member receives first."""
    async with open_channel(path, int, options=DROP) as channel, channel.group("team") as rx:
        await fill(channel, 40)
        with pytest.raises(DataExpiredError) as caught:
            await rx.receive()
        first = await rx.receive()
        assert caught.value.missed == first
        assert 40 - 8 <= first < 40


# Transactions


@DURABILITIES
async def test_a_transaction_waits_for_capacity(tmp_path: Path, durability: Durability) -> None:
    """A transaction waits for capacity in its output; then all outputs are visible and the input is acknowledged."""
    options = ChannelOptions(capacity=Capacity(max_messages=4), durability=durability, segment_size=4096)
    async with ends_of_a_step(tmp_path, after=options) as (numbers, out, rx, tx), out.receiver("out") as received:
        await fill(numbers)
        await fill(out, 3, first=100)
        done = anyio.Event()

        async def step() -> None:
            async with transaction(rx, tx) as both:
                both.send_many([await both.receive(), await both.receive()])
            done.set()

        async with anyio.create_task_group() as group:
            group.start_soon(step)
            await run_sync(until, lambda: out.statistics().room.waiting_senders == 1)  # type: ignore[union-attr]
            assert not done.is_set()
            assert rx.statistics().unacked == 2
            assert await received.receive() == 100
            await done.wait()
        assert rx.statistics().unacked == 0
        assert await received.receive_many(9) == [101, 102, 0, 1]
        assert await rx.receive() == 2


async def test_a_transaction_that_is_cancelled_while_it_waits_did_not_happen(tmp_path: Path) -> None:
    """Nothing is sent, the input is redelivered, and the next one succeeds."""
    async with ends_of_a_step(tmp_path, after=FEW) as (numbers, out, rx, tx), out.receiver("out") as received:
        await fill(numbers)
        await fill(out, 4, first=100)
        with anyio.move_on_after(0.05) as scope:
            async with transaction(rx, tx) as both:
                both.send(await both.receive())
        assert scope.cancelled_caught
        assert await received.receive_many(9) == [100, 101, 102, 103]
        async with transaction(rx, tx) as both:
            assert await both.receive() == 0
            both.send(1000)
        assert received.receive_many_nowait(9) == [1000]


async def test_a_transaction_that_is_refused_did_not_happen(tmp_path: Path) -> None:
    """Under "raise" a transaction whose batch or control record has no capacity raises at its end and has no effect."""
    async with ends_of_a_step(tmp_path, after=RAISE) as (numbers, out, rx, tx), out.receiver("out") as received:
        await fill(numbers)
        await fill(out, 3, first=100)
        with pytest.raises(ChannelFullError):
            async with transaction(rx, tx) as both:
                both.send_many([await both.receive(), 1])
        assert received.receive_many_nowait(9) == [100, 101, 102]
        async with transaction(rx, tx) as both:
            both.send(await both.receive())
        assert received.receive_many_nowait(9) == [0]


@one_loop
async def test_the_bytes_of_a_control_record_count(tmp_path: Path) -> None:
    """A batch whose payloads alone would fit is refused if the whole batch does not fit."""
    options = ChannelOptions(capacity=Capacity(max_bytes=16384, on_full="raise"), segment_size=4096)
    async with (
        open_channel(tmp_path / "in", bytes) as numbers,
        open_channel(tmp_path / "out", bytes, options=options) as out,
        numbers.ack_receiver("step") as rx,
        out.sender() as tx,
    ):
        with numbers.sender() as input_:
            await input_.send(b"x")
        await tx.send(bytes(16384 - 8 - 8 - 100))  # a payload of 100 bytes would fit, with its header
        with pytest.raises(ChannelFullError):  # noqa: PT012 - it is the end of the block that raises
            async with transaction(rx, tx) as both:
                await both.receive()
                both.send(bytes(100))
        await tx.send(bytes(100))


async def test_a_transaction_drops_the_oldest(tmp_path: Path) -> None:
    """A transaction may drop the oldest messages, even its own record: the stored position is known to the next
    process.
    """
    async with ends_of_a_step(tmp_path, after=DROP) as (numbers, out, rx, tx):
        await fill(numbers, 3)
        async with transaction(rx, tx) as both:
            both.send_many([await both.receive()] * 8)
        async with transaction(rx, tx) as both:
            both.send_many([await both.receive()] * 8)
        await fill(out, 20, first=100)
    async with ends_of_a_step(tmp_path) as (_, out, rx, tx):
        async with transaction(rx, tx) as both:
            assert await both.receive() == 2
            both.send(2)
        with out.replay() as replay:
            assert replay.receive_many_nowait(99)[-1] == 2


async def test_the_input_of_a_transaction_frees_capacity(tmp_path: Path) -> None:
    """The end of a step wakes a sender that waits for capacity in the input channel."""
    async with ends_of_a_step(tmp_path, before=FEW) as (numbers, _, rx, tx):
        await fill(numbers)
        with notifying(numbers):
            async with transaction(rx, tx) as both:
                both.send(await both.receive())
        await fill(numbers, 1)


def test_a_thread_waits_with_its_transaction(tmp_path: Path) -> None:
    """A transaction in a thread waits for capacity, and its input is acknowledged when its outputs are sent."""
    with (
        filechannel.blocking.open_channel(tmp_path / "in", int) as numbers,
        filechannel.blocking.open_channel(tmp_path / "out", int, options=FEW) as out,
        numbers.ack_receiver("step") as rx,
        numbers.sender() as subscription,
        out.sender() as tx,
        out.receiver("out") as received,
    ):
        subscription.send_many([1, 2])
        tx.send_many([0] * 4)

        def step() -> None:
            with filechannel.blocking.transaction(rx, tx) as both:
                both.send(both.receive())

        with ThreadPoolExecutor() as threads:
            done = threads.submit(step)
            until(lambda: out.statistics().room.waiting_senders == 1)  # type: ignore[union-attr]
            assert not done.done()
            assert received.receive() == 0
            done.result(30)
        assert rx.statistics().unacked == 0
        assert received.receive_many(9) == [0, 0, 0, 1]
        assert rx.receive() == 2


# Handlers


async def test_dead_letters_wait_for_capacity(tmp_path: Path) -> None:
    """A message is acknowledged when its letter was accepted, and not before."""
    async with (
        open_channel(tmp_path / "in", int) as numbers,
        open_channel(tmp_path / "dead", DeadLetter, options=FEW) as dead,
        dead.sender() as box,
        dead.receiver("reader") as letters,
    ):
        await fill(numbers, 6)

        def refuse(item: int) -> None:
            raise ValueError(item)

        async with numbers.serve(refuse, name="work", retry=RetryPolicy(max_attempts=1), dead_letter=box) as service:
            await run_sync(until, lambda: dead.statistics().room.waiting_senders == 1)  # type: ignore[union-attr]
            assert service.statistics().dead == 4
            found = [(await letters.receive()).sequence for _ in range(6)]
        assert found == list(range(6))


# Dropping and files


async def test_dropped_files_are_recycled(path: Path) -> None:
    """Files of dropped segments go to the free list, and maintenance counts them."""
    options = ChannelOptions(capacity=Capacity(max_bytes=16384, on_full="drop_oldest"), segment_size=4096)
    async with open_channel(path, bytes, options=options) as channel, channel.sender() as tx:
        for _ in range(100):
            await tx.send(bytes(1000))
        await run_sync(until, lambda: channel.statistics().maintenance.reclaimed_segments > 0)
        await run_sync(until, lambda: channel.statistics().spare_segments > 0)
        for _ in range(100):
            await tx.send(bytes(1000))
        await run_sync(until, lambda: channel.statistics().segments <= 5)
        assert channel.statistics().maintenance.errors == 0
