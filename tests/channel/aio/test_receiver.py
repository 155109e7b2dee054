"""Receiving: one message or many, waiting or not, and where it resumes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import anyio
import pytest
from anyio import ClosedResourceError, EndOfStream, WouldBlock
from anyio.to_thread import run_sync

from filechannel import (
    ChannelOptions,
    CorruptRecordError,
    DataExpiredError,
    DecodeError,
    FileChannel,
    Offset,
    Receiver,
    Record,
    Sender,
    open_channel,
)
from tests.backends import one_loop

pytestmark = pytest.mark.anyio


async def test_messages_come_in_the_order_they_were_sent(path: Path) -> None:
    """`receive` gives one message after the other, from segment to segment."""
    async with open_channel(path, int, options=ChannelOptions(segment_size=4096)) as channel:
        with channel.sender() as tx, channel.receiver() as rx:
            for number in range(1000):
                tx.send_nowait(number)
            assert channel.statistics().segments > 1
            assert [await rx.receive() for _ in range(1000)] == list(range(1000))


async def test_receive_waits_for_a_message(path: Path) -> None:
    """A receive on an empty channel ends when something is sent."""
    async with open_channel(path, int) as channel, channel.sender() as tx, channel.receiver() as rx:
        async with anyio.create_task_group() as group:

            async def receive() -> None:
                assert await rx.receive() == 1

            group.start_soon(receive)
            await anyio.wait_all_tasks_blocked()
            await tx.send(1)


async def test_receive_nowait_does_not_wait(path: Path) -> None:
    """`receive_nowait` gives what is there, and raises `WouldBlock` where nothing is."""
    async with open_channel(path, int) as channel, channel.sender() as tx, channel.receiver() as rx:
        with pytest.raises(WouldBlock):
            rx.receive_nowait()
        await tx.send(1)
        assert rx.receive_nowait() == 1
        with pytest.raises(WouldBlock):
            rx.receive_nowait()


async def test_receive_record_returns_the_position_of_the_message(path: Path) -> None:
    """A record has the message, its offset and its sequence, and waits like `receive`."""
    async with open_channel(path, str) as channel, channel.sender() as tx, channel.receiver() as rx:
        offset = tx.send_nowait("a")
        assert await rx.receive_record() == Record("a", offset, 0)
        async with anyio.create_task_group() as group:

            async def receive() -> None:
                assert await rx.receive_record() == Record("b", offset + 10, 1)

            group.start_soon(receive)
            await anyio.wait_all_tasks_blocked()
            await tx.send("b")


async def test_receive_record_nowait_does_not_wait(path: Path) -> None:
    """`receive_record_nowait` returns the next record, and raises `WouldBlock` if there is none."""
    async with open_channel(path, str) as channel, channel.sender() as tx, channel.receiver() as rx:
        with pytest.raises(WouldBlock):
            rx.receive_record_nowait()
        offset = tx.send_nowait("a")
        assert rx.receive_record_nowait() == Record("a", offset, 0)
        with pytest.raises(WouldBlock):
            rx.receive_record_nowait()
        await channel.seal()
        with pytest.raises(EndOfStream):
            rx.receive_record_nowait()


@one_loop
@pytest.mark.parametrize("way", ["ack_receiver", "group"])
async def test_a_record_that_was_received_without_waiting_is_acknowledged_as_any(path: Path, way: str) -> None:
    """A record that was received without waiting is outstanding until it is acked, and is redelivered otherwise."""
    async with open_channel(path, int) as channel, channel.sender() as tx:
        await tx.send_many([7, 8])
        for expected in (7, 8):
            with channel.ack_receiver("it") if way == "ack_receiver" else channel.group("it") as rx:
                for number in range(expected, 9):
                    assert rx.receive_record_nowait().value == number
                assert rx.unack_count == 9 - expected
                with pytest.raises(WouldBlock):
                    rx.receive_record_nowait()
                rx.ack()


async def test_none_is_a_message(path: Path) -> None:
    """A channel of None distinguishes a None that was sent from no message."""
    async with open_channel(path, None) as channel, channel.sender() as tx, channel.receiver() as rx:
        with pytest.raises(WouldBlock):
            rx.receive_nowait()
        await tx.send(None)
        tx.send_nowait(None)
        await tx.send(None)
        assert await rx.receive() is None
        assert rx.receive_nowait() is None
        assert (await rx.receive_record()).value is None
        with pytest.raises(WouldBlock):
            rx.receive_nowait()


# Many


async def test_receive_many_takes_what_is_there(path: Path) -> None:
    """`receive_many` gives at least one and at most so many."""
    async with open_channel(path, int) as channel, channel.sender() as tx, channel.receiver() as rx:
        await tx.send_many([1, 2, 3])
        assert await rx.receive_many(2) == [1, 2]
        assert await rx.receive_many(2) == [3]


async def test_receive_many_waits_for_the_first(path: Path) -> None:
    """On an empty channel `receive_many` waits for one message, not for all."""
    async with open_channel(path, int) as channel, channel.sender() as tx, channel.receiver() as rx:
        async with anyio.create_task_group() as group:

            async def receive() -> None:
                assert await rx.receive_many(10) == [1]

            group.start_soon(receive)
            await anyio.wait_all_tasks_blocked()
            await tx.send(1)


async def test_receive_many_nowait_gives_an_empty_list_for_nothing(path: Path) -> None:
    """`receive_many_nowait` returns up to so many, and [] if there are none."""
    async with open_channel(path, int) as channel, channel.sender() as tx, channel.receiver() as rx:
        assert rx.receive_many_nowait(5) == []
        await tx.send_many([1, 2, 3])
        assert rx.receive_many_nowait(2) == [1, 2]
        assert rx.receive_many_nowait(2) == [3]
        assert rx.receive_many_nowait(2) == []


@pytest.mark.parametrize("wanted", [1023, 1024, 1025, 4999, 5000, 5001, 10**12])
async def test_receive_many_of_any_size(path: Path, wanted: int) -> None:
    """Large and small numbers of messages come whole and in order, and the rest stays."""
    async with open_channel(path, int, options=ChannelOptions(segment_size=8192)) as channel:
        with channel.sender() as tx, channel.receiver() as rx:
            await tx.send_many(range(5000))
            items = await rx.receive_many(wanted)
            assert items == list(range(min(wanted, 5000)))
            assert rx.receive_many_nowait(5000) == list(range(len(items), 5000))


@one_loop
@pytest.mark.parametrize("count", [0, -1])
async def test_a_number_of_messages_below_one_is_refused(path: Path, count: int) -> None:
    """A count below one is a `ValueError`."""
    async with open_channel(path, int) as channel, channel.receiver() as rx:
        for call in (rx.receive_many_nowait, rx.peek):
            with pytest.raises(ValueError, match="at least 1"):
                call(count)
        with pytest.raises(ValueError, match="at least 1"):
            await rx.receive_many(count)


@one_loop
@pytest.mark.parametrize("count", [1.0, "1", None, True])
async def test_a_number_of_messages_is_an_int(path: Path, count: object) -> None:
    """A count that is not an int is a `TypeError`."""
    async with open_channel(path, int) as channel, channel.receiver() as rx:
        for call in (rx.receive_many_nowait, rx.peek):
            with pytest.raises(TypeError, match="number of messages"):
                call(count)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="number of messages"):
            await rx.receive_many(count)  # type: ignore[arg-type]


# Linger


async def test_linger_waits_for_more(path: Path) -> None:
    """With `linger` the call ends as soon as enough messages are there."""
    async with open_channel(path, int) as channel, channel.sender() as tx, channel.receiver() as rx:
        async with anyio.create_task_group() as group:

            async def receive() -> None:
                assert await rx.receive_many(3, linger=600) == [1, 2, 3]

            group.start_soon(receive)
            for number in (1, 2, 3):
                await anyio.wait_all_tasks_blocked()
                await tx.send(number)


async def test_linger_does_not_wait_for_what_is_there(path: Path) -> None:
    """With enough messages there is nothing to wait for."""
    async with open_channel(path, int) as channel, channel.sender() as tx, channel.receiver() as rx:
        await tx.send_many([1, 2, 3])
        with anyio.fail_after(60):
            assert await rx.receive_many(2, linger=600) == [1, 2]


async def test_linger_ends(path: Path) -> None:
    """After the time is over the call gives what came."""
    async with open_channel(path, int) as channel, channel.sender() as tx, channel.receiver() as rx:
        await tx.send_many([1, 2])
        assert await rx.receive_many(3, linger=0.01) == [1, 2]


async def test_linger_ends_when_the_channel_is_sealed(path: Path) -> None:
    """A sealed channel has nothing more to wait for."""
    async with open_channel(path, int) as channel, channel.sender() as tx, channel.receiver() as rx:
        await tx.send_many([1, 2])
        async with anyio.create_task_group() as group:

            async def receive() -> None:
                assert await rx.receive_many(3, linger=600) == [1, 2]

            group.start_soon(receive)
            await anyio.wait_all_tasks_blocked()
            await channel.seal()


async def test_linger_ends_when_the_receiver_is_closed(path: Path) -> None:
    """Closing a receiver that lingers raises there, and takes nothing."""
    async with open_channel(path, int) as channel, channel.sender() as tx:
        rx = channel.receiver()
        await tx.send_many([1, 2])
        async with anyio.create_task_group() as group:

            async def receive() -> None:
                with pytest.raises(ClosedResourceError):
                    await rx.receive_many(3, linger=600)

            group.start_soon(receive)
            await anyio.wait_all_tasks_blocked()
            rx.close()
        with channel.receiver() as again:
            assert again.receive_many_nowait(5) == [1, 2]


@one_loop
@pytest.mark.parametrize("linger", [-1, -0.1, float("nan")])
async def test_a_linger_below_zero_is_refused(path: Path, linger: float) -> None:
    """A time below zero, or none at all, is a `ValueError` at once."""
    async with open_channel(path, int) as channel, channel.receiver() as rx:
        with pytest.raises(ValueError, match="linger"):
            await rx.receive_many(1, linger)


@one_loop
@pytest.mark.parametrize("linger", ["1", None, timedelta(1)])
async def test_a_linger_is_a_number(path: Path, linger: object) -> None:
    """A linger that is not a number of seconds is a `TypeError` at once."""
    async with open_channel(path, int) as channel, channel.receiver() as rx:
        with pytest.raises(TypeError, match="linger"):
            await rx.receive_many(1, linger)  # type: ignore[arg-type]


# Errors in the middle of many


def overtake(channel: FileChannel[int], segments: int) -> Offset:
    """Drop the oldest segments as `drop_oldest` does, while receivers are in them; return where the rest begins."""
    store = channel._store
    oldest = store.segments.begins[segments]
    store.control.oldest_offset = oldest
    store.segments.remove_before(oldest)
    return oldest


EVERY_WAY: dict[str, Callable[[Receiver[int]], Awaitable[object]]] = {
    "receive": lambda rx: rx.receive(),
    "receive_nowait": lambda rx: now(rx.receive_nowait),
    "receive_record": lambda rx: rx.receive_record(),
    "receive_record_nowait": lambda rx: now(rx.receive_record_nowait),
    "receive_many": lambda rx: rx.receive_many(3),
    "receive_many, many": lambda rx: rx.receive_many(10_000),
    "receive_many_nowait": lambda rx: now(lambda: rx.receive_many_nowait(3)),
    "async for": lambda rx: rx.__anext__(),
}


async def now(call: Callable[[], object]) -> object:
    """Call something that does not wait."""
    return call()


async def many(rx: Receiver[int], how: str) -> list[int]:
    """Receive a batch in one of three ways."""
    if how == "nowait":
        return rx.receive_many_nowait(10_000)
    return await rx.receive_many(10_000 if how == "slices" else 1000)


@one_loop
@pytest.mark.parametrize("way", EVERY_WAY)
@pytest.mark.parametrize("how", ["nowait", "at once", "slices"])
async def test_an_overtaken_receiver_gets_one_error(path: Path, how: str, way: str) -> None:
    """What was read before the gap comes first, then `DataExpiredError`, once, and then it resumes after the gap."""
    async with open_channel(path, int, options=ChannelOptions(segment_size=4096)) as channel, channel.sender() as tx:
        with channel.receiver() as rx:
            await tx.send_many(range(3000))
            assert await rx.receive() == 0
            oldest = await run_sync(overtake, channel, 3)
            ahead = rx.peek(10_000)
            before = await many(rx, how)
            assert before == ahead
            assert before == list(range(1, 1 + len(before)))
            with pytest.raises(DataExpiredError) as caught:
                await EVERY_WAY[way](rx)
            assert (caught.value.oldest, rx.read_offset) == (oldest, oldest)
            first = 1 + len(before) + caught.value.missed
            assert rx.peek() == [first]
            assert rx.receive_many_nowait(10_000) == list(range(first, 3000))
            assert 0 < len(before) < first < 3000


@pytest.mark.parametrize("how", ["nowait", "at once", "slices"])
async def test_damage_comes_after_what_was_before_it(path: Path, how: str) -> None:
    """A batch ends before a damaged record; every call afterwards raises, and the position stays."""
    async with open_channel(path, int) as channel, channel.sender() as tx, channel.receiver() as rx:
        offsets = [tx.send_nowait(number) for number in range(200)]
        segment = channel._store.segments.get(channel._store.segments.begins[0])
        segment.map[segment.position(offsets[100]) + 8] ^= 1
        assert await many(rx, how) == list(range(100))
        for way in EVERY_WAY.values():
            with pytest.raises(CorruptRecordError) as caught:
                await way(rx)
            assert caught.value.offset == rx.read_offset == offsets[100]
        await rx.seek(offsets[100])
        segment.map[segment.position(offsets[100]) + 8] ^= 1
        assert await many(rx, how) == list(range(100, 200))


@pytest.mark.parametrize("how", ["nowait", "at once", "slices"])
async def test_an_undecodable_message_comes_after_what_was_before_it(path: Path, how: str) -> None:
    """A batch ends before a message that does not decode; every call afterwards raises, and the position stays."""
    async with open_channel(path, object) as channel, channel.sender() as tx:
        offsets = [tx.send_nowait(number if number != 100 else "no number") for number in range(200)]
        await channel.configure(schema=int)
    async with open_channel(path, int) as numbers, numbers.receiver() as rx:
        assert await many(rx, how) == list(range(100))
        for way in EVERY_WAY.values():
            with pytest.raises(DecodeError) as caught:
                await way(rx)
            assert caught.value.offset == rx.read_offset == offsets[100]
        await rx.seek(caught.value.next_offset)
        assert await many(rx, how) == list(range(101, 200))


# async for, peek


async def test_async_for_runs_until_the_channel_is_sealed(path: Path) -> None:
    """An `async for` waits for messages, and ends with the channel."""
    got: list[int] = []
    async with open_channel(path, int) as channel, channel.sender() as tx, channel.receiver() as rx:
        async with anyio.create_task_group() as group:

            async def iterate() -> None:
                got.extend([item async for item in rx])

            group.start_soon(iterate)
            for number in range(3):
                await anyio.wait_all_tasks_blocked()
                await tx.send(number)
            await channel.seal()
    assert got == [0, 1, 2]


async def test_async_for_may_be_left_and_entered_again(path: Path) -> None:
    """Leaving the loop loses nothing: another loop continues with the next message."""
    async with open_channel(path, int) as channel, channel.sender() as tx, channel.receiver() as rx:
        await tx.send_many(range(5))
        async for item in rx:
            if item == 1:
                break
        await channel.seal()
        assert [item async for item in rx] == [2, 3, 4]


async def test_async_for_over_a_closed_receiver(path: Path) -> None:
    """An `async for` over a receiver that is closed raises: it is not the end of the stream."""
    async with open_channel(path, int) as channel:
        rx = channel.receiver()
        rx.close()
        with pytest.raises(ClosedResourceError):
            async for _ in rx:
                pass


async def test_peek_returns_the_next_messages(path: Path) -> None:
    """`peek` returns up to n messages and consumes none."""
    async with open_channel(path, int, options=ChannelOptions(segment_size=4096)) as channel:
        with channel.sender() as tx, channel.receiver() as rx:
            assert rx.peek() == []
            await tx.send_many(range(2000))
            assert rx.peek() == [0]
            assert rx.peek(1500) == list(range(1500))
            assert rx.peek(9999) == list(range(2000))
            assert await rx.receive() == 0
            assert rx.peek(n=2) == [1, 2]
            assert rx.statistics().lag_messages == 1999


async def test_peek_does_not_move_the_stored_position(path: Path) -> None:
    """Peeked messages are received after reopening."""
    async with open_channel(path, int) as channel, channel.sender() as tx, channel.receiver() as rx:
        await tx.send_many([1, 2])
        rx.peek(2)
    async with open_channel(path, int) as channel, channel.receiver() as rx:
        assert rx.receive_many_nowait(5) == [1, 2]


# Start and seek


async def some(channel: FileChannel[int], tx: Sender[int]) -> list[int]:
    """Send ten numbers and return their offsets."""
    return [tx.send_nowait(number) for number in range(10)]


async def test_start_earliest(path: Path) -> None:
    """By default a new name begins with the oldest message."""
    async with open_channel(path, int) as channel, channel.sender() as tx:
        await some(channel, tx)
        with channel.receiver("a") as first, channel.receiver("b", start="earliest") as second:
            assert await first.receive() == await second.receive() == 0


async def test_start_latest(path: Path) -> None:
    """With "latest" a new name gets only what is sent after `receiver()` returned."""
    async with open_channel(path, int) as channel, channel.sender() as tx:
        await some(channel, tx)
        with channel.receiver(start="latest") as rx:
            tx.send_nowait(10)
            assert rx.receive_many_nowait(20) == [10]


async def test_start_at_an_offset(path: Path) -> None:
    """With an offset a new name begins with the message there; the write offset is one too."""
    async with open_channel(path, int) as channel, channel.sender() as tx:
        offsets = await some(channel, tx)
        with channel.receiver("a", start=offsets[7]) as rx:
            record = await rx.receive_record()
            assert (record.value, record.sequence) == (7, 7)
        with channel.receiver("b", start=tx.write_offset) as rx:
            tx.send_nowait(10)
            assert rx.receive_many_nowait(20) == [10]


@one_loop
async def test_start_at_an_offset_in_another_segment(path: Path) -> None:
    """An offset in any segment is found, with the right number."""
    async with open_channel(path, int, options=ChannelOptions(segment_size=4096)) as channel, channel.sender() as tx:
        offsets = [tx.send_nowait(number) for number in range(3000)]
        for number in (0, 1, 500, 1499, 2999):
            with channel.replay(offsets[number]) as rx:
                record = await rx.receive_record()
                assert (record.value, record.offset, record.sequence) == (number, offsets[number], number)


@one_loop
async def test_start_at_a_moment(path: Path) -> None:
    """With a datetime a new name misses nothing sent at or after it, whatever its time zone."""
    async with open_channel(path, int) as channel, channel.sender() as tx:
        await some(channel, tx)
        moment = datetime.now(UTC)
        tx.send_nowait(10)
        far_east = timezone(timedelta(hours=9))
        for start in (moment, moment.astimezone(far_east), moment - timedelta(days=9000)):
            with channel.replay(start) as rx:
                assert 10 in rx.receive_many_nowait(20)
        with channel.replay(datetime.max.replace(tzinfo=UTC), stop=None) as rx:
            tx.send_nowait(11)
            assert 11 in rx.receive_many_nowait(20)
        with channel.replay(datetime.min.replace(tzinfo=UTC)) as rx:
            assert rx.receive_many_nowait(20) == list(range(12))


@one_loop
@pytest.mark.parametrize("method", ["receiver", "replay", "seek"])
@pytest.mark.parametrize("start", [1, 5, 10**15, -1], ids=repr)
async def test_an_offset_where_no_message_begins_is_refused(path: Path, method: str, start: int) -> None:
    """An offset inside a message, after the last or below zero is a `ValueError` that names it."""
    async with open_channel(path, int) as channel, channel.sender() as tx:
        await some(channel, tx)
        with pytest.raises(ValueError, match=str(start)):
            await begin(channel, method, start)


@one_loop
@pytest.mark.parametrize("method", ["receiver", "replay", "seek"])
@pytest.mark.parametrize("start", ["newest", "", 1.0, None, True, b"earliest", ["earliest"]], ids=repr)
async def test_an_invalid_start_is_refused(path: Path, method: str, start: object) -> None:
    """An invalid position is a `ValueError` that names the valid ones."""
    async with open_channel(path, int) as channel, channel.sender() as tx:
        await some(channel, tx)
        with pytest.raises(ValueError, match="'earliest'"):
            await begin(channel, method, start)


@one_loop
@pytest.mark.parametrize("method", ["receiver", "replay", "seek"])
async def test_a_naive_datetime_is_refused(path: Path, method: str) -> None:
    """A datetime without a time zone is a `ValueError`."""
    async with open_channel(path, int) as channel:
        with pytest.raises(ValueError, match="time zone"):
            await begin(channel, method, datetime(2024, 1, 1))  # noqa: DTZ001


async def begin(channel: FileChannel[int], method: str, start: object) -> None:
    """Use a position in one of three ways; after a refusal nothing is registered or moved."""
    if method == "seek":
        with channel.receiver("seeker") as rx:
            before = rx.read_offset
            try:
                await rx.seek(start)  # type: ignore[arg-type]
            finally:
                assert rx.read_offset == before
    elif method == "replay":
        channel.replay(start).close()  # type: ignore[arg-type]
    else:
        try:
            channel.receiver("new", start=start).close()  # type: ignore[arg-type]
        finally:
            with channel.receiver("new") as rx:
                assert rx.read_offset == 0


async def test_seek_moves_anywhere(path: Path) -> None:
    """`seek` moves to every kind of position, back and forth, and the next message is read from there."""
    async with open_channel(path, int) as channel, channel.sender() as tx, channel.receiver() as rx:
        offsets = await some(channel, tx)
        await rx.seek(offsets[5])
        assert await rx.receive() == 5
        await rx.seek("latest")
        with pytest.raises(WouldBlock):
            rx.receive_nowait()
        await rx.seek("earliest")
        assert await rx.receive() == 0
        await rx.seek(datetime.now(UTC) - timedelta(days=1))
        assert await rx.receive() == 0
        assert rx.statistics().next_sequence == 1


async def test_seek_is_remembered(path: Path) -> None:
    """A named consumer comes back where it was moved to."""
    async with open_channel(path, int) as channel, channel.sender() as tx, channel.receiver() as rx:
        offsets = await some(channel, tx)
        await rx.seek(offsets[5])
    async with open_channel(path, int) as channel, channel.receiver() as rx:
        assert rx.read_offset == offsets[5]


async def test_seek_back_wakes_waiting_tasks(path: Path) -> None:
    """A task that waits at the end resumes when its position is moved back."""
    async with open_channel(path, int) as channel, channel.sender() as tx, channel.receiver() as rx:
        await tx.send(1)
        assert await rx.receive() == 1
        got: list[int] = []

        async def receive() -> None:
            got.append(await rx.receive())

        async with anyio.create_task_group() as group:
            group.start_soon(receive)
            await anyio.wait_all_tasks_blocked()
            await rx.seek("earliest")
        assert got == [1]


@one_loop
async def test_statistics_of_a_receiver(path: Path) -> None:
    """A receiver reports its position, its lag, and how many share its position."""
    async with open_channel(path, int) as channel, channel.sender() as tx, channel.receiver() as rx, rx.clone():
        await some(channel, tx)
        await rx.receive()
        found = rx.statistics()
        assert (found.read_offset, found.next_sequence) == (rx.read_offset, 1)
        assert (found.lag_messages, found.clones) == (9, 2)
        assert found.lag_bytes == tx.write_offset - rx.read_offset


async def test_a_closed_receiver_refuses_everything(path: Path) -> None:
    """After closing, which may be done twice, every method raises `ClosedResourceError`."""
    async with open_channel(path, int) as channel, channel.sender() as tx:
        await tx.send(1)
        rx = channel.receiver()
        await rx.aclose()
        rx.close()
        for call in (
            rx.receive_nowait,
            rx.receive_record_nowait,
            lambda: rx.receive_many_nowait(1),
            rx.peek,
            rx.clone,
            rx.statistics,
            lambda: rx.read_offset,
        ):
            with pytest.raises(ClosedResourceError):
                call()
        for start in (
            rx.receive,
            rx.receive_record,
            lambda: rx.receive_many(1),
            lambda: rx.receive_many(2000),
            lambda: rx.seek("earliest"),
            rx.unsubscribe,
        ):
            with pytest.raises(ClosedResourceError):
                await start()
        with channel.receiver() as again:
            assert await again.receive() == 1


async def test_a_receiver_works_in_both_kinds_of_with(path: Path) -> None:
    """`with` and `async with` close the receiver."""
    async with open_channel(path, int) as channel:
        with channel.receiver("a") as first:
            pass
        async with channel.receiver("b") as second:
            pass
        for rx in (first, second):
            with pytest.raises(ClosedResourceError):
                rx.receive_nowait()
