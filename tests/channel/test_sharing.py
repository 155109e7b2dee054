"""Two opens of one directory in one process share what is open, and end one by one."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

import anyio
import msgspec
import pytest
from anyio import ClosedResourceError, EndOfStream
from anyio.to_thread import run_sync

from filechannel import (
    ChannelOptions,
    ChannelSealedError,
    Durability,
    OptionsMismatchError,
    SchemaMismatchError,
    StorageError,
    open_channel,
)
from filechannel._storage.open_stores import STORES
from tests.channel.messages import Order, Point

pytestmark = pytest.mark.anyio


async def test_two_opens_are_one_channel(path: Path) -> None:
    """What is sent through one open is received through the other, and wakes its waiters."""
    async with open_channel(path, int) as one, open_channel(path, int) as two:
        assert one is not two
        with one.sender() as tx, two.receiver() as rx:
            async with anyio.create_task_group() as group:

                async def receive() -> None:
                    assert await rx.receive() == 1

                group.start_soon(receive)
                await anyio.wait_all_tasks_blocked()
                await tx.send(1)


async def test_two_opens_share_the_maps(path: Path) -> None:
    """However often a channel is opened, its files are open once."""
    async with AsyncExitStack() as stack:
        channels = [await stack.enter_async_context(open_channel(path, int)) for _ in range(20)]
        assert len({id(channel._store) for channel in channels}) == 1
        assert len(STORES._open) == 1
    assert not STORES._open


@pytest.mark.parametrize("first", [0, 1])
async def test_closing_one_leaves_the_other(path: Path, first: int) -> None:
    """Closing one open closes what it created, and nothing of the other."""
    channels = [await open_channel(path, int), await open_channel(path, int)]
    senders = [channel.sender() for channel in channels]
    receivers = [channel.receiver(str(number)) for number, channel in enumerate(channels)]
    await channels[first].aclose()
    with pytest.raises(ClosedResourceError):
        await senders[first].send(1)
    with pytest.raises(ClosedResourceError):
        await receivers[first].receive()
    other = 1 - first
    await senders[other].send(2)
    assert await receivers[other].receive() == 2
    await channels[other].aclose()
    assert not STORES._open


async def test_each_open_counts_its_own(path: Path) -> None:
    """Senders and receivers are counted by the open that made them; messages are the same for both."""
    async with open_channel(path, int) as one, open_channel(path, int) as two:
        with one.sender() as tx, two.receiver():
            await tx.send(1)
            assert (one.statistics().senders, one.statistics().receivers) == (1, 0)
            assert (two.statistics().senders, two.statistics().receivers) == (0, 1)
            assert one.statistics().messages == two.statistics().messages == 1


async def test_another_way_to_the_same_directory(path: Path) -> None:
    """A symbolic link and a path with dots refer to the same channel."""
    async with open_channel(path, int) as one:
        link = path.parent / "link"
        link.symlink_to(path, target_is_directory=True)
        async with open_channel(link, int) as two, open_channel(path / "segments" / "..", int) as three:
            with one.sender() as tx, two.receiver("two") as rx2, three.receiver("three") as rx3:
                await tx.send(1)
                assert rx2.receive_nowait() == rx3.receive_nowait() == 1


async def test_the_second_open_is_checked_like_the_first(path: Path) -> None:
    """A type or an option that does not fit is refused, and the first open keeps working."""
    async with open_channel(path, Order) as orders, orders.sender() as tx:
        with pytest.raises(SchemaMismatchError):
            await open_channel(path, Point)
        with pytest.raises(OptionsMismatchError):
            await open_channel(path, Order, options=ChannelOptions(durability=Durability.FSYNC))
        await tx.send(Order(1))
    assert not STORES._open


async def test_two_opens_with_compatible_types(path: Path) -> None:
    """Each open has its own type, as long as each reads what the other writes."""

    class Longer(msgspec.Struct):
        id: int
        sku: str = "pen"
        qty: int = 1
        note: str = "none"

    async with open_channel(path, Order) as one, open_channel(path, Longer) as two:
        with one.sender() as tx1, two.sender() as tx2, one.receiver("1") as rx1, two.receiver("2") as rx2:
            await tx1.send(Order(1))
            await tx2.send(Longer(2, note="new"))
            assert rx1.receive_many_nowait(5) == [Order(1), Order(2)]
            assert rx2.receive_many_nowait(5) == [Longer(1), Longer(2, note="new")]


async def test_what_one_does_to_the_channel_the_other_sees(path: Path) -> None:
    """Configure, purge and seal are for the channel, not for one open of it."""
    async with open_channel(path, int) as one, open_channel(path, int) as two:
        with one.sender() as tx, two.receiver() as rx, two.sender() as other:
            await tx.send_many([1, 2])
            await one.purge()
            await tx.send(3)
            assert rx.receive_many_nowait(5) == [3]
            await two.configure(durability=Durability.FSYNC)
            await tx.send(4)
            assert one.statistics().durable_offset == tx.write_offset
            assert await rx.receive() == 4
            await one.seal()
            with pytest.raises(ChannelSealedError):
                await other.send(5)
            with pytest.raises(EndOfStream):
                await rx.receive()


async def test_a_reader_and_a_writer_in_any_order(path: Path) -> None:
    """Read-only and ordinary opens of one channel work side by side, in whatever order they are opened and closed."""
    async with open_channel(path, int) as channel, channel.sender() as tx:
        await tx.send(0)
    for order in ((True, False, False), (False, True, False), (True, True, False), (False, True, True)):
        channels = [await open_channel(path, int, readonly=readonly) for readonly in order]
        writer = channels[order.index(False)]
        with writer.sender() as tx:
            await tx.send(1)
        for channel in channels:
            with channel.replay() as rx:
                assert rx.receive_nowait() == 0
            await channel.aclose()
        assert not STORES._open


async def test_an_open_in_another_thread_shares_too(path: Path) -> None:
    """An event loop in another thread that opens the same directory shares it."""
    async with open_channel(path, int) as channel, channel.receiver() as rx:

        def elsewhere() -> None:
            async def work() -> None:
                async with open_channel(path, int) as other, other.sender() as tx:
                    assert other._store is channel._store
                    await tx.send(1)

            anyio.run(work)

        await run_sync(elsewhere)
        assert await rx.receive() == 1


async def test_a_moved_channel_can_be_replaced(path: Path) -> None:
    """A path at which there is another directory now is another channel, although the old one is still open."""
    async with open_channel(path, int) as old, old.sender() as tx:
        await tx.send(1)
        path.rename(path.parent / "moved")
        async with open_channel(path, int) as new, new.receiver() as rx:
            with pytest.raises(StorageError, match="was moved, removed or replaced"):
                old.receiver()
            assert new.statistics().messages == 0
            assert rx.receive_many_nowait(5) == []
        assert old.statistics().messages == 1


async def test_opening_and_closing_in_a_crowd(path: Path) -> None:
    """Many tasks that open, use and close the same channel at the same time lose nothing."""
    async with anyio.create_task_group() as group:

        async def use(number: int) -> None:
            async with open_channel(path, int) as channel, channel.sender() as tx:
                await tx.send(number)

        for number in range(30):
            group.start_soon(use, number)
    assert not STORES._open
    async with open_channel(path, int) as channel, channel.receiver() as rx:
        assert sorted(rx.receive_many_nowait(100)) == list(range(30))
