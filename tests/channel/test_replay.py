"""Replaying: history without a name, up to where it stops."""

from __future__ import annotations

import errno
import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio
import pytest
from anyio import ClosedResourceError, EndOfStream, WouldBlock
from anyio.to_thread import run_sync

from filechannel import (
    ChannelOptions,
    CorruptRecordError,
    DataExpiredError,
    Durability,
    Receiver,
    Record,
    StorageError,
    open_channel,
)
from tests.backends import one_loop
from tests.channel.gates import Gate
from tests.channel.overtaking import overtake

pytestmark = pytest.mark.anyio

SMALL = ChannelOptions(segment_size=4096)


async def now(call: Callable[[], object]) -> object:
    """Call something that does not wait."""
    return call()


EVERY_WAY: dict[str, Callable[[Receiver[int]], Awaitable[object]]] = {
    "receive": lambda rx: rx.receive(),
    "receive_nowait": lambda rx: now(rx.receive_nowait),
    "receive_record": lambda rx: rx.receive_record(),
    "receive_record_nowait": lambda rx: now(rx.receive_record_nowait),
    "receive_many": lambda rx: rx.receive_many(3),
    "receive_many, many": lambda rx: rx.receive_many(10_000),
    "receive_many, linger": lambda rx: rx.receive_many(3, linger=600),
    "receive_many_nowait": lambda rx: now(lambda: rx.receive_many_nowait(3)),
}


async def ended(rx: Receiver[int]) -> None:
    """Check that this is the end, whichever method is called, and that a call changes nothing."""
    with anyio.fail_after(60):
        for way in EVERY_WAY.values():
            with pytest.raises(EndOfStream):
                await way(rx)
        assert [item async for item in rx] == []
    assert rx.peek(5) == []
    found = rx.statistics()
    assert (found.lag_messages, found.lag_bytes) == (0, 0)


async def every(rx: Receiver[int], way: str) -> list[int]:
    """Receive everything in one way, until it ends."""
    items: list[int] = []
    while True:
        try:
            got = await EVERY_WAY[way](rx)
        except EndOfStream:
            return items
        items += got if isinstance(got, list) else [got.value if isinstance(got, Record) else got]


async def test_a_replay_holds_nothing_and_stores_nothing(path: Path) -> None:
    """A replay has no name: two of them are independent, and neither is remembered."""
    async with open_channel(path, int) as channel, channel.sender() as tx:
        await tx.send_many(range(10))
        with channel.replay() as first, channel.replay() as second:
            assert type(first) is Receiver
            assert first.receive_many_nowait(20) == second.receive_many_nowait(20) == list(range(10))
        assert list((path / "consumers").iterdir()) == []


# Where it stops


@pytest.mark.parametrize("way", EVERY_WAY)
async def test_a_replay_ends_with_what_was_there(path: Path, way: str) -> None:
    """By default a replay gives what was published when `replay()` was called, and then `EndOfStream`."""
    async with open_channel(path, int, options=SMALL) as channel, channel.sender() as tx:
        await tx.send_many(range(1500))
        with channel.replay() as rx:
            end = tx.write_offset
            await tx.send_many(range(1500, 3000))
            assert await every(rx, way) == list(range(1500))
            assert rx.read_offset == end
            await ended(rx)
            await tx.send(3000)
            await ended(rx)


@one_loop
@pytest.mark.parametrize("way", EVERY_WAY)
@pytest.mark.parametrize("count", [0, 1, 2, 3, 1023, 1024, 1025, 1999, 2000])
async def test_a_replay_stops_at_an_offset(path: Path, way: str, count: int) -> None:
    """With an offset as `stop` the message that begins there is the first that does not come, in any segment."""
    async with open_channel(path, int, options=SMALL) as channel, channel.sender() as tx:
        offsets = [tx.send_nowait(number) for number in range(2000)] + [tx.write_offset]
        with channel.replay(stop=offsets[count]) as rx:
            assert await every(rx, way) == list(range(count))
            assert rx.read_offset == offsets[count]
            await ended(rx)


async def test_a_replay_between_two_offsets(path: Path) -> None:
    """`start` is the first message that comes, `stop` the first that does not."""
    async with open_channel(path, int) as channel, channel.sender() as tx:
        offsets = [tx.send_nowait(number) for number in range(10)]
        with channel.replay(offsets[3], offsets[7]) as rx:
            assert [item async for item in rx] == [3, 4, 5, 6]
        with channel.replay(start=offsets[7], stop=offsets[7]) as rx:
            await ended(rx)


