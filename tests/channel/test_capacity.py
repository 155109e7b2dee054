"""A channel with a capacity: a sender that exceeds it waits, gets an error, or drops the oldest messages."""

from __future__ import annotations

import gc
import random
import weakref
from dataclasses import replace
from pathlib import Path

import anyio
import pytest
from anyio import ClosedResourceError, WouldBlock
from anyio.to_thread import run_sync

from filechannel import (
    Capacity,
    ChannelFullError,
    ChannelOptions,
    ChannelSealedError,
    DataExpiredError,
    Durability,
    FileChannel,
    MessageTooLargeError,
    Retention,
    Sender,
    open_channel,
)
from filechannel._maintenance.background.maintenance_thread import MAINTENANCE
from filechannel._offset import LogPosition
from filechannel._storage.system.os_calls import Files
from tests.processes.workers import until

pytestmark = pytest.mark.anyio

FEW = Capacity(max_messages=4)
SMALL = Capacity(max_bytes=16384)
RAISE = Capacity(max_messages=4, on_full="raise")
DROP = Capacity(max_messages=8, on_full="drop_oldest")


def with_capacity(capacity: Capacity, durability: Durability = Durability.OS) -> ChannelOptions:
    """Return options with a capacity and small segments."""
    return ChannelOptions(capacity=capacity, durability=durability, segment_size=4096)


async def fill(tx: Sender[int], count: int = 4) -> None:
    """Send 0, 1, 2 and so on."""
    for number in range(count):
        await tx.send(number)


# Waiting


@pytest.mark.parametrize("durability", [Durability.OS, Durability.FSYNC])
async def test_a_send_waits_until_a_consumer_takes_something(path: Path, durability: Durability) -> None:
    """A waiting send continues when a consumer frees capacity, and at most the capacity is stored, in order."""
    async with open_channel(path, int, options=with_capacity(FEW, durability)) as channel:
        async with channel.sender() as tx, channel.receiver() as rx, anyio.create_task_group() as group:
            await fill(tx)
            sent = anyio.Event()

            async def send_more() -> None:
                await tx.send(4)
                sent.set()

            group.start_soon(send_more)
            await anyio.wait_all_tasks_blocked()
            assert not sent.is_set()
            assert await rx.receive() == 0
            await sent.wait()
            with pytest.raises(WouldBlock):
                tx.send_nowait(5)
            assert rx.receive_many_nowait(10) == [1, 2, 3, 4]


async def test_a_cancelled_send_was_not_sent(path: Path) -> None:
    """A cancelled send, of one message or a batch, sends nothing, and the next sender in the queue continues."""
    async with open_channel(path, int, options=with_capacity(FEW)) as channel:
        async with channel.sender() as tx, channel.receiver() as rx, anyio.create_task_group() as group:
            await fill(tx)
            scope = anyio.CancelScope()

            async def send_cancelled() -> None:
                with scope:
                    await tx.send_many([100, 101])

            group.start_soon(send_cancelled)
            await anyio.wait_all_tasks_blocked()
            group.start_soon(tx.send, 4)
            await anyio.wait_all_tasks_blocked()
            assert await rx.receive() == 0
            await anyio.wait_all_tasks_blocked()
            assert tx.statistics().next_sequence == 4  # the batch is first, and does not fit
            scope.cancel()
            assert [await rx.receive() for _ in range(4)] == [1, 2, 3, 4]
        assert channel.statistics().messages == 5


async def test_nowait_never_waits(path: Path) -> None:
    """`send_nowait` raises `WouldBlock` and names what did not fit, also for a batch of which a part would fit."""
    async with open_channel(path, int, options=with_capacity(FEW)) as channel, channel.sender() as tx:
        await fill(tx, 3)
        with pytest.raises(WouldBlock):
            tx.send_many_nowait([3, 4])
        tx.send_many_nowait([3])
        with pytest.raises(ChannelFullError) as caught:
            tx.send_nowait(4)
        assert (caught.value.path, caught.value.size, caught.value.messages) == (path, 9, 1)
        assert channel.statistics().messages == 4


