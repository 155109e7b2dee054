"""Where the streams of a channel differ from anyio's memory object streams: the table of `docs/migrating/anyio.md`.

A test that takes `make_pair` shows both sides; the memory stream is the one without a channel.
"""

from __future__ import annotations

import contextlib
import math
import re
from pathlib import Path

import anyio
import pytest
from anyio import BrokenResourceError, ClosedResourceError, EndOfStream, WouldBlock, wait_all_tasks_blocked
from anyio.lowlevel import checkpoint
from anyio.streams.stapled import StapledObjectStream

from filechannel import Capacity, ChannelSealedError, ConsumerBusyError, MessageTypeError, open_channel
from tests.channel.messages import Order
from tests.channel.streams import MakePair

pytestmark = pytest.mark.anyio

PAGE = Path(__file__).parent.parent.parent / "docs" / "migrating" / "anyio.md"


async def test_closing_the_last_sender(make_pair: MakePair[int]) -> None:
    """Closing the last sender ends a memory stream; a channel, which may have senders later or elsewhere, ends by
    `seal()`.
    """
    async with make_pair(int) as pair:
        pair.tx.close()
        if pair.channel is None:
            with pytest.raises(EndOfStream):
                pair.rx.receive_nowait()
        else:
            with pytest.raises(WouldBlock):
                pair.rx.receive_nowait()
            with pair.channel.sender() as tx:
                await tx.send(1)
            assert await pair.rx.receive() == 1


async def test_sending_after_the_end(make_pair: MakePair[int]) -> None:
    """After its end a memory stream has no sender; a sender of a sealed channel is open and raises an error."""
    async with make_pair(int) as pair:
        await pair.end()
        with pytest.raises(ClosedResourceError if pair.channel is None else ChannelSealedError):
            await pair.tx.send(1)


async def test_sending_without_a_receiver(make_pair: MakePair[int]) -> None:
    """Sending without a receiver breaks a memory stream; a channel keeps the message for a later receiver."""
    async with make_pair(int) as pair:
        pair.rx.close()
        if pair.channel is None:
            with pytest.raises(BrokenResourceError):
                await pair.tx.send(1)
        else:
            await pair.tx.send(1)
            with pair.channel.receiver() as rx:
                assert await rx.receive() == 1


async def test_closing_the_last_receiver_while_a_sender_waits(make_pair: MakePair[int]) -> None:
    """The sender to a memory stream gets an error; the sender to a channel waits until a consumer receives."""
    async with make_pair(int, 1) as pair:
        await pair.tx.send(1)
        async with anyio.create_task_group() as group:

            async def send() -> None:
                if pair.channel is None:
                    with pytest.raises(BrokenResourceError):
                        await pair.tx.send(2)
                else:
                    await pair.tx.send(2)

            group.start_soon(send)
            await wait_all_tasks_blocked()
            pair.rx.close()
            if pair.channel is not None:
                with pair.channel.receiver() as rx:
                    assert [await rx.receive(), await rx.receive()] == [1, 2]


async def test_what_was_not_received_when_everything_is_closed(path: Path) -> None:
    """A closed memory stream loses items that were not received; a channel keeps them for the next receiver of that
    name.
    """
    async with open_channel(path, int) as channel:
        with channel.sender() as tx, channel.receiver() as rx:
            await tx.send(1)
            await tx.send(2)
            assert await rx.receive() == 1
    async with open_channel(path, int) as channel, channel.receiver() as rx:
        assert await rx.receive() == 2


async def test_the_smallest_size(make_pair: MakePair[int]) -> None:
    """A memory stream of size 0 hands items from task to task, which is the default; a channel holds one at least."""
    if make_pair.__name__ == "memory_pair":
        async with make_pair(int, 0) as pair:
            with pytest.raises(WouldBlock):
                pair.tx.send_nowait(1)
    else:
        with pytest.raises(ValueError, match="max_messages=0"):
            Capacity(max_messages=0)


async def test_what_a_receiver_gets(make_pair: MakePair[Order]) -> None:
    """The very object comes out of a memory stream, an equal one out of a channel."""
    order = Order(1)
    async with make_pair(Order) as pair:
        await pair.tx.send(order)
        received = await pair.rx.receive()
    assert received == order
    assert (received is order) == (pair.channel is None)


async def test_an_item_of_another_type(make_pair: MakePair[Order]) -> None:
    """A memory stream accepts an item of another type; a channel refuses it, and sends nothing."""
    async with make_pair(Order) as pair:
        if pair.channel is None:
            await pair.tx.send("an order")  # type: ignore[arg-type]
        else:
            with pytest.raises(MessageTypeError):
                await pair.tx.send("an order")  # type: ignore[arg-type]
            with pytest.raises(WouldBlock):
                pair.rx.receive_nowait()


