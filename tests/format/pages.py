"""Control pages, segments and cursors in plain memory, packed by the layout alone, without either implementation."""

from __future__ import annotations

import google_crc32c

from filechannel._format.layout import (
    APPEND_TAIL,
    CONTROL_SIZE,
    CURSOR,
    CURSOR_CHECKED,
    CURSOR_SIZE,
    CURSOR_SLOTS,
    RECORD_CHECKED,
    RECORD_HEADER,
    RECORD_HEADER_SIZE,
    SEGMENT_END,
    SEGMENT_HEADER_SIZE,
    TAIL_CHECKED,
    TAIL_SLOT,
    TAIL_SLOTS,
    WRITE_TAIL,
)

FOREVER = 1 << 63
"""An index that never wants an entry."""
ZERO_HEADER_OFFSET = 2547033130
"""The one offset below 2**32 whose CRC with an empty payload is zero: the CRC of eight zero bytes as a header."""


def crc_of(data: bytes) -> int:
    """Return a CRC-32C that neither implementation computed."""
    value: int = google_crc32c.value(data)
    return value


def packed_record(payload: bytes, offset: int, flags: int = 0) -> bytes:
    """Return one record as the format describes it."""
    word = len(payload) | flags
    crc = crc_of(payload + RECORD_CHECKED.pack(word, offset)) or 0xFFFFFFFF
    return RECORD_HEADER.pack(word, crc) + payload


def packed_records(payloads: list[bytes], offset: int, flags: int = 0) -> bytes:
    """Return records that follow each other, each a batch of its own."""
    content = b""
    for payload in payloads:
        content += packed_record(payload, offset + len(content), flags)
    return content


def packed_tail_slot(end: int, sequence: int, begin: int) -> bytes:
    """Return one slot of a tail."""
    return TAIL_SLOT.pack(end, sequence, begin, crc_of(TAIL_CHECKED.pack(end, sequence, begin)))


def set_tail(control: bytearray, tail: int, end: int, sequence: int, begin: int, slot: int = 0) -> None:
    """Let a tail say this, in one slot; the other is left as it is."""
    content = packed_tail_slot(end, sequence, begin)
    control[tail + TAIL_SLOTS[slot] : tail + TAIL_SLOTS[slot] + len(content)] = content
    control[tail : tail + 8] = end.to_bytes(8, "little")


def tail_of(control: bytearray, tail: int = WRITE_TAIL) -> tuple[int, int, int]:
    """Return (end, sequence, begin) of the slot that counts, looked for as a reader in another language would."""
    end = int.from_bytes(control[tail : tail + 8], "little")
    for distance in TAIL_SLOTS:
        *fields, crc = TAIL_SLOT.unpack_from(control, tail + distance)
        if fields[0] == end and crc == crc_of(TAIL_CHECKED.pack(*fields)):
            return fields[0], fields[1], fields[2]
    raise AssertionError("no tail slot agrees with the offset")


def new_control(end: int = 0, sequence: int = 0, begin: int = 0) -> bytearray:
    """Return a control page whose two tails say the same."""
    control = bytearray(CONTROL_SIZE)
    set_tail(control, WRITE_TAIL, end, sequence, begin)
    set_tail(control, APPEND_TAIL, end, sequence, begin)
    return control


def new_segment(room: int, content: bytes = b"", end: int = 0) -> bytearray:
    """Return a segment with so many bytes for records, the first of them given."""
    segment = bytearray(SEGMENT_HEADER_SIZE + room)
    segment[SEGMENT_END : SEGMENT_END + 8] = end.to_bytes(8, "little")
    segment[SEGMENT_HEADER_SIZE : SEGMENT_HEADER_SIZE + len(content)] = content
    return segment


def new_cursor() -> bytearray:
    """Return an empty cursor file."""
    return bytearray(CURSOR_SIZE)


def set_cursor(cursor: bytearray, generation: int, offset: int, sequence: int) -> None:
    """Fill the slot that belongs to a generation."""
    fields = (generation, offset, sequence, 1)
    slot = CURSOR_SLOTS[generation % 2]
    CURSOR.pack_into(cursor, slot, *fields, crc_of(CURSOR_CHECKED.pack(*fields)))


def cursor_slots(cursor: bytearray) -> list[tuple[int, int, int] | None]:
    """Return (generation, offset, sequence) of each slot; None for one that is not whole."""
    slots: list[tuple[int, int, int] | None] = []
    for slot in CURSOR_SLOTS:
        *fields, crc = CURSOR.unpack_from(cursor, slot)
        whole = crc == crc_of(CURSOR_CHECKED.pack(*fields))
        slots.append((fields[0], fields[1], fields[2]) if whole else None)
    return slots


def cursor_of(cursor: bytearray) -> tuple[int, int]:
    """Return (offset, sequence) of the newest whole slot."""
    _, offset, sequence = max(slot for slot in cursor_slots(cursor) if slot is not None)
    return offset, sequence


def size_of(*payloads: bytes) -> int:
    """Return the bytes that records of these payloads take."""
    return sum(RECORD_HEADER_SIZE + len(payload) for payload in payloads)
