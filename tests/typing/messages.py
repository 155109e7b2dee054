"""The message types whose channels are checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypedDict, TypeVar

import msgspec

T = TypeVar("T")


class Order(msgspec.Struct, tag=True):
    """A Struct."""

    id: int


class BigOrder(Order):
    """A Struct that is an Order too."""

    discount: float = 0.0


class Cancel(msgspec.Struct, tag=True):
    """Another Struct."""

    id: int


class Page(msgspec.Struct, Generic[T]):
    """A generic Struct."""

    items: list[T]


@dataclass
class Point:
    """A dataclass."""

    x: int


class Reading(TypedDict):
    """A TypedDict."""

    value: float