async def test_a_second_receiver(make_pair: MakePair[int]) -> None:
    """Both have clones. A channel has other names too, each with every message, and one owner a name."""
    async with make_pair(int) as pair:
        with pair.rx.clone():
            pass
        if pair.channel is not None:
            with pytest.raises(ConsumerBusyError):
                pair.channel.receiver()
            with pair.channel.receiver("audit") as audit:
                await pair.tx.send(1)
                assert (await pair.rx.receive(), await audit.receive()) == (1, 1)


async def test_the_result_of_send_nowait(make_pair: MakePair[int]) -> None:
    """`send_nowait` returns None for a memory stream, and the offset of the message for a channel."""
    async with make_pair(int) as pair:
        before = pair.channel.statistics().write_offset if pair.channel else None
        assert pair.tx.send_nowait(1) == before


async def test_when_other_tasks_run(make_pair: MakePair[int]) -> None:
    """Every call gives way to other tasks; on a channel those that need not wait do so about once a millisecond."""
    turns = 0
    async with make_pair(int) as pair, anyio.create_task_group() as group:

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await checkpoint()

        group.start_soon(count)
        await checkpoint()
        before = turns
        for _ in range(20):  # takes far less than a millisecond, unless the machine is elsewhere
            await pair.tx.send(1)
        ran = turns - before
        assert ran >= 19 if pair.channel is None else ran < 19
        group.cancel_scope.cancel()


async def test_receiving_in_a_cancelled_scope_when_an_item_is_available(make_pair: MakePair[int]) -> None:
    """A memory stream always looks for a cancellation first; a channel does where it waits, or gives way."""
    received: list[int] = []
    async with make_pair(int) as pair:
        await pair.tx.send(1)
        with anyio.CancelScope() as scope:
            scope.cancel()
            received.append(await pair.rx.receive())
        if pair.channel is None:
            assert not received
        # Whichever it was: the message was received, or it is there.
        assert (received or [pair.rx.receive_nowait()]) == [1]


async def test_sending_in_a_cancelled_scope(make_pair: MakePair[int]) -> None:
    """A memory stream sends nothing; a channel sends if `send` need not wait or yield, and says so by returning."""
    returned = 0
    async with make_pair(int) as pair:
        for _ in range(100):
            await pair.tx.send(0)  # yields if that is due, so that the next one need not
            with anyio.CancelScope() as scope:
                scope.cancel()
                await pair.tx.send(1)
                returned += 1
        received: list[int] = []
        with contextlib.suppress(WouldBlock):
            while True:
                received.append(pair.rx.receive_nowait())
    assert sum(received) == returned
    assert (returned > 0) == (pair.channel is not None)


async def test_send_eof_of_a_stapledobjectstream(make_pair: MakePair[int]) -> None:
    """`send_eof` of a stapled stream closes the sender, which ends a memory stream and not a channel."""
    async with make_pair(int) as pair:
        await StapledObjectStream(pair.tx, pair.rx).send_eof()
        with pytest.raises(EndOfStream if pair.channel is None else WouldBlock):
            pair.rx.receive_nowait()


async def test_a_stream_that_is_not_closed(make_pair: MakePair[int]) -> None:
    """A memory stream that is not closed warns when it is collected; a channel closes what it created."""
    async with make_pair(int) as pair:
        clone = pair.tx.clone()
        if pair.channel is None:
            with pytest.warns(ResourceWarning, match="Unclosed"):
                clone.__del__()
            clone.close()
        else:
            await pair.channel.aclose()
            with pytest.raises(ClosedResourceError):
                clone.send_nowait(1)


async def test_the_statistics_of_a_stream(make_pair: MakePair[int]) -> None:
    """What `statistics()` of a memory stream says, a channel says with the names of the page's table."""
    async with make_pair(int, 3) as pair:
        clones = pair.tx.clone(), pair.rx.clone()
        await pair.tx.send(1)
        await pair.tx.send(2)
        if pair.channel is None:
            found = pair.tx.statistics()
            figures = (
                found.current_buffer_used,
                found.max_buffer_size,
                found.open_send_streams,
                found.open_receive_streams,
                found.tasks_waiting_send,
                found.tasks_waiting_receive,
            )
        else:
            channel = pair.channel.statistics()
            assert channel.room is not None
            figures = (
                pair.rx.statistics().lag_messages,
                channel.room.max_messages or math.inf,
                channel.senders,
                channel.receivers,
                channel.room.waiting_senders,
                channel.waiters,
            )
        assert figures == (2, 3, 2, 2, 0, 0)
        for clone in clones:
            clone.close()


def test_the_page_lists_what_is_tested_here() -> None:
    """Each row of the page's table of differences is a test of this file, in the same order."""
    rows = re.findall(
        r"^\| (.+?) \|", PAGE.read_text().partition("## What is different")[2].partition("\n## ")[0], re.MULTILINE
    )
    tested = re.findall(r"^async def test_(\w+)\(", Path(__file__).read_text(), re.MULTILINE)
    assert [re.sub(r"\W+", "_", row.lower()).strip("_") for row in rows[2:]] == tested
