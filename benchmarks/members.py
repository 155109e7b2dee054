"""A process that serves a group with a handler that does nothing, on command."""

from __future__ import annotations

import asyncio

from filechannel import open_channel

from .child_processes import answer, orders, play
from .messages import Order

GROUP = "workers"


async def handle(order: Order) -> None:
    pass


async def serve(path: str) -> None:
    numbered = orders()
    async with open_channel(path, Order, create=False) as channel:
        service = channel.serve(handle, name=GROUP, group=True)
        service.pause()
        async with service:
            while (order := await asyncio.to_thread(next, numbered, None)) is not None:
                [is_running] = order
                if is_running:
                    service.resume()
                else:
                    service.pause()
                    answer()


def member(path: str) -> None:
    asyncio.run(serve(path))


if __name__ == "__main__":
    play({"member": member})
