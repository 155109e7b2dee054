"""Argument checks of the pure-Python implementation, which match those of the C core.

`struct` and `memoryview` accept more than the C core does: a negative position counts from the end, and `bytes` of a
number is that many zeros.
"""

from __future__ import annotations

from operator import index

from typing_extensions import Buffer

from .closable_map import Map, check_open

U32: int = (1 << 32) - 1
U64: int = (1 << 64) - 1


def unsigned(value: int, most: int = U64) -> int:
    """Return an integer between 0 and *most*; `OverflowError` if it is outside."""
    number = index(value)
    if not 0 <= number <= most:
        raise OverflowError("value does not fit the word")
    return number


def readable(buffer: Buffer) -> memoryview:
    """Return a view of plain bytes; `ClosedResourceError` if it is a closed map."""
    if isinstance(buffer, Map):
        check_open(buffer)
    view = memoryview(buffer)
    if not view.c_contiguous:
        raise BufferError("memoryview: underlying buffer is not C-contiguous")
    if view.ndim == 1 and view.format == "B":
        return view
    return view.cast("B") if view.nbytes else memoryview(b"")


def writable(buffer: Buffer) -> memoryview:
    """Return a view of plain bytes that may be written; `ClosedResourceError` if it is a closed map."""
    if isinstance(buffer, Map):
        check_open(buffer)
    if memoryview(buffer).readonly:
        raise BufferError("Object is not writable.")
    return readable(buffer)
