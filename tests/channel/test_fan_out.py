"""Named consumers: every name gets every message, and resumes where it stopped."""

from __future__ import annotations

import os
from itertools import chain
from pathlib import Path

import anyio
import pytest
from anyio import BusyResourceError, ClosedResourceError

from filechannel import ChannelOptions, ConsumerBusyError, Durability, FanOutReceiver, Offset, open_channel
from tests.backends import one_loop

pytestmark = pytest.mark.anyio

STRANGE_NAMES = [
    "a/b",
    "../../escape",
    "..",
    ".",
    "/etc/passwd",
    "nul\0inside",
    "grün 雪 🦀",
    "with space",
    "%2F",
    "a%2Fb",
    "-rf",
    "con.cursor",
    "new\nline",
    "UPPER",
    "upper",
    "é",  # one code point
    "e\u0301",  # two, which look the same
]


async def test_every_name_gets_every_message(path: Path) -> None:
    """Three consumers each get all messages, in order, at their own pace."""
    async with open_channel(path, int) as channel, channel.sender() as tx:
        with channel.receiver("a") as first, channel.receiver("b") as second:
            await tx.send_many([1, 2, 3])
            assert first.receive_many_nowait(5) == [1, 2, 3]
            assert second.receive_nowait() == 1
            with channel.receiver("c") as third:
                assert third.receive_many_nowait(5) == [1, 2, 3]
            assert second.receive_many_nowait(5) == [2, 3]


async def test_a_name_resumes_where_it_stopped(path: Path) -> None:
    """A consumer that is opened again gets what it has not received, whatever `start` says now."""
    async with open_channel(path, int) as channel, channel.sender() as tx:
        with channel.receiver("a") as rx:
            await tx.send_many([1, 2])
            assert await rx.receive() == 1
        await tx.send(3)
        for start in ("latest", "earliest"):
            with channel.receiver("a", start=start) as rx:
                assert rx.peek(5) == [2, 3]


async def test_a_name_is_registered_when_receiver_returns(path: Path) -> None:
    """A name that received nothing gets every message that was sent since it was registered."""
    async with open_channel(path, int) as channel, channel.sender() as tx:
        await tx.send(1)
        channel.receiver("a", start="latest").close()
        await tx.send(2)
    async with open_channel(path, int) as channel, channel.receiver("a") as rx:
        assert rx.receive_many_nowait(5) == [2]


async def test_closing_a_slow_receiver_does_not_advance_it(path: Path) -> None:
    """Closing a slow receiver does not move its position, whatever others receive."""
    async with open_channel(path, int) as channel, channel.sender() as tx, channel.receiver("fast") as fast:
        with channel.receiver("slow") as slow:
            await tx.send_many(range(100))
            assert len(fast.receive_many_nowait(100)) == 100
            assert await slow.receive() == 0
        with channel.receiver("slow") as slow:
            assert await slow.receive() == 1


async def test_a_receiver_has_a_name_and_an_id(path: Path) -> None:
    """The name is what was given; the id distinguishes it from the same name of another channel."""
    async with open_channel(path, int) as channel, open_channel(path / "other", int) as other:
        with channel.receiver() as rx, channel.receiver("audit") as audit, other.receiver("audit") as foreign:
            assert isinstance(rx, FanOutReceiver)
            assert (rx.name, audit.name) == ("default", "audit")
            assert len({rx.id, audit.id, foreign.id}) == 3
            with audit.clone() as clone:
                assert (clone.name, clone.id) == ("audit", audit.id)


async def test_a_name_has_one_owner_at_a_time(path: Path) -> None:
    """A second receiver of a name is refused with its owner and what to do, until the first is closed."""
    async with open_channel(path, int) as channel:
        with channel.receiver("a"):
            with pytest.raises(ConsumerBusyError) as caught:
                channel.receiver("a")
            assert isinstance(caught.value, BusyResourceError)
            assert (caught.value.name, caught.value.pid) == ("a", os.getpid())
            assert "clone()" in str(caught.value)
            assert caught.value.since is not None
        channel.receiver("a").close()


async def test_a_name_has_one_owner_over_two_opens(path: Path) -> None:
    """Another open of the same channel does not make a second owner possible."""
    async with open_channel(path, int) as one, open_channel(path, int) as two, one.receiver("a"):
        with pytest.raises(ConsumerBusyError):
            two.receiver("a")


async def test_a_refused_owner_takes_nothing_away(path: Path) -> None:
    """The owner continues undisturbed after another one was refused."""
    async with open_channel(path, int) as channel, channel.sender() as tx, channel.receiver("a") as rx:
        await tx.send_many([1, 2])
        assert await rx.receive() == 1
        with pytest.raises(ConsumerBusyError):
            channel.receiver("a", start="latest")
        assert await rx.receive() == 2


# Clones


