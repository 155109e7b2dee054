"""Groups: one position for many members, leases, and redelivery."""

from __future__ import annotations

import copy
import os
import pickle
import time
from pathlib import Path

import anyio
import pytest
from anyio import ClosedResourceError, EndOfStream, WouldBlock
from anyio.lowlevel import checkpoint
from anyio.to_thread import run_sync

from filechannel import (
    AckError,
    ChannelOptions,
    ConsumerBusyError,
    ConsumerMismatchError,
    DataExpiredError,
    DecodeError,
    Delivery,
    FileChannel,
    GroupReceiver,
    LeaseExpiredError,
    StorageError,
    UnknownConsumerError,
    open_channel,
)
from filechannel._format.layout import GROUP_ENTRIES
from filechannel._storage.consumers.cursors import read_position
from filechannel._storage.writable_store import WritableStore
from tests.backends import one_loop
from tests.channel.handling import until
from tests.channel.renewals import BEYOND, LEASE, counted_renewals
from tests.storage.clocks import Clock

pytestmark = pytest.mark.anyio
SHORT = 0.05
TRIES = 20
"""A busy machine may be late repeatedly; a task that is not woken is late every time."""
SMALL = ChannelOptions(segment_size=4096)


async def fill(channel: FileChannel[int], count: int, first: int = 0) -> None:
    """Send so many numbers."""
    with channel.sender() as tx:
        await tx.send_many(range(first, first + count))


async def take(rx: GroupReceiver[int], count: int) -> list[Delivery[int]]:
    """Receive so many deliveries."""
    return [await rx.receive_delivery() for _ in range(count)]


def floor(channel: FileChannel[int], name: str = "g") -> int:
    """Return the number of the message that the group's position is at."""
    position = read_position((channel.path / f"consumers/{name}.group").read_bytes())
    assert position is not None
    return position.sequence


