"""The checkpoints: the only part of the control page that is flushed, and that is trusted after a power cut."""

from __future__ import annotations

import mmap
import time
from dataclasses import dataclass
from typing import final

from ..._format import crc32c
from ..._format.layout import (
    CHECKPOINT,
    CHECKPOINT_CHECKED,
    CHECKPOINT_SLOTS,
    FLUSHING_CONTROL,
    LARGEST_GENERATION,
    LARGEST_OFFSET,
    PAGE,
    STATE_SEALED,
)
from ..._offset import Offset
from ..system.mapped_files import check_storable
from .control_file import ControlFile
from .running_flushes import RunningFlushes


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What was on disk when a flush ended."""

    offset: Offset
    sequence: int
    oldest: Offset
    sealed: bool = False


@final
class Checkpoints:
    """The two checkpoint slots of one control page. The older one is written next, so that one is always whole."""

    def __init__(self, file: ControlFile, map_: mmap.mmap, running_flushes: RunningFlushes) -> None:
        self._file = file
        self._map = map_
        self._running_flushes = running_flushes

    def newest(self) -> Checkpoint | None:
        """Return the newest valid checkpoint; None if there is none."""
        found = self._valid()
        if not found:
            return None
        _, offset, sequence, oldest, state = max(found)
        return Checkpoint(Offset(offset), sequence, Offset(oldest), bool(state & STATE_SEALED))

    def _valid(self) -> list[tuple[int, int, int, int, int]]:
        return [found for slot in CHECKPOINT_SLOTS if (found := self._at(slot)) is not None]

    def _at(self, slot: int) -> tuple[int, int, int, int, int] | None:
        *fields, crc = CHECKPOINT.unpack_from(self._map, slot)
        generation, offset, sequence, oldest, _, state = fields
        fits = 0 < generation <= LARGEST_GENERATION and max(offset, sequence, oldest) <= LARGEST_OFFSET
        is_whole = fits and crc == crc32c(CHECKPOINT_CHECKED.pack(*fields))
        return (generation, offset, sequence, oldest, state) if is_whole else None

    def damaged_slots(self) -> list[int]:
        """Return the positions of the checkpoint slots that were written to, and do not count."""
        used = [slot for slot in CHECKPOINT_SLOTS if any(self._map[slot : slot + CHECKPOINT_CHECKED.size])]
        return [slot for slot in used if self._at(slot) is None]

    def write(self, checkpoint: Checkpoint) -> None:
        """Store a checkpoint and wait until it is on disk; raise `OSError` on failure or a file system shutdown."""
        generation = max((found[0] for found in self._valid()), default=0) + 1
        state = STATE_SEALED if checkpoint.sealed else 0
        fields = (generation, checkpoint.offset, checkpoint.sequence, checkpoint.oldest, time.time_ns(), state)
        content = CHECKPOINT.pack(*fields, crc32c(CHECKPOINT_CHECKED.pack(*fields)))
        self._file.write_at(content, CHECKPOINT_SLOTS[generation % 2])
        self._running_flushes.begin(FLUSHING_CONTROL)
        try:
            self._file.flush()
        finally:
            check_storable(self._map, 0, PAGE, self._file.path)
            self._running_flushes.end(FLUSHING_CONTROL)
