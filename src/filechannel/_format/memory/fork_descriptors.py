"""Descriptors that a forked child must close: a kernel lock is held as long as any process has its file open."""

from __future__ import annotations

import os
from contextlib import suppress
from itertools import count

from ..._runtime.fork_registry import Phase, reset_in_child
from .arguments import U64, unsigned

_INT_MAX = (1 << 31) - 1
_descriptors: dict[int, int] = {}
_numbers = count(1)


def close_in_child(descriptor: int, /) -> int:
    """Close a descriptor in every process that is forked from now on; return the number for `keep_in_child`."""
    descriptor = unsigned(descriptor, _INT_MAX)
    number = next(_numbers)
    _descriptors[number] = descriptor
    return number


def keep_in_child(number: int, /) -> bool:
    """Undo `close_in_child`, before the descriptor is closed here; False if a fork closed it already."""
    return _descriptors.pop(unsigned(number, U64), None) is not None


def _close_all() -> None:
    for descriptor in _descriptors.values():
        with suppress(OSError):
            os.close(descriptor)
    _descriptors.clear()


reset_in_child(Phase.DESCRIPTORS, _close_all)