def numbers(deliveries: list[Delivery[int]]) -> list[int]:
    """Return what was delivered."""
    return [delivery.value for delivery in deliveries]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The time of day, which does not advance."""
    return Clock.install(monkeypatch)


# Handing out


async def test_each_message_is_delivered_to_one_member_in_order(path: Path) -> None:
    """The member that asks gets the next message, and the position follows the oldest unacked one."""
    async with open_channel(path, int, options=SMALL) as channel:
        await fill(channel, 1000)
        members = [channel.group("g") for _ in range(3)]
        for number in range(0, 999, 3):
            assert [await member.receive() for member in members] == [number, number + 1, number + 2]
            assert (floor(channel), [member.unack_count for member in members]) == (number, [1, 1, 1])
            members[2].ack()
            members[0].ack()
            assert floor(channel) == number + 1
            members[1].ack()
            assert floor(channel) == number + 3


async def test_every_way_to_receive(path: Path) -> None:
    """Members can receive one or many messages, records, deliveries and in a loop, and can peek."""
    async with open_channel(path, int) as channel:
        await fill(channel, 20)
        with channel.group("g") as rx, channel.group("g") as other:
            assert await rx.receive() == 0
            assert other.receive_nowait() == 1
            record = await rx.receive_record()
            assert (record.value, record.sequence, record.offset) == (2, 2, await channel.offset_of(2))
            assert await rx.receive_many(3) == [3, 4, 5]
            assert other.receive_many_nowait(2) == [6, 7]
            assert await rx.__anext__() == 8
            async for delivery in rx.deliveries():
                assert (delivery.value, delivery.attempt) == (9, 1)
                break
            assert other.peek(3) == rx.peek(3) == [10, 11, 12]
            assert rx.read_offset == other.read_offset == await channel.offset_of(10)
            assert (rx.statistics().unacked, rx.statistics().lag_messages) == (7, 10)
            assert len(await rx.receive_many(5000)) == 10
            with pytest.raises(WouldBlock):
                other.receive_nowait()
            assert other.receive_many_nowait(5) == []


async def test_the_group_resumes_where_it_stopped(path: Path) -> None:
    """After reopening acked messages are not redelivered, also acks out of order; the others are, and attempts are
    kept.
    """
    async with open_channel(path, int) as channel:
        await fill(channel, 6)
        with channel.group("g") as rx:
            deliveries = await take(rx, 5)
            for number in (3, 0, 1):
                deliveries[number].ack()
            deliveries[2].nack()
    async with open_channel(path, int) as channel:
        with channel.group("g") as rx:
            again = await take(rx, 3)
            assert [(delivery.value, delivery.attempt) for delivery in again] == [(2, 2), (4, 1), (5, 1)]


async def test_start_counts_the_first_time(path: Path) -> None:
    """`start` is earliest, latest or an offset and counts at registration; a bad one registers nothing."""
    async with open_channel(path, int) as channel:
        await fill(channel, 5)
        assert await channel.group("early").receive() == 0
        assert await channel.group("there", start=await channel.offset_of(3)).receive() == 3
        late = channel.group("late", start="latest")
        await fill(channel, 1, first=5)
        assert await late.receive() == 5
        late.close()
        assert await channel.group("late", start="earliest").receive() == 5
        with pytest.raises(ValueError, match="start="):
            channel.group("bad", start=1)  # type: ignore[arg-type]
        assert [consumer.name for consumer in channel.consumers()] == ["early", "late", "there"]


async def test_waiting_members_share_new_messages(path: Path) -> None:
    """Each message wakes the waiting members, and one of them gets it."""
    async with open_channel(path, int) as channel, anyio.create_task_group() as tasks:
        found: list[int] = []

        async def work() -> None:
            with channel.group("g") as rx:
                async for item in rx:
                    found.append(item)
                    rx.ack()

        for _ in range(4):
            tasks.start_soon(work)
        with channel.sender() as tx:
            for number in range(50):
                await tx.send(number)
                while len(found) <= number:
                    await checkpoint()
        await channel.seal()
    assert found == list(range(50))


async def test_a_full_ring_waits_for_acks(path: Path) -> None:
    """A group has a maximum of outstanding messages; members wait then, and an ack of any member lets them continue."""
    async with open_channel(path, int) as channel:
        await fill(channel, GROUP_ENTRIES + 5)
        with channel.group("g") as rx, channel.group("g") as other:
            held = await rx.receive_many(GROUP_ENTRIES + 5)
            assert len(held) == rx.unack_count == GROUP_ENTRIES
            for member in (rx, other):
                with pytest.raises(WouldBlock):
                    member.receive_nowait()
            async with anyio.create_task_group() as tasks:
                found: list[int] = []

                async def wait() -> None:
                    found.append(await other.receive())

                tasks.start_soon(wait)
                await anyio.wait_all_tasks_blocked()
                rx.ack()
            assert found == [GROUP_ENTRIES]
            rx.ack(GROUP_ENTRIES - 1)
            assert floor(channel) == GROUP_ENTRIES
            assert await rx.receive_many(10) == [GROUP_ENTRIES + number for number in range(1, 5)]


# Redelivery


async def test_a_nacked_message_is_redelivered_to_any_member(path: Path) -> None:
    """A nacked message is redelivered to any member before new ones, in order and with its attempt counted."""
    async with open_channel(path, int) as channel:
        await fill(channel, 6)
        with channel.group("g") as rx, channel.group("g") as other:
            assert [await rx.receive() for _ in range(4)] == [0, 1, 2, 3]
            rx.nack(2)
            assert (rx.unack_count, other.peek(3)) == (2, [2, 3, 4])
            again = await take(other, 3)
            assert [(delivery.value, delivery.attempt) for delivery in again] == [(2, 2), (3, 2), (4, 1)]
            rx.nack()
            assert numbers(await take(other, 3)) == [0, 1, 5]
            with pytest.raises(AckError):
                rx.nack(1)


async def test_a_nack_wakes_other_members(path: Path) -> None:
    """A member that waits for a new message gets the redelivered one."""
    async with open_channel(path, int) as channel:
        await fill(channel, 1)
        with channel.group("g") as rx, channel.group("g") as other:
            for _ in range(TRIES):
                delivery = await rx.receive_delivery()
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(other.receive)
                    await anyio.wait_all_tasks_blocked()
                    started = time.monotonic()
                    delivery.nack()
                assert other.unack_count == 1
                if time.monotonic() - started < 0.5:
                    break  # and not only at the look that comes every second
                other.nack()
            else:
                pytest.fail("no member is woken")


async def test_a_delayed_nack_is_redelivered_when_it_is_due(path: Path) -> None:
    """A member gets a delayed message when it is due; others continue until then, and no other wakeup is needed."""
    async with open_channel(path, int) as channel:
        await fill(channel, 2)
        with channel.group("g") as rx, channel.group("g") as other:
            first = await rx.receive_delivery()
            started = time.monotonic()
            first.nack(SHORT)
            assert await other.receive() == 1
            again = await other.receive_delivery()
            assert (again.value, again.attempt) == (0, 2)
            assert time.monotonic() >= started + SHORT
            with pytest.raises(AckError):
                first.ack()


async def test_a_message_whose_lease_expired_is_redelivered(path: Path) -> None:
    """After its lease expires a message is redelivered with the attempt counted; its former member gets an error."""
    async with open_channel(path, int) as channel:
        await fill(channel, 2)
        with channel.group("g", lease=SHORT) as slow, channel.group("g") as other:
            late = await slow.receive_delivery()
            assert await other.receive() == 1
            again = await other.receive_delivery()
            assert (again.value, again.attempt) == (0, 2)
            for call in (late.ack, late.nack, late.extend, late.ack):
                with pytest.raises(LeaseExpiredError) as caught:
                    call()
                assert (caught.value.name, caught.value.offset) == ("g", late.offset)
            assert slow.unack_count == 0
            again.ack()
            assert floor(channel) == 1


async def test_acks_of_many_say_what_was_lost(path: Path) -> None:
    """An ack of many raises for deliveries whose lease expired, and acknowledges the others."""
    async with open_channel(path, int) as channel:
        await fill(channel, 3)
        with channel.group("g", lease=SHORT) as slow, channel.group("g") as other:
            deliveries = await take(slow, 2)
            await anyio.sleep(2 * SHORT)
            assert (await other.receive_delivery()).value == 0  # this receive finds that both have expired
            assert await slow.receive() == 1
            for call in (lambda: slow.ack(2), lambda: deliveries[1].nack()):
                with pytest.raises(LeaseExpiredError):
                    call()
            assert slow.unack_count == 1
            slow.ack()
            other.ack()
            assert floor(channel) == 2


async def test_a_lease_can_be_extended(path: Path) -> None:
    """`extend` can be called repeatedly, and the lease counts from the last call."""
    async with open_channel(path, int) as channel:
        await fill(channel, 1)
        with channel.group("g", lease=LEASE) as rx, channel.group("g") as other:
            delivery = await rx.receive_delivery()
            for _ in range(6):
                await anyio.sleep(LEASE / 5)
                delivery.extend()
            with pytest.raises(WouldBlock):
                other.receive_nowait()
            delivery.ack()
            with pytest.raises(AckError):
                delivery.extend()


async def test_processing_extends_the_lease(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`processing` extends the lease for as long as the body runs, and acks the message at the end."""
    renewed = counted_renewals(monkeypatch)
    async with open_channel(path, int) as channel:
        await fill(channel, 1)
        with channel.group("g", lease=LEASE) as rx, channel.group("g") as other:
            async with rx.processing() as item:
                assert item == 0
                await until(lambda: len(renewed) > BEYOND)
                with pytest.raises(WouldBlock):
                    other.receive_nowait()
            assert floor(channel) == 1


