"""A bus of typed events between terminals: events are validated when sent, and received as the same type.

    python examples/bus_typed.py receive stock     in one terminal, and `receive billing` in another one
    python examples/bus_typed.py place 1 pen 3     in a third, and then `cancel 1`
    python examples/bus_typed.py replay            later: everything that has ever happened

The type of the bus is a union of Structs, and its schema is stored with the bus: a program is rejected if its own type
could not read these events, or if other programs could not read its events. Opening the bus in several terminals at
once requires the native core.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import AsyncIterable
from contextlib import suppress

import msgspec

from filechannel import ChannelOptions, FileChannel, FileChannelError, Retention, open_channel

KEPT = ChannelOptions(retention=Retention(after_consumed="keep"), validate=True)  # for receivers that start later


class Placed(msgspec.Struct, tag=True):
    """An order was placed."""

    id: int
    sku: str
    qty: int = 1


class Cancelled(msgspec.Struct, tag=True):
    """An order was cancelled."""

    id: int


Event = Placed | Cancelled


async def send(bus: FileChannel[Event], event: Event) -> None:
    async with bus.sender() as tx:
        await tx.send(event)


async def receive(bus: FileChannel[Event], name: str) -> None:
    async with bus.receiver(name) as rx:
        await show(rx)


async def replay(bus: FileChannel[Event]) -> None:
    async with bus.replay() as past:
        await show(past)


async def show(events: AsyncIterable[Event]) -> None:
    async for event in events:
        match event:
            case Placed(id, sku, qty):
                print(f"order {id}: {qty} x {sku}", flush=True)
            case Cancelled(id):
                print(f"order {id} is cancelled", flush=True)


async def main() -> None:
    parser = argparse.ArgumentParser(description="A bus of typed events between terminals.")
    parser.add_argument("--bus", default="data/bus_typed", help="the directory of the bus (%(default)s)")
    commands = parser.add_subparsers(dest="command", required=True)
    place = commands.add_parser("place", help="place an order")
    place.add_argument("id", type=int)
    place.add_argument("sku")
    place.add_argument("qty", type=int, nargs="?", default=1)
    commands.add_parser("cancel", help="cancel an order").add_argument("id", type=int)
    commands.add_parser("receive", help="resume where this name stopped, until Ctrl-C").add_argument("name")
    commands.add_parser("replay", help="print every event that is stored")
    given = parser.parse_args()
    async with open_channel(given.bus, Event, options=KEPT) as bus:
        match given.command:
            case "place":
                await send(bus, Placed(given.id, given.sku, given.qty))
            case "cancel":
                await send(bus, Cancelled(given.id))
            case "receive":
                await receive(bus, given.name)
            case _:
                await replay(bus)


if __name__ == "__main__":
    try:
        with suppress(KeyboardInterrupt):
            asyncio.run(main())
    except FileChannelError as error:
        sys.exit(str(error))
