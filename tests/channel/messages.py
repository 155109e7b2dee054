"""The message types of the tests, one of each kind."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

import msgspec


class Order(msgspec.Struct):
    """A plain Struct."""

    id: int
    sku: str = "pen"
    qty: int = 1


class Placed(msgspec.Struct, tag=True):
    """One member of a tagged union."""

    id: int


class Cancelled(msgspec.Struct, tag=True):
    """The other member."""

    id: int
    reason: str = ""


@dataclass
class Point:
    """A dataclass."""

    x: int
    y: float


class Reading(TypedDict):
    """A TypedDict."""

    sensor: str
    value: float


def content(directory: Path) -> dict[str, bytes | None]:
    """Return every file below a directory with its bytes, and every directory with None."""
    return {
        str(item.relative_to(directory)): item.read_bytes() if item.is_file() else None
        for item in sorted(directory.rglob("*"))
    }
