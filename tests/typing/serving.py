"""A handler takes messages of the channel's type, and a service says nothing about it."""

# pyright: reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import assert_type

from filechannel import (
    DeadLetter,
    FileChannel,
    HandlerError,
    Offset,
    RetryPolicy,
    Sender,
    Service,
    ServiceStatistics,
    blocking,
    redrive,
)
from tests.typing.messages import BigOrder, Cancel, Order


async def handle(order: Order) -> None:
    """An async handler."""


def handle_here(order: Order) -> int:
    """A handler for a thread; what it returns is ignored."""
    return order.id


async def handle_any(message: object) -> None:
    """A handler that takes everything."""


async def handle_big(order: BigOrder) -> None:
    """A handler of something special."""


async def handle_for(shop: str, order: Order) -> None:
    """A handler with more arguments."""


class Handler:
    """A handler that is an object."""

    async def __call__(self, order: Order) -> None:
        """Handle it."""


async def serve(orders: FileChannel[Order], box: Sender[DeadLetter]) -> None:
    """What can be a handler, and what is said about it."""
    assert_type(orders.serve(handle), Service)
    orders.serve(handle_here, name="here", ordered=False, concurrency=4, grace=1.5)
    orders.serve(handle_any, dead_letter=box, start="latest", expires=60)
    orders.serve(handle, name="workers", group=True, lease=5.0)
    orders.serve(partial(handle_for, "corner"))
    orders.serve(Handler(), retry=RetryPolicy(max_attempts=None, retry_on=(OSError, ValueError)))
    orders.serve(lambda order: assert_type(order.id, int))
    orders.serve(handle_big)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    orders.serve(handle_for)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    orders.serve(handle, retry=3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    orders.serve(handle, dead_letter=orders.sender())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    RetryPolicy(5)  # type: ignore[call-arg, misc, unused-ignore]  # pyright: ignore[reportCallIssue]
    RetryPolicy(retry_on=KeyboardInterrupt)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def live(service: Service) -> None:
    """Beside a body, or until it is stopped."""
    async with service as same:
        assert_type(same, Service)
        service.pause()
        service.resume()
        service.stop()
    assert_type(await service, None)
    statistics = service.statistics()
    assert_type(statistics, ServiceStatistics)
    assert_type((statistics.handled, statistics.failed, statistics.retried, statistics.dead), tuple[int, int, int, int])
    assert_type((statistics.in_flight, statistics.lag), tuple[int, int])
    assert_type((statistics.paused, statistics.last_error), tuple[bool, str | None])
    statistics.handled = 3  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]


async def letters(dead: FileChannel[DeadLetter], orders: FileChannel[Order], tx: Sender[Order]) -> None:
    """Dead letters name their origin, and can be sent to any asynchronous channel."""
    assert_type(await redrive(dead, orders), int)
    assert_type(await redrive(dead, orders, name="again"), int)
    async with dead.receiver() as rx:
        letter = await rx.receive()
    assert_type((letter.payload, letter.reason, letter.attempts), tuple[bytes, str, int])
    assert_type((letter.channel, letter.consumer, letter.traceback), tuple[str, str, str])
    assert_type((letter.offset, letter.sequence, letter.time), tuple[Offset, int, datetime])
    assert_type(await tx.send_payload(letter.payload), None)
    await redrive(orders, orders)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def without_async(
    orders: blocking.FileChannel[Order], dead: blocking.FileChannel[DeadLetter], box: blocking.Sender[DeadLetter]
) -> None:
    """The same in threads."""
    service = orders.serve(handle_here, dead_letter=box, ordered=False, concurrency=2)
    assert_type(service, blocking.Service)
    with service as same:
        assert_type(same, blocking.Service)
    assert_type(service.run(), None)
    assert_type(service.statistics(), ServiceStatistics)
    assert_type(blocking.redrive(dead, orders), int)
    assert_type(orders.sender().send_payload(b"", timeout=1), None)


def error(given: HandlerError) -> None:
    """What it says."""
    assert_type((given.name, given.offset, given.attempts), tuple[str, Offset, int])


def mixed(events: FileChannel[Order | Cancel]) -> None:
    """A handler has to take everything that the channel carries."""
    events.serve(handle)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
