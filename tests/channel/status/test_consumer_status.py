"""The consumers of a channel: listing, removing, expiring and waiting for them."""

from __future__ import annotations

import dataclasses
import io
import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import anyio
import pytest
from anyio import ClosedResourceError
from anyio.to_thread import run_sync

from filechannel import (
    ChannelOptions,
    Consumer,
    ConsumerBusyError,
    ConsumerDamagedError,
    ConsumerMismatchError,
    FileChannel,
    UnknownConsumerError,
    blocking,
    open_channel,
)
from filechannel._maintenance.watch_channel import ConsumerFigures, Watch
from filechannel._storage.system.os_calls import Files
from tests.backends import one_loop
from tests.storage.boots import Boots
from tests.storage.clocks import Clock
from tests.storage.conftest import boots

__all__ = ["boots"]

pytestmark = pytest.mark.anyio

STRANGE = ["a/b", "../../escape", "..", "/etc/passwd", "nul\0inside", "grün 雪 🦀"]
SMALL = ChannelOptions(segment_size=4096)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The time of day, which does not advance."""
    return Clock.install(monkeypatch)


def names(channel: FileChannel[int]) -> list[str]:
    """Return the names of the consumers."""
    return [consumer.name for consumer in channel.consumers()]


def seen_from_outside(path: Path) -> tuple[ConsumerFigures, ...]:
    """Return the consumers as `filechannel top` sees them."""
    with Watch.open(path) as watch:
        return watch.figures().consumers


# Listing


async def test_a_channel_without_consumers_lists_none(path: Path) -> None:
    """Senders, replays and messages are not consumers."""
    async with open_channel(path, int) as channel, channel.sender() as tx:
        await tx.send(1)
        with channel.replay():
            assert channel.consumers() == ()


async def test_a_consumer_is_described(path: Path) -> None:
    """Name, position, lag, owner and term are those of the receiver; the object is frozen."""
    async with open_channel(path, int) as channel, channel.sender() as tx:
        with channel.receiver("b", expires=60) as rx:
            await tx.send_many([1, 2, 3])
            assert await rx.receive() == 1
            [found] = channel.consumers()
            assert isinstance(found, Consumer)
            assert (found.name, found.kind, found.expires) == ("b", "single", 60.0)
            assert (found.offset, found.next_sequence) == (rx.read_offset, 1)
            assert found.lag_messages == rx.statistics().lag_messages == 2
            assert found.lag_bytes == rx.statistics().lag_bytes
            assert found.owner is not None
            assert found.owner.pid == os.getpid()
            assert found.idle >= 0
            with pytest.raises(dataclasses.FrozenInstanceError):
                found.offset = 0  # type: ignore[misc, assignment]
        [found] = channel.consumers()
        assert found.owner is None
        assert found.lag_messages == 2


async def test_consumers_come_in_order_of_their_names(path: Path) -> None:
    """Consumers are listed in the order of their names, open or closed."""
    async with open_channel(path, int) as channel:
        with channel.receiver("b"), channel.receiver("a"):
            channel.receiver("c").close()
            assert names(channel) == ["a", "b", "c"]


@one_loop
async def test_the_list_follows_every_change(path: Path) -> None:
    """The list shows every consumer that was registered, unsubscribed or removed, also by another open."""
    async with open_channel(path, int) as channel, open_channel(path, int, readonly=True) as reader:
        for name in ("a", "b", "c"):
            channel.receiver(name).close()
            assert names(channel)[-1] == names(reader)[-1] == name
        with channel.receiver("b") as rx:
            await rx.unsubscribe()
        assert names(channel) == names(reader) == ["a", "c"]
        await channel.remove_consumer("a")
        assert names(channel) == names(reader) == ["c"]


@one_loop
async def test_listing_scans_no_directory_while_nothing_changes(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Listing consumers scans the directory only after a name was added or removed."""
    async with open_channel(path, int) as channel, channel.sender() as tx, channel.receiver("a") as rx:
        scanned: list[Path] = []
        listing: Callable[[Files, Path], list[str]] = Files.list

        def counted(files: Files, directory: Path) -> list[str]:
            if directory.name == "consumers":  # creating a segment scans those
                scanned.append(directory)
            return listing(files, directory)

        assert names(channel) == ["a"]
        monkeypatch.setattr(Files, "list", counted)
        for number in range(5):
            await tx.send(number)
            assert channel.consumers()[0].lag_messages == 1
            await rx.receive()
        assert scanned == []
        channel.receiver("b").close()
        assert names(channel) == names(channel) == ["a", "b"]
        assert scanned == [path / "consumers"]


