"""Looking up a log position that a client remembers: the ids of events are such positions."""

from __future__ import annotations

from pathlib import Path

import pytest
from anyio.to_thread import run_sync

from filechannel import ChannelOptions, FileChannel, Offset, open_channel
from filechannel._offset import LogPosition
from tests.storage.boots import Boots
from tests.storage.conftest import boots

__all__ = ["boots"]

pytestmark = pytest.mark.anyio

SMALL = ChannelOptions(segment_size=4096)
COUNT = 1000
GAP = 1 << 40


async def fill(channel: FileChannel[int]) -> list[LogPosition]:
    """Send messages; return the log position of each, and the end."""
    with channel.sender() as tx:
        offsets = [tx.send_nowait(number) for number in range(COUNT)]
    return [LogPosition(offset, number) for number, offset in enumerate([*offsets, channel.statistics().write_offset])]


async def find(channel: FileChannel[int], offset: int, sequence: int) -> tuple[int, int] | None:
    """Look up a log position in a thread."""
    found = await run_sync(channel.find_again, LogPosition(Offset(offset), sequence))
    return None if found is None else (found.offset, found.sequence)


async def test_every_position_is_found(path: Path) -> None:
    """Every log position is found, from the first message to the end, across many segments."""
    async with open_channel(path, int, options=SMALL) as channel:
        positions = await fill(channel)
        for offset, sequence in [*positions[::37], positions[-1]]:
            assert await find(channel, offset, sequence) == (offset, sequence)


async def test_a_position_that_never_existed_is_none(path: Path) -> None:
    """A lookup of an offset inside a message, beyond the end, or with the sequence of another message returns None."""
    async with open_channel(path, int, options=SMALL) as channel:
        positions = await fill(channel)
        middle, end = positions[COUNT // 2], positions[-1]
        assert await find(channel, middle.offset + 1, middle.sequence) is None
        assert await find(channel, middle.offset, middle.sequence + 1) is None
        assert await find(channel, middle.offset, middle.sequence - 1) is None
        assert await find(channel, end.offset + 1, COUNT) is None
        assert await find(channel, end.offset + GAP, COUNT) is None


async def test_a_position_that_was_reclaimed_is_itself(path: Path) -> None:
    """A lookup of a reclaimed position returns it, so that a reader there gets the number it missed."""
    async with open_channel(path, int, options=SMALL) as channel:
        positions = await fill(channel)
        await channel.purge()
        assert await find(channel, positions[3].offset, 3) == (positions[3].offset, 3)
        assert await find(channel, positions[3].offset, COUNT + 1) is None


async def test_a_position_that_is_being_reclaimed_is_itself(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A purge between two lookups does not make a position look as if it never existed."""
    async with open_channel(path, int, options=SMALL) as channel:
        positions, store = await fill(channel), channel._store
        latest = store.lookup.latest

        def look_and_purge() -> LogPosition:
            monkeypatch.undo()
            found = latest()
            store.purge()
            return found

        monkeypatch.setattr(store.lookup, "latest", look_and_purge)
        assert await find(channel, positions[3].offset, 3) == (positions[3].offset, 3)
        assert store.is_empty


async def test_a_position_lost_in_a_power_cut_becomes_the_next_one(path: Path, boots: Boots) -> None:
    """A lookup of a position after the cut of a power cut returns the first message since."""
    async with open_channel(path, int) as channel:
        positions = await fill(channel)
        await channel.flush()
    boots.again()
    async with open_channel(path, int) as channel:
        with channel.sender() as tx:
            first = tx.send_nowait(4711)
        assert first == GAP
        end = positions[-1]
        assert await find(channel, end.offset, COUNT) == (first, COUNT)
        assert await find(channel, end.offset + 50, COUNT + 5) == (first, COUNT)
