"""A sender takes messages of its type, and of nothing else."""

# pyright: reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import assert_type

from anyio.abc import AsyncResource, ObjectSendStream

from filechannel import FileChannel, Offset, Sender, SenderStatistics
from tests.typing.messages import BigOrder, Cancel, Order


async def send(orders: FileChannel[Order], tx: Sender[Order]) -> None:
    """Every way to send, and what it returns."""
    assert_type(orders.sender(), Sender[Order])
    assert_type(await tx.send(Order(1)), None)
    assert_type(tx.send_nowait(Order(1)), Offset)
    assert_type(await tx.send_many([Order(1), BigOrder(2)]), Offset)
    assert_type(await tx.send_many(Order(number) for number in range(3)), Offset)
    assert_type(tx.send_many_nowait((Order(1),)), Offset)
    assert_type(tx.write_offset, Offset)
    assert_type(tx.clone(), Sender[Order])
    assert_type(tx.statistics(), SenderStatistics)
    async with orders.sender() as entered:
        assert_type(entered, Sender[Order])
    with orders.sender() as entered:
        assert_type(entered, Sender[Order])


async def wrong_messages(tx: Sender[Order], events: Sender[Order | Cancel], raw: Sender[bytes]) -> None:
    """A message of another type is an error, alone or in a batch."""
    await tx.send(Cancel(1))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    tx.send_nowait(Cancel(1))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await tx.send_many([Order(1), Cancel(1)])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    tx.send_many_nowait([1])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    await tx.send_many(Order(1))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await events.send(Order(1))
    await events.send(Cancel(1))
    await events.send("order")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await raw.send("text")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def wrong_batches(tx: Sender[Order], stream: AsyncIterator[Order]) -> None:
    """An asynchronous iterator is not a batch."""
    await tx.send_many(stream)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def takes_big_orders(tx: Sender[BigOrder]) -> None:
    """Something that sends a special kind of message."""


def takes_events(tx: Sender[Order | Cancel]) -> None:
    """Something that sends either kind."""


def variance(tx: Sender[Order], events: Sender[Order | Cancel]) -> None:
    """A sender of the type is a sender of a subtype, not the other way round: it is contravariant."""
    takes_big_orders(tx)
    takes_big_orders(events)
    takes_events(events)
    takes_events(tx)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    stream: ObjectSendStream[Order] = tx
    stream = events
    resource: AsyncResource = stream
    del resource


async def forward(numbers: Iterable[Order], tx: ObjectSendStream[Order]) -> None:
    """What is written for anyio's streams works with a sender."""
    for number in numbers:
        await tx.send(number)


async def use_forward(tx: Sender[Order]) -> None:
    """A sender is an anyio stream."""
    await forward([Order(1)], tx)
