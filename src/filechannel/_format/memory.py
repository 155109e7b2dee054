"""Maps that keep no descriptor, and pages that are present before they are written to.

A first touch costs more than a small message.
"""

from __future__ import annotations

from mmap import mmap

from typing_extensions import Buffer

from .arguments import unsigned, writable

_MADV_POPULATE_WRITE = 23
_PAGE = 4096


def populate(buffer: Buffer, position: int, size: int, /) -> bool:
    """Make the pages of a map present and writable; tell whether the system can. Their content stays as it is."""
    position, size = unsigned(position), unsigned(size)
    if position + size > writable(buffer).nbytes:
        raise ValueError("range is not inside the buffer")
    if not isinstance(buffer, mmap) or not size:
        return not size
    first = position // _PAGE * _PAGE
    try:
        buffer.madvise(_MADV_POPULATE_WRITE, first, position + size - first)
    except OSError:
        return False
    return True


def populate_soon(buffer: Buffer, position: int, size: int, /) -> None:
    """The same in the background, if possible; the buffer is held until `populate_settle` or the next call."""
    populate(buffer, position, size)


def populate_settle() -> None:
    """Wait until nothing is left to populate, and let go of the buffers."""


def show_file(pages: Buffer, descriptor: int, /) -> bool:
    """Let a map without a file show this one, whose descriptor it does not keep; tell whether that can be done."""
    if not isinstance(pages, mmap):
        raise TypeError(f"a map is needed, not {type(pages).__name__}")
    unsigned(descriptor)
    memoryview(pages).release()  # which a closed map refuses
    return False  # Python cannot
