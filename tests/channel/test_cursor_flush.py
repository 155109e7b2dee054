"""How often the positions of receivers reach the disk."""

from __future__ import annotations

import asyncio
import errno
import logging
import shutil
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest
from anyio import CancelScope

from filechannel import (
    AckReceiver,
    ChannelOptions,
    Delivery,
    FanOutReceiver,
    StorageError,
    blocking,
    open_channel,
)
from filechannel._options import CursorFlush
from filechannel._storage.consumers.cursor_file_format import read_position
from filechannel._storage.consumers.cursors import Cursors
from tests.backends import one_loop
from tests.channel.gates import Gate

pytestmark = pytest.mark.anyio

WAYS: dict[str, Callable[[FanOutReceiver[int]], Awaitable[object]]] = {
    "receive": lambda rx: rx.receive(),
    "receive_record": lambda rx: rx.receive_record(),
    "receive_many": lambda rx: rx.receive_many(1),
    "async for": lambda rx: rx.__anext__(),
}


class Disk:
    """What the disk has of the positions: which number came next when each was flushed."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._changed = threading.Condition()
        self.numbers: list[int] = []

    def flushed(self, name: str) -> None:
        """Remember what is on disk now."""
        position = read_position((self._directory / f"{name}.cursor").read_bytes())
        with self._changed:
            self.numbers.append(-1 if position is None else position.sequence)
            self._changed.notify_all()

    def wait_for(self, number: int) -> None:
        """Wait until the disk has a position as far as this."""
        with self._changed:
            assert self._changed.wait_for(lambda: bool(self.numbers) and max(self.numbers) >= number, timeout=30)


@pytest.fixture
def disk(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    """The disk of this test."""
    disk, flush = Disk(path / "consumers"), Cursors._flush

    def noted(self: Cursors, name: str) -> None:
        flush(self, name)
        disk.flushed(name)

    monkeypatch.setattr(Cursors, "_flush", noted)
    return disk


def options(cursor_flush: CursorFlush | None) -> ChannelOptions:
    """Return options that say how often."""
    return ChannelOptions(cursor_flush=cursor_flush)


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "filechannel")


async def test_without_it_positions_are_flushed_with_the_data(path: Path, disk: Disk) -> None:
    """By default receiving flushes no position; `flush` flushes the positions with the data."""
    async with open_channel(path, int) as channel, channel.sender() as tx, channel.receiver("a") as rx:
        await tx.send_many(range(100))
        assert await rx.receive_many(60) == list(range(60))
        assert disk.numbers == []
        await channel.flush()
        assert disk.numbers == [60]


@pytest.mark.parametrize("way", WAYS)
async def test_fsync_has_the_position_on_disk_when_a_message_is_handed_out(path: Path, disk: Disk, way: str) -> None:
    """With `cursor_flush="fsync"` a message that was returned is not received again, even after a power cut."""
    async with open_channel(path, int, options=options("fsync")) as channel, channel.sender() as tx:
        await tx.send_many(range(10))
        with channel.receiver("a") as rx:
            for number in range(1, 6):
                await WAYS[way](rx)
                assert disk.numbers[-1] == number


async def test_fsync_flushes_a_large_batch_once(path: Path, disk: Disk) -> None:
    """With `cursor_flush="fsync"` a large batch is flushed once, also if it is read in slices."""
    async with open_channel(path, int, options=options("fsync")) as channel, channel.sender() as tx:
        await tx.send_many(range(5000))
        with channel.receiver("a") as rx:
            assert len(await rx.receive_many(4000)) == 4000
            assert disk.numbers == [4000]


async def test_fsync_does_not_make_nowait_wait(path: Path, disk: Disk, gate: Gate) -> None:
    """With `cursor_flush="fsync"` `receive_nowait` returns at once, and the position is flushed later."""
    async with open_channel(path, int, options=options("fsync")) as channel, channel.sender() as tx:
        await tx.send_many(range(10))
        with channel.receiver("a") as rx:
            with gate.closed():
                assert rx.receive_nowait() == 0
                assert rx.receive_many_nowait(3) == [1, 2, 3]
                assert disk.numbers == []
            await anyio.to_thread.run_sync(disk.wait_for, 4)


async def test_a_receive_that_is_cancelled_while_it_flushes_hands_out_its_message(
    path: Path, disk: Disk, gate: Gate
) -> None:
    """A receive that is cancelled during its flush returns the message, and the cancellation comes afterwards."""
    async with open_channel(path, int, options=options("fsync")) as channel, channel.sender() as tx:
        await tx.send_many(range(3))
        got: list[int] = []
        with channel.receiver("a") as rx:
            async with anyio.create_task_group() as group:

                async def receive(scope: CancelScope) -> None:
                    with scope:
                        got.append(await rx.receive())
                        await anyio.sleep(60)

                scope = CancelScope()
                with gate.closed():
                    group.start_soon(receive, scope)
                    await anyio.to_thread.run_sync(gate.reached.wait, 30)
                    scope.cancel()
                    await anyio.wait_all_tasks_blocked()
                    assert got == []
            assert got == [0]
            assert await rx.receive() == 1


@pytest.mark.parametrize("way", WAYS)
async def test_a_loop_of_receives_that_flush_can_be_cancelled(path: Path, way: str) -> None:
    """Each cancelled receive that flushes returns what it took, and the next one is cancelled; nothing is lost."""
    async with open_channel(path, int, options=options("fsync")) as channel, channel.sender() as tx:
        await tx.send_many(range(10_000))
        taken = 0
        with channel.receiver("a") as rx:
            with anyio.move_on_after(0.02) as scope:
                while True:
                    await WAYS[way](rx)
                    taken += 1
            assert scope.cancelled_caught
            assert 0 < taken < 10_000
            assert rx.peek() == [taken]


async def test_a_task_that_receives_and_flushes_can_be_cancelled(path: Path, asyncio_only: None) -> None:
    """A task that receives and flushes can be cancelled with `Task.cancel()`."""
    async with open_channel(path, int, options=options("fsync")) as channel, channel.sender() as tx:
        await tx.send_many(range(10_000))
        taken: list[int] = []
        started = asyncio.Event()
        with channel.receiver("a") as rx:

            async def receive() -> None:
                while True:
                    taken.append(await rx.receive())
                    started.set()

            task = asyncio.create_task(receive())
            await started.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert rx.peek() == [len(taken)]


async def test_a_position_that_cannot_be_flushed_is_raised_once(path: Path, gate: Gate) -> None:
    """A receive whose flush fails returns its message; the next one raises once and consumes nothing."""
    async with open_channel(path, int, options=options("fsync")) as channel, channel.sender() as tx:
        await tx.send_many(range(3))
        with channel.receiver("a") as rx:
            gate.error = OSError(errno.EIO, "Input/output error")
            assert await rx.receive() == 0
            with pytest.raises(StorageError, match=r"'a' could not be flushed: .*Input/output error"):
                await rx.receive()
            assert await rx.receive_many(5) == [1, 2]


async def test_a_large_batch_raises_what_could_not_be_flushed(path: Path, gate: Gate) -> None:
    """After a failed flush a large `receive_many`, also in slices, raises and consumes nothing."""
    async with open_channel(path, int, options=options("fsync")) as channel, channel.sender() as tx:
        await tx.send_many(range(3000))
        with channel.receiver("a") as rx:
            gate.error = OSError(errno.EIO, "Input/output error")
            assert await rx.receive() == 0
            with pytest.raises(StorageError, match="'a' could not be flushed"):
                await rx.receive_many(2000)
            assert await rx.receive_many(2000) == list(range(1, 2001))


async def test_every_so_many_messages(path: Path, disk: Disk) -> None:
    """With a count, the flushed position is behind by that many messages and those received during the flush."""
    async with open_channel(path, int, options=options(10)) as channel, channel.sender() as tx:
        await tx.send_many(range(100))
        with channel.receiver("a") as rx:
            for _ in range(9):
                await rx.receive()
            assert disk.numbers == []
            await rx.receive()
            await anyio.to_thread.run_sync(disk.wait_for, 10)
            assert len(disk.numbers) == 1
            assert len(rx.receive_many_nowait(7)) == 7
            await rx.receive_record()
            assert rx.receive_nowait() == 18
            assert len(disk.numbers) == 1
            await rx.receive_many(3)
            await anyio.to_thread.run_sync(disk.wait_for, 22)
            assert len(disk.numbers) == 2


async def test_clones_are_counted_together(path: Path, disk: Disk) -> None:
    """Messages that clones receive count together, because they share a position."""
    async with open_channel(path, int, options=options(4)) as channel, channel.sender() as tx:
        await tx.send_many(range(4))
        with channel.receiver("a") as rx, rx.clone() as clone:
            for each in (rx, clone, clone, rx):
                await each.receive()
            await anyio.to_thread.run_sync(disk.wait_for, 4)


async def test_every_so_many_seconds(path: Path, disk: Disk) -> None:
    """With a time, a position that moved is flushed in the background."""
    async with open_channel(path, int, options=options(0.002)) as channel, channel.sender() as tx:
        await tx.send_many(range(10))
        with channel.receiver("a") as rx:
            await rx.receive_many(4)
            await anyio.to_thread.run_sync(disk.wait_for, 4)
            await rx.receive_many(3)
            await anyio.to_thread.run_sync(disk.wait_for, 7)


@one_loop
@pytest.mark.parametrize("cursor_flush", [1000, 3600.0, "fsync"], ids=repr)
async def test_closing_flushes_what_is_left(path: Path, disk: Disk, cursor_flush: CursorFlush) -> None:
    """Closing a receiver flushes the rest in the background, without moving the position."""
    async with open_channel(path, int, options=options(cursor_flush)) as channel, channel.sender() as tx:
        await tx.send_many(range(10))
        with channel.receiver("a") as rx:
            assert rx.receive_many_nowait(3) == [0, 1, 2]
        await anyio.to_thread.run_sync(disk.wait_for, 3)
        assert max(disk.numbers) == 3


@one_loop
@pytest.mark.parametrize("cursor_flush", [1, 1000, 3600.0, "fsync", None], ids=repr)
async def test_a_process_crash_loses_no_position(path: Path, tmp_path: Path, cursor_flush: CursorFlush | None) -> None:
    """After a process crash every process sees the last position at once, whatever was flushed."""
    async with open_channel(path, int, options=options(cursor_flush)) as channel, channel.sender() as tx:
        await tx.send_many(range(10))
        with channel.receiver("a") as rx:
            assert await rx.receive_many(3) == [0, 1, 2]
            shutil.copytree(path / "consumers", tmp_path / "seen")
            position = read_position((tmp_path / "seen" / "a.cursor").read_bytes())
            assert position is not None
            assert position.sequence == 3


@contextmanager
def _blocking(path: Path, cursor_flush: CursorFlush) -> Iterator[blocking.FanOutReceiver[int]]:
    with blocking.open_channel(path, int, options=options(cursor_flush)) as channel, channel.sender() as tx:
        tx.send_many(range(10))
        with channel.receiver("a") as rx:
            yield rx


def test_fsync_without_async(path: Path, disk: Disk) -> None:
    """In the blocking API the thread that receives waits for the flush of the position."""
    with _blocking(path, "fsync") as rx:
        assert rx.receive() == 0
        assert disk.numbers == [1]
        assert rx.receive_record().value == 1
        assert disk.numbers == [1, 2]
        assert rx.receive_many(3) == [2, 3, 4]
        assert disk.numbers == [1, 2, 5]
        assert next(rx) == 5
        assert disk.numbers == [1, 2, 5, 6]
        assert rx.receive(timeout=10) == 6
        assert disk.numbers == [1, 2, 5, 6, 7]


def test_a_position_that_did_not_move_is_not_flushed_again(path: Path, disk: Disk) -> None:
    """The timer does not flush the position of a receiver that waits."""
    with _blocking(path, 3600.0) as rx:
        flush = rx._subscription._flush
        assert flush is not None
        rx.receive_many(4)
        for _ in range(3):
            flush.flush_if_needed()
        assert disk.numbers == [4]
        rx.seek("earliest")
        flush.flush_if_needed()
        assert disk.numbers == [4, 0]


def test_every_so_many_messages_without_async(path: Path, disk: Disk) -> None:
    """With a count, the blocking API flushes the position after that many messages, as the async one does."""
    with _blocking(path, 3) as rx:
        assert [rx.receive() for _ in range(3)] == [0, 1, 2]
        disk.wait_for(3)
        assert rx.receive_many(5) == [3, 4, 5, 6, 7]
        disk.wait_for(8)


# With acknowledgement


async def _ack(rx: AckReceiver[int]) -> None:
    rx.ack()


async def _ack_delivery(rx: AckReceiver[int]) -> None:
    rx.nack()
    (await rx.receive_delivery()).ack()


async def _process(rx: AckReceiver[int]) -> None:
    rx.nack()
    async with rx.processing():
        pass


ACKS: dict[str, Callable[[AckReceiver[int]], Awaitable[None]]] = {
    "ack": _ack,
    "delivery": _ack_delivery,
    "processing": _process,
}


@pytest.mark.parametrize("way", ACKS)
async def test_every_so_many_acks(path: Path, disk: Disk, way: str) -> None:
    """With a count, that many acks flush the position once, whichever method acks; receiving does not count."""
    async with open_channel(path, int, options=options(3)) as channel, channel.sender() as tx:
        await tx.send_many(range(10))
        with channel.ack_receiver("a") as rx:
            for _ in range(2):
                await rx.receive()
                await ACKS[way](rx)
            assert len(await rx.receive_many(5)) == 5
            assert rx.receive_nowait() == 7
            rx.nack(5)
            assert disk.numbers == []
            await ACKS[way](rx)
            await anyio.to_thread.run_sync(disk.wait_for, 3)
            assert disk.numbers == [3]


async def test_many_acks_at_once_are_flushed_once(path: Path, disk: Disk) -> None:
    """An ack of many messages flushes the position once; acks of clones count together."""
    async with open_channel(path, int, options=options(4)) as channel, channel.sender() as tx:
        await tx.send_many(range(3000))
        with channel.ack_receiver("a") as rx, rx.clone() as clone:
            assert len(await rx.receive_many(3000)) == 3000
            rx.ack(2)
            clone.ack()
            assert disk.numbers == []
            rx.ack(2997)
            await anyio.to_thread.run_sync(disk.wait_for, 3000)
            assert disk.numbers == [3000]


@pytest.mark.parametrize("way", ["ack", "delivery"])
@pytest.mark.parametrize("cursor_flush", [1, "fsync"], ids=repr)
async def test_an_ack_does_not_wait_for_the_disk(
    path: Path, disk: Disk, gate: Gate, cursor_flush: CursorFlush, way: str
) -> None:
    """Neither an ack nor a receive waits for the flush of the position, which runs in the background."""
    async with open_channel(path, int, options=options(cursor_flush)) as channel, channel.sender() as tx:
        await tx.send_many(range(10))
        with channel.ack_receiver("a") as rx:
            with gate.closed():
                for _ in range(3):
                    await rx.receive()
                    await ACKS[way](rx)
                assert disk.numbers == []
            await anyio.to_thread.run_sync(disk.wait_for, 3)


async def test_processing_waits_for_the_disk_under_fsync(path: Path, disk: Disk) -> None:
    """Under "fsync" `processing` waits for the flush of its ack, which survives a power cut, and not after a nack."""
    async with open_channel(path, int, options=options("fsync")) as channel, channel.sender() as tx:
        await tx.send_many(range(10))
        with channel.ack_receiver("a") as rx:
            for number in range(1, 4):
                async with rx.processing():
                    pass
                assert max(disk.numbers) == number
            flushes = len(disk.numbers)
            with pytest.raises(KeyError):
                async with rx.processing():
                    raise KeyError
            assert len(disk.numbers) == flushes


async def test_processing_that_is_cancelled_while_it_flushes_has_acked(path: Path, gate: Gate) -> None:
    """A `processing` block that is cancelled during its flush has acked its message, and is cancelled afterwards."""
    async with open_channel(path, int, options=options("fsync")) as channel, channel.sender() as tx:
        await tx.send_many(range(3))
        with channel.ack_receiver("a") as rx:
            async with anyio.create_task_group() as group:

                async def process(scope: CancelScope) -> None:
                    with scope:
                        async with rx.processing():
                            pass
                        await anyio.sleep(60)

                scope = CancelScope()
                with gate.closed():
                    group.start_soon(process, scope)
                    await anyio.to_thread.run_sync(gate.reached.wait, 30)
                    scope.cancel()
                    await anyio.wait_all_tasks_blocked()
            assert scope.cancelled_caught
            assert rx.unack_count == 0
            assert await rx.receive() == 1


async def test_a_loop_of_processing_that_flushes_can_be_cancelled(path: Path) -> None:
    """In a loop of `processing` each block acks its message, and the next one can be cancelled."""
    async with open_channel(path, int, options=options("fsync")) as channel, channel.sender() as tx:
        await tx.send_many(range(10_000))
        done = 0
        with channel.ack_receiver("a") as rx:
            with anyio.move_on_after(0.02) as scope:
                while True:
                    async with rx.processing():
                        done += 1
            assert scope.cancelled_caught
            assert 0 < done < 10_000
            assert rx.peek() == [done]
            assert rx.unack_count == 0


async def test_acks_out_of_order_flush_the_oldest_that_is_outstanding(path: Path, disk: Disk) -> None:
    """Acks out of order count, and the flushed position is the oldest outstanding message."""
    async with open_channel(path, int, options=options(2)) as channel, channel.sender() as tx:
        await tx.send_many(range(4))
        with channel.ack_receiver("a") as rx:
            first, second, third, fourth = [await rx.receive_delivery() for _ in range(4)]
            third.ack()
            first.ack()
            await anyio.to_thread.run_sync(disk.wait_for, 1)
            fourth.ack()
            second.ack()
            await anyio.to_thread.run_sync(disk.wait_for, 4)
            assert disk.numbers == [1, 4]


AFTERWARDS: dict[str, Callable[[AckReceiver[int], Delivery[int]], Awaitable[object]]] = {
    "receive": lambda rx, _: rx.receive(),
    "receive_record": lambda rx, _: rx.receive_record(),
    "receive_many": lambda rx, _: rx.receive_many(1),
    "receive_many in slices": lambda rx, _: rx.receive_many(2000),
    "receive_delivery": lambda rx, _: rx.receive_delivery(),
    "receive_nowait": lambda rx, _: anyio.to_thread.run_sync(rx.receive_nowait),
    "ack": lambda rx, _: anyio.to_thread.run_sync(rx.ack),
    "delivery": lambda _, delivery: anyio.to_thread.run_sync(delivery.ack),
}


@pytest.mark.parametrize("way", AFTERWARDS)
async def test_acks_that_cannot_be_flushed_are_raised_once(path: Path, gate: Gate, way: str) -> None:
    """A failed flush of acks is raised once by the next receive or ack, which changes nothing."""
    async with open_channel(path, int, options=options("fsync")) as channel, channel.sender() as tx:
        await tx.send_many(range(3))
        with channel.ack_receiver("a") as rx:
            delivery = await rx.receive_delivery()
            gate.error = OSError(errno.EIO, "Input/output error")
            async with rx.processing():  # waits for the flush
                pass
            with pytest.raises(StorageError, match=r"'a' could not be flushed: .*Input/output error"):
                await AFTERWARDS[way](rx, delivery)
            assert rx.unack_count == 1
            await AFTERWARDS[way](rx, delivery)


async def test_processing_acks_although_an_earlier_flush_has_failed(path: Path, gate: Gate) -> None:
    """`processing` acks its message although an earlier flush failed, and the next receive raises."""
    async with open_channel(path, int, options=options(1)) as channel, channel.sender() as tx:
        await tx.send_many(range(3))
        with channel.ack_receiver("a") as rx:
            flush = rx._subscription._flush
            assert flush is not None
            async with rx.processing():
                gate.error = OSError(errno.EIO, "Input/output error")
                await anyio.to_thread.run_sync(flush.wait_until_flushed)
            assert rx.unack_count == 0
            with pytest.raises(StorageError, match="could not be flushed"):
                await rx.receive()
            assert await rx.receive() == 1


async def test_acks_are_flushed_every_so_many_seconds(path: Path, disk: Disk) -> None:
    """With a time, acks are flushed in the background, and an unacked message stays behind the position on disk."""
    async with open_channel(path, int, options=options(0.002)) as channel, channel.sender() as tx:
        await tx.send_many(range(10))
        with channel.ack_receiver("a") as rx:
            await rx.receive_many(7)
            rx.ack(4)
            await anyio.to_thread.run_sync(disk.wait_for, 4)
            rx.ack(2)
            await anyio.to_thread.run_sync(disk.wait_for, 6)
            assert max(disk.numbers) == 6


@one_loop
@pytest.mark.parametrize("cursor_flush", [1000, 3600.0, "fsync"], ids=repr)
async def test_closing_flushes_the_acks_that_are_left(path: Path, disk: Disk, cursor_flush: CursorFlush) -> None:
    """Closing an `AckReceiver` flushes its acks and acknowledges nothing."""
    async with open_channel(path, int, options=options(cursor_flush)) as channel, channel.sender() as tx:
        await tx.send_many(range(10))
        with channel.ack_receiver("a") as rx:
            assert await rx.receive_many(5) == [0, 1, 2, 3, 4]
            rx.ack(3)
        await anyio.to_thread.run_sync(disk.wait_for, 3)
    assert max(disk.numbers) == 3


def test_acks_without_async(path: Path, disk: Disk) -> None:
    """In the blocking API an ack does not wait for the flush of the position, and `processing` does."""
    with blocking.open_channel(path, int, options=options("fsync")) as channel, channel.sender() as tx:
        tx.send_many(range(10))
        with channel.ack_receiver("a") as rx:
            assert rx.receive_many(3) == [0, 1, 2]
            assert rx.receive_record().value == 3
            assert disk.numbers == []
            rx.ack(3)
            disk.wait_for(3)
            rx.receive_delivery().ack()
            rx.ack()
            disk.wait_for(5)
            with rx.processing() as item:
                assert item == 5
            assert max(disk.numbers) == 6
