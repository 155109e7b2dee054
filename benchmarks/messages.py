"""The messages that are sent: the same objects for every contestant, created before the measurement."""

from __future__ import annotations

import msgspec

BATCH = 1_000
"""Messages in a batch, and distinct objects in a round."""

RAW = [f"{number:012}".encode() for number in range(BATCH)]
"""Twelve bytes each."""


class Order(msgspec.Struct):
    """A message with five fields, as in many programs."""

    id: int
    sku: str
    qty: int
    price: float
    note: str


ORDERS = [
    Order(number, f"SKU-{number:05}", number % 7 + 1, number * 0.25, "leave at the door") for number in range(BATCH)
]
