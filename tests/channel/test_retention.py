"""What becomes of messages that were consumed, in the background, and what the statistics say about it."""

from __future__ import annotations

import os
from pathlib import Path

import anyio
import pytest

from filechannel import ChannelOptions, DataExpiredError, FileChannel, Pin, Retention, open_channel
from filechannel._format import PURE
from filechannel._maintenance import retention
from filechannel._maintenance.worker import WORKER
from tests.processes.crew import PATIENCE

pytestmark = pytest.mark.anyio

KEEP = ChannelOptions(segment_size=4096, retention=Retention(after_consumed="keep"))
SMALL = ChannelOptions(segment_size=4096)
MESSAGES = [bytes([number]) * 1300 for number in range(15)]
"""Three to a segment, so five segments."""


async def until_stored(channel: FileChannel[bytes], messages: int) -> None:
    """Wait until so many messages are left, and the files of the others are gone, and that is counted."""
    sent = channel.statistics().next_sequence
    with anyio.fail_after(PATIENCE):
        while True:
            found = channel.statistics()
            gone = found.maintenance.reclaimed_bytes // (8 + len(MESSAGES[0]))
            if found.messages == messages and gone == sent - messages:
                return
            await anyio.sleep(0.005)


async def test_consumed_messages_go_by_themselves(path: Path) -> None:
    """Soon after the last consumer has passed a segment, in whole segments; the rest stays."""
    async with open_channel(path, bytes, options=SMALL) as channel, channel.sender() as tx:
        with channel.receiver("fast") as fast, channel.receiver("slow") as slow:
            await tx.send_many(MESSAGES)
            await channel.flush()
            assert await fast.receive_many(15) == MESSAGES
            assert await slow.receive_many(7) == MESSAGES[:7]
            await until_stored(channel, 9)
            assert channel.statistics().pinned_by == Pin(reason="consumer", consumer="slow")
            assert channel.statistics().segments == 3
            assert await slow.receive_many(15) == MESSAGES[7:]
            await until_stored(channel, 3)
        found = channel.statistics().maintenance
        assert (found.reclaimed_segments, found.reclaimed_bytes) == (4, 12 * 1308)
        assert found.errors == 0
        assert found.last_run is not None
        assert found.runner is not None
        assert found.runner.pid == os.getpid()


async def test_a_name_that_is_forgotten_releases_its_messages(path: Path) -> None:
    """By unsubscribing, or when somebody removes it."""
    async with open_channel(path, bytes, options=SMALL) as channel, channel.sender() as tx:
        with channel.receiver("a") as rx:
            slow = channel.receiver("b")
            channel.receiver("c").close()
            await tx.send_many(MESSAGES)
            await channel.flush()
            assert await rx.receive_many(15) == MESSAGES
            await slow.receive_many(4)
            await channel.remove_consumer("c")
            await until_stored(channel, 12)
            await slow.unsubscribe()
            await until_stored(channel, 3)


