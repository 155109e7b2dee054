"""CRC-32C (Castagnoli) for the pure-Python implementation.

It uses the C library `google_crc32c` if that is installed, and otherwise a table, which is a hundred times slower.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from typing_extensions import Buffer

from .memory.arguments import U32, readable, unsigned

_POLYNOMIAL = 0x82F63B78  # reflected


def _table_entry(value: int) -> int:
    for _ in range(8):
        value = (value >> 1) ^ (_POLYNOMIAL if value & 1 else 0)
    return value


_TABLE = tuple(map(_table_entry, range(256)))


def _by_table(value: int, data: bytes) -> int:
    crc = value ^ U32
    for byte in data:
        crc = (crc >> 8) ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc ^ U32


def _choose() -> Callable[[int, bytes], int]:
    try:
        import google_crc32c
    except ImportError:
        return _by_table
    # Its stubs leave the types out.
    return cast("Callable[[int, bytes], int]", google_crc32c.extend)  # pyright: ignore[reportUnknownMemberType]


_extend = _choose()


def crc32c(data: Buffer, value: int = 0, /) -> int:
    """Extend a CRC-32C by the bytes of data."""
    start = unsigned(value, U32)
    return _extend(start, data if type(data) is bytes else bytes(readable(data)))