@one_loop
async def test_a_deleted_file_is_not_a_consumer(path: Path) -> None:
    """A consumer whose file was deleted without notice is not listed."""
    async with open_channel(path, int) as channel:
        channel.receiver("a").close()
        assert names(channel) == ["a"]
        (path / "consumers" / "a.cursor").unlink()
        assert names(channel) == []


@one_loop
async def test_lag_in_seconds_is_the_age_of_the_oldest_unread_message(path: Path, clock: Clock) -> None:
    """`lag_seconds` is 0 for a consumer that has read everything, and else the age of its oldest unread message."""
    async with open_channel(path, int, options=SMALL) as channel:
        with channel.receiver("slow") as slow, channel.receiver("fast") as fast:
            for number in range(5):
                # The slow path, which looks at the clock of the test.
                await run_sync(channel._store.log.append, [bytes([number])])
                await run_sync(channel._store.log.store_index_entries)
                clock.pass_seconds(100)
            assert await fast.receive_many(5) == list(range(5))
            assert await slow.receive_many(2) == [0, 1]
            lags = {consumer.name: consumer.lag_seconds for consumer in channel.consumers()}
            assert lags["fast"] == 0.0
            assert 300 <= lags["slow"] < 301
            await slow.receive()
            assert 200 <= channel.consumers()[1].lag_seconds < 201
            clock.pass_seconds(50)
            assert 250 <= channel.consumers()[1].lag_seconds < 251


@one_loop
async def test_lag_does_not_count_offset_gaps(path: Path, boots: Boots) -> None:
    """The lag counts records and no offset gap, also after a power cut."""
    async with open_channel(path, int) as channel, channel.sender() as tx:
        channel.receiver("a").close()
        await tx.send(1)
        [before] = channel.consumers()
        await channel.flush()
    boots.again()
    async with open_channel(path, int) as channel, channel.sender() as tx:
        with channel.receiver("a") as rx:
            assert tx.send_nowait(2) > 1 << 39
            for found in (*channel.consumers(), rx.statistics(), *await run_sync(seen_from_outside, path)):
                assert (found.lag_messages, found.lag_bytes) == (2, 2 * before.lag_bytes)


@one_loop
async def test_lag_counts_only_what_is_still_stored(path: Path) -> None:
    """Messages that were dropped before a consumer reached them do not count in its lag."""
    async with open_channel(path, int, options=SMALL) as channel, channel.sender() as tx:
        channel.receiver("a").close()
        await tx.send_many(range(3000))
        store = channel._store
        oldest = store.segments.begins[2]
        store.control.oldest_offset = oldest
        await run_sync(store.segments.remove_before, oldest)
        [found] = channel.consumers()
        assert found.lag_messages == channel.statistics().messages < 3000
        assert found.lag_bytes == channel.statistics().write_offset - oldest
        assert found.offset == 0


@one_loop
async def test_idle_is_the_time_since_the_last_move(path: Path) -> None:
    """Every received message resets the idle time of its consumer."""
    async with open_channel(path, int) as channel, channel.sender() as tx, channel.receiver("a") as rx:
        await tx.send(1)
        before = time.time()
        await rx.receive()
        assert channel.consumers()[0].idle <= time.time() - before + 0.1


