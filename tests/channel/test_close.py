"""Closing: what it ends, what it leaves, and that nothing can stop it half-way."""

from __future__ import annotations

import asyncio
import gc
import threading
import warnings
from pathlib import Path

import anyio
import pytest
from anyio import ClosedResourceError
from anyio.lowlevel import checkpoint
from anyio.to_thread import run_sync

from filechannel import ChannelOptions, Durability, FileChannel, open_channel
from filechannel._storage.open_stores import STORES
from tests.channel.gates import Gate
from tests.channel.messages import content

pytestmark = pytest.mark.anyio

FSYNC = ChannelOptions(durability=Durability.FSYNC)


async def test_closing_a_channel_closes_what_it_created(path: Path) -> None:
    """Senders, receivers, replays and clones end with their channel."""
    async with open_channel(path, int) as channel:
        tx, rx, history = channel.sender(), channel.receiver(), channel.replay()
        senders, receivers = (tx, tx.clone()), (rx, rx.clone(), history, history.clone())
    for sender in senders:
        with pytest.raises(ClosedResourceError):
            await sender.send(1)
    for receiver in receivers:
        with pytest.raises(ClosedResourceError):
            await receiver.receive()


async def test_a_closed_channel_refuses_everything(path: Path) -> None:
    """After closing, which may be done twice, every method raises `ClosedResourceError`."""
    channel = await open_channel(path, int)
    await channel.aclose()
    await channel.aclose()
    channel.close()
    for call in (channel.sender, channel.receiver, channel.replay, channel.statistics):
        with pytest.raises(ClosedResourceError):
            call()
    for action in (
        channel.flush,
        channel.seal,
        channel.purge,
        channel.configure,
        lambda: channel.offset_of(0),
    ):
        with pytest.raises(ClosedResourceError):
            await action()
    assert channel.path == path


async def test_a_channel_may_be_closed_without_async(path: Path) -> None:
    """`close()` and a plain `with` close the channel too."""
    with await open_channel(path, int) as channel:
        channel.sender().send_nowait(1)
    with pytest.raises(ClosedResourceError):
        channel.sender()
    channel = await open_channel(path, int)
    channel.close()
    assert not STORES._open


async def test_closing_under_a_waiting_receive(path: Path) -> None:
    """A task that waits in a receiver gets `ClosedResourceError` when receiver or channel are closed."""
    for what in ("receiver", "channel"):
        channel = await open_channel(path, int)
        rx = channel.receiver()
        ended = list[str]()

        async def wait(way: str, rx: object = rx, ended: list[str] = ended) -> None:
            with pytest.raises(ClosedResourceError):
                await (rx.receive_many(5) if way == "receive_many" else getattr(rx, way)())  # type: ignore[attr-defined]
            ended.append(way)

        async with anyio.create_task_group() as group:
            for way in ("receive", "receive_record", "receive_many", "__anext__"):
                group.start_soon(wait, way)
            await anyio.wait_all_tasks_blocked()
            if what == "receiver":
                rx.close()
            else:
                await channel.aclose()
        assert len(ended) == 4
        await channel.aclose()


async def test_closing_one_clone_leaves_the_wait_of_another(path: Path) -> None:
    """Only the receiver that is closed gets an error; its clone keeps waiting and gets the next message."""
    async with open_channel(path, int) as channel, channel.sender() as tx:
        rx = channel.receiver()
        clone = rx.clone()
        got = list[int]()

        async def wait_for_error() -> None:
            with pytest.raises(ClosedResourceError):
                await rx.receive()

        async def receive() -> None:
            got.append(await clone.receive())

        async with anyio.create_task_group() as group:
            group.start_soon(wait_for_error)
            group.start_soon(receive)
            await anyio.wait_all_tasks_blocked()
            rx.close()
            await anyio.wait_all_tasks_blocked()
            await tx.send(1)
        assert got == [1]


async def test_an_error_in_the_block_closes_too(path: Path) -> None:
    """Leaving `async with` by an exception closes the channel, and the exception passes."""
    with pytest.raises(KeyError, match="mine"):
        async with open_channel(path, int) as channel:
            raise KeyError("mine")
    with pytest.raises(ClosedResourceError):
        channel.sender()
    assert not STORES._open


async def test_closing_in_a_cancelled_scope_is_closing(path: Path) -> None:
    """A channel whose block ends by cancellation is closed, with all its files."""
    with anyio.CancelScope() as scope:
        async with open_channel(path, int) as channel, channel.sender() as tx:
            await tx.send(1)
            scope.cancel()
            await anyio.sleep_forever()
    assert not STORES._open
    async with open_channel(path, int) as channel, channel.receiver() as rx:
        assert rx.receive_nowait() == 1


@pytest.mark.usefixtures("asyncio_only")
async def test_closing_cannot_be_cancelled_half_way(path: Path, gate: Gate) -> None:
    """A task that is cancelled while it closes a channel has closed it, and is cancelled afterwards."""
    channel = await open_channel(path, int, options=ChannelOptions(durability=Durability.interval(60)))
    channel.sender().send_nowait(1)
    steps = list[str]()

    async def close() -> None:
        await channel.aclose()
        steps.append("closed")
        await asyncio.Event().wait()

    with gate.closed():
        task = asyncio.create_task(close())
        await run_sync(gate.reached.wait)
        for _ in range(3):
            task.cancel()
            await asyncio.sleep(0)
        assert not task.done()
    await asyncio.wait([task])
    assert task.cancelled()
    assert steps == ["closed"]
    assert not STORES._open


