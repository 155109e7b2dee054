"""Durability: what is on disk when `send` returns, and how senders share the wait for it."""

from __future__ import annotations

import errno
import logging
from dataclasses import replace
from pathlib import Path

import anyio
import pytest
from anyio.lowlevel import checkpoint
from anyio.to_thread import run_sync

from filechannel import ChannelOptions, Durability, Retention, StorageError, open_channel
from filechannel._storage.durability.flusher import Flusher
from tests.channel.gates import Gate

pytestmark = [pytest.mark.anyio, pytest.mark.disk]

FSYNC = ChannelOptions(durability=Durability.FSYNC)


async def test_under_os_nothing_waits_for_the_disk(path: Path, gate: Gate) -> None:
    """By default a message is visible when `send` returns, without a flush."""
    async with open_channel(path, int) as channel, channel.sender() as tx, channel.receiver() as rx:
        with gate.closed():
            await tx.send(1)
            await tx.send_many([2, 3])
            assert rx.receive_many_nowait(5) == [1, 2, 3]
        assert channel.statistics().durable_offset == 0


async def test_under_an_interval_flushes_are_automatic(path: Path, gate: Gate) -> None:
    """With an interval a message is visible at once and on disk soon, without a call."""
    options = ChannelOptions(durability=Durability.interval(0.01))
    async with open_channel(path, int, options=options) as channel, channel.sender() as tx, channel.receiver() as rx:
        with gate.closed():
            await tx.send(1)
            assert rx.receive_nowait() == 1
            assert await run_sync(gate.reached.wait, 30)
        with anyio.fail_after(30):
            while channel.statistics().durable_offset < tx.write_offset:
                await checkpoint()


