"""Sending: one message or a batch, waiting or not, of every kind of type."""

from __future__ import annotations

import array
from collections.abc import Iterator
from pathlib import Path

import anyio
import msgspec
import pytest
from anyio import ClosedResourceError

from filechannel import (
    ChannelOptions,
    CodecError,
    Durability,
    MessageTooLargeError,
    MessageTypeError,
    Offset,
    open_channel,
)
from tests.backends import one_loop
from tests.channel.messages import Cancelled, Order, Placed, Point, Reading

pytestmark = pytest.mark.anyio


async def test_a_message_arrives_as_it_was_sent(path: Path) -> None:
    """A Struct that was sent is received as an equal one."""
    async with open_channel(path, Order) as orders, orders.sender() as tx, orders.receiver() as rx:
        assert await tx.send(Order(1, "ink", 3)) is None
        assert await rx.receive() == Order(1, "ink", 3)


@one_loop
@pytest.mark.parametrize(
    ("type_", "values"),
    [
        (int, [0, -1, 1 << 62]),
        (None, [None, None]),
        (str, ["", "grün", "\0"]),
        (bool, [True, False]),
        (float, [0.5, float("inf")]),
        (dict[str, float], [{}, {"a": 1.0, "b": -2.5}]),
        (list[int], [[], [1, 2, 3]]),
        (tuple[int, str], [(1, "a")]),
        (Point, [Point(1, 2.0)]),
        (Reading, [{"sensor": "t", "value": 21.5}]),
        (Placed | Cancelled, [Placed(1), Cancelled(2, "late"), Placed(3)]),
        (int | None, [None, 3, None]),
    ],
    ids=lambda value: str(value) if not isinstance(value, list) else "",
)
@pytest.mark.parametrize("codec", ["msgpack", "json"])
async def test_every_kind_of_message_arrives(path: Path, type_: object, values: list[object], codec: str) -> None:
    """What msgspec can check can be sent and received, one by one and as a batch, with either codec."""
    if codec == "json":
        values = [value for value in values if value != float("inf")]
    async with open_channel(path, type_, codec=codec) as channel:  # type: ignore[call-overload]
        async with channel.sender() as tx, channel.receiver() as rx:
            for value in values:
                await tx.send(value)
                assert await rx.receive() == value
            await tx.send_many(values)
            assert await rx.receive_many(len(values) + 1) == values


@one_loop
async def test_json_messages_can_be_read_with_any_tool(path: Path) -> None:
    """With `codec="json"` the payloads on disk are JSON."""
    async with open_channel(path, Order, codec="json") as orders, orders.sender() as tx:
        await tx.send(Order(1, "ink", 3))
    assert b'{"id":1,"sku":"ink","qty":3}' in (path / "segments" / f"{0:020}.seg").read_bytes()


@one_loop
@pytest.mark.parametrize(
    "buffer",
    [
        b"",
        b"abc",
        bytearray(b"abc"),
        memoryview(b"abc"),
        memoryview(b"abcdef")[::2],
        array.array("d", [1.5, 2.5]),
        memoryview(array.array("i", range(6))).cast("B").cast("i", (2, 3)),
    ],
    ids=["empty", "bytes", "bytearray", "memoryview", "strided", "array", "matrix"],
)
async def test_a_raw_channel_accepts_any_buffer(path: Path, buffer: bytes) -> None:
    """A raw channel accepts any buffer, unchanged, and returns `bytes`."""
    expected = memoryview(buffer).tobytes()
    async with open_channel(path, bytes) as channel, channel.sender() as tx, channel.receiver() as rx:
        await tx.send(buffer)
        tx.send_nowait(buffer)
        await tx.send_many([buffer, buffer])
        tx.send_many_nowait([buffer])
        received = await rx.receive_many(10)
    assert received == [expected] * 5
    assert {type(item) for item in received} == {bytes}


