"""What anyio documents of its memory object streams holds for the streams of a channel.

Every test runs on both. What differs is in `test_anyio_differences.py`.
"""

from __future__ import annotations

import anyio
import pytest
from anyio import ClosedResourceError, EndOfStream, TypedAttributeLookupError, WouldBlock, wait_all_tasks_blocked
from anyio.abc import ObjectReceiveStream, ObjectSendStream
from anyio.lowlevel import checkpoint
from anyio.streams.buffered import BufferedByteReceiveStream, BufferedByteStream
from anyio.streams.stapled import StapledObjectStream
from anyio.streams.text import TextReceiveStream, TextSendStream, TextStream

from tests.channel.streams import MakePair

pytestmark = pytest.mark.anyio

ATTRIBUTE = anyio.typed_attribute()


async def receive_into(stream: ObjectReceiveStream[int], received: list[int]) -> None:
    """Receive one item into a list, and close."""
    async with stream:
        received.append(await stream.receive())


# Sending and receiving


async def test_items_come_in_the_order_in_which_they_were_sent(make_pair: MakePair[int]) -> None:
    """Items are received in the order in which they were sent, with every combination of methods."""
    async with make_pair(int) as pair:
        await pair.tx.send(1)
        pair.tx.send_nowait(2)
        await pair.tx.send(3)
        assert [await pair.rx.receive(), await pair.rx.receive(), pair.rx.receive_nowait()] == [1, 2, 3]


@pytest.mark.parametrize("nowait", [False, True], ids=["send", "send_nowait"])
async def test_a_receiver_that_waits_gets_the_next_item(nowait: bool, make_pair: MakePair[int]) -> None:
    """A task that waits in `receive` gets the next item."""
    received: list[int] = []
    async with make_pair(int) as pair:
        async with anyio.create_task_group() as group:
            group.start_soon(receive_into, pair.rx.clone(), received)
            group.start_soon(receive_into, pair.rx.clone(), received)
            await wait_all_tasks_blocked()
            for item in 1, 2:
                if nowait:
                    pair.tx.send_nowait(item)
                else:
                    await pair.tx.send(item)
        assert sorted(received) == [1, 2]


async def test_nothing_to_receive_would_block(make_pair: MakePair[int]) -> None:
    """`receive_nowait` of an empty stream raises `WouldBlock`, and works when there is an item."""
    async with make_pair(int) as pair:
        with pytest.raises(WouldBlock):
            pair.rx.receive_nowait()
        pair.tx.send_nowait(1)
        assert pair.rx.receive_nowait() == 1


async def test_a_full_stream_would_block(make_pair: MakePair[int]) -> None:
    """`send_nowait` raises `WouldBlock` when the stream is full, and sends nothing."""
    async with make_pair(int, 2) as pair:
        pair.tx.send_nowait(1)
        pair.tx.send_nowait(2)
        with pytest.raises(WouldBlock):
            pair.tx.send_nowait(3)
        assert [pair.rx.receive_nowait(), pair.rx.receive_nowait()] == [1, 2]
        with pytest.raises(WouldBlock):
            pair.rx.receive_nowait()


async def test_a_sender_waits_for_capacity(make_pair: MakePair[int]) -> None:
    """`send` on a full stream continues when an item was received."""
    async with make_pair(int, 1) as pair:
        await pair.tx.send(1)
        async with anyio.create_task_group() as group:
            group.start_soon(pair.tx.send, 2)
            await wait_all_tasks_blocked()
            assert pair.rx.receive_nowait() == 1
            assert await pair.rx.receive() == 2


async def test_iterating_ends_at_the_end(make_pair: MakePair[str]) -> None:
    """The example of anyio's documentation: a task iterates, another one sends, and then nothing more comes."""
    received: list[str] = []

    async def process_items(stream: ObjectReceiveStream[str]) -> None:
        async with stream:
            received.extend([item async for item in stream])

    async with make_pair(str) as pair, anyio.create_task_group() as group:
        group.start_soon(process_items, pair.rx)
        async with pair.tx.clone() as tx:
            for number in range(10):
                await tx.send(f"number {number}")
        await pair.end()
    assert received == [f"number {number}" for number in range(10)]


# The end


async def test_what_is_left_comes_before_the_end(make_pair: MakePair[int]) -> None:
    """After the last item `receive` and `receive_nowait` raise `EndOfStream`, as often as they are called."""
    async with make_pair(int) as pair:
        await pair.tx.send(1)
        await pair.end()
        assert await pair.rx.receive() == 1
        for _ in range(2):
            with pytest.raises(EndOfStream):
                await pair.rx.receive()
            with pytest.raises(EndOfStream):
                pair.rx.receive_nowait()