@one_loop
async def test_a_readonly_channel_may_list_and_join(path: Path) -> None:
    """A read-only channel can list consumers and join, but remove none."""
    async with open_channel(path, int) as channel, channel.sender() as tx, channel.receiver("a") as rx:
        await tx.send(1)
        async with open_channel(path, int, readonly=True) as reader:
            assert reader.consumers()[0].lag_messages == 1
            assert await rx.receive() == 1
            await reader.join("a")
            with pytest.raises(io.UnsupportedOperation):
                await reader.remove_consumer("a")


@one_loop
async def test_a_closed_channel_lists_no_consumer(path: Path) -> None:
    """Every method for consumers of a closed channel raises `ClosedResourceError`."""
    async with open_channel(path, int) as channel:
        channel.receiver("a").close()
    with pytest.raises(ClosedResourceError):
        channel.consumers()
    with pytest.raises(ClosedResourceError):
        await channel.remove_consumer("a")
    with pytest.raises(ClosedResourceError):
        await channel.join("a")


# Removing


async def test_a_removed_consumer_starts_from_the_beginning(path: Path) -> None:
    """Removing a consumer deletes its file and position, and the name starts from the beginning."""
    async with open_channel(path, int) as channel, channel.sender() as tx:
        with channel.receiver("a") as rx:
            await tx.send_many([1, 2])
            await rx.receive_many(2)
        await channel.remove_consumer("a")
        assert list((path / "consumers").iterdir()) == []
        with channel.receiver("a") as rx:
            assert rx.receive_many_nowait(5) == [1, 2]


async def test_a_consumer_with_an_owner_is_not_removed(path: Path) -> None:
    """`remove_consumer` refuses a name that has an owner, even in the same channel object."""
    async with open_channel(path, int) as channel, open_channel(path, int) as other, channel.sender() as tx:
        with channel.receiver("a") as rx:
            await tx.send_many([1, 2])
            assert await rx.receive() == 1
            for each in (channel, other):
                with pytest.raises(ConsumerBusyError, match="unsubscribe") as caught:
                    await each.remove_consumer("a")
                assert (caught.value.name, caught.value.pid, caught.value.path) == ("a", os.getpid(), path)
            assert await rx.receive() == 2
        with channel.receiver("a") as rx:
            assert rx.receive_many_nowait(5) == []


@pytest.mark.parametrize("name", ["b", *STRANGE], ids=ascii)
@one_loop
async def test_a_name_that_is_not_registered_is_unknown(path: Path, name: str) -> None:
    """Removing or joining an unknown name raises `UnknownConsumerError` with name and path, and creates nothing."""
    async with open_channel(path, int) as channel:
        channel.receiver("a").close()
        for call in (channel.remove_consumer, channel.join):
            with pytest.raises(UnknownConsumerError) as caught:
                await call(name)
            assert (caught.value.name, caught.value.path) == (name, path)
            assert str(path) in str(caught.value)
        assert os.listdir(path / "consumers") == ["a.cursor"]
        assert os.listdir(path.parent) == [path.name]


@pytest.mark.parametrize("name", STRANGE, ids=ascii)
@one_loop
async def test_a_strange_name_is_listed_and_removed(path: Path, name: str) -> None:
    """A consumer with a strange name is listed and removed like any other."""
    async with open_channel(path, int) as channel:
        channel.receiver(name).close()
        assert names(channel) == [name]
        await channel.join(name)
        await channel.remove_consumer(name)
        assert names(channel) == []


@pytest.mark.parametrize("name", [None, 3, b"a", ["a"]], ids=repr)
@one_loop
async def test_a_name_must_be_a_text(path: Path, name: object) -> None:
    """A consumer name that is not text raises `TypeError`."""
    async with open_channel(path, int) as channel:
        for call in (channel.remove_consumer, channel.join):
            with pytest.raises(TypeError, match="name"):
                await call(name)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["", "x" * 300, "\ud800"], ids=["empty", "long", "surrogate"])