async def test_a_buffer_may_be_used_again_after_it_was_sent(path: Path) -> None:
    """What is received is what the buffer held when it was sent."""
    buffer = bytearray(b"one")
    async with open_channel(path, bytes) as channel, channel.sender() as tx, channel.receiver() as rx:
        await tx.send(buffer)
        buffer[:] = b"two!"
        await tx.send(buffer)
        assert await rx.receive_many(2) == [b"one", b"two!"]


async def test_a_received_struct_is_not_the_one_sent(path: Path) -> None:
    """Changing an object after sending it does not change the message."""
    order = Order(1)
    async with open_channel(path, Order) as orders, orders.sender() as tx, orders.receiver() as rx:
        await tx.send(order)
        order.qty = 99
        assert await rx.receive() == Order(1)


# Offsets


async def test_send_nowait_returns_where_the_message_begins(path: Path) -> None:
    """The offset returned is the write offset before, and the one at which the message is received."""
    async with open_channel(path, int) as channel, channel.sender() as tx, channel.receiver() as rx:
        for number in range(3):
            expected = tx.write_offset
            assert tx.send_nowait(number) == expected
            record = await rx.receive_record()
            assert (record.value, record.offset, record.sequence) == (number, expected, number)


async def test_a_batch_returns_where_its_first_message_begins(path: Path) -> None:
    """`send_many` and `send_many_nowait` return the offset of the first message."""
    async with open_channel(path, int) as channel, channel.sender() as tx:
        await tx.send(0)
        for sequence in (1, 4):
            assert await tx.send_many([1, 2, 3]) == await channel.offset_of(sequence)
        for sequence in (7, 10):
            assert tx.send_many_nowait([1, 2, 3]) == await channel.offset_of(sequence)


@one_loop
async def test_the_offset_of_a_message_that_begins_a_segment(path: Path) -> None:
    """Offsets count record bytes only: they run on from segment to segment."""
    async with open_channel(path, bytes, options=ChannelOptions(segment_size=4096)) as channel, channel.sender() as tx:
        offsets = [tx.send_nowait(bytes(1000)) for _ in range(20)]
        assert offsets == [1008 * number for number in range(20)]
        assert tx.write_offset == 1008 * 20


# Batches


@pytest.mark.parametrize("count", [1, 2, 1024, 1025, 5000])
async def test_a_batch_of_any_size_arrives_in_order(path: Path, count: int) -> None:
    """A batch of any size, from any iterable, arrives whole and in order."""
    async with open_channel(path, int) as channel, channel.sender() as tx, channel.receiver() as rx:
        await tx.send_many(iter(range(count)))
        tx.send_many_nowait(range(count))
        assert rx.receive_many_nowait(2 * count) == [*range(count), *range(count)]


async def test_a_batch_becomes_visible_at_once(path: Path) -> None:
    """A receiver that is woken by a batch sees all of it, across segments."""
    async with open_channel(path, bytes, options=ChannelOptions(segment_size=4096)) as channel:
        with channel.sender() as tx, channel.receiver() as rx:
            async with anyio.create_task_group() as group:

                async def receive() -> None:
                    assert len(await rx.receive_many(1000)) == 50

                group.start_soon(receive)
                await anyio.wait_all_tasks_blocked()
                await tx.send_many([bytes(500)] * 50)


async def test_an_empty_batch_does_nothing(path: Path) -> None:
    """Sending nothing changes nothing, under every durability, and returns the write offset."""
    for durability in (Durability.OS, Durability.FSYNC):
        options = ChannelOptions(durability=durability)
        async with open_channel(path / repr(durability), int, options=options) as channel, channel.sender() as tx:
            await tx.send(1)
            before = channel.statistics()
            assert await tx.send_many([]) == before.write_offset
            assert tx.send_many_nowait(()) == before.write_offset
            assert channel.statistics().write_offset == before.write_offset
            assert channel.statistics().messages == 1


