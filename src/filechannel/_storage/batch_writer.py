"""Writes the parts of a batch behind the tail, rolling and opening windows on the way. Publishing is the log's part."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import final

from .._errors import StorageError
from .._format import Writer
from .._format.layout import RECORD_HEADER_SIZE
from .active import ActiveSegment
from .parts import Part, length_at
from .rolling import Rolling
from .unpublished import Unpublished


@final
class BatchWriter:
    """Writes what is yet to be published. The caller holds the writer word, and takes it back after an error."""

    def __init__(
        self,
        path: Path,
        writer: Writer,
        active: ActiveSegment,
        rolling: Rolling,
        unpublished: Unpublished,
        check: Callable[[], object],
    ) -> None:
        """*check* is called before anything is changed but the records; it raises if nothing may be."""
        self._path = path
        self._writer = writer
        self._active = active
        self._rolling = rolling
        self._unpublished = unpublished
        self._check = check

    def write(self, part: Part, flags: int) -> None:
        """Write a part of a batch, with these flags in each word, into as many segments as it takes."""
        if isinstance(part, list):
            self._write(part, flags)
        else:
            self._copy(part.content, flags)

    def _copy(self, content: bytes, flags: int) -> None:
        if time.time_ns() >= self._active.mark_due:
            self._make_room(length_at(content, 0))
        position = 0
        try:
            while (position := self._writer.copy(content, position, len(content), position, flags)) < len(content):
                self._make_room(length_at(content, position))
        except ValueError as error:
            raise StorageError(f"{self._path}: nothing was sent, because a record of it is damaged: {error}") from error

    def _write(self, payloads: list[bytes], flags: int) -> None:
        index = 0
        if time.time_ns() >= self._active.mark_due and payloads:
            self._make_room(len(payloads[0]))
        while (index := self._writer.write(payloads, index, flags)) < len(payloads):
            self._make_room(len(payloads[index]))

    def _make_room(self, length: int) -> None:
        """Open a window that takes at least one more record of this length."""
        self._check()
        if self._active.segment is None:
            self._unpublished.discard()  # perhaps it was cut short by an error
        if not self._active.fits(length):
            self._rolling.roll(RECORD_HEADER_SIZE + length)
        self._active.open_window(length)
