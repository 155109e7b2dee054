"""Records in a buffer: write, read, scan, skip, find. The pure-Python implementation of records.c.

A record is `u32 word | u32 crc | payload`. The CRC covers the payload, then the word, then the record's offset in the
channel, so bytes at the wrong offset or left over in a recycled file never validate. The CRC is never zero, so zeros
never validate either.
"""

# The C core checks the types of its arguments, and so does this implementation.
# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

from typing_extensions import Buffer

from .checksum import crc32c
from .layout import (
    BATCH_CONTINUES,
    CONTROL_RECORD,
    LENGTH_MASK,
    MAX_PAYLOAD,
    RECORD_CHECKED,
    RECORD_HEADER,
    RECORD_HEADER_SIZE,
)
from .memory.arguments import U32, U64, readable, unsigned, writable


def record_crc(payload: Buffer, word: int, offset: int) -> int:
    """Return the checksum of a record."""
    # Never 0: once in 4 GiB there is an offset at which eight zero bytes would be a valid, empty record.
    return crc32c(RECORD_CHECKED.pack(word, offset & U64), crc32c(payload)) or U32


def write_record(buffer: Buffer, position: int, offset: int, flags: int, payload: Buffer, /) -> int:
    """Write one record and return the position after it."""
    position, offset, flags = unsigned(position), unsigned(offset), unsigned(flags)
    target, data = writable(buffer), bytes(readable(payload))
    if len(data) > MAX_PAYLOAD or flags & ~(BATCH_CONTINUES | CONTROL_RECORD):
        raise ValueError("payload or flags do not fit the word")
    body = position + RECORD_HEADER_SIZE
    end = body + len(data)
    if end > target.nbytes:
        raise ValueError("range is not inside the buffer")
    word = len(data) | flags
    RECORD_HEADER.pack_into(target, position, word, record_crc(data, word, offset))
    target[body:end] = data
    return end


def read_record(buffer: Buffer, position: int, stop: int, offset: int, /) -> tuple[int, bytes]:
    """Return (word, payload), or raise ValueError with the reason."""
    return _read(*_range(buffer, position, stop, offset))


def read_bounded(buffer: Buffer, position: int, stop: int, offset: int, most: int) -> tuple[int, bytes]:
    """Return (word, payload) as `read_record` does, but raise ValueError for a payload longer than *most* bytes."""
    return _read(*_range(buffer, position, stop, offset), most)


def scan_records(buffer: Buffer, position: int, stop: int, offset: int, /) -> tuple[int, int, int, int]:
    """Walk valid records from position on.

    Return (end of the last whole batch, messages up to there, end of the last record, start of the record
    that closed the batch).
    """
    view, position, stop, offset = _range(buffer, position, stop, offset)
    first, batch_end, batch_messages, messages, last = position, position, 0, 0, position
    while position < stop:
        try:
            word, payload = _read(view, position, stop, offset + position - first)
        except ValueError:
            break
        start, position = position, position + RECORD_HEADER_SIZE + len(payload)
        messages += not word & CONTROL_RECORD
        if not word & BATCH_CONTINUES:
            batch_end, batch_messages, last = position, messages, start
    return batch_end, batch_messages, position, last


def skip_records(buffer: Buffer, position: int, stop: int, offset: int, most: int, /) -> tuple[int, int]:
    """Skip valid records from position on, with at most *most* messages; return (position after them, messages).

    The position has not moved if *most* is 0, or if no whole record validates there.
    """
    most = unsigned(most)
    view, position, stop, offset = _range(buffer, position, stop, offset)
    first, messages = position, 0
    while position < stop and messages < most:
        try:
            word, payload = _read(view, position, stop, offset + position - first)
        except ValueError:
            break
        position += RECORD_HEADER_SIZE + len(payload)
        messages += not word & CONTROL_RECORD
    return position, messages


def find_record(buffer: Buffer, position: int, stop: int, offset: int, /) -> int:
    """Return the first position where a whole record validates, or -1."""
    view, position, stop, offset = _range(buffer, position, stop, offset)
    for candidate in range(position, stop):
        try:
            _read(view, candidate, stop, offset + candidate - position)
        except ValueError:
            continue
        return candidate
    return -1


def join_records(payloads: list[bytes], /) -> bytes:
    """Return payloads as records, the first one at offset 0."""
    check_payloads(payloads)
    joined, end = bytearray(sum(map(len, payloads)) + RECORD_HEADER_SIZE * len(payloads)), 0
    for payload in payloads:
        end = write_record(joined, end, end, 0, payload)
    return bytes(joined)


def split_records(joined: Buffer, /) -> list[bytes]:
    """Return the payloads of records, the first one at offset 0; `ValueError` if one does not validate."""
    view, position, payloads = readable(joined), 0, list[bytes]()
    while position < view.nbytes:
        payloads.append(_read(view, position, view.nbytes, position)[1])
        position += RECORD_HEADER_SIZE + len(payloads[-1])
    return payloads


def check_payloads(payloads: list[bytes]) -> None:
    """Raise `TypeError` unless *payloads* is a list of bytes."""
    if type(payloads) is not list:
        raise TypeError("payloads must be a list of bytes")
    for index, payload in enumerate(payloads):
        if not isinstance(payload, bytes):
            raise TypeError(f"payload {index} must be bytes")


def _range(buffer: Buffer, position: int, stop: int, offset: int) -> tuple[memoryview, int, int, int]:
    position, stop, offset = unsigned(position), unsigned(stop), unsigned(offset)
    view = readable(buffer)
    if not position <= stop <= view.nbytes:
        raise ValueError("range is not inside the buffer")
    return view, position, stop, offset


def _read(view: memoryview, position: int, stop: int, offset: int, most: int = MAX_PAYLOAD) -> tuple[int, bytes]:
    body = position + RECORD_HEADER_SIZE
    if body > stop:
        raise ValueError("record reaches beyond the end")
    # Load the word once, bound it, copy the payload and check the copy: the bytes may be overwritten meanwhile.
    word, crc = RECORD_HEADER.unpack_from(view, position)
    end = body + (word & LENGTH_MASK)
    if end > stop:
        raise ValueError("record reaches beyond the end")
    if end - body > most:  # before so much memory is allocated: a length from disk cannot be trusted
        raise ValueError("record is longer than a message may be")
    payload = bytes(view[body:end])
    if record_crc(payload, word, offset) != crc:
        raise ValueError("checksum mismatch")
    return word, payload