@one_loop
@pytest.mark.parametrize("count", [10, 3000])
async def test_a_bad_item_is_named_and_nothing_of_its_batch_is_sent(path: Path, count: int) -> None:
    """The error of a bad item names its index, and no item of the batch was written."""
    items: list[object] = [*map(Order, range(count - 1)), "no order"]
    async with open_channel(path, Order) as orders, orders.sender() as tx:
        with pytest.raises(MessageTypeError, match=f"item {count - 1} of the batch") as caught:
            await tx.send_many(items)  # type: ignore[arg-type]
        assert caught.value.index == count - 1
        with pytest.raises(MessageTypeError, match=f"item {count - 1} of the batch") as caught:
            tx.send_many_nowait(items)  # type: ignore[arg-type]
        assert caught.value.index == count - 1
        assert orders.statistics().messages == 0
        assert tx.write_offset == 0


@one_loop
async def test_an_iterable_that_fails_sends_nothing(path: Path) -> None:
    """An error of the iterable is raised by the send, and nothing of the batch is written."""

    def items() -> Iterator[int]:
        yield 1
        raise OSError("gone")

    async with open_channel(path, int) as channel, channel.sender() as tx:
        with pytest.raises(OSError, match="gone"):
            await tx.send_many(items())
        with pytest.raises(OSError, match="gone"):
            tx.send_many_nowait(items())
        assert channel.statistics().messages == 0


# What does not fit


@one_loop
@pytest.mark.parametrize("wrong", [Cancelled(1), {"id": 1}, None, 3, b"x", Order], ids=repr)
async def test_a_value_of_another_type_is_refused(path: Path, wrong: object) -> None:
    """A value of the wrong type is a `TypeError` that names both types, and nothing is written."""
    async with open_channel(path, Order) as orders, orders.sender() as tx:
        with pytest.raises(MessageTypeError, match="Order") as caught:
            await tx.send(wrong)  # type: ignore[arg-type]
        assert isinstance(caught.value, TypeError)
        assert caught.value.index is None
        with pytest.raises(MessageTypeError):
            tx.send_nowait(wrong)  # type: ignore[arg-type]
        assert tx.write_offset == 0


@one_loop
async def test_a_raw_channel_refuses_what_is_not_a_buffer(path: Path) -> None:
    """Sending anything but a buffer to a raw channel raises an error that names the type."""
    async with open_channel(path, bytes) as channel, channel.sender() as tx:
        for wrong in ("text", 3, None, [1]):
            with pytest.raises(MessageTypeError, match="buffer"):
                await tx.send(wrong)  # type: ignore[arg-type]
        assert tx.write_offset == 0


@one_loop
async def test_a_value_that_does_not_fit_the_codec_is_refused(path: Path) -> None:
    """A value of the right type that cannot be encoded is a `CodecError` with the reason; nothing is written."""
    async with open_channel(path, int) as channel, channel.sender() as tx:
        with pytest.raises(CodecError, match="int cannot be encoded"):
            await tx.send(1 << 100)
        with pytest.raises(CodecError, match="item 1 of the batch"):
            await tx.send_many([1, 1 << 100])
        assert tx.write_offset == 0


@one_loop
async def test_fields_are_checked_only_on_request(path: Path) -> None:
    """Without `validate` a wrong field is sent and cannot be received; with it, it is refused."""
    wrong = Order("one")  # type: ignore[arg-type]
    async with open_channel(path, Order) as orders, orders.sender() as tx:
        await tx.send(wrong)
    async with open_channel(path, Order, options=ChannelOptions(validate=True)) as orders, orders.sender() as tx:
        with pytest.raises(CodecError, match="id"):
            tx.send_nowait(wrong)
        with pytest.raises(CodecError, match=r"item 1 of the batch: .*id"):
            tx.send_many_nowait([Order(1), wrong])
        with pytest.raises(CodecError, match="id"):
            await tx.send(wrong)
        await tx.send(Order(2))
        assert orders.statistics().messages == 2