async def test_clones_share_one_position(path: Path) -> None:
    """Each message is delivered to exactly one of the clones."""
    got: dict[str, list[int]] = {"a": [], "b": [], "c": []}
    async with open_channel(path, int) as channel, channel.sender() as tx, channel.receiver() as rx:

        async def work(name: str, clone: FanOutReceiver[int]) -> None:
            async with clone:
                async for item in clone:
                    got[name].append(item)
                    await anyio.lowlevel.checkpoint()

        async with anyio.create_task_group() as group:
            for name in got:
                group.start_soon(work, name, rx.clone())
            for number in range(300):
                await tx.send(number)
            await channel.seal()
    assert sorted(chain.from_iterable(got.values())) == list(range(300))
    for items in got.values():
        assert items == sorted(items)


async def test_the_last_clone_releases_the_name(path: Path) -> None:
    """The name is taken until every clone is closed."""
    async with open_channel(path, int) as channel:
        rx = channel.receiver("a")
        clone = rx.clone()
        rx.close()
        with pytest.raises(ConsumerBusyError):
            channel.receiver("a")
        assert clone.statistics().clones == 1
        clone.close()
        channel.receiver("a").close()


async def test_a_clone_works_after_its_original_is_closed(path: Path) -> None:
    """Closing the original moves nothing and stops no other clone."""
    async with open_channel(path, int) as channel, channel.sender() as tx:
        await tx.send_many([1, 2])
        rx = channel.receiver("a")
        with rx.clone() as clone:
            assert await rx.receive() == 1
            rx.close()
            assert await clone.receive() == 2


async def test_clones_of_a_replay_share_one_position(path: Path) -> None:
    """A replay can be cloned like a named receiver."""
    async with open_channel(path, int) as channel, channel.sender() as tx:
        await tx.send_many([1, 2])
        with channel.replay() as first, first.clone() as second:
            assert (await first.receive(), await second.receive()) == (1, 2)


async def test_a_large_receive_many_beside_a_clone_takes_nothing_twice(path: Path) -> None:
    """While one clone reads far ahead another one may receive: each message is delivered to one of them."""
    async with open_channel(path, int) as channel, channel.sender() as tx, channel.receiver() as rx:
        got: list[int] = []
        async with anyio.create_task_group() as group:

            async def take(clone: FanOutReceiver[int], many: int) -> None:
                async with clone:
                    try:
                        while True:
                            got.extend(await clone.receive_many(many))
                            await anyio.lowlevel.checkpoint()
                    except anyio.EndOfStream:
                        pass

            for many in (5000, 1, 3000, 7):
                group.start_soon(take, rx.clone(), many)
            for first in range(0, 60_000, 3000):
                await tx.send_many(range(first, first + 3000))
            await channel.seal()
        assert sorted(got) == list(range(60_000))


# Unsubscribe


async def test_unsubscribe_forgets_the_name(path: Path) -> None:
    """After `unsubscribe` the name starts from the beginning, and the receiver and its clones are closed."""
    async with open_channel(path, int) as channel, channel.sender() as tx:
        await tx.send_many([1, 2])
        rx = channel.receiver("a")
        clone = rx.clone()
        await rx.receive()
        await rx.unsubscribe()
        for closed in (rx, clone):
            with pytest.raises(ClosedResourceError):
                closed.receive_nowait()
        assert list((path / "consumers").iterdir()) == []
        with channel.receiver("a") as again:
            assert again.receive_many_nowait(5) == [1, 2]


async def test_unsubscribe_ends_the_wait_of_tasks(path: Path) -> None:
    """A task that waits in a receiver whose name is removed gets `ClosedResourceError`."""
    async with open_channel(path, int) as channel:
        rx = channel.receiver("a")
        async with anyio.create_task_group() as group:

            async def receive() -> None:
                with pytest.raises(ClosedResourceError):
                    await rx.receive()

            group.start_soon(receive)
            await anyio.wait_all_tasks_blocked()
            await rx.unsubscribe()


@pytest.mark.parametrize("kind", ["receiver", "ack_receiver"])
async def test_unsubscribe_never_takes_the_name_of_another(path: Path, kind: str) -> None:
    """`unsubscribe` of a receiver that was closed during it does not remove the name, which may have another owner."""
    async with open_channel(path, int) as channel:
        with getattr(channel, kind)("a") as rx:
            subscription = rx._subscription
        with channel.receiver("a") as other:
            with pytest.raises(ClosedResourceError):
                subscription.forget()  # which `unsubscribe` has another thread do: it may come late
            assert [consumer.name for consumer in channel.consumers()] == [other.name]


# Names


@one_loop
@pytest.mark.parametrize("name", STRANGE_NAMES, ids=ascii)
async def test_a_strange_name_is_as_good_as_any(path: Path, name: str) -> None:
    """Any text is a name; it is remembered, and nothing is written outside the channel's own directory."""
    before = sorted(path.parent.iterdir())
    async with open_channel(path, int) as channel, channel.sender() as tx:
        with channel.receiver(name) as rx:
            assert rx.name == name
            await tx.send_many([1, 2])
            assert await rx.receive() == 1
        with channel.receiver(name) as rx:
            assert await rx.receive() == 2
        assert len(list((path / "consumers").iterdir())) == 1
    assert sorted(path.parent.iterdir()) == sorted([*before, path])