@pytest.mark.parametrize("error", [LookupError, anyio.get_cancelled_exc_class], ids=["error", "cancelled"])
async def test_processing_that_fails_gives_it_back(path: Path, error: object) -> None:
    """`processing` returns the message after an error, which counts as an attempt, and after cancellation, which does
    not.
    """
    async with open_channel(path, int) as channel:
        await fill(channel, 1)
        with channel.group("g") as rx:
            if error is LookupError:
                with pytest.raises(LookupError):
                    async with rx.processing():
                        raise LookupError
            else:
                with anyio.move_on_after(SHORT):
                    async with rx.processing():
                        await anyio.sleep_forever()
            assert (await rx.receive_delivery()).attempt == (2 if error is LookupError else 1)


async def test_closing_returns_messages_without_counting(path: Path) -> None:
    """Closing the last clone of a member returns its messages without counting an attempt, and wakes other members."""
    async with open_channel(path, int) as channel:
        await fill(channel, 3)
        rx, other = channel.group("g"), channel.group("g")
        clone = rx.clone()
        deliveries = await take(rx, 2)
        assert await clone.receive() == 2
        assert rx.unack_count == clone.unack_count == 3
        rx.close()
        deliveries[1].ack()
        async with anyio.create_task_group() as tasks:
            found: list[tuple[int, int]] = []

            async def wait() -> None:
                found.extend([(each.value, each.attempt) for each in await take(other, 2)])

            tasks.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            clone.close()
        assert found == [(0, 1), (2, 1)]
        with pytest.raises(ClosedResourceError):
            deliveries[0].ack()