async def test_closing_waits_for_running_flushes(path: Path, gate: Gate) -> None:
    """A running flush ends before the files are closed under it."""
    channel = await open_channel(path, int)
    steps = list[str]()
    with channel.sender() as tx:
        await tx.send(1)

    async def flush() -> None:
        await channel.flush()
        steps.append("flushed")

    async def close() -> None:
        await channel.aclose()
        steps.append("closed")

    with gate.closed():
        async with anyio.create_task_group() as group:
            group.start_soon(flush)
            assert await run_sync(gate.reached.wait, 30)
            group.start_soon(close)
            for _ in range(20):
                await checkpoint()
            assert steps == []
            assert STORES._open
            gate.open()
    assert sorted(steps) == ["closed", "flushed"]
    assert not STORES._open


@pytest.mark.usefixtures("asyncio_only")
async def test_closing_waits_for_what_a_cancelled_task_left_behind(path: Path, gate: Gate) -> None:
    """`close` waits for a flush in a thread whose task was cancelled."""
    channel = await open_channel(path, int)
    with channel.sender() as tx:
        await tx.send(1)
    with gate.closed():
        task = asyncio.create_task(channel.flush())
        await run_sync(gate.reached.wait)
        task.cancel()
        await asyncio.wait([task])
        closing = asyncio.create_task(channel.aclose())
        for _ in range(20):
            await asyncio.sleep(0)
        assert not closing.done()
        assert STORES._open
    await closing
    assert not STORES._open


async def test_senders_that_wait_for_a_flush_are_not_forgotten(path: Path, gate: Gate) -> None:
    """Closing a channel under senders that wait for the disk lets each of them return: its message is there."""
    channel = await open_channel(path, int, options=FSYNC)
    tx, sent = channel.sender(), list[int]()

    async def send(number: int) -> None:
        await tx.send(number)
        sent.append(number)

    with gate.closed():
        async with anyio.create_task_group() as group:
            for number in range(5):
                group.start_soon(send, number)
            assert await run_sync(gate.reached.wait, 30)
            group.start_soon(channel.aclose)
            await checkpoint()
            gate.open()
    assert sorted(sent) == list(range(5))
    async with open_channel(path, int) as channel, channel.replay() as rx:
        assert sorted(rx.receive_many_nowait(9)) == list(range(5))


async def test_an_append_that_comes_too_late_changes_nothing(path: Path) -> None:
    """A caller that had looked a method up before the channel was closed gets an error, and no file is touched."""
    channel = await open_channel(path, int)
    tx = channel.sender()
    await tx.send(1)
    put, append = tx._connection.path.put, channel._store.log.append
    await channel.aclose()
    before = content(path)
    for late in (lambda: put(2), lambda: append([b"\2"])):
        with pytest.raises(ClosedResourceError):
            late()
    assert content(path) == before
    async with open_channel(path, int) as channel, channel.receiver() as rx:
        assert rx.receive_many_nowait(5) == [1]


async def test_an_unclosed_channel_emits_a_warning_and_is_closed(path: Path) -> None:
    """A channel that is dropped without closing emits a `ResourceWarning`, and releases the directory."""
    gc.collect()
    with pytest.warns(ResourceWarning, match="unclosed <FileChannel"):
        await leak(path)
    closed = await run_sync(wait_until_nothing_is_open)
    assert closed
    async with open_channel(path, int) as channel, channel.receiver() as rx:
        assert rx.receive_nowait() == 1


async def leak(path: Path) -> None:
    """Open a channel, use it and forget it."""
    channel: FileChannel[int] | None = await open_channel(path, int)
    assert channel is not None
    channel.sender().send_nowait(1)
    channel.receiver()
    channel = None
    gc.collect()


def wait_until_nothing_is_open() -> bool:
    """Wait for a thread that closes."""
    for _ in range(3000):
        if not STORES._open:
            return True
        threading.Event().wait(0.01)
    return False


async def test_a_channel_may_be_collected_while_another_one_opens(path: Path) -> None:
    """The garbage collector may find a forgotten channel in the middle of opening one, without a deadlock."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        threshold = gc.get_threshold()
        gc.collect()
        gc.set_threshold(1, 1, 1)
        try:
            for number in range(5):
                channel = await open_channel(path / str(number % 2), int)
                channel.receiver(f"{number}")
                channel.sender().send_nowait(number)
                del channel
            async with open_channel(path / "other", int):
                pass
        finally:
            gc.set_threshold(*threshold)
        gc.collect()
        assert await run_sync(wait_until_nothing_is_open)


async def test_a_sender_keeps_its_channel_alive(path: Path) -> None:
    """A sender or receiver whose channel has no other reference keeps working."""
    tx, rx = await only_handles(path)
    gc.collect()
    await tx.send(1)
    assert await rx.receive() == 1
    tx._owner.close()  # type: ignore[attr-defined]


async def only_handles(path: Path) -> tuple[object, object]:  # type: ignore[type-arg]
    """Return a sender and a receiver, and forget their channel."""
    channel = await open_channel(path, int)
    return channel.sender(), channel.receiver()
