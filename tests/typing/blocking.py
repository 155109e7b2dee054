"""The same channel without async: the same types, without awaiting."""

# pyright: reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

import copy
from datetime import datetime
from pathlib import Path
from typing import assert_type

from filechannel import (
    ChannelOptions,
    ChannelStatistics,
    DecodeError,
    Durability,
    JsonCodec,
    Offset,
    Process,
    ReceiverStatistics,
    Record,
    SenderStatistics,
)
from filechannel import FileChannel as AsyncFileChannel
from filechannel import Sender as AsyncSender
from filechannel.blocking import (
    Acknowledgable,
    AckReceiver,
    Delivery,
    FanOutReceiver,
    FileChannel,
    GroupReceiver,
    Receiver,
    Sender,
    Step,
    open_channel,
    transaction,
)
from tests.typing.messages import BigOrder, Cancel, Order, Page, Point, Reading


def opening() -> None:
    """The type of the messages is known, however it is given."""
    assert_type(open_channel("orders", Order), FileChannel[Order])
    assert_type(open_channel(Path("points"), Point), FileChannel[Point])
    assert_type(open_channel("readings", Reading), FileChannel[Reading])
    assert_type(open_channel("raw", bytes), FileChannel[bytes])
    assert_type(open_channel("maps", dict[str, float]), FileChannel[dict[str, float]])
    assert_type(open_channel("pages", Page[int]), FileChannel[Page[int]])
    assert_type(open_channel("events", Order | Cancel), FileChannel[Order | Cancel])
    assert_type(open_channel("maybe", int | None), FileChannel[int | None])
    options = ChannelOptions(spin=1e-5, poll_interval=0.01)
    with open_channel("orders", Order, codec=JsonCodec(Order), options=options, create=False) as orders:
        assert_type(orders, FileChannel[Order])
    open_channel("orders", Order, codec="pickle")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
    ChannelOptions(spin="long")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def channel(orders: FileChannel[Order]) -> None:
    """What each method returns."""
    assert_type(orders.path, Path)
    assert_type(orders.sender(), Sender[Order])
    assert_type(orders.ack_receiver(expires=60.0), AckReceiver[Order])
    assert_type(orders.receiver(), FanOutReceiver[Order])
    assert_type(orders.receiver("audit", start="latest"), FanOutReceiver[Order])
    assert_type(orders.replay(), Receiver[Order])
    assert_type(orders.replay(Offset(0), stop=None), Receiver[Order])
    assert_type(orders.offset_of(3), Offset)
    assert_type(orders.flush(), None)
    assert_type(orders.seal(), None)
    assert_type(orders.purge(), None)
    assert_type(orders.configure(schema=Order | Cancel, durability=Durability.FSYNC), None)
    assert_type(orders.close(), None)
    orders.aclose()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]


def send(tx: Sender[Order]) -> None:
    """Sends return what they return, not what is to be awaited."""
    assert_type(tx.send(Order(1)), None)
    assert_type(tx.send(Order(1), 1.5), None)
    assert_type(tx.send(Order(1), timeout=1), None)
    assert_type(tx.send_nowait(Order(1)), Offset)
    assert_type(tx.send_many([Order(1)]), Offset)
    assert_type(tx.send_many((Order(id) for id in range(3)), timeout=None), Offset)  # noqa: A001
    assert_type(tx.send_many_nowait([Order(1)]), Offset)
    assert_type(tx.write_offset, Offset)
    assert_type(tx.statistics(), SenderStatistics)
    assert_type(tx.clone(), Sender[Order])
    with tx as same:
        assert_type(same, Sender[Order])
    tx.send(Cancel(1))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    tx.send(Order(1), timeout="soon")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    special: Sender[BigOrder] = tx  # a sender of every order sends big ones
    del special


def acknowledge(rx: AckReceiver[Order]) -> None:
    """Every way to receive what has to be acknowledged."""
    assert_type(rx.receive(1.5), Order)
    assert_type(rx.receive_delivery(timeout=2), Delivery[Order])
    for delivery in rx.deliveries():
        assert_type(delivery.value, Order)
        delivery.ack()
    with rx.processing(timeout=1) as order:
        assert_type(order, Order)
    acks: Acknowledgable = rx
    acks.nack()


def share(orders: FileChannel[Order], error: DecodeError) -> None:
    """A member of a group."""
    rx = orders.group("packing", lease=5, start="latest", expires=60)
    assert_type(rx, GroupReceiver[Order])
    assert_type(rx.receive(timeout=1), Order)
    rx.receive_delivery(timeout=1).extend()
    with rx.processing(timeout=1) as order:
        assert_type(order, Order)
    assert_type(rx.undecodable(error).value, bytes)
    acks: Acknowledgable = rx
    acks.ack()


def receive(rx: FanOutReceiver[Order]) -> None:
    """Every way to receive, and what it returns."""
    assert_type(rx.receive(), Order)
    assert_type(rx.receive(1.5), Order)
    assert_type(rx.receive(timeout=None), Order)
    assert_type(rx.receive_nowait(), Order)
    assert_type(rx.receive_many(10), list[Order])
    assert_type(rx.receive_many(10, linger=0.5, timeout=3), list[Order])
    assert_type(rx.receive_many_nowait(10), list[Order])
    assert_type(rx.receive_record(timeout=1), Record[Order])
    assert_type(rx.peek(3), list[Order])
    assert_type(rx.read_offset, Offset)
    assert_type(rx.seek("earliest"), None)
    assert_type(rx.clone(), FanOutReceiver[Order])
    assert_type(rx.statistics(), ReceiverStatistics)
    assert_type((rx.id, rx.name), tuple[str, str])
    assert_type(rx.unsubscribe(), None)
    for order in rx:
        assert_type(order, Order)
    general: Receiver[Order | Cancel] = rx  # a receiver of orders is one of orders or cancels
    del general
    rx.receive(timeout="soon")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def writers(statistics: ChannelStatistics) -> None:
    """The processes that have the channel open for writing."""
    assert_type(statistics.writers, tuple[Process, ...])
    for writer in statistics.writers:
        assert_type(writer.pid, int | None)
        assert_type(writer.host, str | None)
        assert_type(writer.since, datetime | None)


def copies(orders: FileChannel[Order], tx: Sender[Order], other: AsyncFileChannel[Order]) -> None:
    """What pickling gives, copying gives too."""
    assert_type(copy.copy(orders), FileChannel[Order])
    assert_type(copy.copy(tx), Sender[Order])
    assert_type(copy.deepcopy(other), AsyncFileChannel[Order])
    assert_type(copy.copy(other.sender()), AsyncSender[Order])


def step(rx: AckReceiver[Order], tx: Sender[Cancel], other: AsyncSender[Cancel]) -> None:
    """A step receives what the receiver gives, and sends what the sender takes."""
    with transaction(rx, tx) as step:
        assert_type(step, Step[Order, Cancel])
        assert_type(step.receive(timeout=1), Order)
        assert_type(step.receive_many(10, linger=0.5, timeout=1), list[Order])
        assert_type(step.send(Cancel(1)), None)
        step.send_many([Order(1)])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    transaction(rx, other)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