async def test_a_cancelled_receive_takes_nothing(path: Path) -> None:
    """A receive that is cancelled while it waits, or in the middle of many, takes nothing."""
    async with open_channel(path, int) as channel:
        with channel.group("g") as rx, channel.group("g") as other:
            for way in (rx.receive, rx.receive_delivery, lambda: rx.receive_many(9)):
                with anyio.move_on_after(0.01) as scope:
                    await way()
                assert scope.cancelled_caught
            await fill(channel, 3)
            assert numbers(await take(other, 3)) == [0, 1, 2]


# The end


async def test_the_stream_ends_when_every_member_has_acked(path: Path) -> None:
    """At the end of a sealed channel a member waits for the others, and gets what they nack, or the end."""
    async with open_channel(path, int) as channel:
        await fill(channel, 2)
        await channel.seal()
        with channel.group("g") as rx, channel.group("g") as other:
            first, second = await take(rx, 2)
            with pytest.raises(WouldBlock):
                other.receive_nowait()
            async with anyio.create_task_group() as tasks:
                ended: list[bool] = []

                async def wait() -> None:
                    assert await other.receive() == 0
                    other.ack()
                    with pytest.raises(EndOfStream):
                        await other.receive()
                    ended.append(True)

                tasks.start_soon(wait)
                await anyio.wait_all_tasks_blocked()
                first.nack()
                await anyio.wait_all_tasks_blocked()
                assert not ended
                second.ack()
            assert ended
            with pytest.raises(EndOfStream):
                rx.receive_nowait()


# What cannot be read


async def test_an_undecodable_message_is_acked_separately(path: Path) -> None:
    """An undecodable message blocks no member, does not count in `ack(n)`, and is redelivered until it is acked."""
    async with open_channel(path, str) as channel, channel.sender() as tx:
        await tx.send_many(["0", "x", "2"])
        await channel.configure(schema=int)
    async with open_channel(path, int) as typed, typed.sender() as numbers_tx:
        await numbers_tx.send(3)
        with typed.group("g") as rx, typed.group("g") as other:
            errors: list[DecodeError] = []
            for _ in range(3):
                with pytest.raises(DecodeError) as caught:
                    await rx.receive()
                errors.append(caught.value)
            assert await rx.receive() == 3
            assert rx.unack_count == 1
            rx.ack()
            poison = rx.undecodable(errors[1])
            assert (poison.offset, poison.sequence, poison.attempt) == (errors[1].offset, 1, 1)
            assert poison.value == errors[1].payload
            poison.extend()
            poison.ack()
            with pytest.raises(AckError, match="it was acknowledged or redelivered"):
                rx.undecodable(errors[1])
            with pytest.raises(TypeError, match="error=ValueError\\(\\): must be the DecodeError"):
                rx.undecodable(ValueError())  # type: ignore[arg-type]
            rx.undecodable(errors[0]).ack()
            assert floor(typed) == 2  # type: ignore[arg-type]
            rx.undecodable(errors[2]).nack()
            with pytest.raises(DecodeError) as caught:
                await other.receive()
            assert other.undecodable(caught.value).attempt == 2


async def test_what_a_group_is_advised_to_do_about_an_undecodable_message_works(path: Path) -> None:
    """The error of a member names `undecodable`, and that of a single receiver `seek`, which a group refuses."""
    async with open_channel(path, str) as channel, channel.sender() as tx:
        await tx.send("x")
        await channel.configure(schema=int)
    async with open_channel(path, int) as typed:
        with typed.group("g") as rx:
            with pytest.raises(DecodeError, match=r"; acknowledge it with undecodable\(error\)\.ack\(\)$") as caught:
                await rx.receive()
            rx.undecodable(caught.value).ack()
            assert typed.consumers()[0].lag_messages == 0
        for single in (typed.receiver("single"), typed.ack_receiver("acks"), typed.replay()):
            with single, pytest.raises(DecodeError, match=rf"; skip it with seek\({caught.value.next_offset}\)$"):
                await single.receive()