async def test_the_end_wakes_a_waiting_receiver(make_pair: MakePair[int]) -> None:
    """A `receive` that waits raises `EndOfStream` when no item can come any more."""
    async with make_pair(int) as pair:
        async with anyio.create_task_group() as group:

            async def wait_for_the_end() -> None:
                with pytest.raises(EndOfStream):
                    await pair.rx.receive()

            group.start_soon(wait_for_the_end)
            await wait_all_tasks_blocked()
            await pair.end()


# Closing and clones


async def test_a_closed_stream_refuses(make_pair: MakePair[int]) -> None:
    """Every method of a closed stream raises `ClosedResourceError`; closing it again does nothing."""
    async with make_pair(int) as pair:
        for _ in range(2):
            await pair.tx.aclose()
            await pair.rx.aclose()
        with pytest.raises(ClosedResourceError):
            await pair.tx.send(1)
        with pytest.raises(ClosedResourceError):
            pair.tx.send_nowait(1)
        with pytest.raises(ClosedResourceError):
            await pair.rx.receive()
        with pytest.raises(ClosedResourceError):
            pair.rx.receive_nowait()
        for stream in pair.tx, pair.rx:
            with pytest.raises(ClosedResourceError):
                stream.clone()


async def test_both_kinds_of_blocks_close(make_pair: MakePair[int]) -> None:
    """`with` and `async with` return the stream and close it."""
    async with make_pair(int) as pair:
        tx, rx = pair.tx.clone(), pair.rx.clone()
        with tx as sender, rx as receiver:
            assert (sender, receiver) == (tx, rx)
            await sender.send(1)
        with pytest.raises(ClosedResourceError):
            await rx.receive()
        async with pair.tx.clone() as sender, pair.rx.clone() as receiver:
            assert await receiver.receive() == 1
        with pytest.raises(ClosedResourceError):
            await sender.send(2)


async def test_closing_a_clone_leaves_the_others(make_pair: MakePair[int]) -> None:
    """Clones are closed one by one, and work without the original."""
    async with make_pair(int) as pair:
        tx, rx = pair.tx.clone(), pair.rx.clone()
        pair.tx.close()
        pair.rx.close()
        await tx.send(1)
        assert await rx.receive() == 1
        tx.close()
        rx.close()


async def test_clones_share_the_items(make_pair: MakePair[int]) -> None:
    """Each item is delivered to one of the clones of a receiver; clones of a sender send to the same stream."""
    received: list[int] = []
    async with make_pair(int) as pair:
        async with anyio.create_task_group() as group:
            for number in range(4):
                with pair.tx.clone() as tx:
                    tx.send_nowait(number)
            for _ in range(4):
                group.start_soon(receive_into, pair.rx.clone(), received)
        with pytest.raises(WouldBlock):
            pair.rx.receive_nowait()
    assert sorted(received) == [0, 1, 2, 3]


async def test_closing_ends_a_receive_that_waits(make_pair: MakePair[int]) -> None:
    """A task that waits in a receiver gets `ClosedResourceError` when it is closed; clones keep waiting."""
    received: list[int] = []
    async with make_pair(int) as pair, anyio.create_task_group() as group:
        closed, other = pair.rx.clone(), pair.rx.clone()

        async def wait() -> None:
            with pytest.raises(ClosedResourceError):
                await closed.receive()

        group.start_soon(wait)
        group.start_soon(receive_into, other, received)
        await wait_all_tasks_blocked()
        closed.close()
        await wait_all_tasks_blocked()
        assert not received
        await pair.tx.send(1)
        await wait_all_tasks_blocked()
        assert received == [1]


async def test_closing_ends_a_send_that_waits(make_pair: MakePair[int]) -> None:
    """A task that waits for capacity in a sender gets an error when it is closed, and its item was not sent."""
    async with make_pair(int, 1) as pair:
        await pair.tx.send(1)
        with pair.tx.clone() as tx:
            async with anyio.create_task_group() as group:

                async def wait() -> None:
                    with pytest.raises(ClosedResourceError):
                        await tx.send(2)

                group.start_soon(wait)
                await wait_all_tasks_blocked()
                tx.close()
        assert pair.rx.receive_nowait() == 1
        with pytest.raises(WouldBlock):
            pair.rx.receive_nowait()


# Cancellation


async def test_a_cancelled_receive_takes_nothing(make_pair: MakePair[int]) -> None:
    """A cancelled receive takes no item: another receiver gets the one that is sent afterwards."""
    async with make_pair(int) as pair:
        async with anyio.create_task_group() as group:
            group.start_soon(pair.rx.receive)
            await wait_all_tasks_blocked()
            group.cancel_scope.cancel()
        pair.tx.send_nowait(1)
        assert pair.rx.receive_nowait() == 1


