"""Words of a shared map, in Python.

Python has no atomic instructions. These are right only because a process that runs on this twin holds the channel
exclusively: the mode byte of the control file sees to that, and the GIL orders its threads.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from struct import Struct
from threading import Lock

from typing_extensions import Buffer

from .arguments import U32, U64, readable, unsigned, writable

WORD = Struct("<I")
DOUBLE_WORD = Struct("<Q")
_swapping = Lock()


def _load(buffer: Buffer, position: int, word: Struct) -> int:
    position = unsigned(position)
    view = _checked(readable(buffer), position, word)
    value: int = word.unpack_from(view, position)[0]
    return value


def _store(buffer: Buffer, position: int, value: int, most: int, word: Struct) -> None:
    value, position = unsigned(value, most), unsigned(position)
    word.pack_into(_checked(writable(buffer), position, word), position, value)


def _checked(view: memoryview, position: int, word: Struct) -> memoryview:
    if position % word.size or position + word.size > view.nbytes:
        raise ValueError("position is not an aligned word inside the buffer")
    return view


def load_u32(buffer: Buffer, position: int, /) -> int:
    """Read a shared word (acquire)."""
    return _load(buffer, position, WORD)


def load_u64(buffer: Buffer, position: int, /) -> int:
    """Read a shared double word (acquire)."""
    return _load(buffer, position, DOUBLE_WORD)


def store_u32(buffer: Buffer, position: int, value: int, /) -> None:
    """Write a shared word (release)."""
    _store(buffer, position, value, U32, WORD)


def store_u64(buffer: Buffer, position: int, value: int, /) -> None:
    """Write a shared double word (release)."""
    _store(buffer, position, value, U64, DOUBLE_WORD)


def swap_if_u32(buffer: Buffer, position: int, expected: int, value: int, /) -> bool:
    """Store value if the word is still as expected; tell whether it was."""
    expected, value, position = unsigned(expected, U32), unsigned(value, U32), unsigned(position)
    view = _checked(writable(buffer), position, WORD)
    with _swapping:
        if WORD.unpack_from(view, position)[0] != expected:
            return False
        WORD.pack_into(view, position, value)
        return True


def swap_if_u64(buffer: Buffer, position: int, expected: int, value: int, /) -> bool:
    """Store value if the double word is still as expected; tell whether it was."""
    expected, value = unsigned(expected), unsigned(value)
    return change(buffer, position, DOUBLE_WORD, lambda found: value if found == expected else found) == expected


def add_u64(buffer: Buffer, position: int, value: int, /) -> int:
    """Add to a double word, modulo its size; return what it was."""
    value = unsigned(value)
    return change(buffer, position, DOUBLE_WORD, lambda found: found + value & U64)


def change(buffer: Buffer, position: int, word: Struct, to: Callable[[int], int]) -> int:
    """Change a word or double word with no swap in between; return what it was."""
    position = unsigned(position)
    view = _checked(writable(buffer), position, word)
    with _swapping:
        value: int = word.unpack_from(view, position)[0]
        word.pack_into(view, position, to(value))
        return value


def _start_over() -> None:
    """A forked child has none of the threads, one of which may have been in the middle of a swap."""
    global _swapping
    _swapping = Lock()


os.register_at_fork(after_in_child=_start_over)


def fence() -> None:
    """Order every store before it against every load after it."""