async def test_an_error_waits_until_what_came_before_it_is_taken(path: Path) -> None:
    """`receive_many` returns the messages before an error, and the next call raises it."""
    async with open_channel(path, int) as channel:
        await fill(channel, 2)
        await channel.configure(schema=str)
    async with open_channel(path, str) as texts, texts.sender() as tx:
        await tx.send("poison")
        await texts.configure(schema=int)
    async with open_channel(path, int) as channel:
        await fill(channel, 1, first=3)
        with channel.group("g") as rx:
            assert await rx.receive_many(10) == [0, 1]
            with pytest.raises(DecodeError) as caught:
                await rx.receive_many(10)
            assert rx.undecodable(caught.value).attempt == 1
            assert await rx.receive_many(10) == [3]


async def test_a_purge_is_reported_once(path: Path) -> None:
    """A purge empties the group; after a purge by another process a member gets the number of missed messages once."""
    async with open_channel(path, int, options=SMALL) as channel:
        await fill(channel, 10)
        with channel.group("g") as rx, channel.group("g") as other:
            deliveries = await take(rx, 3)
            await other.receive()
            deliveries[1].nack()
            await channel.purge()
            await fill(channel, 2, first=10)
            assert (rx.unack_count, other.unack_count, floor(channel)) == (0, 0, 10)
            assert numbers(await take(other, 2)) == [10, 11]
            with pytest.raises(AckError):
                deliveries[0].ack()


async def test_expired_data_is_reported_to_one_member(path: Path) -> None:
    """One member gets `DataExpiredError` with the number of missed messages, new ones and those to be redelivered."""
    async with open_channel(path, int, options=SMALL) as channel:
        await fill(channel, 2000)
        with channel.group("g") as rx, channel.group("g") as other:
            held = await take(rx, 3)
            held[1].nack()
            store = channel._store
            oldest = store.segments.begins[2]
            first = store.segments.get(oldest).header.first_sequence
            store.control.oldest_offset = oldest
            await run_sync(store.segments.remove_before, oldest)
            with pytest.raises(DataExpiredError) as caught:
                await other.receive()
            assert (caught.value.missed, caught.value.oldest) == (first - 2, oldest)
            assert await rx.receive() == first
            assert await other.receive() == first + 1
            held[0].ack()
            held[2].ack()
            assert floor(channel) == first


# Names


async def test_consumers_lists_groups(path: Path) -> None:
    """`consumers()` lists a group with its kind, position, lag and the processes that have members."""
    async with open_channel(path, int) as channel:
        await fill(channel, 5)
        channel.receiver("a").close()
        with channel.group("g", expires=60) as rx, channel.group("g"):
            rx.ack(len(await rx.receive_many(2)))
            await rx.receive()
            single, group = channel.consumers()
            assert (single.kind, single.members) == ("single", ())
            assert (group.name, group.kind, group.next_sequence, group.lag_messages) == ("g", "group", 2, 3)
            assert [member.pid for member in group.members] == [os.getpid()]
            assert (group.expires, group.owner and group.owner.pid) == (60, os.getpid())
        group = channel.consumers()[1]
        assert (group.members, group.owner, group.next_sequence) == ((), None, 2)
    async with open_channel(path, int, readonly=True) as channel:
        assert [consumer.kind for consumer in channel.consumers()] == ["single", "group"]
        with pytest.raises(OSError, match="read-only"):
            channel.group("g")


@one_loop
async def test_a_name_is_of_one_kind(path: Path) -> None:
    """A name is a single consumer or a group, and the other kind is refused until the name is removed."""
    async with open_channel(path, int) as channel:
        channel.receiver("single").close()
        with pytest.raises(ConsumerMismatchError) as caught:
            channel.group("single")
        assert (caught.value.found, caught.value.wanted) == ("a single consumer", "a group")
        rx = channel.group("many")
        for other in (channel.receiver, channel.ack_receiver):
            with pytest.raises(ConsumerMismatchError):
                other("many")
        with pytest.raises(ConsumerBusyError):
            await channel.remove_consumer("many")
        rx.close()
        await channel.remove_consumer("many")
        with pytest.raises(UnknownConsumerError):
            await channel.remove_consumer("many")
        channel.receiver("many")
        await channel.remove_consumer("single")
        channel.group("single")


