"""Storing what must be stored on a full disk: with the reserve of the control page, then with the free list."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, final

from .._errors import DiskFullError
from .control.control_page import Control
from .segments.catalog import Segments

R = TypeVar("R")


@final
class DiskReserve:
    """The disk space of one channel that can be freed on a full disk."""

    def __init__(self, control: Control, segments: Segments) -> None:
        self._control = control
        self._segments = segments

    def using_free_files(self, store: Callable[[], R]) -> R:
        """Call *store*. If the disk is full, delete the files in the free list and call it once more."""
        try:
            return store()
        except DiskFullError:
            free_list = self._segments.free_list
            if free_list is None or not free_list.names():
                raise
            self._segments.remove_free_files()
            return store()

    def using_all(self, store: Callable[[], R]) -> R:
        """Call *store* for data that must be stored.

        On a full disk, use the disk reserve, then the free list.
        """
        return self.using_free_files(lambda: self._control.reserve.using(store))

    def restore(self) -> None:
        """Allocate the reserve again if it was used up and there is disk space for it now."""
        if not self._control.reserve.is_complete:
            self._control.reserve.allocate()