async def test_an_idle_channel_gives_its_disk_back(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By itself, with receivers waiting; they get what comes next."""
    monkeypatch.setattr(retention, "IDLE", 0.0)
    async with open_channel(path, bytes, options=SMALL) as channel, channel.sender() as tx:
        with channel.receiver() as rx:
            for message in MESSAGES[:4]:
                async with anyio.create_task_group() as group:

                    async def receive(message: bytes = message) -> None:
                        assert await rx.receive() == message

                    group.start_soon(receive)
                    await tx.send(message)
                WORKER.nudge(channel._store)
                await until_stored(channel, 0)
            assert channel.statistics().bytes_on_disk == 0
            assert channel.statistics().pinned_by is None


async def test_a_channel_that_keeps_keeps(path: Path) -> None:
    """Until somebody configures it not to: that takes effect at once."""
    async with open_channel(path, bytes, options=KEEP) as channel, channel.sender() as tx, channel.receiver() as rx:
        await tx.send_many(MESSAGES)
        await channel.flush()
        await rx.receive_many(15)
        assert channel.statistics().pinned_by == Pin(reason="keep")
        with channel.replay() as history:
            assert await history.receive_many(20) == MESSAGES
        await channel.configure(retention=Retention())
        await until_stored(channel, 3)


@pytest.mark.skipif(PURE, reason="the pure twin shares with nobody")
async def test_options_are_those_of_the_channel(path: Path) -> None:
    """Whoever maintains it: the manifest says how long messages stay."""
    async with open_channel(path, bytes, options=KEEP) as channel:
        await channel.configure(retention=Retention(max_bytes=1))
        async with open_channel(path, bytes) as again, again.sender() as tx:
            await tx.send_many(MESSAGES)
            await again.flush()
            await until_stored(again, 3)


async def test_a_replay_is_told_what_it_missed(path: Path) -> None:
    """It holds nothing back."""
    async with open_channel(path, bytes, options=SMALL) as channel, channel.sender() as tx, channel.receiver() as rx:
        await tx.send_many(MESSAGES)
        await channel.flush()
        with channel.replay() as history:
            assert await history.receive() == MESSAGES[0]
            await rx.receive_many(15)
            await until_stored(channel, 3)
            assert await history.receive_many(2) == MESSAGES[1:3]
            with pytest.raises(DataExpiredError) as error:
                await history.receive()
            assert error.value.missed == 9
            assert await history.receive_many(20) == MESSAGES[12:]


async def test_seeking_to_what_is_gone_is_refused(path: Path) -> None:
    """And the receiver stays where it was."""
    async with open_channel(path, bytes, options=SMALL) as channel, channel.sender() as tx, channel.receiver() as rx:
        await tx.send_many(MESSAGES)
        await channel.flush()
        first = await rx.receive_record()
        await rx.receive_many(9)
        await until_stored(channel, 6)
        with pytest.raises(ValueError, match="not in the channel"):
            await rx.seek(first.offset)
        assert await rx.receive_many(20) == MESSAGES[10:]
        await rx.seek("earliest")


async def test_who_comes_in_the_moment_in_which_it_goes_begins_at_what_is_left(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new name finds its place, it is decided that what lies there goes, and the name begins behind that."""
    async with open_channel(path, bytes, options=SMALL) as channel, channel.sender() as tx:
        WORKER.forget(channel._store)
        await tx.send_many(MESSAGES)
        await channel.flush()
        with channel.receiver("fast") as fast:
            await fast.receive_many(10)
            store = channel._store
            settle = store.registry.settle

            def reclaim_meanwhile(offset: int) -> bool:
                monkeypatch.undo()
                with store.log.writing():
                    assert store.registry.decide(store.segments.begins[3], store.registry.note())
                return settle(offset)

            monkeypatch.setattr(type(store.registry), "settle", lambda _, offset: reclaim_meanwhile(offset))
            with channel.receiver("late") as late:
                assert late.read_offset == channel.statistics().oldest_offset > 0
                assert await late.receive_many(20) == MESSAGES[9:]


@pytest.mark.parametrize("kind", ["receiver", "ack_receiver", "group"])
async def test_who_seeks_in_the_moment_in_which_it_goes_is_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """And stays where it was: what it has taken does not come again."""
    async with open_channel(path, bytes, options=SMALL) as channel, channel.sender() as tx:
        WORKER.forget(channel._store)
        await tx.send_many(MESSAGES)
        await channel.flush()
        store = channel._store
        with getattr(channel, kind)("a") as rx:
            assert [await rx.receive() for _ in range(10)] == MESSAGES[:10]
            if kind != "receiver":
                rx.ack(10)
            before, settle = channel.consumers()[0], store.registry.settle

            def reclaim_meanwhile(offset: int) -> bool:
                monkeypatch.undo()
                with store.log.writing():
                    assert store.registry.decide(store.segments.begins[3], store.registry.note())
                return settle(offset)

            monkeypatch.setattr(type(store.registry), "settle", lambda _, offset: reclaim_meanwhile(offset))
            with pytest.raises(ValueError, match="not in the channel"):
                await rx.seek(0)
            after = channel.consumers()[0]
            assert (after.offset, after.next_sequence) == (before.offset, before.next_sequence)
            assert [await rx.receive() for _ in range(5)] == MESSAGES[10:]
