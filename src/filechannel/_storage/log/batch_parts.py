"""What a batch is made of: payloads, records that only have to be moved, and a control record in front of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from .._format import join_records
from .._format.layout import LENGTH_MASK, RECORD_HEADER, RECORD_HEADER_SIZE
from .._offset import Offset


class Lead(NamedTuple):
    """A control record in front of a batch, which is a part of it."""

    size: int
    """How long its payload is."""
    make: Callable[[Offset], bytes]
    """Called with its offset and with the word taken, directly before anything is written; may refuse by raising."""


@dataclass(frozen=True, slots=True)
class Records:
    """Messages that are records already, and only have to be moved to their place."""

    count: int
    content: bytes
    """As they would lie in a log that begins with them."""

    @classmethod
    def of(cls, payloads: list[bytes]) -> Records:
        """Make records of payloads."""
        return cls(len(payloads), join_records(payloads))


Part: TypeAlias = list[bytes] | Records
"""Some of the messages of a batch."""


def length_at(content: bytes, position: int) -> int:
    """Return how long the payload of a record is; a part of one has none, and is refused by whoever copies it."""
    header = content[position : position + RECORD_HEADER_SIZE]
    return RECORD_HEADER.unpack(header)[0] & LENGTH_MASK if len(header) == RECORD_HEADER_SIZE else 0
