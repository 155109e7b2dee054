"""Storing a log position in a cursor file: the pure-Python implementation of store_position.c.

The generation to store is one more than that of the newest complete slot. Generations alternate between the two slots,
so that slot is not touched: wherever the process is killed, and whatever a power cut loses, it stays complete until the
new one is. The checksum comes last and covers all fields, so a slot that is partly written is not complete. A process
that reads meanwhile finds the older position.
"""

from __future__ import annotations

from typing_extensions import Buffer

from ..checksum import crc32c
from ..layout import CACHE_LINE, CURSOR, CURSOR_CHECKED, CURSOR_SLOTS
from ..memory.arguments import unsigned, writable


def write_cursor_slot(cursor: Buffer, generation: int, offset: int, sequence: int, time: int, /) -> None:
    """Write a log position, and when it was stored, into a slot of a cursor file."""
    fields = unsigned(generation), unsigned(offset), unsigned(sequence), unsigned(time)
    content = writable(cursor)
    if content.nbytes < CURSOR_SLOTS[-1] + CACHE_LINE:
        raise ValueError("cursor is too short")
    CURSOR.pack_into(content, CURSOR_SLOTS[fields[0] & 1], *fields, crc32c(CURSOR_CHECKED.pack(*fields)))
