"""Limits the attempts to position a consumer where messages are retained.

If the messages at a position are reclaimed while a consumer is being positioned there, the oldest offset has moved, and
the consumer tries another position. If attempts fail although the oldest offset does not move, the control page or the
file of the consumer is damaged, and they would fail forever.
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
