"""Maps that keep no descriptor, and pages that are present before they are written to.

A first touch costs more than a small message.
"""

from __future__ import annotations

import errno
from mmap import mmap

from typing_extensions import Buffer

from .arguments import unsigned, writable
from .clock import wall_clock_ns
from .layout import CONTROL_FLUSHES_STEP, FLUSHING_CONTROL
from .words import load_u32

_MADV_POPULATE_WRITE = 23
_EHWPOISON = 133
_PAGE = 4096
_BELIEVED = 10**9  # nanoseconds; the kernel may write pages out by itself, which makes them read-only


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
    except OSError as error:  # any other means that the kernel cannot tell
        return error.errno not in (errno.EFAULT, _EHWPOISON)
    return True


class Look:
    """When pages were last made writable."""

    def __init__(self) -> None:
        self.flushes = self._until = 0
        """What `FLUSHES` was then."""

    def counts(self, now: int) -> bool:
        """Return whether they are believed to be writable still, unless they were flushed. The clock may go back."""
        return self._until - _BELIEVED <= now < self._until

    def note(self, flushes: int, now: int) -> None:
        """They were made writable."""
        self.flushes, self._until = flushes, now + _BELIEVED


def can_store_word(words: Buffer, position: int, flushes: int, last: Look) -> bool:
    """Return whether a store to a word of the control page would not kill the process.

    Its page becomes read-only when the control file is flushed, by any process, or when the kernel writes it out by
    itself. A look counts until the one, and for a second because of the other.
    """
    seen, now = load_u32(words, flushes), wall_clock_ns()
    is_new = seen ^ last.flushes >= CONTROL_FLUSHES_STEP or bool(seen & FLUSHING_CONTROL)
    if not is_new and last.counts(now):
        return True
    if not can_store(words, position, 4):
        return False
    last.note(seen, now)
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