@one_loop
async def test_a_name_that_no_file_can_have_is_refused(path: Path, name: str) -> None:
    """A consumer name that is not possible as a file name raises `ValueError`, as in `receiver`."""
    async with open_channel(path, int) as channel:
        for call in (channel.remove_consumer, channel.join):
            with pytest.raises(ValueError, match="name"):
                await call(name)


@one_loop
async def test_the_name_of_a_group_is_not_a_single_consumer(path: Path) -> None:
    """Opening a name as the other kind raises `ConsumerMismatchError` and creates nothing."""
    async with open_channel(path, int) as channel:
        channel.group("workers").close()
        with pytest.raises(ConsumerMismatchError) as caught:
            channel.receiver("workers")
        assert (caught.value.name, caught.value.found, caught.value.path) == ("workers", "a group", path)
        assert os.listdir(path / "consumers") == ["workers.group"]
        assert names(channel) == ["workers"]
        await channel.remove_consumer("workers")
        channel.receiver("workers")


# Expiring


@one_loop
async def test_a_name_without_an_owner_expires(path: Path, clock: Clock) -> None:
    """Listing the consumers removes a name that had no owner for its expiry time."""
    async with open_channel(path, int) as channel:
        channel.receiver("a", expires=60).close()
        channel.receiver("b").close()
        clock.pass_seconds(59)
        assert names(channel) == ["a", "b"]
        clock.pass_seconds(1)
        assert names(channel) == ["b"]
        assert os.listdir(path / "consumers") == ["b.cursor"]


@one_loop
async def test_a_name_with_an_owner_does_not_expire(path: Path, clock: Clock) -> None:
    """A name with an owner does not expire, however long it receives nothing; its time starts when it is closed."""
    async with open_channel(path, int) as channel:
        with channel.receiver("a", expires=60):
            clock.pass_seconds(1000)
            assert names(channel) == ["a"]
        clock.pass_seconds(59)
        assert names(channel) == ["a"]
        with channel.receiver("a"):
            clock.pass_seconds(1000)
        clock.pass_seconds(59)
        assert names(channel) == ["a"]
        clock.pass_seconds(1)
        assert names(channel) == []


@one_loop
async def test_opening_the_channel_removes_an_expired_name(path: Path, clock: Clock) -> None:
    """Opening a channel removes an expired name, because the expiry time is stored with it."""
    async with open_channel(path, int) as channel:
        channel.receiver("a", expires=60).close()
    clock.pass_seconds(60)
    async with open_channel(path, int):
        assert os.listdir(path / "consumers") == []


@one_loop
async def test_an_expired_name_starts_from_the_beginning(path: Path, clock: Clock) -> None:
    """A receiver that opens the name too late is a new consumer, for which `start` counts."""
    async with open_channel(path, int) as channel, channel.sender() as tx:
        with channel.receiver("a", expires=60) as rx:
            await tx.send_many([1, 2])
            await rx.receive()
        clock.pass_seconds(60)
        with channel.receiver("a", start="latest") as rx:
            assert rx.receive_many_nowait(5) == []
            assert channel.consumers()[0].expires is None


@one_loop
async def test_a_name_that_acknowledges_expires_too(path: Path, clock: Clock) -> None:
    """A name that acknowledges expires in the same way, and its unacked messages are removed with it."""
    async with open_channel(path, int) as channel, channel.sender() as tx:
        with channel.ack_receiver("a", expires=60) as rx:
            await tx.send_many([1, 2])
            await rx.receive()
            clock.pass_seconds(1000)
            assert [(found.expires, found.lag_messages) for found in channel.consumers()] == [(60, 2)]
        with channel.ack_receiver("a"):
            assert channel.consumers()[0].expires == 60
        with channel.receiver("a", expires=30):
            assert channel.consumers()[0].expires == 30
        clock.pass_seconds(30)
        assert names(channel) == []
        with pytest.raises(ValueError, match="expires"):
            channel.ack_receiver("a", expires=0)
        assert names(channel) == []


