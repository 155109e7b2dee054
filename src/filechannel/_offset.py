"""Where something is in a channel's log."""

from __future__ import annotations

from typing import NamedTuple, NewType

__all__ = ["LogPosition", "Offset"]

Offset = NewType("Offset", int)
"""An offset in the channel's log: the number of bytes of records before it. Channel-wide, 64-bit, never reused."""


class LogPosition(NamedTuple):
    """A record boundary: its offset, and the sequence of the message that begins there or comes next."""

    offset: Offset
    sequence: int