@one_loop
async def test_a_message_larger_than_the_limit_is_refused(path: Path) -> None:
    """A message over `max_message_size` is refused with both sizes; one of exactly that size is taken."""
    options = ChannelOptions(max_message_size=100)
    async with open_channel(path, bytes, options=options) as channel, channel.sender() as tx, channel.receiver() as rx:
        with pytest.raises(MessageTooLargeError) as caught:
            await tx.send(bytes(101))
        assert (caught.value.size, caught.value.limit, caught.value.index) == (101, 100, None)
        with pytest.raises(MessageTooLargeError, match="101"):
            tx.send_nowait(bytes(101))
        with pytest.raises(MessageTooLargeError, match="item 1 of the batch"):
            await tx.send_many([bytes(100), bytes(101)])
        assert tx.write_offset == 0
        await tx.send(bytes(100))
        assert await rx.receive() == bytes(100)


@one_loop
async def test_a_message_larger_than_a_segment_has_one_of_its_own(path: Path) -> None:
    """A message that no ordinary segment takes is sent and received like any other."""
    sizes = [10, 100_000, 10, 5000, 4096, 4032, 0]
    async with open_channel(path, bytes, options=ChannelOptions(segment_size=4096)) as channel:
        with channel.sender() as tx, channel.receiver() as rx:
            for size in sizes:
                await tx.send(bytes(size))
            assert [len(item) for item in await rx.receive_many(100)] == sizes


# Life


async def test_sending_needs_no_receiver(path: Path) -> None:
    """Without a receiver messages are kept for a later one."""
    async with open_channel(path, int) as channel:
        async with channel.sender() as tx:
            await tx.send(1)
        with channel.receiver() as rx:
            assert await rx.receive() == 1


async def test_clones_are_closed_one_by_one(path: Path) -> None:
    """A clone sends like its original, and closing one leaves the other."""
    async with open_channel(path, int) as channel, channel.receiver() as rx:
        tx = channel.sender()
        clone = tx.clone()
        tx.close()
        with pytest.raises(ClosedResourceError):
            await tx.send(1)
        await clone.send(2)
        clone.close()
        assert rx.receive_many_nowait(5) == [2]


async def test_a_closed_sender_refuses_everything(path: Path) -> None:
    """After closing, which may be done twice, every method raises `ClosedResourceError`."""
    async with open_channel(path, int) as channel:
        tx = channel.sender()
        await tx.aclose()
        tx.close()
        for call in (
            lambda: tx.send_nowait(1),
            lambda: tx.send_many_nowait([1]),
            lambda: tx.send_many_nowait([]),
            tx.clone,
            tx.statistics,
            lambda: tx.write_offset,
        ):
            with pytest.raises(ClosedResourceError):
                call()
        with pytest.raises(ClosedResourceError):
            await tx.send(1)
        for batch in ([1], [], list(range(5000))):
            with pytest.raises(ClosedResourceError):
                await tx.send_many(batch)
        assert channel.statistics().messages == 0


@one_loop
async def test_statistics_of_a_sender(path: Path) -> None:
    """A sender reports the offset of the next message and how many there were."""
    async with open_channel(path, int) as channel, channel.sender() as tx:
        await tx.send_many([1, 2])
        found = tx.statistics()
        assert (found.write_offset, found.next_sequence) == (tx.write_offset, 2)
        assert found.durable_offset == Offset(0)


async def test_a_sender_works_in_both_kinds_of_with(path: Path) -> None:
    """`with` and `async with` close the sender."""
    async with open_channel(path, int) as channel:
        with channel.sender() as first:
            pass
        async with channel.sender() as second:
            pass
        for tx in (first, second):
            with pytest.raises(ClosedResourceError):
                tx.send_nowait(1)


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
async def test_a_forgotten_await_sends_nothing_and_warns(path: Path) -> None:
    """`tx.send(x)` without `await` sends nothing, consumes nothing and warns."""
    async with open_channel(path, int) as channel, channel.sender() as tx, channel.receiver() as rx:
        with pytest.warns(RuntimeWarning, match=r"send.* was never awaited"):
            forget(tx.send(1))
        assert channel.statistics().messages == 0
        await tx.send(2)
        with pytest.warns(RuntimeWarning, match=r"receive.* was never awaited"):
            forget(rx.receive())
        assert await rx.receive() == 2


def forget(_: object) -> None:
    """Do nothing with a coroutine."""