async def test_bytes_are_counted_to_the_last(path: Path) -> None:
    """A capacity in bytes counts headers, across segments, and a batch as a whole."""
    async with open_channel(path, bytes, options=with_capacity(SMALL)) as channel, channel.sender() as tx:
        for _ in range(16):
            await tx.send(bytes(1000 - 8))
        left = 16384 - 16000
        with pytest.raises(WouldBlock):
            tx.send_nowait(bytes(left - 7))
        with pytest.raises(WouldBlock):
            tx.send_many_nowait([bytes(left - 15), b""])
        tx.send_many_nowait([bytes(left - 16), b""])
        with pytest.raises(WouldBlock):
            tx.send_nowait(b"")
        room = channel.statistics().room
        assert room is not None
        assert (room.bytes, room.messages, room.max_bytes, room.max_messages) == (16384, 18, 16384, None)


async def test_a_batch_that_can_never_fit_is_refused_at_once(path: Path) -> None:
    """A batch above the capacity is refused at once, whatever is stored and whatever the policy is."""
    both = Capacity(max_bytes=16384, max_messages=4)
    async with open_channel(path, bytes, options=with_capacity(both)) as channel, channel.sender() as tx:
        with pytest.raises(MessageTooLargeError) as caught:
            await tx.send(bytes(16384 - 7))
        assert (caught.value.size, caught.value.limit, caught.value.unit) == (16385, 16384, "bytes")
        with pytest.raises(MessageTooLargeError) as caught:
            await tx.send_many([b""] * 5)
        assert (caught.value.size, caught.value.limit, caught.value.unit) == (5, 4, "messages")
        await tx.send(bytes(16384 - 8))
        assert channel.statistics().messages == 1


@pytest.mark.parametrize("on_full", ["wait", "raise", "drop_oldest"])
async def test_the_slowest_consumer_counts(path: Path, on_full: str) -> None:
    """The slowest consumer, plain or acknowledging, decides the backlog; a removed one does not count any more."""
    capacity = Capacity(max_messages=4, on_full=on_full)  # type: ignore[arg-type]
    options = replace(with_capacity(capacity), retention=Retention(after_consumed="keep"))
    async with open_channel(path, int, options=options) as channel, channel.sender() as tx:
        fast, slow = channel.receiver("fast"), channel.ack_receiver("slow")
        await fill(tx)
        assert fast.receive_many_nowait(10) == [0, 1, 2, 3]
        assert [await slow.receive() for _ in range(3)] == [0, 1, 2]
        assert channel.statistics().room.messages == 4  # type: ignore[union-attr]
        slow.ack(2)
        assert channel.statistics().room.messages == 2  # type: ignore[union-attr]
        await slow.unsubscribe()
        assert channel.statistics().room.messages == 0  # type: ignore[union-attr]
        await fast.unsubscribe()
        assert channel.statistics().room.messages == 4  # type: ignore[union-attr]


async def _acks(channel: FileChannel[int]) -> None:
    with channel.ack_receiver("slow") as rx:
        await rx.receive()
        rx.ack()


async def _acks_a_delivery(channel: FileChannel[int]) -> None:
    with channel.ack_receiver("slow") as rx:
        (await rx.receive_delivery()).ack()


async def _processes(channel: FileChannel[int]) -> None:
    with channel.ack_receiver("slow") as rx:
        async with rx.processing():
            pass


async def _receives_many(channel: FileChannel[int]) -> None:
    with channel.receiver("slow") as rx:
        await rx.receive_many(2)


async def _seeks_forward(channel: FileChannel[int]) -> None:
    with channel.receiver("slow") as rx:
        await rx.seek("latest")


async def _unsubscribes(channel: FileChannel[int]) -> None:
    await channel.receiver("slow").unsubscribe()


async def _is_removed(channel: FileChannel[int]) -> None:
    await channel.remove_consumer("slow")


async def _is_purged(channel: FileChannel[int]) -> None:
    await channel.purge()


async def _expires(channel: FileChannel[int]) -> None:
    channel.receiver("slow", expires=0.05).close()


async def _gets_more_capacity(channel: FileChannel[int]) -> None:
    await channel.configure(capacity=Capacity(max_messages=5))


async def _gets_rid_of_the_limit(channel: FileChannel[int]) -> None:
    await channel.configure(capacity=None)


