"""The messages that the Spark tests use."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, TypedDict
from uuid import UUID

import msgspec

from filechannel import ChannelOptions, Retention
from filechannel.blocking import open_channel


class Order(msgspec.Struct):
    """An ordinary message."""

    id: int
    sku: str
    qty: int = 1
    price: float = 0.5
    note: str | None = None


class Color(enum.Enum):
    """Some names."""

    RED = "red"
    BLUE = "blue"


class Inner(msgspec.Struct, rename="camel"):
    """Something inside."""

    some_name: str
    weight: float | None = None


class Everything(msgspec.Struct, rename="camel"):
    """One of each that has a column."""

    the_id: int
    ok: bool
    ratio: float
    name: str
    blob: bytes
    at: datetime
    day: date
    amount: Decimal
    key: UUID
    color: Color
    inner: Inner
    maybe: Inner | None
    tags: list[str]
    sizes: dict[str, int | None]
    inners: list[Inner]


EVERYTHING = Everything(
    7,
    True,
    0.25,
    "süß",
    b"\0\1",
    datetime(2026, 3, 4, 5, 6, 7, 890, tzinfo=UTC),
    date(2026, 3, 4),
    Decimal("12.50"),
    UUID(int=5),
    Color.BLUE,
    Inner("x", 1.5),
    None,
    ["a", "b"],
    {"s": 1, "m": None},
    [Inner("y"), Inner("z", 2.0)],
)


@dataclass
class Point:
    """A dataclass."""

    x: int
    y: int | None = None


class Line(TypedDict):
    """A TypedDict."""

    start: int
    text: str


class Pair(msgspec.Struct, array_like=True, tag="pair"):
    """A tagged array."""

    left: int
    right: str = "r"


class Cancel(msgspec.Struct, tag=True):
    """One of a union."""

    id: int


class Refund(msgspec.Struct, tag=True):
    """The other."""

    id: int
    reason: str


class Mixed(msgspec.Struct):
    """A field without a column."""

    id: int
    what: int | str


class Older(msgspec.Struct):
    """A message before it changed."""

    id: int
    sku: str


class Newer(msgspec.Struct):
    """The same, with a field more."""

    id: int
    sku: str
    rank: int = 9


def orders(count: int, start: int = 0) -> list[Order]:
    """Return so many, all different."""
    return [
        Order(number, f"sku-{number % 10}", number % 7, number / 2, None if number % 3 else "x" * (number % 50))
        for number in range(start, start + count)
    ]


def fill(path: Path, messages: list[Any], message_type: Any = Order, *, batch: int = 100, **options: Any) -> None:
    """Send messages into a channel that keeps them, also from one consumer to the next."""
    chosen = ChannelOptions(**{"retention": Retention(after_consumed="keep"), **options})
    with open_channel(path, message_type, options=chosen) as channel, channel.sender() as sender:
        for index in range(0, len(messages), batch):
            sender.send_many(messages[index : index + batch])


def received(path: Path, message_type: Any = Order) -> list[Any]:
    """Return every message of a channel."""
    with open_channel(path, message_type, create=False) as channel, channel.replay() as replay:
        return list(replay)
