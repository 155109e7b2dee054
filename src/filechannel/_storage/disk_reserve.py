"""Storing what must be stored on a full disk: with the reserve of the control page, then with the free list."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, final

from .._errors import DiskFullError
from .control.control_page import Control
from .segments.catalog import Segments
from .store_events import StoreEvents

R = TypeVar("R")


@final
class DiskReserve:
    """The disk space of one channel that can be freed on a full disk."""

    def __init__(self, control: Control, segments: Segments, events: StoreEvents) -> None:
        self._control = control
        self._segments = segments
        events.segment_finished.attach(self._restore)

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

    def _restore(self) -> None:
        if not self._control.reserve.is_complete:  # the reserve was used up; there may be disk space for it now
            self._control.reserve.allocate()