@one_loop
async def test_the_last_member_may_unsubscribe(path: Path) -> None:
    """`unsubscribe` is refused while the group has other members."""
    async with open_channel(path, int) as channel:
        await fill(channel, 3)
        rx, other = channel.group("g"), channel.group("g")
        assert await rx.receive() == 0
        with pytest.raises(ConsumerBusyError):
            await rx.unsubscribe()
        assert await rx.receive() == 1
        other.close()
        await rx.unsubscribe()
        assert channel.consumers() == ()
        with pytest.raises(ClosedResourceError):
            rx.ack()
        assert await channel.group("g").receive() == 0


@one_loop
async def test_a_group_without_members_expires(path: Path, clock: Clock) -> None:
    """A check removes an expired group without members, and keeps it while one member is left."""
    async with open_channel(path, int) as channel:
        first, second = channel.group("g", expires=60), channel.group("g")
        first.close()
        clock.pass_seconds(100)
        assert len(channel.consumers()) == 1
        second.close()
        clock.pass_seconds(59)
        assert len(channel.consumers()) == 1
        clock.pass_seconds(2)
        assert channel.consumers() == ()
        channel.receiver("g")


async def test_join_waits_until_everything_is_acked(path: Path) -> None:
    """`join` returns when every message is acknowledged, by whichever member."""
    async with open_channel(path, int) as channel:
        await fill(channel, 2)
        with channel.group("g") as rx:
            first, second = await take(rx, 2)
            second.ack()
            with anyio.move_on_after(SHORT) as scope:
                await channel.join("g")
            assert scope.cancelled_caught
            first.ack()
            with anyio.fail_after(60):
                await channel.join("g")


async def test_a_position_that_never_matches_ends_a_seek(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A seek that never finds a position raises `StorageError` instead of looping for ever."""
    async with open_channel(path, int) as channel:
        with channel.group("g") as rx:
            monkeypatch.setattr(WritableStore, "retain_from", lambda _store, _offset: False)
            with pytest.raises(StorageError, match=r"control is damaged: consumer 'g' found no valid position"):
                await rx.seek("latest")


async def test_seeking_needs_everything_acked(path: Path) -> None:
    """A seek is refused while messages are unacked; afterwards it moves the whole group."""
    async with open_channel(path, int) as channel:
        await fill(channel, 5)
        with channel.group("g") as rx, channel.group("g") as other:
            deliveries = await take(rx, 3)
            deliveries[0].ack()
            with pytest.raises(AckError, match="2 messages are not acknowledged; acknowledge everything"):
                await other.seek("earliest")
            deliveries[1].nack()
            deliveries[2].ack()
            with pytest.raises(AckError, match="1 message is not acknowledged"):
                await rx.seek("latest")
            other.ack(len(await other.receive_many(9)))
            with pytest.raises(ValueError, match="to="):
                await rx.seek(1)  # type: ignore[arg-type]
            await rx.seek(await channel.offset_of(1))
            assert (await other.receive(), await rx.receive(), floor(channel)) == (1, 2, 1)
            rx.ack()
            other.ack()
            async with anyio.create_task_group() as tasks:
                await rx.seek("latest")
                tasks.start_soon(other.receive)
                await anyio.wait_all_tasks_blocked()
                await rx.seek("earliest")
            assert (rx.unack_count, other.unack_count) == (0, 1)


@one_loop
@pytest.mark.parametrize("lease", [0, -1, float("nan"), float("inf"), "5", None, True])
async def test_a_lease_is_a_time(path: Path, lease: object) -> None:
    """`group` refuses a lease that is not a time, and registers nothing."""
    async with open_channel(path, int) as channel:
        with pytest.raises((TypeError, ValueError), match="lease"):
            channel.group("g", lease=lease)  # type: ignore[arg-type]
        assert channel.consumers() == ()


@one_loop
@pytest.mark.parametrize("name", ["", "x" * 300, "\ud800", 5])
async def test_a_bad_name_is_refused(path: Path, name: str) -> None:
    """`group` refuses the same names as `receiver`."""
    async with open_channel(path, int) as channel:
        with pytest.raises((TypeError, ValueError), match="name"):
            channel.group(name)
        assert os.listdir(path / "consumers") == []


@one_loop
async def test_a_member_is_not_pickled(path: Path) -> None:
    """A member can be neither pickled nor copied, because its deliveries belong to this process."""
    async with open_channel(path, int) as channel:
        rx = channel.group("../g/")
        assert (rx.name, rx.lease) == ("../g/", 30.0)
        for way in (pickle.dumps, copy.copy):
            with pytest.raises(TypeError, match="pickled"):
                way(rx)
