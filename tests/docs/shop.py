"""What the guides take for granted: a channel with orders."""

from __future__ import annotations

import msgspec

from filechannel import FileChannel, open_channel


class Order(msgspec.Struct):
    """What the pages talk about."""

    id: int
    sku: str
    qty: int


async def open_orders(path: str = "data/orders", count: int = 1000) -> FileChannel[Order]:
    """Open a channel in which there are some orders."""
    orders = await open_channel(path, Order)
    async with orders.sender() as tx:
        await tx.send_many([Order(number, "pen", 1) for number in range(count)])
    return orders