@one_loop
async def test_names_that_look_alike_are_not_the_same(path: Path) -> None:
    """Each name has its own position, however alike two of them are."""
    async with open_channel(path, int) as channel, channel.sender() as tx:
        await tx.send(1)
        for name in STRANGE_NAMES:
            with channel.receiver(name) as rx:
                assert rx.receive_many_nowait(5) == [1]
        assert len(list((path / "consumers").iterdir())) == len(STRANGE_NAMES)


@one_loop
@pytest.mark.parametrize("name", ["", "x" * 300, "雪" * 100, "\0" * 80], ids=["empty", "long", "wide", "nul"])
async def test_a_name_that_no_file_can_have_is_refused(path: Path, name: str) -> None:
    """An empty name, or one too long to be a file's, is a `ValueError`, and nothing is registered."""
    async with open_channel(path, int) as channel:
        with pytest.raises(ValueError, match="name"):
            channel.receiver(name)
        assert list((path / "consumers").iterdir()) == []


@one_loop
@pytest.mark.parametrize("name", [None, 3, b"a", ["a"]], ids=repr)
async def test_a_name_is_a_text(path: Path, name: object) -> None:
    """A name that is not text is a `TypeError`."""
    async with open_channel(path, int) as channel:
        with pytest.raises(TypeError, match="name"):
            channel.receiver(name)  # type: ignore[arg-type]


@one_loop
async def test_a_name_with_half_a_character_is_refused(path: Path) -> None:
    """A text that cannot be encoded is a `ValueError`."""
    async with open_channel(path, int) as channel:
        with pytest.raises(ValueError, match=r"name .* lone surrogate"):
            channel.receiver("\ud800")


@one_loop
async def test_positions_are_stored_under_every_durability(path: Path) -> None:
    """A position survives reopening, whatever the durability."""
    for durability in (Durability.OS, Durability.interval(60), Durability.FSYNC):
        where, options = path / repr(durability), ChannelOptions(durability=durability)
        async with open_channel(where, int, options=options) as channel:
            with channel.sender() as tx, channel.receiver("a") as rx:
                await tx.send_many([1, 2, 3])
                assert await rx.receive_many(2) == [1, 2]
        async with open_channel(where, int) as channel, channel.receiver("a") as rx:
            assert rx.receive_many_nowait(5) == [3]


# LogLookup that are none


@one_loop
@pytest.mark.parametrize("offset", [-1, 1, 10**15], ids=repr)
async def test_an_offset_out_of_range_moves_nothing(path: Path, offset: int) -> None:
    """The error names the argument and the channel; no consumer is registered, and none has moved."""
    async with open_channel(path, int) as channel, channel.sender() as tx, channel.receiver("a") as rx:
        await tx.send_many([1, 2, 3])
        assert await rx.receive() == 1
        before = rx.read_offset
        for argument, attempt in (
            ("start", lambda: channel.receiver("b", start=Offset(offset))),
            ("start", lambda: channel.replay(Offset(offset))),
            ("stop", lambda: channel.replay(stop=Offset(offset))),
        ):
            with pytest.raises(ValueError, match=f"{argument}={offset}: ") as caught:
                attempt()
            assert str(path) in str(caught.value)
        with pytest.raises(ValueError, match=f"to={offset}: ") as caught:
            await rx.seek(Offset(offset))
        assert str(path) in str(caught.value)
        assert rx.read_offset == before
        assert [consumer.name for consumer in channel.consumers()] == ["a"]


@one_loop
async def test_a_number_that_is_not_stored_is_named(path: Path) -> None:
    """The error for a sequence that is not stored names it and the channel."""
    async with open_channel(path, int) as channel, channel.sender() as tx:
        await tx.send(1)
        for sequence in (-1, 2):
            with pytest.raises(ValueError, match=f"sequence={sequence}: message {sequence} is not stored") as caught:
                await channel.offset_of(sequence)
            assert str(path) in str(caught.value)


async def test_seeking_by_number(path: Path) -> None:
    """`offset_of` returns the offset of a sequence, for `seek`, `start` and `stop` alike."""
    async with open_channel(path, int, options=ChannelOptions(segment_size=4096)) as channel, channel.sender() as tx:
        await tx.send_many(range(3000))
        with channel.receiver("a") as rx:
            for number in (2999, 0, 1234):
                await rx.seek(await channel.offset_of(number))
                record = await rx.receive_record()
                assert (record.value, record.sequence) == (number, number)
        start, stop = await channel.offset_of(100), await channel.offset_of(103)
        with channel.replay(start, stop) as history:
            assert [item async for item in history] == [100, 101, 102]