async def test_a_start_behind_the_stop_is_an_empty_history(path: Path) -> None:
    """Nothing lies between a start and a stop before it."""
    async with open_channel(path, int) as channel, channel.sender() as tx:
        offsets = [tx.send_nowait(number) for number in range(10)]
        with channel.replay(offsets[7], stop=offsets[3]) as rx, channel.replay("latest", stop=offsets[3]) as other:
            await ended(rx)
            await ended(other)
        with channel.replay("latest") as rx:
            await tx.send(10)
            await ended(rx)


async def test_a_replay_of_an_empty_channel_ends_at_once(path: Path) -> None:
    """Without history there is nothing to wait for, whatever is sent afterwards."""
    async with open_channel(path, int) as channel, channel.sender() as tx, channel.replay() as rx:
        await ended(rx)
        await tx.send(1)
        await ended(rx)


async def test_a_replay_without_a_stop_continues_live(path: Path) -> None:
    """With `stop=None` a replay waits for what is sent after the history, until the channel is sealed."""
    async with open_channel(path, int) as channel, channel.sender() as tx:
        await tx.send(0)
        with channel.replay(stop=None) as rx:
            got: list[int] = []
            async with anyio.create_task_group() as group:

                async def receive() -> None:
                    async for item in rx:
                        got.append(item)  # noqa: PERF401

                group.start_soon(receive)
                await anyio.wait_all_tasks_blocked()
                await tx.send(1)
                await anyio.wait_all_tasks_blocked()
                assert got == [0, 1]
                await channel.seal()
            await ended(rx)


async def test_a_replay_of_a_sealed_channel(path: Path) -> None:
    """A sealed channel is replayed to its end, or to an offset before it."""
    async with open_channel(path, int) as channel, channel.sender() as tx:
        offsets = [tx.send_nowait(number) for number in range(5)]
        with channel.replay() as before:
            await channel.seal()
            for stop in ("latest", None):
                with channel.replay(stop=stop) as rx:  # type: ignore[arg-type]
                    assert [item async for item in rx] == [0, 1, 2, 3, 4]
                    await ended(rx)
            with channel.replay(stop=offsets[3]) as rx:
                assert rx.receive_many_nowait(9) == [0, 1, 2]
                await ended(rx)
            assert [item async for item in before] == [0, 1, 2, 3, 4]


async def test_a_replay_under_fsync_ends_with_what_is_visible(path: Path, gate: Gate) -> None:
    """What has been appended and is not on disk yet was not published when `replay()` was called."""
    options = ChannelOptions(durability=Durability.FSYNC)
    async with open_channel(path, int, options=options) as channel, channel.sender() as tx:
        await tx.send(1)
        with gate.closed():
            tx.send_nowait(2)
            rx = channel.replay()
        await channel.flush()
        assert channel.statistics().messages == 2
        assert [item async for item in rx] == [1]
        await ended(rx)


async def test_a_replay_stops_before_an_offset_gap(path: Path, gate: Gate, caplog: pytest.LogCaptureFixture) -> None:
    """After a failed flush the log resumes far beyond its end: where it ended before is a stop like any other."""
    caplog.set_level(logging.CRITICAL, "filechannel")
    async with open_channel(path, int) as channel, channel.sender() as tx:
        await tx.send_many([1, 2])
        end = tx.write_offset
        with channel.replay() as before:
            gate.error = OSError(errno.EIO, "Input/output error")
            with pytest.raises(StorageError, match="Input/output error"):
                await channel.flush()
            assert tx.send_nowait(3) > end
            with channel.replay(stop=end) as after, channel.replay(end, stop=end) as nothing:
                assert [item async for item in before] == [item async for item in after] == [1, 2]
                for rx in (before, after, nothing):
                    await ended(rx)
                await before.seek(end)
                await ended(before)


async def test_a_replay_of_a_readonly_channel_ends(path: Path) -> None:
    """A read-only channel gets what was stored, without polling."""
    async with open_channel(path, int) as channel, channel.sender() as tx:
        await tx.send_many([1, 2])
        async with open_channel(path, int, readonly=True) as reader, reader.replay() as rx:
            await tx.send(3)
            assert [item async for item in rx] == [1, 2]


