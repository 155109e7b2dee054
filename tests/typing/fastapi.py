"""What an app of FastAPI is written with: typed dependencies, tasks and streams."""

# pyright: reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from typing import Annotated, assert_type

from fastapi import Body, Depends, FastAPI

from filechannel import DeadLetter, FileChannel, Sender
from filechannel.integrations.fastapi import AppChannel, ByMsgspec, Channels, DurableTasks, EventStream, TaskQueue
from tests.typing.messages import Cancel, Order

channels = Channels("data")
orders = channels.add("orders", Order)
events = channels.add("events", Order | Cancel)
dead = channels.add("dead", DeadLetter)
jobs = channels.add_tasks("jobs", dead_letter=dead)
assert_type(orders, AppChannel[Order])
assert_type(events, AppChannel[Order | Cancel])
assert_type(jobs, TaskQueue)

app = FastAPI(lifespan=channels.lifespan)
OrderSender = Annotated[Sender[Order], Depends(orders.sender)]
Orders = Annotated[FileChannel[Order], Depends(orders.channel)]
Tasks = Annotated[DurableTasks, Depends(jobs.tasks)]


@orders.handler("billing", dead_letter=dead)
async def bill(order: Order) -> None:
    """Handle an order."""


@orders.handler("any")
def handle_any(message: object) -> int:
    """Handle anything."""
    return 1


@jobs.task
async def pack(order: Order, *, gift: bool = False) -> None:
    """Be called later."""


@jobs.task(name="mail")
def send_mail(to: str) -> None:
    """Be called in a thread."""


@app.post("/orders")
async def place(order: Annotated[Order, Body(), ByMsgspec], tx: OrderSender, channel: Orders, tasks: Tasks) -> None:
    """Use everything."""
    await tx.send(order)
    await tx.send(1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert_type(channel, FileChannel[Order])
    tasks.add_task(pack, order, gift=True)
    tasks.add_task(send_mail, to="ann")
    tasks.add_task(pack, 1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    tasks.add_task(pack, order, box=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


@app.get("/events", response_class=EventStream)
async def stream(source: Annotated[EventStream[Order], Depends(orders.events(start="earliest"))]) -> EventStream:
    """Show a part."""
    return source.map(lambda order: assert_type(order.id, int))


def wrong() -> None:
    """What is refused."""
    events.handler("billing")(bill)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    orders.events(start="middle")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    orders.handler("sales", dead_letter=orders)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def values() -> None:
    """What they are."""
    assert_type(await orders.sender(), Sender[Order])
    assert_type(await events.channel(), FileChannel[Order | Cancel])
    async with jobs.collecting() as tasks:
        assert_type(tasks, DurableTasks)
