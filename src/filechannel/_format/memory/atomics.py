"""Loads, stores and compare-and-swap on the words of a shared map, in Python.

Python has no atomic instructions. These functions are correct only because a process that uses the pure-Python
implementation holds the channel exclusively, which the lock on MODE_BYTE ensures, and because the GIL orders its
threads.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from threading import Lock

from typing_extensions import Buffer

from ..._runtime.fork_registry import Phase, reset_in_child
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
    """Store value if the word is still as expected; return whether it was."""
    expected, value, position = unsigned(expected, U32), unsigned(value, U32), unsigned(position)
    view = _checked(writable(buffer), position, WORD)
    with _swapping:
        if WORD.unpack_from(view, position)[0] != expected:
            return False
        WORD.pack_into(view, position, value)
        return True


def swap_if_u64(buffer: Buffer, position: int, expected: int, value: int, /) -> bool:
    """Store value if the double word is still as expected; return whether it was."""
    expected, value = unsigned(expected), unsigned(value)
    return change(buffer, position, DOUBLE_WORD, lambda found: value if found == expected else found) == expected


def add_u64(buffer: Buffer, position: int, value: int, /) -> int:
    """Add to a double word, modulo 2**64; return the old value."""
    value = unsigned(value)
    return change(buffer, position, DOUBLE_WORD, lambda found: found + value & U64)


def change(buffer: Buffer, position: int, word: Struct, to: Callable[[int], int]) -> int:
    """Change a word or double word atomically; return the old value."""
    position = unsigned(position)
    view = _checked(writable(buffer), position, word)
    with _swapping:
        value: int = word.unpack_from(view, position)[0]
        word.pack_into(view, position, to(value))
        return value


def _start_over() -> None:
    """Replace the lock in a forked child: a thread of the parent may have held it in the middle of a swap."""
    global _swapping
    _swapping = Lock()


reset_in_child(Phase.PRIMITIVES, _start_over)


def fence() -> None:
    """Order every store before it against every load after it."""