@one_loop
@pytest.mark.parametrize("stop", [1, 5, 10**15, -1], ids=repr)
async def test_a_stop_where_no_message_begins_is_refused(path: Path, stop: int) -> None:
    """An offset inside a message, after the last or below zero is a `ValueError` that names it."""
    async with open_channel(path, int) as channel, channel.sender() as tx:
        await tx.send_many(range(10))
        with pytest.raises(ValueError, match=str(stop)):
            channel.replay(stop=stop)  # type: ignore[arg-type]
        assert channel.statistics().receivers == 0


@one_loop
@pytest.mark.parametrize(
    "stop", ["earliest", "", 1.0, True, datetime(2024, 1, 1, tzinfo=UTC), b"latest", ["latest"]], ids=repr
)
async def test_an_invalid_stop_is_refused(path: Path, stop: object) -> None:
    """An invalid stop is a `ValueError` that names the valid ones."""
    async with open_channel(path, int) as channel:
        with pytest.raises(ValueError, match=r"stop=.*'latest'.*Offset.*None"):
            channel.replay(stop=stop)  # type: ignore[arg-type]


# What else a receiver can do


async def test_linger_does_not_wait_for_more_than_the_history(path: Path) -> None:
    """A linger in a replay returns the rest of the history at once."""
    async with open_channel(path, int) as channel, channel.sender() as tx:
        await tx.send_many([1, 2])
        with channel.replay() as rx, anyio.fail_after(60):
            assert await rx.receive_many(3, linger=600) == [1, 2]


async def test_peek_shows_nothing_after_the_stop(path: Path) -> None:
    """`peek` of a replay returns nothing after its stop."""
    async with open_channel(path, int, options=SMALL) as channel, channel.sender() as tx:
        offsets = [tx.send_nowait(number) for number in range(2000)]
        with channel.replay(stop=offsets[1500]) as rx:
            assert rx.peek(9999) == list(range(1500))
            assert rx.receive_many_nowait(1499) == list(range(1499))
            assert rx.peek(2) == [1499]


async def test_clones_of_a_replay_stop_together(path: Path) -> None:
    """Clones share position and stop, also a clone that is made at the end."""
    async with open_channel(path, int) as channel, channel.sender() as tx:
        await tx.send_many([1, 2, 3])
        with channel.replay() as first, first.clone() as second:
            await tx.send(4)
            assert (await first.receive(), await second.receive(), await first.receive()) == (1, 2, 3)
            with second.clone() as third:
                for rx in (first, second, third):
                    await ended(rx)
                await third.seek("earliest")
                assert [item async for item in first] == [1, 2, 3]


async def test_seeking_back_after_the_end(path: Path) -> None:
    """A replay that has ended gives its history again after a seek; the stop stays."""
    async with open_channel(path, int, options=SMALL) as channel, channel.sender() as tx:
        offsets = [tx.send_nowait(number) for number in range(2000)]
        with channel.replay() as rx:
            await tx.send_many(range(2000, 3000))
            for _ in range(2):
                assert await every(rx, "receive_many, many") == list(range(2000))
                await ended(rx)
                await rx.seek(offsets[1997])
                assert await every(rx, "receive") == [1997, 1998, 1999]
                await rx.seek(datetime.now(UTC) - timedelta(days=1))


async def test_seeking_beyond_the_stop_moves_to_the_stop(path: Path) -> None:
    """A replay never passes its stop: it has ended there, whatever is stored after it."""
    async with open_channel(path, int) as channel, channel.sender() as tx:
        offsets = [tx.send_nowait(number) for number in range(10)]
        with channel.replay(stop=offsets[5]) as rx:
            for to in (offsets[5], offsets[8], "latest"):
                await rx.seek(to)  # type: ignore[arg-type]
                assert rx.read_offset == offsets[5]
                await ended(rx)
                await rx.seek(offsets[4])
                assert await every(rx, "receive_nowait") == [4]
            with pytest.raises(ValueError, match=str(offsets[8] + 1)):
                await rx.seek(offsets[8] + 1)  # type: ignore[arg-type]


@one_loop
async def test_statistics_count_up_to_the_stop(path: Path) -> None:
    """The lag of a replay counts the messages up to its stop."""
    async with open_channel(path, int) as channel, channel.sender() as tx:
        offsets = [tx.send_nowait(number) for number in range(10)]
        with channel.replay(stop=offsets[7]) as rx:
            assert await rx.receive_many(3) == [0, 1, 2]
            found = rx.statistics()
            assert (found.read_offset, found.next_sequence, found.lag_messages) == (offsets[3], 3, 4)
            assert found.lag_bytes == offsets[7] - offsets[3]
        with channel.replay(stop=None) as live:
            assert live.statistics().lag_messages == 10


