"""The messages of the demo."""

from __future__ import annotations

import msgspec


class Order(msgspec.Struct):
    """One order, and the batch in which it was sent."""

    number: int
    sku: str
    qty: int
    batch: int
    batch_size: int


class Done(msgspec.Struct):
    """An order that was handled, and the worker that handled it."""

    number: int
    worker: int


def make_batch(first: int, size: int) -> list[Order]:
    """Return a batch of orders, numbered from *first*."""
    return [Order(first + i, f"SKU-{i}", 1, batch=first, batch_size=size) for i in range(size)]