@pytest.mark.parametrize(
    "make_room",
    [
        _acks,
        _acks_a_delivery,
        _processes,
        _receives_many,
        _seeks_forward,
        _unsubscribes,
        _is_removed,
        _is_purged,
        _expires,
        _gets_more_capacity,
        _gets_rid_of_the_limit,
    ],
)
@pytest.mark.parametrize("elsewhere", [False, True])
async def test_a_waiting_sender_notices_everything_that_frees_capacity(path: Path, make_room, elsewhere: bool) -> None:  # type: ignore[no-untyped-def]
    """A waiting sender notices every event that frees capacity, through this channel object or another one."""
    async with open_channel(path, int, options=with_capacity(FEW)) as channel, open_channel(path, int) as other:
        channel.receiver("quick", start="latest").close()
        channel.receiver("slow").close()
        async with channel.sender() as tx, anyio.create_task_group() as group:
            await fill(tx)
            with channel.receiver("quick") as quick:
                assert len(await quick.receive_many(4)) == 4
            group.start_soon(tx.send, 4)
            await anyio.wait_all_tasks_blocked()
            assert channel.statistics().room.waiting_senders == 1  # type: ignore[union-attr]
            await make_room(other if elsewhere else channel)


async def test_a_consumer_that_seeks_back_uses_capacity(path: Path) -> None:
    """A seek back, a new consumer at the oldest message, and the removal of the only consumer use capacity."""
    async with open_channel(path, int, options=with_capacity(FEW)) as channel, channel.sender() as tx:
        rx = channel.receiver()
        await fill(tx)
        assert rx.receive_many_nowait(9) == [0, 1, 2, 3]
        await tx.send(4)
        await rx.seek("earliest")
        with pytest.raises(WouldBlock):
            tx.send_nowait(5)
        assert rx.receive_many_nowait(9) == [0, 1, 2, 3, 4]
        await tx.send(5)
        with channel.receiver("new"), pytest.raises(WouldBlock):
            tx.send_nowait(6)
        await channel.remove_consumer("new")
        await tx.send(6)
        await rx.unsubscribe()
        with pytest.raises(WouldBlock):
            tx.send_nowait(7)


async def test_a_large_batch_is_not_overtaken_for_ever(path: Path) -> None:
    """Later senders wait behind a large batch, even where a small message would fit."""
    async with open_channel(path, int, options=with_capacity(FEW)) as channel:
        async with channel.sender() as tx, channel.receiver() as rx, anyio.create_task_group() as group:
            await fill(tx)
            group.start_soon(tx.send_many, [10, 11, 12, 13])
            await anyio.wait_all_tasks_blocked()
            group.start_soon(tx.send, 20)
            await anyio.wait_all_tasks_blocked()
            for number in range(3):
                assert await rx.receive() == number
                await anyio.wait_all_tasks_blocked()
                with pytest.raises(WouldBlock):
                    tx.send_nowait(30)
            assert [await rx.receive() for _ in range(6)] == [3, 10, 11, 12, 13, 20]


async def test_many_senders_wait_in_order(path: Path) -> None:
    """Senders that wait for capacity are served in the order in which they came."""
    async with open_channel(path, int, options=with_capacity(Capacity(max_messages=1))) as channel:
        async with channel.sender() as tx, channel.receiver() as rx, anyio.create_task_group() as group:
            for number in range(50):
                group.start_soon(tx.send, number)
                await anyio.wait_all_tasks_blocked()
            assert [await rx.receive() for _ in range(50)] == list(range(50))


async def test_a_sender_that_is_closed_waits_no_longer(path: Path) -> None:
    """Closing a waiting sender ends its wait; senders behind it continue unless they are closed too."""
    async with open_channel(path, int, options=with_capacity(FEW)) as channel, channel.receiver() as rx:
        first, second = channel.sender(), channel.sender()
        await fill(second)
        failed = list[int]()

        async def send(tx: Sender[int], number: int) -> None:
            try:
                await tx.send(number)
            except ClosedResourceError:
                failed.append(number)

        async with anyio.create_task_group() as group:
            for number, tx in enumerate([first, second, first]):
                group.start_soon(send, tx, 10 + number)
                await anyio.wait_all_tasks_blocked()
            first.close()
            await anyio.wait_all_tasks_blocked()
            assert sorted(failed) == [10, 12]
            assert await rx.receive() == 0
        assert rx.receive_many_nowait(9) == [1, 2, 3, 11]