async def test_a_message_is_sent_when_it_is_awaited(path: Path) -> None:
    """A coroutine that is made now and awaited later sends then, and once."""
    async with open_channel(path, int) as channel, channel.sender() as tx, channel.receiver() as rx:
        later = tx.send(1)
        await tx.send(2)
        await later
        assert rx.receive_many_nowait(5) == [2, 1]
        with pytest.raises(RuntimeError, match="cannot reuse already awaited coroutine"):
            await later
        assert channel.statistics().messages == 2


async def test_the_item_can_be_named(path: Path) -> None:
    """`item` is a keyword argument, as in anyio's streams."""
    async with open_channel(path, int) as channel, channel.sender() as tx, channel.receiver() as rx:
        await tx.send(item=1)
        tx.send_nowait(item=2)
        assert rx.receive_many_nowait(max_items=5) == [1, 2]


@one_loop
async def test_a_subclass_with_another_form_is_refused(path: Path) -> None:
    """A subclass whose messages the message type could not decode is refused before it is written."""

    class Tagged(Placed, tag="other"):
        pass

    async with open_channel(path, Placed | Cancelled) as channel, channel.sender() as tx:
        with pytest.raises(CodecError):
            await tx.send(Tagged(1))
        assert channel.statistics().messages == 0


@one_loop
async def test_a_subclass_with_more_fields_is_taken(path: Path) -> None:
    """A subclass that the message type can read is sent, and comes out as the message type."""

    class Gift(Order):
        note: str = ""

    async with open_channel(path, Order) as orders, orders.sender() as tx, orders.receiver() as rx:
        await tx.send(Gift(1, note="for you"))
        assert await rx.receive() == Order(1)


@one_loop
async def test_generic_structs_are_message_types(path: Path) -> None:
    """A parametrised type is as good as a plain one."""
    async with open_channel(path, dict[str, list[Order]]) as channel, channel.sender() as tx:
        with channel.receiver() as rx:
            await tx.send({"a": [Order(1)], "b": []})
            assert await rx.receive() == {"a": [Order(1)], "b": []}


@one_loop
async def test_a_message_that_keeps_a_view_stays_as_it_was_received(path: Path) -> None:
    """A `msgspec.Raw`, which is a view of the payload, does not change when the next message is received."""
    payloads = [msgspec.msgpack.encode({"a": number}) for number in range(100)]
    async with open_channel(path, msgspec.Raw) as channel, channel.sender() as tx, channel.receiver() as rx:
        await tx.send_many([msgspec.Raw(payload) for payload in payloads])
        received = [await rx.receive() for _ in range(50)] + rx.receive_many_nowait(50)
        assert [bytes(item) for item in received] == payloads


# Payloads


@pytest.mark.parametrize("durability", [Durability.OS, Durability.FSYNC], ids=["os", "fsync"])
async def test_a_payload_is_sent_as_it_is(path: Path, durability: Durability) -> None:
    """Bytes that are a message already are not encoded again: what the type does not know stays in them."""
    payload = msgspec.msgpack.encode({"id": 1, "unknown": 2})
    async with open_channel(path, Order, options=ChannelOptions(durability=durability)) as orders:
        async with orders.sender() as tx, orders.receiver() as rx:
            assert await tx.send_payload(payload) is None
            assert await rx.receive() == Order(1)
        await orders.configure(schema=dict[str, int])
    async with open_channel(path, dict[str, int]) as channel, channel.replay() as history:
        assert await history.receive() == {"id": 1, "unknown": 2}


async def test_a_payload_that_is_not_a_message_is_refused(path: Path) -> None:
    """A payload that does not decode to a message is refused and not sent; a closed sender says that it is closed."""
    async with open_channel(path, Order) as orders, orders.sender() as tx:
        for payload in (b"", b"\xc1", msgspec.msgpack.encode({"id": "one"})):
            with pytest.raises(CodecError, match="not a valid Order"):
                await tx.send_payload(payload)
        assert orders.statistics().messages == 0
        tx.close()
        with pytest.raises(ClosedResourceError):
            await tx.send_payload(msgspec.msgpack.encode({"id": 1}))
