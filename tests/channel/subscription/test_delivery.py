"""Deliveries, acknowledged one by one in any order, and `processing`."""

from __future__ import annotations

import os
import random
from pathlib import Path

import anyio
import pytest
from anyio import ClosedResourceError, WouldBlock
from anyio.lowlevel import checkpoint
from anyio.to_thread import run_sync

from filechannel import AckError, AckReceiver, ChannelOptions, Delivery, FileChannel, open_channel
from tests.backends import one_loop
from tests.channel.aio.test_ack_receiver import SMALL, fill, stored

pytestmark = pytest.mark.anyio


async def take(rx: AckReceiver[int], count: int) -> list[Delivery[int]]:
    """Receive so many deliveries."""
    return [await rx.receive_delivery() for _ in range(count)]


async def test_a_delivery_says_what_and_where_it_is(path: Path) -> None:
    """A delivery has the value, offset, sequence and attempt of its message."""
    async with open_channel(path, int) as channel:
        await fill(channel, 3)
        with channel.ack_receiver() as rx:
            for number, delivery in enumerate(await take(rx, 3)):
                assert (delivery.value, delivery.sequence, delivery.attempt) == (number, number, 1)
                assert delivery.offset == await channel.offset_of(number)
                assert f"sequence={number} attempt=1" in repr(delivery)


async def test_the_cursor_follows_the_oldest_unacked(path: Path) -> None:
    """Whatever the order of the acks, the cursor passes only messages that are acked without a gap."""
    async with open_channel(path, int, options=SMALL) as channel:
        await fill(channel, 1000)
        with channel.ack_receiver() as rx:
            deliveries = await take(rx, 1000)
            order = list(range(1000))
            random.Random(5).shuffle(order)
            acked: set[int] = set()
            for number in order:
                deliveries[number].ack()
                acked.add(number)
                assert rx.unack_count == 1000 - len(acked)
                assert stored(channel) == next((n for n in range(1000) if n not in acked), 1000)


async def test_acks_out_of_order_are_lost_by_reopening(path: Path) -> None:
    """Only what was acked contiguously stays acked; the rest is redelivered, acked or not."""
    async with open_channel(path, int) as channel:
        await fill(channel, 5)
        with channel.ack_receiver() as rx:
            deliveries = await take(rx, 4)
            for number in (3, 0, 2):
                deliveries[number].ack()
        with channel.ack_receiver() as rx:
            assert [delivery.value for delivery in await take(rx, 4)] == [1, 2, 3, 4]


async def test_a_delivery_is_acked_or_nacked_once(path: Path) -> None:
    """A delivery is acked or nacked once, separately or by `ack(n)`, and is not outstanding afterwards."""
    async with open_channel(path, int) as channel:
        await fill(channel, 3)
        with channel.ack_receiver("mail") as rx:
            first, second, third = await take(rx, 3)
            second.ack()
            rx.ack()
            third.nack()
            for settled in (first, second, third):
                for call in (settled.ack, settled.nack):
                    with pytest.raises(AckError, match="was already acknowledged or redelivered") as caught:
                        call()
                    assert caught.value.name == "mail"
            assert stored(channel, "mail") == 2


async def test_a_redelivered_message_is_a_new_delivery(path: Path) -> None:
    """Neither a nack nor a seek lets the old one acknowledge the new one."""
    async with open_channel(path, int) as channel:
        await fill(channel, 1)
        with channel.ack_receiver() as rx:
            first = await rx.receive_delivery()
            first.nack()
            second = await rx.receive_delivery()
            with pytest.raises(AckError):
                first.ack()
            await rx.seek("earliest")
            third = await rx.receive_delivery()
            with pytest.raises(AckError):
                second.nack()
            assert (second.attempt, third.attempt, rx.unack_count) == (2, 1, 1)
            third.ack()


async def test_a_nacked_delivery_is_redelivered_before_new_messages(path: Path) -> None:
    """A nacked delivery is redelivered before new messages, with its attempt counted, while others are outstanding."""
    async with open_channel(path, int) as channel:
        await fill(channel, 5)
        with channel.ack_receiver() as rx:
            deliveries = await take(rx, 3)
            deliveries[2].nack()
            deliveries[0].nack()
            again = await take(rx, 3)
            assert [(one.value, one.attempt) for one in again] == [(0, 2), (2, 2), (3, 1)]
            again[0].nack()
            assert (await rx.receive_delivery()).attempt == 3
            assert rx.unack_count == 4


async def test_ack_and_deliveries_work_together(path: Path) -> None:
    """`ack(n)` skips deliveries that were acked separately."""
    async with open_channel(path, int) as channel:
        await fill(channel, 4)
        with channel.ack_receiver() as rx:
            deliveries = await take(rx, 4)
            deliveries[1].ack()
            rx.ack(2)
            assert stored(channel) == 3
            deliveries[3].ack()
            assert stored(channel) == 4


