"""Pages that are populated before they are written, and maps that keep no descriptor.

The first touch of a page costs more than a small message.
"""

from __future__ import annotations

import errno
from mmap import mmap

from typing_extensions import Buffer

from ..clock import wall_clock_ns
from ..layout import CONTROL_FLUSHES_STEP, FLUSHING_CONTROL
from .arguments import unsigned, writable
from .atomics import load_u32

_MADV_POPULATE_WRITE = 23
_EHWPOISON = 133
_PAGE = 4096
_CHECK_VALID_NS = 10**9  # nanoseconds; the kernel may write pages back by itself, which makes them read-only


def populate(buffer: Buffer, position: int, size: int, /) -> bool:
    """Make the pages of a map present and writable; return whether the system can. Their content stays as it is."""
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


def can_store(buffer: Buffer, position: int, size: int, /) -> bool:
    """Make the pages of a map writable, and return False if a store to them would kill the process with SIGBUS."""
    position, size = unsigned(position), unsigned(size)
    if position + size > writable(buffer).nbytes:
        raise ValueError("range is not inside the buffer")
    if not isinstance(buffer, mmap) or not size:
        return True
    first = position // _PAGE * _PAGE
    try:
        buffer.madvise(_MADV_POPULATE_WRITE, first, position + size - first)
    except OSError as error:  # any other error means that the kernel cannot check
        return error.errno not in (errno.EFAULT, _EHWPOISON)
    return True


class StoreCheck:
    """The last check that pages can be stored to."""

    def __init__(self) -> None:
        self.flushes = self._until = 0
        """The value of `FLUSHES` then."""

    def is_valid(self, now: int) -> bool:
        """Return whether the check is recent enough, if no flush came in between. The clock may go back."""
        return self._until - _CHECK_VALID_NS <= now < self._until

    def note(self, flushes: int, now: int) -> None:
        """Note that the pages were made writable."""
        self.flushes, self._until = flushes, now + _CHECK_VALID_NS


def can_store_word(words: Buffer, position: int, flushes: int, last: StoreCheck) -> bool:
    """Return whether a store to a word of the control page is safe, and would not kill the process.

    The page becomes read-only when any process flushes the control file, or when the kernel writes it back by itself.
    So a check is valid until the next flush, and for one second because of the kernel.
    """
    seen, now = load_u32(words, flushes), wall_clock_ns()
    is_new = seen ^ last.flushes >= CONTROL_FLUSHES_STEP or bool(seen & FLUSHING_CONTROL)
    if not is_new and last.is_valid(now):
        return True
    if not can_store(words, position, 4):
        return False
    last.note(seen, now)
    return True


def populate_soon(buffer: Buffer, position: int, size: int, /) -> None:
    """Populate pages in the background, if possible; the buffer is kept until `populate_wait` or the next call."""
    populate(buffer, position, size)


def populate_wait() -> None:
    """Wait until nothing is left to populate, and release the buffers."""


def show_file(pages: Buffer, descriptor: int, /) -> bool:
    """Let a map without a file show this one, without keeping its descriptor; return whether that is possible."""
    if not isinstance(pages, mmap):
        raise TypeError(f"a map is needed, not {type(pages).__name__}")
    unsigned(descriptor)
    memoryview(pages).release()  # raises if the map is closed
    return False  # Python cannot
