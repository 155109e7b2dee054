"""Acknowledging in order: a message is redelivered until it is acked."""

from __future__ import annotations

from pathlib import Path

import anyio
import msgspec
import pytest
from anyio import ClosedResourceError, EndOfStream, WouldBlock
from anyio.to_thread import run_sync

from filechannel import (
    AckError,
    Acknowledgable,
    AckReceiver,
    ChannelOptions,
    ConsumerBusyError,
    DataExpiredError,
    DecodeError,
    FileChannel,
    open_channel,
)
from filechannel._format import PURE
from filechannel._storage.consumers.cursors import read_position
from filechannel._wakeup.waiters import Waiters
from tests.backends import one_loop
from tests.channel.overtaking import overtake

pytestmark = pytest.mark.anyio
SMALL = ChannelOptions(segment_size=4096)


def stored(channel: FileChannel[int], name: str = "default") -> int:
    """Return the sequence of the message at which a consumer would resume after a crash."""
    position = read_position((channel.path / "consumers" / f"{name}.cursor").read_bytes())
    assert position is not None
    return position.sequence


async def fill(channel: FileChannel[int], count: int) -> None:
    """Send so many numbers."""
    with channel.sender() as tx:
        await tx.send_many(range(count))


# Ack


async def test_receiving_does_not_move_the_stored_position(path: Path) -> None:
    """The stored position stays at the oldest unacknowledged message, however messages are received."""
    async with open_channel(path, int, options=SMALL) as channel:
        await fill(channel, 5000)
        with channel.ack_receiver() as rx:
            assert await rx.receive() == 0
            assert rx.receive_nowait() == 1
            assert (await rx.receive_record()).sequence == 2
            assert rx.receive_many_nowait(2) == [3, 4]
            assert await rx.receive_many(3) == [5, 6, 7]
            assert await rx.receive_many(2000) == list(range(8, 2008))
            assert await anext(rx) == 2008
            assert rx.unack_count == 2009
            assert rx.statistics().unacked == 2009
            assert stored(channel) == 0
            rx.ack(2009)
            assert stored(channel) == 2009


async def test_ack_moves_past_the_oldest(path: Path) -> None:
    """Each ack acknowledges the oldest outstanding messages, one by default."""
    async with open_channel(path, int) as channel:
        await fill(channel, 10)
        with channel.ack_receiver() as rx:
            rx.receive_many_nowait(6)
            rx.ack()
            assert (rx.unack_count, stored(channel)) == (5, 1)
            rx.ack(n=2)
            assert (rx.unack_count, stored(channel)) == (3, 3)
            rx.ack(3)
            assert (rx.unack_count, stored(channel)) == (0, 6)


async def test_acking_more_than_is_outstanding_moves_nothing(path: Path) -> None:
    """`AckError` says how many there are, and names the consumer."""
    async with open_channel(path, int) as channel:
        await fill(channel, 3)
        with channel.ack_receiver("mail") as rx:
            with pytest.raises(AckError, match="0 messages are outstanding"):
                rx.ack()
            rx.receive_nowait()
            with pytest.raises(AckError, match="n=2: only 1 message is outstanding"):
                rx.ack(2)
            rx.receive_nowait()
            with pytest.raises(AckError, match="n=3: only 2 messages are outstanding") as caught:
                rx.ack(3)
            assert caught.value.name == "mail"
            with pytest.raises(AckError):
                rx.nack(3)
            with pytest.raises(AckError):
                rx.ack(1 << 80)
            assert (rx.unack_count, stored(channel, "mail")) == (2, 0)
            assert rx.peek(5) == [2]


@one_loop
@pytest.mark.parametrize("count", [0, -1, -(1 << 80), 1.0, "1", True, b"1"])
async def test_a_count_is_a_number_of_messages(path: Path, count: object) -> None:
    """`ack` refuses anything but a number of messages, and changes nothing."""
    async with open_channel(path, int) as channel:
        await fill(channel, 3)
        with channel.ack_receiver() as rx:
            rx.receive_many_nowait(2)
            for method in (rx.ack, rx.nack, rx.peek):
                with pytest.raises((ValueError, TypeError), match="must be"):
                    method(count)  # type: ignore[arg-type]
            for arguments, names in (((1, 2), {}), ((), {"m": 1}), ((1,), {"n": 1})):
                with pytest.raises(TypeError):
                    rx.ack(*arguments, **names)
            assert (rx.unack_count, stored(channel)) == (2, 0)


