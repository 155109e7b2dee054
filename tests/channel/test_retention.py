"""What becomes of messages that were consumed, in the background, and what the statistics say about it."""

from __future__ import annotations

import os
from pathlib import Path

import anyio
import pytest

from filechannel import ChannelOptions, DataExpiredError, FileChannel, Pin, Retention, open_channel
from filechannel._format import PURE
from filechannel._maintenance.background import plan_reclaim
from filechannel._maintenance.background.maintenance_thread import MAINTENANCE
from tests.processes.workers import TIMEOUT

pytestmark = pytest.mark.anyio

KEEP = ChannelOptions(segment_size=4096, retention=Retention(after_consumed="keep"))
SMALL = ChannelOptions(segment_size=4096)
MESSAGES = [bytes([number]) * 1300 for number in range(15)]
"""Three to a segment, so five segments."""


async def until_stored(channel: FileChannel[bytes], messages: int) -> None:
    """Wait until so many messages are left, the files of the others are deleted, and that is counted."""
    sent = channel.statistics().next_sequence
    with anyio.fail_after(TIMEOUT):
        while True:
            found = channel.statistics()
            gone = found.maintenance.reclaimed_bytes // (8 + len(MESSAGES[0]))
            if found.messages == messages and gone == sent - messages:
                return
            await anyio.sleep(0.005)


async def test_consumed_messages_are_deleted_automatically(path: Path) -> None:
    """Maintenance deletes a segment soon after the last consumer has read it, and keeps the rest."""
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


async def test_a_removed_name_releases_its_messages(path: Path) -> None:
    """Unsubscribing or removing a consumer releases its messages for deletion."""
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
    """An idle channel with waiting receivers frees its disk space, and the receivers get the next message."""
    monkeypatch.setattr(plan_reclaim, "IDLE", 0.0)
    async with open_channel(path, bytes, options=SMALL) as channel, channel.sender() as tx:
        with channel.receiver() as rx:
            for message in MESSAGES[:4]:
                async with anyio.create_task_group() as group:

                    async def receive(message: bytes = message) -> None:
                        assert await rx.receive() == message

                    group.start_soon(receive)
                    await tx.send(message)
                MAINTENANCE.request(channel._store)
                await until_stored(channel, 0)
            assert channel.statistics().bytes_on_disk == 0
            assert channel.statistics().pinned_by is None


async def test_a_channel_that_keeps_its_messages_keeps_them(path: Path) -> None:
    """A channel that is configured to keep messages keeps them, until another configuration takes effect at once."""
    async with open_channel(path, bytes, options=KEEP) as channel, channel.sender() as tx, channel.receiver() as rx:
        await tx.send_many(MESSAGES)
        await channel.flush()
        await rx.receive_many(15)
        assert channel.statistics().pinned_by == Pin(reason="keep")
        with channel.replay() as history:
            assert await history.receive_many(20) == MESSAGES
        await channel.configure(retention=Retention())
        await until_stored(channel, 3)


@pytest.mark.skipif(PURE, reason="the pure implementation has a channel for itself")
async def test_options_are_those_of_the_channel(path: Path) -> None:
    """The manifest's retention applies, whichever process does the maintenance."""
    async with open_channel(path, bytes, options=KEEP) as channel:
        await channel.configure(retention=Retention(max_bytes=1))
        async with open_channel(path, bytes) as again, again.sender() as tx:
            await tx.send_many(MESSAGES)
            await again.flush()
            await until_stored(again, 3)


async def test_a_replay_gets_the_number_it_missed(path: Path) -> None:
    """A replay holds no data back, and gets the number of messages it missed."""
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


async def test_seeking_to_a_reclaimed_message_is_refused(path: Path) -> None:
    """A seek to a reclaimed message is refused, and the receiver stays where it was."""
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


async def test_a_consumer_that_registers_during_a_reclaim_begins_at_what_is_left(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that registers at data that is being reclaimed begins after it."""
    async with open_channel(path, bytes, options=SMALL) as channel, channel.sender() as tx:
        MAINTENANCE.forget(channel._store)
        await tx.send_many(MESSAGES)
        await channel.flush()
        with channel.receiver("fast") as fast:
            await fast.receive_many(10)
            store = channel._store
            acknowledge = store.low_watermark.retain_from

            def reclaim_first(offset: int) -> bool:
                monkeypatch.undo()
                with store.log.writing():
                    assert store.low_watermark.decide(store.segments.begins[3], store.low_watermark.note())
                return acknowledge(offset)

            monkeypatch.setattr(type(store.low_watermark), "retain_from", lambda _, offset: reclaim_first(offset))
            with channel.receiver("late") as late:
                assert late.read_offset == channel.statistics().oldest_offset > 0
                assert await late.receive_many(20) == MESSAGES[9:]


@pytest.mark.parametrize("kind", ["receiver", "ack_receiver", "group"])
async def test_a_seek_during_a_reclaim_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """A seek during a reclaim is refused, and messages that were received are not received again."""
    async with open_channel(path, bytes, options=SMALL) as channel, channel.sender() as tx:
        MAINTENANCE.forget(channel._store)
        await tx.send_many(MESSAGES)
        await channel.flush()
        store = channel._store
        with getattr(channel, kind)("a") as rx:
            assert [await rx.receive() for _ in range(10)] == MESSAGES[:10]
            if kind != "receiver":
                rx.ack(10)
            before, acknowledge = channel.consumers()[0], store.low_watermark.retain_from

            def reclaim_first(offset: int) -> bool:
                monkeypatch.undo()
                with store.log.writing():
                    assert store.low_watermark.decide(store.segments.begins[3], store.low_watermark.note())
                return acknowledge(offset)

            monkeypatch.setattr(type(store.low_watermark), "retain_from", lambda _, offset: reclaim_first(offset))
            with pytest.raises(ValueError, match="not in the channel"):
                await rx.seek(0)
            after = channel.consumers()[0]
            assert (after.offset, after.next_sequence) == (before.offset, before.next_sequence)
            assert [await rx.receive() for _ in range(5)] == MESSAGES[10:]
