"""A bound on the attempts to retain a log position that is reclaimed again and again.

A consumer that is placed at a position resolves it again if the data there was reclaimed meanwhile, which moves the
oldest offset. If positions are gone although the oldest offset does not move, the control page or the file of the
consumer is damaged, and further attempts would never end.
"""

from __future__ import annotations

from typing import Final, final

from ..._offset import Offset
from ..control.control_page import Control

_MOST: Final = 100
"""Attempts while nothing is reclaimed: another member of a group may move it back to a reclaimed position."""


@final
class Attempts:
    """Counts the attempts of one consumer to find a position that is retained."""

    def __init__(self, control: Control, name: str) -> None:
        self._control = control
        self._name = name
        self._oldest: Offset | None = None
        self._left = _MOST

    def count(self) -> None:
        """Count an attempt that is about to be made. Raise `StorageError` after too many while nothing is reclaimed."""
        oldest = self._control.oldest_offset
        if oldest != self._oldest:
            self._oldest, self._left = oldest, _MOST
        if not self._left:
            problem = f"consumer {self._name!r} found no valid position, although the oldest offset is still {oldest}"
            raise self._control.damaged(problem)
        self._left -= 1
