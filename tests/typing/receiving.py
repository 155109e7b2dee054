"""A receiver gives messages of its type."""

# pyright: reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from datetime import datetime
from typing import assert_type

from anyio.abc import ObjectReceiveStream

from filechannel import (
    Acknowledgable,
    AckReceiver,
    DecodeError,
    Delivery,
    FanOutReceiver,
    FileChannel,
    GroupReceiver,
    Offset,
    Receiver,
    ReceiverStatistics,
    Record,
    Sender,
    Step,
    transaction,
)
from tests.typing.messages import BigOrder, Cancel, Order


async def receive(rx: FanOutReceiver[Order]) -> None:
    """Every way to receive, and what it returns."""
    assert_type(await rx.receive(), Order)
    assert_type(rx.receive_nowait(), Order)
    assert_type(await rx.receive_many(10), list[Order])
    assert_type(await rx.receive_many(10, linger=0.5), list[Order])
    assert_type(await rx.receive_many(max_items=10, linger=1), list[Order])
    assert_type(rx.receive_many_nowait(10), list[Order])
    assert_type(rx.peek(), list[Order])
    assert_type(rx.peek(3), list[Order])
    record = await rx.receive_record()
    assert_type(record, Record[Order])
    assert_type(rx.receive_record_nowait(), Record[Order])
    assert_type(record.value, Order)
    assert_type(record.offset, Offset)
    assert_type(record.sequence, int)
    async for order in rx:
        assert_type(order, Order)


async def acknowledge(rx: AckReceiver[Order]) -> None:
    """Every way to receive what has to be acknowledged."""
    assert_type(await rx.receive(), Order)
    assert_type(await rx.receive_record(), Record[Order])
    assert_type(rx.receive_record_nowait(), Record[Order])
    assert_type(rx.peek(3), list[Order])
    assert_type(rx.unack_count, int)
    delivery = await rx.receive_delivery()
    assert_type(delivery, Delivery[Order])
    assert_type(delivery.value, Order)
    assert_type((delivery.offset, delivery.sequence, delivery.attempt), tuple[Offset, int, int])
    delivery.nack(delay=0.5)
    delivery.ack()
    async for delivery in rx.deliveries():
        assert_type(delivery, Delivery[Order])
    async with rx.processing() as order:
        assert_type(order, Order)
    rx.ack(2)
    rx.nack(n=None)
    acks: Acknowledgable = rx
    acks.ack()
    wider: AckReceiver[Order | Cancel] = rx
    assert_type(rx.clone(), AckReceiver[Order])
    await wider.aclose()
    rx.ack("all")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    plain: FanOutReceiver[Order] = rx  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    assert_type(plain, FanOutReceiver[Order])


async def share(rx: GroupReceiver[Order], error: DecodeError) -> None:
    """A member of a group does what acknowledges, and has leases."""
    assert_type(await rx.receive(), Order)
    delivery = await rx.receive_delivery()
    assert_type(delivery, Delivery[Order])
    assert_type(delivery.extend(), None)
    async for each in rx.deliveries():
        assert_type(each.value, Order)
    async with rx.processing() as order:
        assert_type(order, Order)
    assert_type(rx.undecodable(error), Delivery[bytes])
    assert_type(rx.lease, float)
    assert_type(rx.clone(), GroupReceiver[Order])
    acks: Acknowledgable = rx
    acks.nack()
    wider: GroupReceiver[Order | Cancel] = rx
    await wider.unsubscribe()
    single: AckReceiver[Order] = rx  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    del single


async def make(orders: FileChannel[Order], offset: Offset, moment: datetime) -> None:
    """Every way to make a receiver."""
    assert_type(orders.receiver(), FanOutReceiver[Order])
    assert_type(orders.receiver("audit", start="latest"), FanOutReceiver[Order])
    assert_type(orders.receiver("audit", start=offset), FanOutReceiver[Order])
    assert_type(orders.receiver(name="audit", start=moment), FanOutReceiver[Order])
    assert_type(orders.ack_receiver(), AckReceiver[Order])
    assert_type(orders.ack_receiver("audit", start="latest", expires=60.0), AckReceiver[Order])
    assert_type(orders.group("packing"), GroupReceiver[Order])
    assert_type(orders.group("packing", lease=5, start=moment, expires=60), GroupReceiver[Order])
    orders.group()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    orders.group("packing", 5)  # type: ignore[call-arg, misc, unused-ignore]  # pyright: ignore[reportCallIssue]
    assert_type(orders.replay(), Receiver[Order])
    assert_type(orders.replay("latest"), Receiver[Order])
    assert_type(orders.replay(moment, "latest"), Receiver[Order])
    assert_type(orders.replay(offset, offset), Receiver[Order])
    assert_type(orders.replay(stop=None), Receiver[Order])
    async with orders.receiver() as rx:
        assert_type(rx, FanOutReceiver[Order])
    async with orders.replay() as history:
        assert_type(history, Receiver[Order])
    with orders.receiver() as rx:
        assert_type(rx, FanOutReceiver[Order])
    orders.receiver(start="newest")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    orders.replay(stop="earliest")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    orders.replay(stop=moment)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    orders.receiver(3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    orders.receiver("audit", "latest")  # type: ignore[call-arg, misc, unused-ignore]  # pyright: ignore[reportCallIssue]


async def position(rx: FanOutReceiver[Order], history: Receiver[Order]) -> None:
    """Positions, clones and names."""
    assert_type(rx.read_offset, Offset)
    assert_type(await rx.seek("earliest"), None)
    assert_type(await rx.seek(rx.read_offset), None)
    assert_type(rx.clone(), FanOutReceiver[Order])
    assert_type(history.clone(), Receiver[Order])
    assert_type(rx.statistics(), ReceiverStatistics)
    assert_type(rx.name, str)
    assert_type(rx.id, str)
    assert_type(await rx.unsubscribe(), None)
    await rx.seek("newest")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await history.unsubscribe()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]


async def union(rx: FanOutReceiver[Order | Cancel]) -> None:
    """A union is narrowed as usual."""
    event = await rx.receive()
    assert_type(event, Order | Cancel)
    if isinstance(event, Order):
        assert_type(event, Order)
    else:
        assert_type(event, Cancel)
    match await rx.receive():
        case Order(id=number):
            assert_type(number, int)
        case Cancel():
            pass


def wants_orders(rx: Receiver[Order]) -> None:
    """Something that receives orders."""


def wants_big_orders(rx: Receiver[BigOrder]) -> None:
    """Something that receives a special kind of orders."""


def variance(rx: FanOutReceiver[Order], big: FanOutReceiver[BigOrder]) -> None:
    """A receiver of a subtype is a receiver of the type, not the other way round: it is covariant."""
    wants_orders(rx)
    wants_orders(big)
    wants_big_orders(big)
    wants_big_orders(rx)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    stream: ObjectReceiveStream[Order] = big
    del stream
    record: Record[Order] = Record(BigOrder(1), Offset(0), 0)
    del record


async def step(rx: AckReceiver[Order], tx: Sender[Cancel], fan_out: FanOutReceiver[Order]) -> None:
    """A step receives what the receiver gives, and sends what the sender takes."""
    async with transaction(rx, tx) as step:
        assert_type(step, Step[Order, Cancel])
        assert_type(await step.receive(), Order)
        assert_type(await step.receive_many(10, linger=0.5), list[Order])
        assert_type(step.send(Cancel(1)), None)
        assert_type(step.send_many([Cancel(1)]), None)
        step.send(Order(1))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    transaction(fan_out, tx)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
