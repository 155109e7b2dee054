"""The example of the README. Run it twice: the second run starts with the message that the first one left."""

import asyncio

import msgspec

from filechannel import open_channel


class Order(msgspec.Struct):
    """A message; its schema is stored with the channel."""

    id: int
    sku: str
    qty: int


async def main() -> None:
    async with open_channel("data/orders", Order) as orders:
        async with orders.sender() as tx, orders.receiver() as rx:
            await tx.send_many([Order(1, "pen", 3), Order(2, "ink", 1)])
            print(await rx.receive())  # the other message stays stored


asyncio.run(main())