async def test_a_sealed_channel_refuses_waiting_senders(path: Path) -> None:
    """A seal needs no capacity, and waiting senders of the sealed channel get an error."""
    async with open_channel(path, int, options=with_capacity(FEW)) as channel, channel.sender() as tx:
        await fill(tx)
        refused = anyio.Event()

        async def send() -> None:
            with pytest.raises(ChannelSealedError):
                await tx.send(4)
            refused.set()

        async with anyio.create_task_group() as group:
            group.start_soon(send)
            await anyio.wait_all_tasks_blocked()
            await channel.seal()
            await refused.wait()


@pytest.mark.parametrize("durability", [Durability.OS, Durability.FSYNC])
async def test_cancelling_at_random_loses_nothing(path: Path, durability: Durability, rng: random.Random) -> None:
    """Cancelled sends did not happen, and the others did once each, in the order of their task."""
    tasks, rounds = 4, 60
    sent: list[list[int]] = [[] for _ in range(tasks)]
    async with open_channel(path, int, options=with_capacity(FEW, durability)) as channel, channel.sender() as tx:
        rx = channel.receiver()
        got = list[int]()

        async def send(task: int) -> None:
            for number in range(rounds):
                value = task * rounds + number
                with anyio.move_on_after(rng.choice([0, 0.0005, 0.002, 1])) as scope:
                    if rng.random() < 0.3:
                        await tx.send_many([value])
                    else:
                        await tx.send(value)
                    sent[task].append(value)
                if scope.cancelled_caught:
                    await anyio.lowlevel.checkpoint()

        async def receive() -> None:
            async for value in rx:
                got.append(value)
                if rng.random() < 0.5:
                    await anyio.sleep(rng.random() * 0.002)

        async with anyio.create_task_group() as group:
            group.start_soon(receive)
            async with anyio.create_task_group() as senders:
                for task in range(tasks):
                    senders.start_soon(send, task)
            await channel.seal()
    accepted = [[value for value in got if value // rounds == task] for task in range(tasks)]
    for task in range(tasks):
        # Under FSYNC a send that was cancelled too late returns normally, and its scope is cancelled afterwards.
        assert accepted[task] == sent[task]


# Raising


async def test_a_full_channel_may_refuse(path: Path) -> None:
    """With the policy "raise" a full channel raises a typed error, also in `send_nowait`, until capacity is freed."""
    async with open_channel(path, int, options=with_capacity(RAISE)) as channel, channel.sender() as tx:
        rx = channel.receiver()
        await fill(tx)
        with pytest.raises(ChannelFullError, match="full"):
            await tx.send(4)
        with pytest.raises(WouldBlock):
            tx.send_nowait(4)
        with pytest.raises(ChannelFullError):
            await tx.send_many([4, 5])
        assert await rx.receive() == 0
        await tx.send(4)
        assert rx.receive_many_nowait(9) == [1, 2, 3, 4]


@pytest.mark.parametrize("capacity", [FEW, RAISE], ids=["wait", "raise"])
async def test_the_error_names_the_slowest_consumer(path: Path, capacity: Capacity) -> None:
    """The error of a full channel names the slowest consumer, or says that everything stored counts."""
    async with open_channel(path, int, options=with_capacity(capacity)) as channel, channel.sender() as tx:
        await fill(tx)
        with pytest.raises(ChannelFullError, match="every stored message counts, because no consumer is registered"):
            tx.send_nowait(4)
        with channel.receiver():
            with pytest.raises(ChannelFullError, match="until its slowest consumer reads more"):
                tx.send_nowait(4)


# Dropping


async def test_the_oldest_messages_are_dropped(path: Path) -> None:
    """With "drop_oldest" an overtaken consumer gets the number of missed messages once, and continues."""
    async with open_channel(path, int, options=with_capacity(DROP)) as channel, channel.sender() as tx:
        rx, idle = channel.receiver(), channel.receiver("idle")
        idle.close()
        await fill(tx, 3)
        assert rx.receive_many_nowait(2) == [0, 1]
        for number in range(3, 30):
            await tx.send(number)
            assert channel.statistics().room.messages <= 8  # type: ignore[union-attr]
        with pytest.raises(DataExpiredError) as caught:
            await rx.receive()
        kept = rx.receive_many_nowait(100)
        assert kept[-1] == 29
        assert 6 <= len(kept) <= 8
        assert kept == list(range(30 - len(kept), 30))
        assert caught.value.missed == 30 - len(kept) - 2
        with channel.receiver("idle") as idle:
            with pytest.raises(DataExpiredError) as caught:
                idle.receive_nowait()
            assert caught.value.missed == 30 - len(kept)
            assert idle.receive_many_nowait(100) == kept


async def test_an_acknowledging_consumer_is_overtaken(path: Path) -> None:
    """An overtaken acknowledging consumer can ack what it holds, and gets the number it missed once."""
    async with open_channel(path, int, options=with_capacity(DROP)) as channel, channel.sender() as tx:
        rx = channel.ack_receiver()
        await fill(tx, 4)
        assert [await rx.receive() for _ in range(4)] == [0, 1, 2, 3]
        for number in range(4, 40):
            await tx.send(number)
        with pytest.raises(DataExpiredError) as caught:
            await rx.receive()
        first = await rx.receive()
        assert caught.value.missed == first - 4
        rx.ack(4)
        assert rx.unack_count == 1
        rx.nack()
        assert await rx.receive() == first


@pytest.mark.parametrize("kind", ["receiver", "ack_receiver", "group"])
async def test_a_seek_to_a_message_that_is_being_dropped_moves_nothing(path: Path, kind: str) -> None:
    """A seek to a message that is dropped during the lookup is refused, and the consumer gets the full number it
    missed.
    """
    async with open_channel(path, int, options=with_capacity(DROP)) as channel, channel.sender() as tx:
        MAINTENANCE.forget(channel._store)
        with getattr(channel, kind)("a") as rx:
            await fill(tx, 6)
            assert [await rx.receive() for _ in range(4)] == [0, 1, 2, 3]
            if kind != "receiver":
                rx.ack(4)
            find = rx._subscription.find

            def find_and_drop(*place: object) -> LogPosition:
                found = find(*place)
                rx._subscription.find = find
                for number in range(6, 40):
                    tx.send_nowait(number)
                return found

            target = await channel.offset_of(2)
            rx._subscription.find = find_and_drop
            with pytest.raises(ValueError, match="not in the channel"):
                await rx.seek(target)
            with pytest.raises(DataExpiredError) as caught:
                await rx.receive()
            assert await rx.receive() == 4 + caught.value.missed


async def test_nothing_is_dropped_before_it_can_be_seen(path: Path) -> None:
    """Under FSYNC a message drops others only when it is visible, which is when it is on disk."""
    options = with_capacity(Capacity(max_messages=4, on_full="drop_oldest"), Durability.FSYNC)
    async with open_channel(path, int, options=options) as channel, channel.sender() as tx:
        async with anyio.create_task_group() as group:
            for number in range(40):
                group.start_soon(tx.send, number)
        await run_sync(lambda: [tx.send_nowait(number) for number in range(40, 60)])
        await channel.flush()
        with channel.replay() as replay:
            kept = replay.receive_many_nowait(99)
        assert kept == list(range(60 - len(kept), 60))
        assert 1 <= len(kept) <= 4
        assert channel.statistics().next_sequence == 60


async def test_a_consumer_that_keeps_up_loses_nothing(path: Path) -> None:
    """A consumer that keeps up loses no message, whatever the capacity is."""
    async with open_channel(path, int, options=with_capacity(DROP)) as channel, channel.sender() as tx:
        with channel.receiver() as rx:
            for number in range(500):
                await tx.send(number)
                assert await rx.receive() == number
    async with open_channel(path, int) as channel:
        assert channel.statistics().next_sequence == 500


async def test_dropped_segments_are_removed(path: Path) -> None:
    """Dropped segments are deleted, so that the disk use stays within the capacity, also after reopening."""
    capacity = Capacity(max_bytes=4 * 4096, on_full="drop_oldest")
    async with open_channel(path, bytes, options=with_capacity(capacity)) as channel, channel.sender() as tx:
        for number in range(2000):
            tx.send_nowait(b"%d:" % number + bytes(100))
        await run_sync(until, lambda: channel.statistics().segments <= 6)
    async with open_channel(path, bytes) as channel:
        with channel.replay() as replay:
            kept = [int(item.split(b":")[0]) for item in replay.receive_many_nowait(2000)]
        assert kept == list(range(kept[0], 2000))
        assert 12288 - 120 < sum(len(b"%d:" % number) + 108 for number in kept) <= 16384


async def test_a_batch_pushes_out_as_much_as_it_needs(path: Path) -> None:
    """A large batch drops as many of the oldest messages as it needs, up to all of them."""
    async with open_channel(path, int, options=with_capacity(DROP)) as channel, channel.sender() as tx:
        await fill(tx, 8)
        await tx.send_many(list(range(100, 108)))
        with channel.replay() as replay:
            assert replay.receive_many_nowait(99) == list(range(100, 108))
        with pytest.raises(MessageTooLargeError):
            await tx.send_many([0] * 9)


async def test_nothing_is_left_of_a_channel_that_was_closed(path: Path) -> None:
    """A channel that was closed while a sender waited in it leaves no object behind."""
    stores = weakref.WeakSet[object]()
    for _ in range(5):
        async with open_channel(path, int, options=with_capacity(FEW)) as channel, channel.sender() as tx:
            channel.receiver().close()
            await channel.purge()
            await fill(tx)
            with anyio.move_on_after(0.01):
                await tx.send(4)
            stores.add(channel._store)
        del channel, tx
    with anyio.fail_after(60):  # a maintenance thread may be about to release the last one
        while stores:
            await anyio.wait_all_tasks_blocked()  # trio releases what it watched in a separate task
            gc.collect()


# Changing it


async def test_a_capacity_below_what_is_used(path: Path) -> None:
    """After the capacity is configured below what is stored nothing is lost, and senders wait until it is freed."""
    async with open_channel(path, int) as channel, channel.sender() as tx, channel.receiver() as rx:
        await fill(tx, 10)
        await channel.configure(capacity=FEW)
        with pytest.raises(WouldBlock):
            tx.send_nowait(10)
        assert rx.receive_many_nowait(6) == [0, 1, 2, 3, 4, 5]
        with pytest.raises(WouldBlock):
            tx.send_nowait(10)
        assert await rx.receive() == 6
        tx.send_nowait(10)
        assert rx.receive_many_nowait(9) == [7, 8, 9, 10]


async def test_a_part_of_the_file_system(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of the file system is converted to bytes, and the smaller limit counts."""
    monkeypatch.setattr(Files, "total_space", lambda *_: 1 << 40)
    capacity = Capacity(fraction=2**-24, max_bytes=1 << 20, on_full="raise")
    async with open_channel(path, bytes, options=ChannelOptions(capacity=capacity)) as channel, channel.sender() as tx:
        assert channel.statistics().room.max_bytes == 1 << 16  # type: ignore[union-attr]
        assert channel._store.manifest.options.segment_size == 1 << 14
        with pytest.raises(MessageTooLargeError):
            await tx.send(bytes(1 << 16))
        await tx.send(bytes(1 << 15))
    monkeypatch.setattr(Files, "total_space", lambda *_: 1 << 39)
    async with open_channel(path, bytes, options=ChannelOptions(capacity=capacity)) as channel:
        assert channel.statistics().room.max_bytes == 1 << 15  # type: ignore[union-attr]


async def test_a_part_of_the_file_system_that_is_next_to_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of the file system that is too small is refused, for new and existing channels, and changes nothing."""
    monkeypatch.setattr(Files, "total_space", lambda *_: 1 << 40)
    nothing = Capacity(fraction=1e-12)
    with pytest.raises(ValueError, match="is 1 bytes in this file system"):
        async with open_channel(path, int, options=ChannelOptions(capacity=nothing)):
            pass
    assert not await anyio.Path(path).exists()
    async with open_channel(path, int, options=with_capacity(FEW)) as channel:
        with pytest.raises(ValueError, match="at least four segments, 16384"):
            await channel.configure(capacity=nothing)
        assert channel.statistics().room.max_messages == 4  # type: ignore[union-attr]


async def test_the_capacity_is_kept(path: Path) -> None:
    """A channel that is reopened has the same capacity, and is as full as before."""
    async with open_channel(path, int, options=with_capacity(RAISE)) as channel, channel.sender() as tx:
        await fill(tx)
    async with open_channel(path, int) as channel, channel.sender() as tx:
        with pytest.raises(ChannelFullError):
            await tx.send(4)
    async with open_channel(path, int, readonly=True) as channel:
        assert channel.statistics().room.messages == 4  # type: ignore[union-attr]