async def test_a_closed_replay_is_closed_and_not_at_its_end(path: Path) -> None:
    """A closed replay that was at its end raises that it is closed."""
    async with open_channel(path, int) as channel:
        rx = channel.replay()
        rx.close()
        for way in EVERY_WAY.values():
            with pytest.raises(ClosedResourceError):
                await way(rx)


async def test_closing_a_live_replay_ends_its_wait(path: Path) -> None:
    """Closing a replay without a stop ends its wait."""
    async with open_channel(path, int) as channel:
        rx = channel.replay(stop=None)
        with pytest.raises(WouldBlock):
            rx.receive_nowait()
        async with anyio.create_task_group() as group:

            async def receive() -> None:
                with pytest.raises(ClosedResourceError):
                    await rx.receive()

            group.start_soon(receive)
            await anyio.wait_all_tasks_blocked()
            rx.close()


# Changes of the history during a replay


@pytest.mark.parametrize("way", EVERY_WAY)
async def test_a_replay_raises_after_a_purge(path: Path, way: str) -> None:
    """A replay never ends as if it had returned everything: it raises that the rest was purged,
    once, and then it ends.
    """
    async with open_channel(path, int, options=SMALL) as channel, channel.sender() as tx:
        await tx.send_many(range(2000))
        with channel.replay() as rx:
            end = tx.write_offset
            got = [await rx.receive()]
            await tx.send_many(range(2000, 3000))
            await channel.purge()
            await tx.send(3000)
            missed = 0
            while not missed:
                try:
                    more = await EVERY_WAY[way](rx)
                    got += more if isinstance(more, list) else [more.value if isinstance(more, Record) else more]
                except DataExpiredError as error:
                    missed = error.missed
            assert got == list(range(len(got)))  # what it had in memory
            assert len(got) + missed == 2000
            await ended(rx)
            assert rx.read_offset == end
            await rx.seek("earliest")
            await ended(rx)


@one_loop
async def test_a_live_replay_raises_after_a_purge(path: Path) -> None:
    """A live replay raises after a purge, and then gets what is sent afterwards."""
    async with open_channel(path, int, options=SMALL) as channel, channel.sender() as tx:
        await tx.send_many(range(2000))
        with channel.replay(stop=None) as rx:
            await channel.purge()
            await tx.send(2000)
            with pytest.raises(DataExpiredError) as caught:
                await rx.receive()
            assert caught.value.missed == 2000
            assert await rx.receive() == 2000


@one_loop
@pytest.mark.parametrize("way", EVERY_WAY)
async def test_a_replay_that_is_overtaken_misses_only_what_it_would_have_given(path: Path, way: str) -> None:
    """If everything up to the stop was dropped the error counts that, and the next call is the end."""
    async with open_channel(path, int, options=SMALL) as channel, channel.sender() as tx:
        offsets = [tx.send_nowait(number) for number in range(3000)]
        with channel.replay(stop=offsets[100]) as rx, channel.replay(stop=offsets[2500]) as longer:
            await run_sync(overtake, channel, 3)
            with pytest.raises(DataExpiredError) as caught:
                await EVERY_WAY[way](rx)
            assert caught.value.missed == 100
            assert caught.value.oldest == channel.statistics().oldest_offset
            await ended(rx)
            with pytest.raises(DataExpiredError) as caught:
                await EVERY_WAY[way](longer)
            assert await every(longer, way) == list(range(caught.value.missed, 2500))


@one_loop
async def test_damage_before_the_stop_is_an_error(path: Path) -> None:
    """Damage before the stop raises at each call, and does not end the replay."""
    async with open_channel(path, int) as channel, channel.sender() as tx:
        offsets = [tx.send_nowait(number) for number in range(10)]
        with channel.replay() as rx:
            segment = channel._store.segments.get(channel._store.segments.begins[0])
            segment.map[segment.position(offsets[5]) + 8] ^= 1
            assert rx.receive_many_nowait(20) == [0, 1, 2, 3, 4]
            for way in EVERY_WAY.values():
                with pytest.raises(CorruptRecordError):
                    await way(rx)
