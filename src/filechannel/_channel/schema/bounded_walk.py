"""Walks over schemas that always end: without Python's recursion, and within a limited number of steps.

A schema may come from a manifest that an attacker wrote. A walk is a generator that yields the walks it depends on and
is sent what they return, so that the depth of a schema takes memory and never raises `RecursionError`.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final, TypeAlias, TypeVar, final

__all__ = ["Budget", "TooComplexError", "Walk"]

_T = TypeVar("_T")
Walk: TypeAlias = Generator["Walk[_T]", _T | None, _T | None]
"""Returns a finding, or None."""

_MOST_STEPS: Final = 500_000  # a manifest that differs, of the largest size, takes fewer than half
_DEEPEST: Final = 50_000  # walks inside one another: some 5,000 records, and some megabytes


class TooComplexError(Exception):
    """A walk takes more steps than any schema in use would."""


@final
class Budget:
    """The number of steps that a walk, and all walks inside it, may take."""

    def __init__(self) -> None:
        self._left = _MOST_STEPS

    def spend(self, steps: int) -> None:
        """Count steps. Raise `TooComplexError` if there are too many."""
        self._left -= steps
        if self._left < 0:
            raise TooComplexError

    def run(self, walk: Walk[_T]) -> _T | None:
        """Return what a walk returns. Raise `TooComplexError` if it is too long or too deep."""
        waiting = [walk]
        result: _T | None = None
        while waiting:
            try:
                inner = waiting[-1].send(result)
            except StopIteration as end:
                waiting.pop()
                result = end.value
            else:
                self.spend(1)
                if len(waiting) >= _DEEPEST:
                    raise TooComplexError
                waiting.append(inner)
                result = None
        return result
