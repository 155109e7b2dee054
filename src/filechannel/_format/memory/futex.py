"""Lock words and sleeping on a word, in Python.

A process that uses the pure-Python implementation holds the channel exclusively (see `atomics`). So sleeping and waking
threads belong to one process, and one condition serves all words.
"""

from __future__ import annotations

import ctypes
import math
import time
from threading import Condition, get_ident

from typing_extensions import Buffer

from ..._runtime.fork_registry import Phase, reset_in_child
from ..layout import CONTENDED, WAKE_GENERATION, WAKE_LOOPS, WAKE_THREADS
from .arguments import U32, U64, unsigned, writable
from .atomics import DOUBLE_WORD, WORD, change, load_u32, load_u64, swap_if_u32

_INT_MAX = (1 << 31) - 1
_LONGEST = 1e6
# Not safe against signal handlers that raise: see `mutex`.
_changed = Condition()
_sleeping: dict[int, int] = {}
"""The address of the word that each thread sleeps on."""


def take_word(buffer: Buffer, position: int, owner: int, seconds: float, /) -> bool:
    """Put owner into a free lock word, trying for *seconds*; return whether that succeeded."""
    owner, until = unsigned(owner, U32), time.monotonic() + _checked(seconds)
    while not swap_if_u32(buffer, position, 0, owner):
        if time.monotonic() >= until:
            return False
        time.sleep(0)  # the lock holder needs the GIL
    return True


def release_word(buffer: Buffer, position: int, /) -> None:
    """Free a lock word, and wake one thread that sleeps on it."""
    if change(buffer, position, WORD, lambda _: 0) & CONTENDED:
        wake_word(buffer, position, 1)


def wait_word(buffer: Buffer, position: int, expected: int, seconds: float, /) -> bool:
    """Sleep while a shared word is as expected, until woken; False after a timeout."""
    expected, seconds = unsigned(expected, U32), _checked(seconds)
    me, word = get_ident(), _address(buffer, position)
    with _changed:
        if load_u32(buffer, position) != expected:
            return True
        _sleeping[me] = word
        try:
            return _changed.wait_for(lambda: me not in _sleeping, seconds)
        finally:
            _sleeping.pop(me, None)


def wake_word(buffer: Buffer, position: int, count: int, /) -> int:
    """Wake at most *count* threads that sleep on a word; return how many were woken."""
    count = unsigned(count, _INT_MAX)
    word = _address(buffer, position)
    with _changed:
        woken = [thread for thread, other in _sleeping.items() if other == word][:count]
        for thread in woken:
            del _sleeping[thread]
        _changed.notify_all()
    return len(woken)


def wake_waiters(buffer: Buffer, position: int, /) -> int:
    """Clear the bits of a wake word that say what waits, and wake the threads; return the bits."""
    view, waits = writable(buffer), WAKE_THREADS | WAKE_LOOPS
    seen = load_u32(view, position)
    while seen & waits:
        if swap_if_u32(view, position, seen, (seen + WAKE_GENERATION) & ~waits & U32):
            if seen & WAKE_THREADS:
                wake_word(buffer, position, _INT_MAX)
            return seen & waits
        seen = load_u32(buffer, position)
    return 0


def spin_above(buffer: Buffer, position: int, value: int, seconds: float, /) -> bool:
    """Watch a double word for *seconds* without sleeping; return whether it rose above a value."""
    value, until = unsigned(value, U64), time.monotonic() + _checked(seconds)
    while load_u64(buffer, position) <= value:
        if time.monotonic() >= until:
            return False
        time.sleep(0)
    return True


def set_bit(buffer: Buffer, position: int, bit: int, /) -> None:
    """Set one bit of a shared double word."""
    bit = unsigned(bit, 63)
    change(buffer, position, DOUBLE_WORD, lambda bits: bits | 1 << bit)


def take_bits(buffer: Buffer, position: int, words: int, /) -> list[int]:
    """Clear *words* shared double words; return which bits were set."""
    words, view = unsigned(words), writable(buffer)
    load_u64(view, position)
    if words > (view.nbytes - position) // 8:
        raise ValueError("range is not inside the buffer")
    found: list[int] = []
    for index in range(words):
        if load_u64(view, position + 8 * index):
            bits = change(view, position + 8 * index, DOUBLE_WORD, lambda _: 0)
            found += [64 * index + bit for bit in range(64) if bits >> bit & 1]
    return found


def _address(buffer: Buffer, position: int) -> int:
    view = writable(buffer)
    load_u32(view, position)
    return ctypes.addressof(ctypes.c_char.from_buffer(view)) + position


def _checked(seconds: float) -> float:
    seconds = math.ldexp(seconds, 0)  # the same number; raises TypeError for a string
    if not 0 <= seconds <= _LONGEST:
        raise ValueError("seconds must be between 0 and a million")
    return seconds


def _start_over() -> None:
    """Start over in a forked child: a thread of the parent may have been in one of these functions."""
    global _changed
    _changed = Condition()
    _sleeping.clear()


reset_in_child(Phase.PRIMITIVES, _start_over)
