"""The parts of a batch: payloads, ready-made records to copy, and a header record in front of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from ..._format import join_records
from ..._format.layout import LENGTH_MASK, RECORD_HEADER, RECORD_HEADER_SIZE
from ..._offset import Offset


class HeaderRecord(NamedTuple):
    """The control record in front of a numbered batch; it is a part of the batch."""

    size: int
    """The length of its payload."""
    make: Callable[[Offset], bytes]
    """Called with its offset and with the writer lock held, before anything is written; may raise to refuse."""


@dataclass(frozen=True, slots=True)
class Records:
    """Messages that are encoded as records already and only have to be copied to their new offsets."""

    count: int
    content: bytes
    """The records as they would be stored in a log that begins with them."""

    @classmethod
    def of(cls, payloads: list[bytes]) -> Records:
        """Encode payloads as records."""
        return cls(len(payloads), join_records(payloads))

    def __len__(self) -> int:
        return self.count


Part: TypeAlias = list[bytes] | Records
"""Some of the messages of a batch."""


def length_at(content: bytes, position: int) -> int:
    """Return the length of a record's payload; 0 for an incomplete record, which `Writer.copy` then refuses."""
    header = content[position : position + RECORD_HEADER_SIZE]
    return RECORD_HEADER.unpack(header)[0] & LENGTH_MASK if len(header) == RECORD_HEADER_SIZE else 0