async def test_a_delayed_nack_lets_others_continue(path: Path) -> None:
    """New messages are received in between; later it is redelivered, without a wakeup."""
    async with open_channel(path, int) as channel:
        await fill(channel, 3)
        with channel.ack_receiver() as rx:
            delivery = await rx.receive_delivery()
            delivery.nack(delay=1000)
            assert rx.peek(5) == rx.receive_many_nowait(5) == [1, 2]
            with pytest.raises(WouldBlock):
                rx.receive_nowait()
            rx.ack(2)
            assert (rx.unack_count, stored(channel)) == (0, 0)


async def test_a_task_is_woken_when_a_delay_is_over(path: Path) -> None:
    """The end of a delay wakes a task, whether it began to wait before or after the nack, in whichever way."""
    async with open_channel(path, int) as channel:
        await fill(channel, 1)
        with channel.ack_receiver() as rx:
            delivery = await rx.receive_delivery()
            for way in (rx.receive, rx.receive_delivery, rx.receive_record, lambda: rx.receive_many(3)):
                delivery.nack(0.01)
                await way()
                rx.nack()
                delivery = await rx.receive_delivery()
                async with anyio.create_task_group() as group:
                    group.start_soon(way)
                    await anyio.wait_all_tasks_blocked()
                    delivery.nack(0.01)
                rx.nack()
                delivery = await rx.receive_delivery()
            assert delivery.attempt == 17


async def test_the_shortest_delay_counts(path: Path) -> None:
    """A nack with a short delay wakes a task that waits for a longer one."""
    async with open_channel(path, int) as channel:
        await fill(channel, 3)
        with channel.ack_receiver() as rx:
            first, second, third = await take(rx, 3)
            first.nack(1000)
            async with anyio.create_task_group() as group:

                async def wait() -> None:
                    assert (await rx.receive_delivery()).value == 2
                    assert (await rx.receive_delivery()).value == 1

                group.start_soon(wait)
                await anyio.wait_all_tasks_blocked()
                third.nack(0.001)
                second.nack(0.05)


@one_loop
@pytest.mark.parametrize("delay", [-1, float("nan"), float("inf"), "1", None, True])
async def test_a_delay_is_a_number_of_seconds(path: Path, delay: object) -> None:
    """`nack` refuses a delay that is not a number of seconds, and the message stays outstanding."""
    async with open_channel(path, int) as channel:
        await fill(channel, 1)
        with channel.ack_receiver() as rx:
            delivery = await rx.receive_delivery()
            with pytest.raises((ValueError, TypeError), match="delay="):
                delivery.nack(delay)  # type: ignore[arg-type]
            assert rx.unack_count == 1


async def test_a_delivery_outlives_the_clone_that_gave_it(path: Path) -> None:
    """A delivery can be acked while one clone of its receiver is open; afterwards its message is redelivered."""
    async with open_channel(path, int) as channel:
        await fill(channel, 3)
        rx = channel.ack_receiver()
        with rx.clone() as clone:
            first, second = await take(clone, 2)
        first.ack()
        rx.close()
        for call in (second.ack, second.nack):
            with pytest.raises(ClosedResourceError):
                call()
        assert stored(channel) == 1


async def test_an_iteration_of_deliveries_survives_cancellation(path: Path) -> None:
    """An iteration of deliveries that is cancelled received nothing, and the next step continues."""
    async with open_channel(path, int) as channel:
        with channel.ack_receiver() as rx:
            deliveries = rx.deliveries()
            with anyio.move_on_after(0):
                await anext(deliveries)
            await fill(channel, 1)
            assert (await anext(deliveries)).value == 0
            assert aiter(deliveries) is deliveries


@one_loop
async def test_a_forked_child_acks_nothing(path: Path) -> None:
    """A forked child cannot ack a delivery of its parent: its copy of the receiver is closed."""
    async with open_channel(path, int) as channel:
        await fill(channel, 1)
        with channel.ack_receiver() as rx:
            delivery = await rx.receive_delivery()
            child = os.fork()
            if not child:
                refused = 0
                for call in (delivery.ack, delivery.nack, rx.ack, rx.nack):
                    try:
                        call()
                    except ClosedResourceError:
                        refused += 1
                os._exit(refused)
            _, status = await run_sync(os.waitpid, child, 0)
            assert os.waitstatus_to_exitcode(status) == 4
            assert (rx.unack_count, stored(channel)) == (1, 0)
            delivery.ack()


# Processing


async def fail(rx: AckReceiver[int], *, ack: bool = False) -> None:
    """Process a message in vain."""
    async with rx.processing() as item:
        if ack:
            rx.ack()
        raise LookupError(item)


