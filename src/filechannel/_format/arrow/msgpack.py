"""Reading MessagePack one token at a time, never beyond the end, and writing it, in pure Python: see msgpack*.h."""

from __future__ import annotations

from enum import Enum, auto
from struct import Struct
from typing import Any, Final, TypeAlias


class Wire(Enum):
    """The type of a token."""

    NIL = auto()
    BOOL = auto()
    INT = auto()
    FLOAT = auto()
    STR = auto()
    BIN = auto()
    ARRAY = auto()
    """With the number of its items, which follow."""
    MAP = auto()
    """With the number of its pairs, which follow."""
    EXT = auto()
    """With its type and its bytes."""


Token: TypeAlias = tuple[Wire, Any]
BROKEN: Final = "it is not MessagePack"
_REALS: Final = {4: Struct(">f"), 8: Struct(">d")}


class Input:
    """A message that is being read."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        """How many bytes are left."""
        return len(self._data) - self._at

    def _bytes(self, size: int) -> bytes:
        if size > self.left:
            raise ValueError(BROKEN)
        self._at += size
        return self._data[self._at - size : self._at]

    def _number(self, size: int, *, signed: bool = False) -> int:
        return int.from_bytes(self._bytes(size), "big", signed=signed)

    def _items(self, wire: Wire, count: int) -> Token:
        if count > self.left:  # every item takes at least one byte, so a larger count cannot be true
            raise ValueError(BROKEN)
        return wire, count

    def next_token(self) -> Token:
        """Return the next token; `ValueError` if there is none."""
        first = self._number(1)
        if first < 0x80 or first >= 0xE0:
            return Wire.INT, first if first < 0x80 else first - 0x100
        if first < 0x90:
            return self._items(Wire.MAP, first & 0x0F)
        if first < 0xA0:
            return self._items(Wire.ARRAY, first & 0x0F)
        if first < 0xC0:
            return Wire.STR, self._bytes(first & 0x1F)
        return self._long_token(first)

    def _long_token(self, first: int) -> Token:
        if first == 0xC0:
            return Wire.NIL, None
        if first in (0xC2, 0xC3):
            return Wire.BOOL, first == 0xC3
        if first in (0xCA, 0xCB):
            size = 4 if first == 0xCA else 8
            return Wire.FLOAT, _REALS[size].unpack(self._bytes(size))[0]
        if 0xCC <= first <= 0xCF:
            return Wire.INT, self._number(1 << first - 0xCC)
        if 0xD0 <= first <= 0xD3:
            return Wire.INT, self._number(1 << first - 0xD0, signed=True)
        return self._long_body(first)

    def _long_body(self, first: int) -> Token:
        if 0xC4 <= first <= 0xC6:
            return Wire.BIN, self._bytes(self._number(1 << first - 0xC4))
        if 0xD9 <= first <= 0xDB:
            return Wire.STR, self._bytes(self._number(1 << first - 0xD9))
        if first in (0xDC, 0xDD):
            return self._items(Wire.ARRAY, self._number(2 << first - 0xDC))
        if first in (0xDE, 0xDF):
            return self._items(Wire.MAP, self._number(2 << first - 0xDE))
        if 0xC7 <= first <= 0xC9 or 0xD4 <= first <= 0xD8:
            size = self._number(1 << first - 0xC7) if first <= 0xC9 else 1 << first - 0xD4
            return Wire.EXT, (self._number(1, signed=True), self._bytes(size))
        raise ValueError(BROKEN)

    def skip_value(self) -> None:
        """Skip one value of any type. Not recursive: the sender controls how deeply values are nested."""
        values = 1
        while values:
            wire, content = self.next_token()
            values -= 1
            if wire in (Wire.ARRAY, Wire.MAP):
                values += content if wire is Wire.ARRAY else 2 * content
            if values > self.left:
                raise ValueError(BROKEN)


# Writing, each value in its shortest encoding: the pure-Python implementation of msgpack_write.h


def packed_int(value: int) -> bytes:
    """Encode an integer of at most 64 bits."""
    if -32 <= value < 0x80:
        return (value & 0xFF).to_bytes(1, "big")
    first, is_negative = (0xD0, True) if value < 0 else (0xCC, False)
    for power in range(3):
        size = 1 << power
        if -(1 << 8 * size - 1) <= value < (0 if is_negative else 1 << 8 * size):
            return _headed(first + power, value, size, signed=is_negative)
    return _headed(first + 3, value, 8, signed=is_negative)


def packed_float(value: float) -> bytes:
    """Encode a float, with 64 bits."""
    return b"\xcb" + _REALS[8].pack(value)


def packed_str(text: bytes) -> bytes:
    """Encode a string, given as UTF-8."""
    size = len(text)
    return (_headed(0xD9, size, 1) if 32 <= size <= 0xFF else _head(size, 0xA0, 32, 0xDA)) + text


def packed_bin(content: bytes) -> bytes:
    """Encode bytes."""
    size = len(content)
    return (_headed(0xC4, size, 1) if size <= 0xFF else _head(size, 0, 0, 0xC5)) + content


def array_head(count: int) -> bytes:
    """Encode the head of an array of *count* items."""
    return _head(count, 0x90, 16, 0xDC)


def map_head(count: int) -> bytes:
    """Encode the head of a map of *count* pairs."""
    return _head(count, 0x80, 16, 0xDE)


def packed_timestamp(microseconds: int) -> bytes:
    """Encode MessagePack's timestamp extension, in the shortest of its three formats."""
    seconds, fraction = divmod(microseconds, 1_000_000)
    nanoseconds = fraction * 1000
    if not 0 <= seconds < 1 << 34:
        return b"\xc7\x0c\xff" + nanoseconds.to_bytes(4, "big") + seconds.to_bytes(8, "big", signed=True)
    if nanoseconds or seconds >= 1 << 32:
        return b"\xd7\xff" + (nanoseconds << 34 | seconds).to_bytes(8, "big")
    return b"\xd6\xff" + seconds.to_bytes(4, "big")


def _head(length: int, few: int, most: int, many: int) -> bytes:
    if length < most:
        return bytes([few | length])
    return _headed(many, length, 2) if length <= 0xFFFF else _headed(many + 1, length, 4)


def _headed(first: int, value: int, size: int, *, signed: bool = False) -> bytes:
    return bytes([first]) + value.to_bytes(size, "big", signed=signed)
