"""Descriptors that a forked child must not keep: a kernel lock lives as long as any process has its file open."""

from __future__ import annotations

import os
from contextlib import suppress
from itertools import count

from .arguments import U64, unsigned

_INT_MAX = (1 << 31) - 1
_descriptors: dict[int, int] = {}
_numbers = count(1)


def close_in_child(descriptor: int, /) -> int:
    """Close a descriptor in every process that is forked from now on; return what `keep_in_child` wants."""
    descriptor = unsigned(descriptor, _INT_MAX)
    number = next(_numbers)
    _descriptors[number] = descriptor
    return number


def keep_in_child(number: int, /) -> bool:
    """Take that back, before the descriptor is closed here; False if it is, and may be somebody else's by now."""
    return _descriptors.pop(unsigned(number, U64), None) is not None


def _close_all() -> None:
    for descriptor in _descriptors.values():
        with suppress(OSError):
            os.close(descriptor)
    _descriptors.clear()


os.register_at_fork(after_in_child=_close_all)