async def test_an_interval_flushes_nothing_twice(path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    """With an interval a channel in which nothing happens is not flushed."""
    flush_if_needed, intervals = Flusher.flush_if_needed, list[None]()

    def counted(self: Flusher) -> None:
        flush_if_needed(self)
        intervals.append(None)

    monkeypatch.setattr(Flusher, "flush_if_needed", counted)
    options = ChannelOptions(durability=Durability.interval(0.001))
    async with open_channel(path, int, options=options) as channel, channel.sender() as tx:
        await tx.send(1)
        await channel.flush()
        await channel.flush()  # behind the one that the timer may have started
        before, checked = gate.flushes, len(intervals)
        with anyio.fail_after(60):
            while len(intervals) < checked + 10:  # noqa: ASYNC110 (a thread appends to it)
                await anyio.sleep(0.001)
        assert gate.flushes == before


async def test_under_fsync_a_message_is_on_disk_when_send_returns(path: Path, gate: Gate) -> None:
    """Under FSYNC `send` and `send_many` return after a flush, with everything before them durable."""
    async with open_channel(path, int, options=FSYNC) as channel, channel.sender() as tx:
        for number in range(3):
            before = gate.flushes
            await tx.send(number)
            assert gate.flushes > before
            assert channel.statistics().durable_offset == tx.write_offset > 0
        before = gate.flushes
        await tx.send_many(range(5000))
        assert before < gate.flushes <= before + 2


async def test_under_fsync_no_receiver_sees_a_message_before_it_is_on_disk(path: Path, gate: Gate) -> None:
    """Under FSYNC a message becomes visible with its flush, which wakes waiting receivers."""
    async with open_channel(path, int, options=FSYNC) as channel, channel.sender() as tx, channel.receiver() as rx:
        got = list[int]()

        async def receive() -> None:
            got.append(await rx.receive())

        with gate.closed():
            async with anyio.create_task_group() as group:
                group.start_soon(receive)
                group.start_soon(tx.send, 1)
                assert await run_sync(gate.reached.wait, 30)
                for _ in range(10):
                    await checkpoint()
                assert got == rx.peek() == []
                assert channel.statistics().messages == 0
                gate.open()
        assert got == [1]


async def test_concurrent_senders_share_a_flush(path: Path, gate: Gate) -> None:
    """Sixty-four senders that arrive during a flush share the next one."""
    async with open_channel(path, int, options=FSYNC) as channel, channel.sender() as tx:
        await tx.send(-1)
        before = gate.flushes
        with gate.closed():
            async with anyio.create_task_group() as group:
                group.start_soon(tx.send, 0)
                assert await run_sync(gate.reached.wait, 30)
                for number in range(1, 65):
                    group.start_soon(tx.send, number)
                await checkpoint()
                await checkpoint()
                gate.open()
        assert gate.flushes <= before + 3
        assert channel.statistics().messages == 66


async def test_the_event_loop_runs_during_a_flush(path: Path, gate: Gate) -> None:
    """While senders wait for the disk, other tasks run."""
    async with open_channel(path, int, options=FSYNC) as channel, channel.sender() as tx:
        turns = 0
        with gate.closed():
            async with anyio.create_task_group() as group:
                group.start_soon(tx.send, 1)
                assert await run_sync(gate.reached.wait, 30)
                while turns < 100:
                    await checkpoint()
                    turns += 1
                gate.open()
        assert turns == 100


async def test_nowait_never_waits_for_a_flush(path: Path, gate: Gate) -> None:
    """Under FSYNC the nowait methods return before the flush; `flush` waits for it."""
    async with open_channel(path, int, options=FSYNC) as channel, channel.sender() as tx, channel.receiver() as rx:
        with gate.closed():
            first = tx.send_nowait(1)
            second = tx.send_many_nowait([2, 3])
            assert first < second
            assert rx.receive_many_nowait(5) == []
        await channel.flush()
        assert rx.receive_many_nowait(5) == [1, 2, 3]
        assert channel.statistics().durable_offset == tx.write_offset


async def test_nowait_becomes_visible_without_an_explicit_flush(path: Path) -> None:
    """Under FSYNC a message sent without waiting arrives without a call."""
    async with open_channel(path, int, options=FSYNC) as channel, channel.sender() as tx, channel.receiver() as rx:
        for number in range(10):
            tx.send_nowait(number)
        with anyio.fail_after(30):
            assert [await rx.receive() for _ in range(10)] == list(range(10))


@pytest.mark.parametrize("durability", [Durability.FSYNC, Durability.interval(60)], ids=repr)
async def test_closing_brings_the_rest_to_disk(path: Path, gate: Gate, durability: Durability) -> None:
    """Under FSYNC and with an interval everything sent is on disk when the channel is closed."""
    async with open_channel(path, int, options=ChannelOptions(durability=durability)) as channel:
        with channel.sender() as tx:
            tx.send_nowait(1)
        before = gate.flushes
    assert gate.flushes > before
    async with open_channel(path, int) as channel, channel.receiver() as rx:
        assert rx.receive_many_nowait(5) == [1]


async def test_a_failed_flush_is_reported_to_every_sender_that_waited(
    path: Path, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    """Under FSYNC senders whose flush failed get `StorageError`, no receiver sees their messages, and the next send
    works.
    """
    caplog.set_level(logging.CRITICAL, "filechannel")
    kept = replace(FSYNC, retention=Retention(after_consumed="keep"))
    async with open_channel(path, int, options=kept) as channel, channel.sender() as tx, channel.receiver() as rx:
        await tx.send(0)
        failed = list[int]()

        async def send(number: int) -> None:
            with pytest.raises(StorageError, match="Input/output error"):
                await tx.send(number)
            failed.append(number)

        with gate.closed():
            async with anyio.create_task_group() as group:
                for number in range(1, 9):
                    group.start_soon(send, number)
                assert await run_sync(gate.reached.wait, 30)
                await checkpoint()
                gate.error = OSError(errno.EIO, "Input/output error")
                gate.open()
        assert sorted(failed) == list(range(1, 9))
        await tx.send(9)
        assert rx.receive_many_nowait(20) == [0, 9]
    async with open_channel(path, int) as channel, channel.replay() as rx:
        assert rx.receive_many_nowait(20) == [0, 9]


async def test_a_failed_flush_is_raised_by_flush(path: Path, gate: Gate, caplog: pytest.LogCaptureFixture) -> None:
    """Under OS a flush that failed raises `StorageError`; what was sent stays visible, and sending works."""
    caplog.set_level(logging.CRITICAL, "filechannel")
    async with open_channel(path, int) as channel, channel.sender() as tx, channel.receiver() as rx:
        await tx.send(1)
        gate.error = OSError(errno.EIO, "Input/output error")
        with pytest.raises(StorageError, match="Input/output error"):
            await channel.flush()
        await tx.send(2)
        assert rx.receive_many_nowait(5) == [1, 2]


async def test_a_full_disk_is_an_error_and_nothing_was_sent(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without space for another segment a send raises `DiskFullError`, and works when there is space again."""
    import os

    from filechannel import DiskFullError

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    options = ChannelOptions(segment_size=4096)
    async with open_channel(path, bytes, options=options) as channel, channel.sender() as tx, channel.receiver() as rx:
        await tx.send(b"first")
        with monkeypatch.context() as patch:
            patch.setattr(os, "posix_fallocate", full)
            with pytest.raises(DiskFullError, match=str(path)):
                await tx.send(bytes(4090))
            with pytest.raises(DiskFullError):
                tx.send_many_nowait([b"small", bytes(4090)])
        assert channel.statistics().messages == 1
        await tx.send(b"last")
        assert rx.receive_many_nowait(5) == [b"first", b"last"]
