"""Finding a place again that somebody remembers from before: the ids of events are such places."""

from __future__ import annotations

from pathlib import Path

import pytest
from anyio.to_thread import run_sync

from filechannel import ChannelOptions, FileChannel, Offset, open_channel
from filechannel._storage.index import Mark
from tests.storage.boots import Boots
from tests.storage.conftest import boots

__all__ = ["boots"]

pytestmark = pytest.mark.anyio

SMALL = ChannelOptions(segment_size=4096)
COUNT = 1000
JUMP = 1 << 40


async def fill(channel: FileChannel[int]) -> list[Mark]:
    """Send messages; return the place of each, and the end."""
    with channel.sender() as tx:
        offsets = [tx.send_nowait(number) for number in range(COUNT)]
    return [Mark(offset, number, 0) for number, offset in enumerate([*offsets, channel.statistics().write_offset])]


async def find(channel: FileChannel[int], offset: int, sequence: int) -> tuple[int, int] | None:
    """Look for a place, off the event loop."""
    found = await run_sync(channel.find_again, Mark(Offset(offset), sequence, 0))
    return None if found is None else (found.offset, found.sequence)


async def test_every_place_is_found_again(path: Path) -> None:
    """From the first message to behind the last, over many segments."""
    async with open_channel(path, int, options=SMALL) as channel:
        places = await fill(channel)
        for offset, sequence, _ in [*places[::37], places[-1]]:
            assert await find(channel, offset, sequence) == (offset, sequence)


async def test_a_place_that_never_was_is_none(path: Path) -> None:
    """Inside a message, behind the end, or with the number of another one."""
    async with open_channel(path, int, options=SMALL) as channel:
        places = await fill(channel)
        middle, end = places[COUNT // 2], places[-1]
        assert await find(channel, middle.offset + 1, middle.sequence) is None
        assert await find(channel, middle.offset, middle.sequence + 1) is None
        assert await find(channel, middle.offset, middle.sequence - 1) is None
        assert await find(channel, end.offset + 1, COUNT) is None
        assert await find(channel, end.offset + JUMP, COUNT) is None


async def test_a_place_that_is_not_stored_any_more_is_itself(path: Path) -> None:
    """Whoever goes on there is told what it missed; a number that cannot have been there is none."""
    async with open_channel(path, int, options=SMALL) as channel:
        places = await fill(channel)
        await channel.purge()
        assert await find(channel, places[3].offset, 3) == (places[3].offset, 3)
        assert await find(channel, places[3].offset, COUNT + 1) is None


async def test_a_place_that_is_removed_in_this_moment_is_itself(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A purge between two looks does not make it one that never was."""
    async with open_channel(path, int, options=SMALL) as channel:
        places, store = await fill(channel), channel._store
        latest = store.places.latest

        def look_and_purge() -> Mark:
            monkeypatch.undo()
            found = latest()
            store.purge()
            return found

        monkeypatch.setattr(store.places, "latest", look_and_purge)
        assert await find(channel, places[3].offset, 3) == (places[3].offset, 3)
        assert store.is_empty


async def test_what_a_power_cut_took_leads_to_what_came_after_it(path: Path, boots: Boots) -> None:
    """A place behind the cut was one: whoever was there goes on with the first message since."""
    async with open_channel(path, int) as channel:
        places = await fill(channel)
        await channel.flush()
    boots.again()
    async with open_channel(path, int) as channel:
        with channel.sender() as tx:
            first = tx.send_nowait(4711)
        assert first == JUMP
        end = places[-1]
        assert await find(channel, end.offset, COUNT) == (first, COUNT)
        assert await find(channel, end.offset + 50, COUNT + 5) == (first, COUNT)