@one_loop
async def test_a_term_stays_until_another_is_given(path: Path, clock: Clock) -> None:
    """None leaves what is stored; a number replaces it."""
    async with open_channel(path, int) as channel:
        for given, stored in ((None, None), (60, 60), (None, 60), (0.5, 0.5)):
            channel.receiver("a", expires=given).close()
            assert channel.consumers()[0].expires == stored


@one_loop
@pytest.mark.parametrize("expires", [0, -1, float("nan"), float("inf")], ids=repr)
async def test_an_expiry_that_is_not_a_time_is_refused(path: Path, expires: float) -> None:
    """An expiry that is not a time raises `ValueError` with the argument's name, and registers nothing."""
    async with open_channel(path, int) as channel:
        with pytest.raises(ValueError, match="expires"):
            channel.receiver("a", expires=expires)
        for other in ("1", True, [1]):
            with pytest.raises(TypeError, match="expires"):
                channel.receiver("a", expires=other)  # type: ignore[arg-type]
        assert names(channel) == []


# Joining


async def test_join_waits_until_a_consumer_has_caught_up(path: Path) -> None:
    """`join` returns when the consumer has received the last message that was stored, and not before."""
    async with open_channel(path, int) as channel, channel.sender() as tx, channel.receiver("a") as rx:
        await tx.send_many([1, 2, 3])
        joined = anyio.Event()

        async def join() -> None:
            await channel.join("a")
            assert rx.read_offset == tx.write_offset
            joined.set()

        async with anyio.create_task_group() as group:
            group.start_soon(join)
            for number in (1, 2, 3):
                await anyio.wait_all_tasks_blocked()
                assert not joined.is_set()
                assert await rx.receive() == number
            with anyio.fail_after(60):
                await joined.wait()


async def test_join_does_not_wait_for_what_is_sent_later(path: Path) -> None:
    """`join` waits only for messages that were published when it was called."""
    async with open_channel(path, int) as channel, channel.sender() as tx, channel.receiver() as rx:
        await tx.send(1)
        async with anyio.create_task_group() as group:
            group.start_soon(channel.join)
            await anyio.wait_all_tasks_blocked()
            await tx.send_many([2, 3])
            assert await rx.receive() == 1
            group.cancel_scope.deadline = anyio.current_time() + 60
        assert not group.cancel_scope.cancelled_caught
        assert rx.peek() == [2]


async def test_join_with_nothing_to_take_returns(path: Path) -> None:
    """`join` returns at once for an empty channel, a consumer at its end, and a channel that is sealed there."""
    async with open_channel(path, int) as channel, channel.sender() as tx, channel.receiver("a") as rx:
        with anyio.fail_after(60):
            await channel.join("a")
            await tx.send(1)
            await rx.receive()
            await channel.join("a")
            await channel.seal()
            await channel.join("a")


async def test_a_cancelled_join_changes_nothing(path: Path) -> None:
    """A cancelled `join` changes nothing and can be called again."""
    async with open_channel(path, int) as channel, channel.sender() as tx, channel.receiver("a") as rx:
        await tx.send(1)
        with anyio.move_on_after(0.01) as scope:
            await channel.join("a")
        assert scope.cancelled_caught
        assert await rx.receive() == 1
        await channel.join("a")


async def test_join_raises_when_the_name_is_removed(path: Path) -> None:
    """`join` raises when the consumer is removed."""
    async with open_channel(path, int) as channel, channel.sender() as tx:
        rx = channel.receiver("a")
        await tx.send(1)
        async with anyio.create_task_group() as group:

            async def join() -> None:
                with pytest.raises(UnknownConsumerError):
                    await channel.join("a")

            group.start_soon(join)
            await anyio.wait_all_tasks_blocked()
            await rx.unsubscribe()