async def test_an_item_that_meets_a_cancellation_is_not_lost(make_pair: MakePair[int]) -> None:
    """An item that is sent in the moment of a cancellation is received or still stored."""
    received: list[int] = []
    async with make_pair(int) as pair:
        async with anyio.create_task_group() as group:
            group.start_soon(receive_into, pair.rx.clone(), received)
            await wait_all_tasks_blocked()
            group.cancel_scope.cancel()
            pair.tx.send_nowait(1)
        received += [] if received else [pair.rx.receive_nowait()]
    assert received == [1]


async def test_a_cancelled_send_did_not_happen(make_pair: MakePair[int]) -> None:
    """An item that was waiting for capacity is not in the stream afterwards."""
    async with make_pair(int, 1) as pair:
        await pair.tx.send(1)
        with anyio.move_on_after(0) as scope:
            await pair.tx.send(2)
        assert scope.cancelled_caught
        assert pair.rx.receive_nowait() == 1
        with pytest.raises(WouldBlock):
            pair.rx.receive_nowait()


async def test_a_loop_of_sends_and_receives_can_be_cancelled(make_pair: MakePair[int]) -> None:
    """Tasks that never have to wait let others run, and notice that they are cancelled."""
    async with make_pair(int) as pair:

        async def work() -> None:
            while True:
                await pair.tx.send(1)
                await pair.rx.receive()

        async with anyio.create_task_group() as group:
            group.start_soon(work)
            for _ in range(3):
                await checkpoint()
            group.cancel_scope.cancel()


# Abstract classes and wrappers


async def test_the_streams_are_object_streams(make_pair: MakePair[int]) -> None:
    """The streams are instances of anyio's abstract classes, and have no typed attributes unless they are wrapped."""
    async with make_pair(int) as pair:
        assert isinstance(pair.tx, ObjectSendStream)
        assert isinstance(pair.rx, ObjectReceiveStream)
        for stream in pair.tx, pair.rx:
            assert dict(stream.extra_attributes) == {}
            assert stream.extra(ATTRIBUTE, "none") == "none"
            with pytest.raises(TypedAttributeLookupError):
                stream.extra(ATTRIBUTE)


async def test_two_ends_can_be_stapled(make_pair: MakePair[int]) -> None:
    """`StapledObjectStream` makes one stream of both; `send_eof` and `aclose` close its parts."""
    async with make_pair(int) as pair:
        stapled = StapledObjectStream(pair.tx, pair.rx)
        await stapled.send(1)
        await stapled.send(2)
        assert await stapled.receive() == 1
        await stapled.send_eof()
        with pytest.raises(ClosedResourceError):
            await stapled.send(3)
        assert await stapled.receive() == 2
        await stapled.aclose()
        with pytest.raises(ClosedResourceError):
            await stapled.receive()


async def test_chunks_are_read_as_a_stream_of_bytes(make_pair: MakePair[bytes]) -> None:
    """`BufferedByteReceiveStream` reads lines and exact lengths, however the bytes were cut."""
    async with make_pair(bytes) as pair:
        for chunk in (b"GET / HT", b"TP/1.1\r\nHo", b"st: here\r\n\r\nbody", b" and more"):
            await pair.tx.send(chunk)
        await pair.end()
        stream = BufferedByteReceiveStream(pair.rx)
        assert await stream.receive_until(b"\r\n", 100) == b"GET / HTTP/1.1"
        assert await stream.receive_until(b"\r\n\r\n", 100) == b"Host: here"
        assert await stream.receive_exactly(8) == b"body and"
        assert await stream.receive() == b" more"
        with pytest.raises(EndOfStream):
            await stream.receive()


async def test_bytes_are_decoded_to_text(make_pair: MakePair[bytes]) -> None:
    """`TextSendStream` and `TextReceiveStream` work on a stream of bytes, also where a character is cut in two."""
    async with make_pair(bytes) as pair:
        text = TextSendStream(pair.tx)
        await text.send("grün")
        await pair.tx.send("ß".encode()[:1])
        await pair.tx.send("ß".encode()[1:])
        received = TextReceiveStream(pair.rx)
        assert [await received.receive(), await received.receive()] == ["grün", "ß"]


async def test_both_ends_make_a_stream_of_text_or_bytes(make_pair: MakePair[bytes]) -> None:
    """A pair that was stapled works as a stream of text or bytes in both directions."""
    async with make_pair(bytes) as pair:
        both = StapledObjectStream(pair.tx, pair.rx)
        text = TextStream(both)
        await text.send("one")
        assert await text.receive() == "one"
        buffered = BufferedByteStream(both)
        await buffered.send(b"two three")
        assert await buffered.receive_exactly(4) == b"two "
        assert await buffered.receive_exactly(5) == b"three"
