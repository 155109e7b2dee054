"""A shop as tests know it; `server.py` serves it from a directory."""

from __future__ import annotations

import os
from typing import Annotated

import msgspec
from fastapi import Body, Depends, FastAPI

from filechannel import ChannelOptions, FileChannel, Retention, Sender
from filechannel.integrations.fastapi import ByMsgspec, Channels, DurableTasks, EventStream

DIRECTORY = "FILECHANNEL_SHOP"


class Order(msgspec.Struct):
    """What is ordered."""

    id: int
    sku: str = "pen"


class Done(msgspec.Struct):
    """Something has happened to an order."""

    what: str
    id: int
    pid: int


kept = ChannelOptions(retention=Retention(after_consumed="keep"))
channels = Channels(os.environ.get(DIRECTORY, "nowhere"))
orders = channels.add("orders", Order, options=kept)
done = channels.add("done", Done, options=kept)
jobs = channels.add_tasks("jobs")

OrderBody = Annotated[Order, Body(), ByMsgspec]
OrderSender = Annotated[Sender[Order], Depends(orders.sender)]
Orders = Annotated[FileChannel[Order], Depends(orders.channel)]
Tasks = Annotated[DurableTasks, Depends(jobs.tasks)]


@orders.handler("billing")
async def bill(order: Order) -> None:
    """Handle an order."""
    await (await done.sender()).send(Done("billed", order.id, os.getpid()))


@jobs.task
async def pack(order: Order) -> None:
    """Do something in the background."""
    await (await done.sender()).send(Done("packed", order.id, os.getpid()))


app = FastAPI(lifespan=channels.lifespan)


@app.post("/orders", status_code=202)
async def place(order: OrderBody, tx: OrderSender, tasks: Tasks) -> None:
    """Accept an order."""
    tasks.add_task(pack, order)
    await tx.send(order)


@app.get("/receivers")
async def receivers(channel: Orders) -> int:
    """Say how many receive orders here, the handler included."""
    return channel.statistics().receivers


@app.get("/done")
async def count_done(channel: Annotated[FileChannel[Done], Depends(done.channel)]) -> int:
    """Say how much has happened."""
    return channel.statistics().messages


@app.get("/pid")
async def pid() -> int:
    """Return the process that answers."""
    return os.getpid()


app.get("/events", response_class=EventStream)(orders.events())