async def test_processing_acks_on_success(path: Path) -> None:
    """`processing` acks the message when its body has ended."""
    async with open_channel(path, int) as channel:
        await fill(channel, 2)
        with channel.ack_receiver() as rx:
            async with rx.processing() as item:
                assert (item, rx.unack_count, stored(channel)) == (0, 1, 0)
            assert (rx.unack_count, stored(channel)) == (0, 1)


async def test_processing_nacks_on_error(path: Path) -> None:
    """After ten errors in `processing` a message was redelivered ten times, in order, with attempts counted."""
    async with open_channel(path, int) as channel:
        await fill(channel, 3)
        with channel.ack_receiver() as rx:
            for _ in range(10):
                with pytest.raises(LookupError, match="0"):
                    await fail(rx)
            assert (await rx.receive_delivery()).attempt == 11
            rx.nack()
            for number in range(3):
                async with rx.processing() as item:
                    assert item == number


async def test_cancelled_processing_does_not_count(path: Path) -> None:
    """A cancelled `processing` block redelivers its message without counting an attempt."""
    async with open_channel(path, int) as channel:
        await fill(channel, 2)
        with channel.ack_receiver() as rx:
            for _ in range(3):
                with anyio.CancelScope() as scope:
                    async with rx.processing():
                        scope.cancel()
                        await anyio.sleep_forever()
                assert scope.cancelled_caught
            delivery = await rx.receive_delivery()
            assert (delivery.value, delivery.attempt) == (0, 1)


async def test_processing_that_was_acked_inside(path: Path) -> None:
    """Acking a message inside its `processing` block raises an error, unless the body raises one itself."""
    async with open_channel(path, int) as channel:
        await fill(channel, 2)
        with channel.ack_receiver() as rx:
            with pytest.raises(AckError):
                async with rx.processing():
                    rx.ack()
            with pytest.raises(LookupError):
                await fail(rx, ack=True)
            assert stored(channel) == 2


async def test_processing_that_closes_its_receiver(path: Path) -> None:
    """Closing the receiver inside `processing` raises an error, because the message was not acked."""
    async with open_channel(path, int) as channel:
        await fill(channel, 1)
        rx = channel.ack_receiver()
        with pytest.raises(ClosedResourceError):
            async with rx.processing():
                rx.close()
        assert stored(channel) == 0


# Cancellation


async def test_cancelling_at_any_moment_loses_nothing(path: Path) -> None:
    """After 2,000 cancellations in receive and before ack each message was processed once, in order."""
    rng = random.Random(7)
    async with open_channel(path, int) as channel:
        with channel.sender() as tx, channel.ack_receiver() as rx:
            done: list[int] = []

            async def work() -> None:
                way = rng.randrange(4)
                if way == 0:
                    async with rx.processing() as item:
                        await some_steps(rng)
                        done.append(item)
                    return
                if way == 1:
                    items = await rx.receive_many(rng.choice((1, 3, 2000)))
                elif way == 2:
                    items = [(await rx.receive_delivery()).value]
                else:
                    items = [await rx.receive()]
                try:
                    await some_steps(rng)
                except BaseException:
                    rx.nack()
                    raise
                rx.ack(len(items))
                done.extend(items)

            for number in range(2000):
                with anyio.CancelScope() as scope:
                    async with anyio.create_task_group() as group:
                        group.start_soon(work)
                        await some_steps(rng)
                        tx.send_nowait(number)
                        await some_steps(rng)
                        scope.cancel()
                if rx.unack_count:  # a receive that was cancelled after it had ended: its message is still there
                    rx.nack()
            done += rx.receive_many_nowait(2000)
            assert done == list(range(2000))


async def some_steps(rng: random.Random) -> None:
    """Let other tasks run, not always equally long."""
    for _ in range(rng.randrange(4)):
        await checkpoint()


async def test_a_cancelled_large_receive_takes_nothing(path: Path) -> None:
    """A large receive that is cancelled between two slices takes nothing and counts no attempt."""
    options = ChannelOptions(segment_size=1 << 20)
    async with open_channel(path, int, options=options) as channel:
        await fill(channel, 50_000)
        with channel.ack_receiver() as rx:
            for pause in range(5):
                async with anyio.create_task_group() as group:
                    group.start_soon(rx.receive_many, 50_000)
                    for _ in range(pause):
                        await checkpoint()
                    group.cancel_scope.cancel()
                if rx.unack_count:
                    assert rx.unack_count == 50_000  # it had ended before
                    rx.nack()
            await all_of_it(channel, rx)


async def all_of_it(channel: FileChannel[int], rx: AckReceiver[int]) -> None:
    """See that everything comes."""
    found = await rx.receive_many(100_000)
    assert found == list(range(50_000))
    rx.ack(50_000)
    assert stored(channel) == 50_000
