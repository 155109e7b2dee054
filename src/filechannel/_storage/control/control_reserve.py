"""The disk space of the control file: that of the page, and a reserve after it for use on a full disk."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar, final

from ..._errors import DiskFullError
from ..._format.layout import CONTROL_RESERVE, CONTROL_SIZE, PAGE
from .control_file import ControlFile

R = TypeVar("R")


@final
class ControlReserve:
    """The disk space of the control file of one channel."""

    def __init__(self, file: ControlFile) -> None:
        self._file = file
        self._full_size = CONTROL_SIZE + CONTROL_RESERVE + file.creation_space

    def allocate(self) -> bool:
        """Allocate disk space for the page, and a reserve for use on a full disk; return whether there was enough.

        If there is not enough disk space, allocate as much as there is.
        """
        try:
            self._file.allocate(self._full_size)
        except DiskFullError:
            self._allocate_what_is_left()
            return False
        return True

    def _allocate_what_is_left(self) -> None:
        with suppress(DiskFullError):
            for size in range(CONTROL_SIZE + PAGE, self._full_size, PAGE):
                self._file.allocate(size)

    @property
    def is_complete(self) -> bool:
        """Whether the reserve is complete: no process has used any of it."""
        return self._file.size >= self._full_size

    def using(self, store: Callable[[], R]) -> R:
        """Store something small that must succeed on a full disk: a consumer's name, the manifest, the next segment.

        If the disk is full, the reserve is freed, and allocated again after the second try.
        """
        try:
            return store()
        except DiskFullError:
            if self._file.size <= CONTROL_SIZE:
                raise
            self._file.cut(CONTROL_SIZE)
        try:
            return store()
        finally:
            self.allocate()
