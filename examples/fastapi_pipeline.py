"""A pipeline behind HTTP that can be killed at any moment: every order that was answered with 202 is processed.

    POST /orders -> orders -> "billing", a group of handlers -> bills -> GET /bills, Server-Sent Events
                 -> receipts, a background task that writes a file for each order

    uvicorn --app-dir examples fastapi_pipeline:app
    curl localhost:8000/orders --json '{"id": 1, "sku": "pen", "qty": 3}'
    curl -N 'localhost:8000/bills?since=earliest'

`kill -9` the server while it processes orders, and start it again: a browser, or any client that reconnects with the id
of the last event it received, resumes with the next bill. Handlers and tasks are called at least once: an order that
was being handled when the server was killed may have two bills, each with the id of the order.

All files are below data/pipeline, or the directory in $PIPELINE. Needs the extra `fastapi`, and uvicorn. With the
native core it may have several `--workers`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import msgspec
from fastapi import Body, Depends, FastAPI

from filechannel import ChannelOptions, DeadLetter, FileChannel, Retention, RetryPolicy, Sender
from filechannel.integrations.fastapi import ByMsgspec, Channels, DurableTasks, EventStream

DIRECTORY = Path(os.environ.get("PIPELINE", "data/pipeline"))
PRICES = {"pen": 250, "ink": 1200, "cap": 1900}


class Order(msgspec.Struct):
    """An order of a customer."""

    id: int
    sku: str
    qty: Annotated[int, msgspec.Meta(ge=1)] = 1


class Bill(msgspec.Struct):
    """The price of an order."""

    order: int
    cents: int


channels = Channels(DIRECTORY)
orders = channels.add("orders", Order)
bills = channels.add("bills", Bill, options=ChannelOptions(retention=Retention(after_consumed="keep", max_age=86_400)))
refused = channels.add("refused", DeadLetter)
receipts = channels.add_tasks("receipts")

OrderBody = Annotated[Order, Body(), ByMsgspec]
OrderSender = Annotated[Sender[Order], Depends(orders.sender)]
Refused = Annotated[FileChannel[DeadLetter], Depends(refused.channel)]
Receipts = Annotated[DurableTasks, Depends(receipts.tasks)]


@orders.handler("billing", retry=RetryPolicy(give_up_on=KeyError), dead_letter=refused)
async def bill(order: Order) -> None:
    """Bill an order. An unknown product becomes a dead letter at once."""
    tx = await bills.sender()
    await tx.send(Bill(order.id, order.qty * PRICES[order.sku]))


@receipts.task
def write_receipt(order: Order) -> None:
    """Write a file, in a thread. Idempotent: calling it again writes the same file."""
    directory = DIRECTORY / "written"
    directory.mkdir(exist_ok=True)
    (directory / f"{order.id}.txt").write_text(f"{order.qty} x {order.sku}\n")


app = FastAPI(title="Pipeline", lifespan=channels.lifespan)


@app.post("/orders", status_code=202)
async def place(order: OrderBody, tx: OrderSender, tasks: Receipts) -> None:
    """Accept an order. When the client has the answer, the order and the task are in their channels."""
    tasks.add_task(write_receipt, order)
    await tx.send(order)


@app.get("/refused")
async def list_refused(channel: Refused) -> list[str]:
    """Return why orders were not billed."""
    async with channel.replay() as letters:
        return [letter.reason async for letter in letters]


app.get("/bills", response_class=EventStream)(bills.events())