async def test_it_is_acknowledgable(path: Path) -> None:
    """A function for `Acknowledgable` accepts an `AckReceiver`."""

    def ack_half(acks: Acknowledgable) -> None:
        acks.ack(acks.unack_count // 2)
        acks.nack()

    async with open_channel(path, int) as channel:
        await fill(channel, 4)
        with channel.ack_receiver() as rx:
            rx.receive_many_nowait(4)
            ack_half(rx)
            assert rx.peek(5) == [2, 3]


# Nack


async def test_nacked_messages_are_redelivered_in_order_before_new_ones(path: Path) -> None:
    """`nack` returns the newest n outstanding messages, or all of them, also across segments."""
    async with open_channel(path, int, options=SMALL) as channel:
        await fill(channel, 3000)
        with channel.ack_receiver() as rx:
            rx.receive_many_nowait(2000)
            rx.nack(1500)
            assert rx.unack_count == 500
            assert rx.read_offset == (await channel.offset_of(500))
            assert await rx.receive_many(1600) == list(range(500, 2100))
            rx.nack()
            assert rx.unack_count == 0
            assert [await rx.receive() for _ in range(3000)] == list(range(3000))
            rx.ack(3000)
            assert stored(channel) == 3000


async def test_nack_of_nothing_is_nothing(path: Path) -> None:
    """Without an outstanding message there is nothing to redeliver."""
    async with open_channel(path, int) as channel:
        with channel.ack_receiver() as rx:
            rx.nack()
            with pytest.raises(WouldBlock):
                rx.receive_nowait()


async def test_ack_skips_nacked_messages(path: Path) -> None:
    """Acks count outstanding messages; the cursor waits for those to be redelivered."""
    async with open_channel(path, int) as channel:
        await fill(channel, 6)
        with channel.ack_receiver() as rx:
            rx.receive_many_nowait(4)
            rx.nack(2)
            rx.ack(2)
            assert stored(channel) == 2
            with pytest.raises(AckError):
                rx.ack()
            assert rx.receive_many_nowait(1) == [2]
            rx.ack()
            assert stored(channel) == 3
            assert rx.receive_many_nowait(10) == [3, 4, 5]


async def test_peek_returns_redelivered_and_then_new_messages(path: Path) -> None:
    """`peek` returns messages in the order in which they would be received, and consumes none."""
    async with open_channel(path, int, options=SMALL) as channel:
        await fill(channel, 2000)
        with channel.ack_receiver() as rx:
            rx.receive_many_nowait(1500)
            rx.nack(3)
            assert rx.peek() == [1497]
            assert rx.peek(2) == [1497, 1498]
            assert rx.peek(5) == [1497, 1498, 1499, 1500, 1501]
            assert rx.unack_count == 1497
            assert rx.receive_many_nowait(5) == [1497, 1498, 1499, 1500, 1501]
            assert rx.peek(2) == [1502, 1503]


async def test_statistics_count_messages_to_be_redelivered(path: Path) -> None:
    """Statistics count messages that are to be redelivered as messages that can be received."""
    async with open_channel(path, int) as channel:
        await fill(channel, 5)
        with channel.ack_receiver() as rx:
            rx.receive_many_nowait(4)
            rx.nack(2)
            found = rx.statistics()
            assert (found.lag_messages, found.unacked, found.next_sequence) == (3, 2, 4)


@pytest.fixture
def unwatched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turn off the watchdog: a waiter that is not woken sleeps for ever."""
    monkeypatch.setattr(Waiters, "rescan", lambda _: True)


@pytest.mark.usefixtures("unwatched")
async def test_a_task_that_waits_is_woken_by_a_nack(path: Path) -> None:
    """A nack by another task wakes a waiting receiver, whichever way it waits."""
    async with open_channel(path, int) as channel:
        await fill(channel, 1)
        with channel.ack_receiver() as rx, rx.clone() as other:
            assert await rx.receive() == 0
            for way in (other.receive, lambda: other.receive_many(5), other.receive_delivery, other.receive_record):
                async with anyio.create_task_group() as group:
                    group.start_soon(way)
                    await anyio.wait_all_tasks_blocked()
                    rx.nack()
                assert rx.unack_count == 1


@pytest.mark.usefixtures("unwatched")
async def test_a_nack_in_another_thread_wakes_a_task(path: Path) -> None:
    """A nack in another thread wakes a task that waits for a message."""
    async with open_channel(path, int) as channel:
        await fill(channel, 1)
        with channel.ack_receiver() as rx, rx.clone() as other:
            assert await rx.receive() == 0
            async with anyio.create_task_group() as group:
                group.start_soon(other.receive)
                await anyio.wait_all_tasks_blocked()
                await run_sync(rx.nack)
            assert rx.unack_count == 1


async def test_a_nack_wakes_waiters_that_poll(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A nack is noticed at once by a waiter that polls because it has no FIFO."""
    monkeypatch.setattr("filechannel._wakeup.waiters.POLL", True)
    options = ChannelOptions(poll_interval=60)
    async with open_channel(path, int, options=options) as channel:
        await fill(channel, 1)
        with channel.ack_receiver() as rx:
            assert await rx.receive() == 0
            async with anyio.create_task_group() as group:
                group.start_soon(rx.receive)
                await anyio.wait_all_tasks_blocked()
                rx.nack()
            assert rx.unack_count == 1


@pytest.mark.skipif(
    PURE, reason="the pure implementation lets other threads run while it spins, which the guard forbids"
)
async def test_a_nack_is_noticed_by_a_spinning_receiver(path: Path) -> None:
    """A receiver that spins for new messages notices redelivered ones too."""
    async with open_channel(path, int, options=ChannelOptions(spin=0.05)) as channel:
        await fill(channel, 1)
        with channel.ack_receiver() as rx:
            assert await rx.receive() == 0
            async with anyio.create_task_group() as group:
                group.start_soon(rx.receive)
                await anyio.lowlevel.checkpoint()
                rx.nack()
            assert rx.unack_count == 1


# Reopening


async def test_closing_never_advances(path: Path) -> None:
    """Closing a receiver with 5 unacked messages stores no position: after reopening it receives the same 5."""
    async with open_channel(path, int) as channel:
        await fill(channel, 8)
        with channel.ack_receiver() as rx:
            assert rx.receive_many_nowait(5) == [0, 1, 2, 3, 4]
        with channel.ack_receiver() as rx:
            assert rx.unack_count == 0
            assert rx.receive_many_nowait(5) == [0, 1, 2, 3, 4]
            rx.ack(2)
    async with open_channel(path, int) as channel:
        with channel.ack_receiver() as rx:
            assert rx.receive_many_nowait(10) == [2, 3, 4, 5, 6, 7]


async def test_the_name_is_that_of_a_plain_receiver(path: Path) -> None:
    """A plain and an acknowledging receiver share a name: one owns it at a time and resumes where the other stopped."""
    async with open_channel(path, int) as channel:
        await fill(channel, 5)
        with channel.receiver("mail") as plain:
            assert await plain.receive() == 0
            with pytest.raises(ConsumerBusyError):
                channel.ack_receiver("mail")
        with channel.ack_receiver("mail") as rx:
            with pytest.raises(ConsumerBusyError):
                channel.receiver("mail")
            with pytest.raises(ConsumerBusyError):
                channel.ack_receiver("mail")
            assert rx.receive_many_nowait(3) == [1, 2, 3]
            rx.ack()
            assert (rx.name, rx.id) == ("mail", f"{path}#mail")
        with channel.receiver("mail") as plain:
            assert await plain.receive() == 2


async def test_start_counts_the_first_time(path: Path) -> None:
    """`start` counts when the name is registered, and is ignored afterwards."""
    async with open_channel(path, int) as channel:
        await fill(channel, 5)
        with channel.ack_receiver(start="latest") as rx:
            with pytest.raises(WouldBlock):
                rx.receive_nowait()
        with channel.ack_receiver("other", start=await channel.offset_of(3)) as rx:
            assert rx.receive_many_nowait(5) == [3, 4]
        with channel.ack_receiver("other", start="latest") as rx:
            assert rx.receive_many_nowait(5) == [3, 4]


async def test_unsubscribe_forgets_the_name(path: Path) -> None:
    """After `unsubscribe` the name starts from the beginning, without outstanding messages."""
    async with open_channel(path, int) as channel:
        await fill(channel, 3)
        with channel.ack_receiver() as rx:
            delivery = await rx.receive_delivery()
            delivery.ack()
            last = await rx.receive_delivery()
            await rx.unsubscribe()
            with pytest.raises(ClosedResourceError):
                last.ack()
            with pytest.raises(ClosedResourceError):
                await rx.receive()
        with channel.ack_receiver() as rx:
            assert await rx.receive() == 0


async def test_a_closed_receiver_refuses_everything(path: Path) -> None:
    """Each method of a closed receiver raises, and nothing is acknowledged."""
    async with open_channel(path, int) as channel:
        await fill(channel, 3)
        rx = channel.ack_receiver()
        await rx.receive()
        await rx.aclose()
        for call in (rx.ack, rx.nack, rx.peek, rx.clone, lambda: rx.unack_count, lambda: rx.read_offset):
            with pytest.raises(ClosedResourceError):
                call()
        with pytest.raises(ClosedResourceError):
            await rx.receive_delivery()
        with pytest.raises(ClosedResourceError):
            async with rx.processing():
                raise AssertionError
        assert stored(channel) == 0


async def test_closing_ends_the_wait_of_a_task(path: Path) -> None:
    """Closing a receiver raises `ClosedResourceError` in the task that waits in it."""
    async with open_channel(path, int) as channel:
        with channel.ack_receiver() as rx:
            async with anyio.create_task_group() as group:

                async def wait() -> None:
                    with pytest.raises(ClosedResourceError):
                        await rx.receive_delivery()

                group.start_soon(wait)
                await anyio.wait_all_tasks_blocked()
                rx.close()


async def test_clones_share_cursor_and_unacked_set(path: Path) -> None:
    """Each message is delivered to one of them, any of them acks, and the last close releases the name."""
    async with open_channel(path, int) as channel:
        await fill(channel, 5)
        first = channel.ack_receiver()
        second = first.clone()
        assert isinstance(second, AckReceiver)
        assert (await first.receive(), await second.receive(), await first.receive()) == (0, 1, 2)
        assert first.unack_count == second.unack_count == 3
        second.ack(2)
        assert (first.unack_count, stored(channel)) == (1, 2)
        first.close()
        second.nack()
        assert await second.receive() == 2
        with pytest.raises(ConsumerBusyError):
            channel.ack_receiver()
        second.close()
        channel.ack_receiver().close()


# Seek


async def test_seek_backwards_forgets_outstanding_messages_after_it(path: Path) -> None:
    """What begins before the position stays outstanding; the rest is received again, without a nack."""
    async with open_channel(path, int) as channel:
        await fill(channel, 6)
        with channel.ack_receiver() as rx:
            rx.receive_many_nowait(5)
            await rx.seek(await channel.offset_of(2))
            assert (rx.unack_count, stored(channel)) == (2, 0)
            assert rx.receive_many_nowait(9) == [2, 3, 4, 5]
            rx.ack(6)
            assert stored(channel) == 6
            await rx.seek("earliest")
            assert (rx.unack_count, stored(channel)) == (0, 0)


async def test_seek_forwards_acknowledges_nothing(path: Path) -> None:
    """After a seek forwards the stored position waits for outstanding and nacked messages."""
    async with open_channel(path, int) as channel:
        await fill(channel, 6)
        with channel.ack_receiver() as rx:
            rx.receive_many_nowait(2)
            rx.nack(1)
            await rx.seek("latest")
            assert (rx.unack_count, stored(channel)) == (1, 0)
            assert rx.receive_many_nowait(9) == [1]
            rx.ack(2)
            assert stored(channel) == 6
            with pytest.raises(WouldBlock):
                rx.receive_nowait()


async def test_purge_leaves_nothing_outstanding(path: Path) -> None:
    """After a purge no purged message is outstanding or redelivered."""
    async with open_channel(path, int) as channel:
        await fill(channel, 6)
        with channel.ack_receiver() as rx:
            rx.receive_many_nowait(4)
            rx.nack(2)
            await channel.purge()
            assert (rx.unack_count, stored(channel)) == (0, 6)
            await fill(channel, 1)
            assert rx.receive_many_nowait(9) == [0]


# Bad messages


class Old(msgspec.Struct):
    """What was sent."""

    id: int | str


class New(msgspec.Struct):
    """What is expected."""

    id: int


async def test_a_message_that_does_not_decode_stays(path: Path) -> None:
    """An undecodable message keeps the cursor before it; reading continues after it, and the others need acks."""
    async with open_channel(path, Old) as channel:
        with channel.sender() as tx:
            await tx.send_many([Old(0), Old("one"), Old(2)])
        await channel.configure(schema=New)
    async with open_channel(path, New) as channel:
        with channel.ack_receiver() as rx:
            assert await rx.receive() == New(0)
            for way in (rx.receive, rx.receive_delivery, lambda: rx.receive_many(3), lambda: rx.receive_many(3000)):
                with pytest.raises(DecodeError) as caught:
                    await way()
                assert rx.unack_count == 1
            with pytest.raises(DecodeError):
                rx.peek(2)
            rx.nack()
            assert rx.peek(2) == [New(0)]
            assert rx.receive_many_nowait(5) == [New(0)]
            await rx.seek(caught.value.next_offset)
            assert await rx.receive() == New(2)
            assert rx.unack_count == 2
            rx.ack(2)
        with channel.ack_receiver() as rx, pytest.raises(WouldBlock):
            rx.receive_nowait()


# The end


async def test_the_end_comes_when_everything_is_acked(path: Path) -> None:
    """The stream ends only when everything is acknowledged, because a nack may redeliver a message until then."""
    async with open_channel(path, int) as channel:
        await fill(channel, 2)
        await channel.seal()
        with channel.ack_receiver() as rx:
            assert rx.receive_many_nowait(5) == [0, 1]
            with pytest.raises(WouldBlock):
                rx.receive_nowait()
            assert rx.receive_many_nowait(5) == []
            rx.nack(1)
            assert await rx.receive() == 1
            rx.ack(2)
            for call in (rx.receive_nowait, lambda: rx.receive_many_nowait(1)):
                with pytest.raises(EndOfStream):
                    call()
            with pytest.raises(EndOfStream):
                await rx.receive()
            assert [item async for item in rx] == []
            assert [delivery async for delivery in rx.deliveries()] == []


@pytest.mark.usefixtures("unwatched")
async def test_the_last_ack_ends_a_receive_that_waits(path: Path) -> None:
    """The last ack of a sealed channel ends waiting receives, whichever method acknowledges and whichever waits."""
    async with open_channel(path, int) as channel:
        await fill(channel, 1)
        await channel.seal()
        for number in range(6):
            with channel.ack_receiver(f"consumer {number}") as rx:
                delivery = await rx.receive_delivery()
                waits = (rx.receive, rx.receive_delivery, lambda: rx.receive_many(5))
                async with anyio.create_task_group() as group:

                    async def wait() -> None:
                        with pytest.raises(EndOfStream):
                            await waits[number % 3]()  # noqa: B023

                    group.start_soon(wait)
                    await anyio.wait_all_tasks_blocked()
                    if number < 3:
                        rx.ack()
                    else:
                        delivery.ack()


async def test_an_iteration_gets_what_is_nacked_after_the_last_message(path: Path) -> None:
    """Workers that share a position end their iterations together, when every message is acknowledged."""
    async with open_channel(path, int) as channel:
        await fill(channel, 20)
        await channel.seal()
        done: list[int] = []

        async def work(rx: AckReceiver[int]) -> None:
            with rx:
                async for delivery in rx.deliveries():
                    await anyio.lowlevel.checkpoint()
                    if delivery.attempt < 3:
                        delivery.nack()
                    else:
                        done.append(delivery.value)
                        delivery.ack()

        with channel.ack_receiver() as rx:
            async with anyio.create_task_group() as group:
                for _ in range(3):
                    group.start_soon(work, rx.clone())
        assert sorted(done) == list(range(20))
        assert stored(channel) == 20


# Overtaken


@one_loop
@pytest.mark.parametrize("most", [1, 3, 5000])
async def test_an_overtaken_receiver_gets_one_error(path: Path, most: int) -> None:
    """However many are asked for, the missed messages are reported once, and what was delivered before can be acked."""
    async with open_channel(path, int, options=SMALL) as channel:
        await fill(channel, 3000)
        with channel.ack_receiver() as rx:
            got, errors = [await rx.receive()], list[DataExpiredError]()
            await run_sync(overtake, channel, 3)
            while got[-1] != 2999:
                try:
                    got += await rx.receive_many(most)
                except DataExpiredError as error:
                    errors.append(error)
            first = channel._store.lookup.earliest()
            assert [error.oldest for error in errors] == [first.offset]
            assert got == [*range(first.sequence - errors[0].missed), *range(first.sequence, 3000)]
            rx.ack(len(got))
            assert stored(channel) == 3000


@one_loop
@pytest.mark.parametrize("most", [1, 3, 5000])
async def test_nacked_messages_that_were_dropped_are_reported_once(path: Path, most: int) -> None:
    """A nacked message that was dropped counts as missed; outstanding ones can be acked."""
    async with open_channel(path, int, options=SMALL) as channel:
        await fill(channel, 3000)
        with channel.ack_receiver() as rx:
            await rx.receive_many(2000)
            rx.nack(1990)
            await run_sync(overtake, channel, 3)
            with pytest.raises(DataExpiredError) as caught:
                await rx.receive_many(most)
            first, got = 10 + caught.value.missed, list[int]()
            assert await channel.offset_of(first) == rx.read_offset == caught.value.oldest
            while len(got) < 2990 - caught.value.missed:
                got += await rx.receive_many(most)
            assert got == list(range(first, 3000))
            rx.ack(10 + len(got))
            assert (rx.unack_count, stored(channel)) == (0, 3000)
