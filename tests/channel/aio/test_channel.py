"""The channel as a whole: what it says about itself, and flush, seal, purge and configure."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import anyio
import msgspec
import pytest
from anyio import EndOfStream
from anyio.to_thread import run_sync

from filechannel import (
    ChannelOptions,
    ChannelSealedError,
    DecodeError,
    Durability,
    OptionsMismatchError,
    SchemaMismatchError,
    open_channel,
)
from tests.backends import one_loop
from tests.channel.messages import Order

pytestmark = pytest.mark.anyio

SMALL = ChannelOptions(segment_size=4096)


async def test_a_channel_says_what_it_is(path: Path) -> None:
    """The repr names the directory, and whether the channel is closed."""
    async with open_channel(path, Order) as orders:
        assert repr(orders) == f"<FileChannel {str(path)!r}>"
    assert repr(orders) == f"<FileChannel {str(path)!r} closed>"


# Statistics


@one_loop
async def test_statistics_of_a_new_channel(path: Path) -> None:
    """A new channel has nothing stored, no sender or receiver and no age."""
    async with open_channel(path, Order) as orders:
        found = orders.statistics()
    assert found.path == path
    assert (found.write_offset, found.oldest_offset, found.durable_offset) == (0, 0, 0)
    assert (found.messages, found.next_sequence) == (0, 0)
    assert (found.senders, found.receivers, found.waiters) == (0, 0, 0)
    assert found.oldest_age is None
    assert not found.sealed


async def test_statistics_count_messages_and_users(path: Path) -> None:
    """Statistics show what is stored and how many senders and receivers are open, clones included."""
    async with open_channel(path, Order) as orders:
        with orders.sender() as tx, tx.clone(), orders.receiver() as rx, rx.clone(), orders.replay():
            await tx.send_many([Order(1), Order(2), Order(3)])
            await rx.receive()
            found = orders.statistics()
            assert (found.messages, found.next_sequence) == (3, 3)
            assert found.write_offset == tx.write_offset > 0
            assert (found.senders, found.receivers) == (2, 3)
            assert (found.segments, found.mapped_segments) == (1, 1)
            assert found.bytes_on_disk > 0
            assert found.oldest_age is not None
            assert timedelta() <= found.oldest_age < timedelta(minutes=10)
        assert (orders.statistics().senders, orders.statistics().receivers) == (0, 0)


@one_loop
async def test_statistics_count_segments(path: Path) -> None:
    """A channel that outgrew its segment has several, of which a limited number is mapped."""
    options = ChannelOptions(segment_size=4096, max_mapped_segments=2)
    async with open_channel(path, bytes, options=options) as channel, channel.sender() as tx:
        for _ in range(100):
            await tx.send(bytes(1000))
        found = channel.statistics()
    assert found.messages == 100
    assert found.segments > 20
    assert found.mapped_segments == 2


async def test_statistics_count_waiters(path: Path) -> None:
    """Tasks that wait for a message are counted while they wait."""
    async with open_channel(path, Order) as orders, orders.sender() as tx:
        with orders.receiver("a") as first, orders.receiver("b") as second:
            async with anyio.create_task_group() as group:
                group.start_soon(first.receive)
                group.start_soon(second.receive)
                await anyio.wait_all_tasks_blocked()
                assert orders.statistics().waiters == 2
                await tx.send(Order(1))
            assert orders.statistics().waiters == 0


@one_loop
async def test_statistics_are_a_snapshot(path: Path) -> None:
    """Statistics do not change afterwards, and cannot be changed."""
    async with open_channel(path, Order) as orders, orders.sender() as tx:
        found = orders.statistics()
        await tx.send(Order(1))
        assert found.messages == 0
        with pytest.raises(AttributeError):
            found.messages = 3  # type: ignore[misc]


# Offsets


async def test_offset_of_finds_every_message(path: Path) -> None:
    """`offset_of` returns what `send_nowait` returned for the message of that number, in every segment."""
    async with open_channel(path, int, options=SMALL) as channel, channel.sender() as tx:
        offsets = [tx.send_nowait(number) for number in range(2000)]
        for sequence in (0, 1, 777, 1999):
            assert await channel.offset_of(sequence) == offsets[sequence]
        assert await channel.offset_of(2000) == tx.write_offset


@one_loop
@pytest.mark.parametrize("sequence", [-1, 4, 1 << 70])
async def test_offset_of_a_message_that_is_not_stored(path: Path, sequence: int) -> None:
    """A number that no stored message has is a `ValueError` that names those that are."""
    async with open_channel(path, int) as channel, channel.sender() as tx:
        await tx.send_many([1, 2, 3])
        with pytest.raises(ValueError, match="0 to 2"):
            await channel.offset_of(sequence)


async def test_offset_of_in_an_empty_channel(path: Path) -> None:
    """In an empty channel the next message is the only valid position."""
    async with open_channel(path, int) as channel:
        assert await channel.offset_of(0) == 0
        with pytest.raises(ValueError, match="not stored"):
            await channel.offset_of(1)


# Flush


async def test_flush_brings_everything_to_disk(path: Path) -> None:
    """After a flush the durable offset has reached the write offset."""
    async with open_channel(path, Order) as orders, orders.sender() as tx:
        await tx.send_many([Order(1), Order(2)])
        assert orders.statistics().durable_offset < tx.write_offset
        await orders.flush()
        assert orders.statistics().durable_offset == tx.write_offset
        assert tx.statistics().durable_offset == tx.write_offset


async def test_flush_of_an_empty_channel(path: Path) -> None:
    """Flushing an empty channel is not an error."""
    async with open_channel(path, Order) as orders:
        await orders.flush()
        await orders.flush()


# Seal


async def test_a_sealed_channel_takes_nothing_more(path: Path) -> None:
    """After `seal` every way to send raises `ChannelSealedError`, also after reopening."""
    async with open_channel(path, Order) as orders:
        await orders.seal()
        assert orders.statistics().sealed
    async with open_channel(path, Order) as orders, orders.sender() as tx:
        assert orders.statistics().sealed
        with pytest.raises(ChannelSealedError, match=str(path)):
            await tx.send(Order(1))
        with pytest.raises(ChannelSealedError):
            tx.send_nowait(Order(1))
        with pytest.raises(ChannelSealedError):
            await tx.send_many([Order(1)])
        with pytest.raises(ChannelSealedError):
            tx.send_many_nowait([Order(1)])
        await tx.send_many([])
        assert orders.statistics().messages == 0


async def test_sealing_twice_is_sealing_once(path: Path) -> None:
    """Sealing a sealed channel changes nothing."""
    async with open_channel(path, Order) as orders:
        await orders.seal()
        before = orders.statistics().write_offset
        await orders.seal()
        assert orders.statistics().write_offset == before


async def test_receivers_of_a_sealed_channel_get_all_and_then_its_end(path: Path) -> None:
    """Every way to receive gives what is there first and `EndOfStream` afterwards, again and again."""
    async with open_channel(path, int) as channel, channel.sender() as tx, channel.receiver() as rx:
        await tx.send_many([1, 2, 3, 4])
        await channel.seal()
        assert await rx.receive() == 1
        assert rx.receive_nowait() == 2
        assert (await rx.receive_record()).value == 3
        assert await rx.receive_many(5) == [4]
        for _ in range(2):
            with pytest.raises(EndOfStream):
                await rx.receive()
            with pytest.raises(EndOfStream):
                rx.receive_nowait()
            with pytest.raises(EndOfStream):
                await rx.receive_record()
            with pytest.raises(EndOfStream):
                await rx.receive_many(5)
            with pytest.raises(EndOfStream):
                rx.receive_many_nowait(5)
            assert rx.peek(5) == []
            assert [item async for item in rx] == []


async def test_sealing_ends_the_wait_of_receivers(path: Path) -> None:
    """Tasks that wait for a message get `EndOfStream` when the channel is sealed."""
    async with open_channel(path, int) as channel, channel.receiver("a") as first, channel.receiver("b") as second:
        async with anyio.create_task_group() as group:

            async def receive() -> None:
                with pytest.raises(EndOfStream):
                    await first.receive()

            async def iterate() -> None:
                assert [item async for item in second] == []

            group.start_soon(receive)
            group.start_soon(iterate)
            await anyio.wait_all_tasks_blocked()
            await channel.seal()


async def test_the_end_of_a_sealed_channel_is_the_end_after_reopening(path: Path) -> None:
    """A consumer of a sealed channel that comes back gets the rest and the end."""
    async with open_channel(path, int) as channel, channel.sender() as tx, channel.receiver() as rx:
        await tx.send_many([1, 2])
        assert await rx.receive() == 1
        await channel.seal()
    async with open_channel(path, int) as channel, channel.receiver() as rx:
        assert [item async for item in rx] == [2]
    async with open_channel(path, int) as channel, channel.receiver() as rx, channel.replay() as history:
        assert [item async for item in rx] == []
        assert [item async for item in history] == [1, 2]


async def test_sealing_under_fsync_shows_every_message_first(path: Path) -> None:
    """Under FSYNC no receiver sees the end before a message that was accepted before the seal."""
    options = ChannelOptions(durability=Durability.FSYNC)
    async with open_channel(path, int, options=options) as channel, channel.sender() as tx, channel.receiver() as rx:
        for number in range(50):
            tx.send_nowait(number)
        async with anyio.create_task_group() as group:
            group.start_soon(channel.seal)
            assert [item async for item in rx] == list(range(50))


# Purge


async def test_purge_removes_every_message(path: Path) -> None:
    """After `purge` nothing is stored, and every consumer continues with what is sent afterwards."""
    async with open_channel(path, int, options=SMALL) as channel, channel.sender() as tx:
        with channel.receiver("open") as rx:
            for number in range(2000):
                tx.send_nowait(number)
            assert await rx.receive() == 0
            before = channel.statistics()
            await channel.purge()
            after = channel.statistics()
            assert (after.messages, after.segments) == (0, 1)
            assert after.oldest_offset == after.write_offset == before.write_offset
            assert after.next_sequence == 2000
            assert after.bytes_on_disk < before.bytes_on_disk
            assert after.oldest_age is None
            await tx.send(2000)
            assert await rx.receive() == 2000
            with channel.receiver("late") as late:
                assert (await late.receive_record()).sequence == 2000


async def test_purge_moves_closed_consumers(path: Path) -> None:
    """A consumer whose receiver is closed resumes after a purge, without an error."""
    async with open_channel(path, int) as channel, channel.sender() as tx:
        with channel.receiver("away"):
            pass
        await tx.send_many([1, 2, 3])
        await channel.purge()
        await tx.send(4)
        with channel.receiver("away") as rx:
            assert await rx.receive() == 4


async def test_purge_survives_reopening(path: Path) -> None:
    """Purged messages do not return, and sequences continue."""
    async with open_channel(path, int) as channel, channel.sender() as tx:
        await tx.send_many([1, 2, 3])
        await channel.purge()
    async with open_channel(path, int) as channel, channel.sender() as tx, channel.receiver() as rx:
        await tx.send(4)
        record = await rx.receive_record()
        assert (record.value, record.sequence) == (4, 3)


async def test_purge_of_an_empty_channel(path: Path) -> None:
    """Purging an empty channel is not an error, as often as you like."""
    async with open_channel(path, int) as channel, channel.sender() as tx, channel.receiver() as rx:
        await channel.purge()
        await channel.purge()
        await tx.send(1)
        assert await rx.receive() == 1


async def test_purge_while_a_receiver_waits(path: Path) -> None:
    """A task that waits for a message gets the first one after the purge."""
    async with open_channel(path, int) as channel, channel.sender() as tx, channel.receiver() as rx:
        await tx.send(1)
        await rx.receive()
        got: list[int] = []

        async def receive() -> None:
            got.append(await rx.receive())

        async with anyio.create_task_group() as group:
            group.start_soon(receive)
            await anyio.wait_all_tasks_blocked()
            await channel.purge()
            await tx.send(2)
        assert got == [2]


async def test_purge_of_a_sealed_channel_leaves_it_sealed(path: Path) -> None:
    """A sealed channel that was purged is an empty sealed channel."""
    async with open_channel(path, int) as channel, channel.sender() as tx:
        await tx.send(1)
        await channel.seal()
        await channel.purge()
    async with open_channel(path, int) as channel, channel.receiver() as rx, channel.sender() as tx:
        with pytest.raises(EndOfStream):
            await rx.receive()
        with pytest.raises(ChannelSealedError):
            await tx.send(2)


# Configure


async def test_configure_changes_the_durability_for_good(path: Path) -> None:
    """The new durability is what the channel has from now on, also after reopening."""
    async with open_channel(path, int) as channel, channel.sender() as tx, channel.receiver() as rx:
        await tx.send(1)
        await channel.configure(durability=Durability.FSYNC)
        await tx.send(2)
        assert channel.statistics().durable_offset == tx.write_offset
        await channel.configure(durability=Durability.interval(60))
        await tx.send(3)
        await channel.configure(durability=Durability.OS)
        await tx.send(4)
        assert await rx.receive_many(10) == [1, 2, 3, 4]
        await channel.configure(durability=Durability.FSYNC)
    with pytest.raises(OptionsMismatchError, match="durability"):
        await open_channel(path, int, options=ChannelOptions(durability=Durability.OS))
    async with open_channel(path, int, options=ChannelOptions(durability=Durability.FSYNC)):
        pass


async def test_configure_back_from_fsync_publishes_pending_messages(path: Path) -> None:
    """Messages that waited for the disk are visible when the durability is no longer FSYNC."""
    options = ChannelOptions(durability=Durability.FSYNC)
    async with open_channel(path, int, options=options) as channel, channel.sender() as tx, channel.receiver() as rx:
        for number in range(20):
            tx.send_nowait(number)
        await channel.configure(durability=Durability.OS)
        assert rx.receive_many_nowait(100) == list(range(20))


async def test_configure_changes_the_schema_for_later_opens(path: Path) -> None:
    """A new schema is what the next open has to fit; messages that do not fit it raise `DecodeError`."""

    class Renamed(msgspec.Struct):
        number: int

    async with open_channel(path, Order) as orders, orders.sender() as tx:
        await tx.send(Order(1))
        await orders.configure(schema=Renamed)
        await tx.send(Order(2))
        assert orders.message_type is Order
    with pytest.raises(SchemaMismatchError):
        await open_channel(path, Order)
    async with open_channel(path, Renamed) as channel, channel.sender() as tx2, channel.receiver() as rx:
        await tx2.send(Renamed(3))
        for _ in range(2):
            with pytest.raises(DecodeError, match="number") as caught:
                await rx.receive()
            await rx.seek(caught.value.next_offset)
        assert await rx.receive() == Renamed(3)


@one_loop
async def test_configure_of_two_things_at_once_loses_neither(path: Path) -> None:
    """Concurrent calls that change different things both take effect."""

    class Other(msgspec.Struct):
        name: str

    for attempt in range(10):
        async with open_channel(path / str(attempt), Order) as orders:
            async with anyio.create_task_group() as group:
                group.start_soon(lambda channel=orders: channel.configure(schema=Other))
                group.start_soon(lambda channel=orders: channel.configure(durability=Durability.FSYNC))
        async with open_channel(path / str(attempt), Other, options=ChannelOptions(durability=Durability.FSYNC)):
            pass


@one_loop
async def test_configure_says_why_it_does_not_take_an_option(path: Path) -> None:
    """`configure` refuses `segment_size`, `validate` and unknown options, each with the reason."""
    expected = {
        "segment_size": "cannot change segment_size: it is fixed at creation",
        "validate": "cannot change validate: it is not stored; pass it to open_channel",
        "durabilty": "unexpected keyword argument 'durabilty'",
    }
    async with open_channel(path, bytes) as channel:
        for name, says in expected.items():
            with pytest.raises(TypeError, match=says):
                await channel.configure(**{name: 4096})  # type: ignore[arg-type]


@one_loop
async def test_configure_refuses_a_schema_that_cannot_be_opened(path: Path) -> None:
    """A raw channel stays raw, and an invalid schema is refused; nothing changes."""
    async with open_channel(path, bytes) as channel:
        with pytest.raises(TypeError, match="bytes"):
            await channel.configure(schema=Order)
    async with open_channel(path, bytes) as channel:
        with pytest.raises(TypeError):
            await channel.configure(schema=object())  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="durability"):
            await channel.configure(durability="fsync")  # type: ignore[arg-type]
    async with open_channel(path, bytes):
        pass


async def test_configure_of_nothing_changes_nothing(path: Path) -> None:
    """`configure` without arguments leaves the manifest as it is."""
    async with open_channel(path, Order) as orders:
        before = (path / "channel.json").read_bytes()
        await orders.configure()
        assert (path / "channel.json").read_bytes() == before


async def test_the_async_methods_are_done_in_threads(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tasks run while flush, seal, purge, configure or close wait for a slow disk."""
    import threading

    from filechannel._storage.system.os_calls import Files

    flush, slow, loop_thread = Files.flush, threading.Event(), threading.get_ident()

    def slow_flush(self: Files, descriptor: int) -> None:
        assert threading.get_ident() != loop_thread
        slow.set()
        flush(self, descriptor)

    monkeypatch.setattr(Files, "flush", slow_flush)
    for action in ("flush", "purge", "seal", "configure", "aclose"):
        channel = await open_channel(path / action, int, options=ChannelOptions(durability=Durability.interval(100)))
        with channel.sender() as tx:
            await tx.send(1)
            slow.clear()
            await getattr(channel, action)()
        await channel.aclose()
        assert await run_sync(slow.wait, 30)


async def test_the_number_of_a_message_is_an_integer(path: Path) -> None:
    """`offset_of` refuses anything but an integer before it searches the log."""
    async with open_channel(path, int) as channel, channel.sender() as tx:
        await tx.send_many([1, 2, 3])
        for wrong in (0.5, "x", True, None):
            with pytest.raises(TypeError, match="sequence="):
                await channel.offset_of(wrong)  # type: ignore[arg-type]


async def test_a_typed_channel_cannot_become_a_raw_one(path: Path) -> None:
    """`configure` refuses to make a typed channel raw, because the codec is fixed at creation."""
    async with open_channel(path, int) as channel:
        with pytest.raises(TypeError, match="the codec is fixed at creation"):
            await channel.configure(schema=bytes)
    async with open_channel(path, int):
        pass