def test_join_follows_a_name_that_is_registered_again(path: Path) -> None:
    """A `join` whose consumer is removed and registered again waits for the new one."""
    with blocking.open_channel(path, int) as channel, channel.sender() as tx:
        channel.receiver("a", start="latest").close()
        tx.send_many([1, 2])
        catch_up_wait = channel._catch_up_wait("a")()
        assert not catch_up_wait.is_stale
        channel.remove_consumer("a")
        rx = channel.receiver("a")
        assert catch_up_wait.is_stale
        catch_up_wait.look_up()
        assert not catch_up_wait.has_caught_up()
        assert rx.receive_many(5) == [1, 2]
        assert catch_up_wait.has_caught_up()
        catch_up_wait.close()


def test_join_polls_ever_more_rarely(path: Path) -> None:
    """`join` doubles the pauses between its checks up to the poll interval."""
    with blocking.open_channel(path, int, options=ChannelOptions(poll_interval=0.01)) as channel:
        channel.receiver("a").close()
        catch_up_wait = channel._catch_up_wait("a")()
        assert [catch_up_wait.pause() for _ in range(6)] == [0.001, 0.002, 0.004, 0.008, 0.01, 0.01]
        catch_up_wait.close()


async def test_join_ends_with_the_channel(path: Path) -> None:
    """`join` raises `ClosedResourceError` when its channel is closed."""
    async with anyio.create_task_group() as group:
        async with open_channel(path, int) as channel, channel.sender() as tx:
            channel.receiver("a").close()
            await tx.send(1)

            async def join() -> None:
                with pytest.raises(ClosedResourceError):
                    await channel.join("a")

            group.start_soon(join)
            await anyio.wait_all_tasks_blocked()


async def test_a_moment_long_ago_is_the_beginning(path: Path) -> None:
    """A new consumer may start at a moment, an offset or an end."""
    async with open_channel(path, int) as channel, channel.sender() as tx:
        offsets = [tx.send_nowait(number) for number in range(3)]
        for name, start, expected in (
            ("time", datetime(2020, 1, 1, tzinfo=UTC), [0, 1, 2]),
            ("offset", offsets[1], [1, 2]),
            ("end", "latest", []),
        ):
            with channel.receiver(name, start=start) as rx:  # type: ignore[arg-type]
                assert rx.receive_many_nowait(5) == expected


# Damage


@pytest.mark.parametrize("left", [0, 20], ids=["emptied", "cut off"])
@pytest.mark.parametrize("kind", ["single", "group"])
async def test_a_damaged_consumer_is_kept_and_does_not_start_elsewhere(path: Path, kind: str, left: int) -> None:
    """A damaged consumer is listed and cannot be opened; others continue, and once removed its name is a new one."""
    async with open_channel(path, int) as channel, channel.sender() as tx:
        await tx.send_many([1, 2, 3])
        with channel.receiver("single") as rx:
            assert await rx.receive_many(2) == [1, 2]
        with channel.group("group") as member:
            assert await member.receive_many(2) == [1, 2]
            member.ack(2)
        file = path / "consumers" / (f"{kind}.cursor" if kind == "single" else f"{kind}.group")
        damaged = file.read_bytes()[:left].replace(b"\0", b"\1")
        file.write_bytes(damaged)
        opening = [channel.group] if kind == "group" else [channel.receiver, channel.ack_receiver]
        for open_it in opening:
            with pytest.raises(ConsumerDamagedError, match="repair"):
                open_it(kind)
        with pytest.raises(ConsumerDamagedError):
            await channel.join(kind)
        assert file.read_bytes() == damaged
        found = {each.name: each for each in channel.consumers()}
        assert [name for name, each in found.items() if each.damaged] == [kind]
        assert (found[kind].lag_messages, found[kind].next_sequence, found[kind].kind) == (3, 0, kind)
        await channel.remove_consumer(kind)
        assert kind not in names(channel)
        with channel.receiver(kind, start="latest") as rx:
            await tx.send(4)
            assert await rx.receive() == 4
