"""What a channel that was closed in an event loop leaves behind: nothing, with the garbage collector switched off."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from anyio import ClosedResourceError, create_task_group, fail_after, wait_all_tasks_blocked

from filechannel import Capacity, ChannelOptions, open_channel
from tests.storage.resources import held_under

pytestmark = pytest.mark.anyio
TIMEOUT = 60  # seconds; nothing here takes as long


@pytest.fixture(autouse=True)
def without_collector() -> Iterator[None]:
    """Nothing is freed but by reference counting, and by closing."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def files_of(path: Path) -> list[str]:
    """Return the open files and maps; a loop closes its FIFO in its next iteration."""
    await anyio.lowlevel.checkpoint()
    await anyio.lowlevel.checkpoint()
    return held_under(path)


async def test_a_closed_channel_holds_nothing(path: Path) -> None:
    """A closed channel holds no map and no descriptor, whatever it was used for, although it is still referenced."""
    async with open_channel(path, bytes, options=ChannelOptions(segment_size=65536)) as channel:
        tx, rx = channel.sender(), channel.receiver("fan-out")
        acked, group = channel.ack_receiver("acked"), channel.group("group")
        await tx.send_many([bytes(1000)] * 200)
        assert len(await rx.receive_many(200)) == 200
        delivery = await acked.receive_delivery()
        await group.receive()
        await channel.flush()
        await channel.purge()
        channel.statistics()
        channel.consumers()
    assert await files_of(path) == []
    for refused in (rx.receive, lambda: tx.send(b"1"), acked.receive, group.receive):
        with pytest.raises(ClosedResourceError):
            await refused()
    for late in (delivery.ack, delivery.nack, rx.statistics, channel.statistics, channel.consumers, lambda: rx.peek(1)):
        with pytest.raises(ClosedResourceError):
            late()


async def test_closing_under_tasks_that_wait(path: Path) -> None:
    """Tasks that wait for a message, capacity or a consumer get an error when the channel is closed."""
    ended: list[type[BaseException]] = []

    async def end_closed(work: Callable[[], Awaitable[object]]) -> None:
        with pytest.raises(ClosedResourceError) as raised:
            await work()
        ended.append(raised.type)

    channel = await open_channel(path, bytes, options=ChannelOptions(capacity=Capacity(max_messages=1)))
    slow, rx, group = channel.receiver("slow"), channel.receiver("fast"), channel.group("group", start="latest")
    tx = channel.sender()
    await tx.send(b"1")
    await rx.receive()
    await group.receive()
    with fail_after(TIMEOUT):
        async with create_task_group() as tasks:
            for work in (lambda: tx.send(b"2"), rx.receive, rx.clone().receive, group.receive):
                tasks.start_soon(end_closed, work)
            await wait_all_tasks_blocked()
            await channel.aclose()
    assert ended == [ClosedResourceError] * 4
    slow.close()
    assert await files_of(path) == []


async def test_a_deleted_receiver_releases_its_name(path: Path) -> None:
    """A deleted receiver releases its name, also after an iteration or with its last delivery."""
    async with open_channel(path, bytes) as channel:
        await channel.sender().send_many([b"1", b"2"])

        async def first(messages: AsyncIterator[bytes]) -> bytes:
            return await anext(messages)

        assert await first(channel.receiver("iterated")) == b"1"
        assert {each.name: each.owner for each in channel.consumers()} == {"iterated": None}
        rx = channel.ack_receiver("acked")
        delivery = await rx.receive_delivery()
        del rx
        assert channel.consumers()[0].owner is not None  # a delivery can still be acknowledged
        delivery.ack()
        del delivery
        assert channel.consumers()[0].owner is None
        async with channel.receiver("acked") as again:
            assert await again.receive() == b"2"
