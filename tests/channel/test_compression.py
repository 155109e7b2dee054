"""A channel whose old segments are compressed: everything that reads does what it did before."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from pathlib import Path

import pytest
from anyio import fail_after, sleep
from anyio.to_thread import run_sync

from filechannel import (
    ChannelOptions,
    Compression,
    CorruptRecordError,
    FileChannel,
    Retention,
    UnsupportedFormatError,
    open_channel,
)
from filechannel._format.layout import COMPRESSED_BLOCK, COMPRESSED_TABLE
from filechannel._storage.segments.compression_codecs import codec
from tests.backends import one_loop
from tests.channel.messages import Order
from tests.storage.compressing import compress_all, compressed_file

pytestmark = [pytest.mark.anyio, one_loop]

SMALL = ChannelOptions(segment_size=4096, retention=Retention(after_consumed="keep"))
ORDERS = [Order(number, f"sku {number % 7}", number % 3) for number in range(1000)]


async def _fill(channel: FileChannel[Order]) -> None:
    async with channel.sender() as tx:
        for order in ORDERS:
            await tx.send(order)
    begins = await run_sync(compress_all, channel._store)
    assert len(begins) > 3


async def test_every_kind_of_receiver_reads_compressed_segments(path: Path) -> None:
    """Plain, acknowledging and replaying receivers read compressed segments, one message or many at once."""
    async with open_channel(path, Order, options=SMALL) as channel:
        with channel.receiver("early") as early:
            await _fill(channel)
            assert [await early.receive() for _ in ORDERS] == ORDERS
        with channel.receiver("late") as late:
            found: list[Order] = []
            while len(found) < len(ORDERS):
                found += await late.receive_many(300)
            assert found == ORDERS
        with channel.replay() as history:
            assert [order async for order in history] == ORDERS
        with channel.ack_receiver("careful") as careful:
            first = [await careful.receive() for _ in range(100)]
            assert first == ORDERS[:100]
            careful.nack()
            assert [await careful.receive() for _ in range(100)] == first
            careful.ack(50)
        with channel.ack_receiver("careful") as careful:
            assert await careful.receive() == ORDERS[50]


async def test_segments_are_compressed_automatically(path: Path) -> None:
    """Segments are compressed in the background while messages are sent, and reclaimed in either encoding."""
    options = ChannelOptions(segment_size=4096, compression=Compression(after=0))
    async with open_channel(path, Order, options=options) as channel:
        with channel.receiver() as rx:
            async with channel.sender() as tx:
                for order in ORDERS:
                    await tx.send(order)
                await channel.flush()
                with fail_after(60):
                    while (found := channel.statistics()).compressed_segments < found.segments - 1:  # noqa: ASYNC110
                        await sleep(0.01)
                assert found.maintenance.errors == 0
            assert [await rx.receive() for _ in ORDERS] == ORDERS
            with fail_after(60):
                while channel.statistics().segments > 1:  # noqa: ASYNC110
                    await sleep(0.01)
    assert not list((path / "segments").glob("*.z"))


async def test_peeking_and_seeking_work(path: Path) -> None:
    """In compressed segments `peek` works, and seeks by offset, sequence and time, back and forth."""
    started = datetime.now(UTC)
    async with open_channel(path, Order, options=SMALL) as channel:
        await _fill(channel)
        with channel.receiver() as rx:
            assert rx.peek(300) == ORDERS[:300]
            for number in (700, 3, 999, 250, 0):
                offset = await run_sync(lambda: channel._store.lookup.numbered(number).offset)  # noqa: B023
                assert await channel.offset_of(number) == offset
                await rx.seek(offset)
                record = await rx.receive_record()
                assert (record.value, record.sequence, record.offset) == (ORDERS[number], number, offset)
                with pytest.raises(ValueError, match="no record begins"):
                    await rx.seek(offset + 1)
            await rx.seek(started)
            assert await rx.receive() == ORDERS[0]
        with channel.replay(start=started) as history:
            assert [order async for order in history] == ORDERS


async def test_statistics_distinguish_plain_and_compressed(path: Path) -> None:
    """Statistics count plain and compressed segments, and the disk space of each."""
    async with open_channel(path, Order, options=SMALL) as channel:
        before = channel.statistics()
        assert (before.segments, before.compressed_segments, before.compressed_bytes) == (0, 0, 0)
        await _fill(channel)
        found = channel.statistics()
        assert found.compressed_segments == found.segments - 1 > 3
        assert 0 < found.compressed_bytes < found.bytes_on_disk
        assert found.messages == len(ORDERS)


async def test_it_survives_being_closed_and_opened(path: Path) -> None:
    """A reopened channel reads its compressed segments, also read-only."""
    async with open_channel(path, Order, options=SMALL) as channel:
        await _fill(channel)
    async with open_channel(path, Order, readonly=True) as channel:
        with channel.replay() as history:
            assert [order async for order in history] == ORDERS
    async with open_channel(path, Order) as channel:
        async with channel.sender() as tx:
            await tx.send(Order(-1))
        with channel.replay() as history:
            assert [order async for order in history] == [*ORDERS, Order(-1)]
        await channel.purge()
        assert channel.statistics().compressed_segments == 0


@pytest.mark.parametrize("skip", [False, True])
async def test_damage_is_named_or_skipped(path: Path, caplog: pytest.LogCaptureFixture, skip: bool) -> None:
    """Damage in a compressed segment raises, or is skipped with a warning that names the block."""
    caplog.set_level(logging.WARNING, "filechannel")
    async with open_channel(path, Order, options=SMALL) as channel:
        await _fill(channel)
        file = compressed_file(channel._store, channel._store.segments.begins[1])
    content = bytearray(file.read_bytes())
    position, _, _ = COMPRESSED_BLOCK.unpack_from(content, COMPRESSED_TABLE + COMPRESSED_BLOCK.size)
    content[position] ^= 255
    file.write_bytes(content)
    options = ChannelOptions(on_corruption="skip" if skip else "raise")
    async with open_channel(path, Order, options=options) as channel:
        with channel.replay() as history:
            if skip:
                found = [order async for order in history]
                assert "block 1" in caplog.text
                assert len(ORDERS) - 30 < len(found) < len(ORDERS)
            else:
                with pytest.raises(CorruptRecordError, match="block 1"):
                    [order async for order in history]


async def test_a_method_that_is_not_installed_is_refused_when_it_is_chosen(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Choosing a compression method that is not installed raises an error with the extra, and creates nothing."""

    def missing(name: str) -> object:
        raise ImportError(name)

    lz4 = Compression(method="lz4")
    async with open_channel(path, Order) as channel:
        monkeypatch.setattr("filechannel._storage.segments.compression_codecs.import_module", missing)
        codec.cache_clear()
        try:
            with pytest.raises(UnsupportedFormatError, match=r"install filechannel\[lz4\]"):
                await channel.configure(compression=lz4)
            with pytest.raises(UnsupportedFormatError, match=r"install filechannel\[lz4\]") as caught:
                await open_channel(path / "other", Order, options=ChannelOptions(compression=lz4))
            assert caught.value.path == path / "other"
            assert not (path / "other").exists()
        finally:
            codec.cache_clear()
