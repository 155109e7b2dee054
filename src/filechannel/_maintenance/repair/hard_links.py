"""Replacing files that have hard links outside of the channel, as in a backup by hard links, by copies.

A file that is written in place must have no names outside of the channel: a write would change the file under those
names as well. The copy is written completely under a temporary name, flushed, and renamed. A process that is killed in
between leaves the old file.
"""

from __future__ import annotations

from pathlib import Path
from typing import final

from ..._format.layout import CONTROL_SIZE, GROUP_SIZE, POSITION_SIZE
from ..._storage.control.control_file import CONTROL
from ..._storage.control.lock_file import LOCK
from ..._storage.producers.producer_positions import PRODUCERS
from ..._storage.segments.segment import HALF_MADE, SegmentLimits
from ..._storage.segments.segment_names import SEGMENTS
from ..._storage.system.os_calls import REPLACING, Files

_CHUNK = 4 << 20  # bytes that are copied at a time


@final
class HardLinks:
    """Makes the copies for one channel, which no process has open."""

    def __init__(self, files: Files, channel: Path, mode: int, limits: SegmentLimits) -> None:
        self._files = files
        self._channel = channel
        self._mode = mode
        self._limits = limits

    def replace(self, path: Path) -> None:
        """Replace a file by a copy if it has names outside of the channel; the copy is on disk when this returns.

        The lock file has no content: its name is removed, and the next process that opens the channel creates it.
        """
        if self._files.link_problem(path) is None:
            return
        if path == self._channel / LOCK:
            self._files.unlink(path)
        else:
            self._copy(path)
        self._files.flush_directory(path.parent)

    def _copy(self, path: Path) -> None:
        # Among the segments, use the prefix of incomplete files: the next repair quarantines it.
        is_segment = path.parent.name == SEGMENTS
        temporary = path.with_name(HALF_MADE + path.name if is_segment else path.name + REPLACING)
        source = self._files.open(path, writable=False)
        try:
            descriptor = self._files.create(temporary, self._mode)
            try:
                self._fill(descriptor, source, self._most(path))
                self._files.flush(descriptor)
            finally:
                self._files.close(descriptor)
            self._files.replace(temporary, path)
        except BaseException:
            self._files.unlink(temporary)
            raise
        finally:
            self._files.close(source)

    def _fill(self, descriptor: int, source: int, most: int) -> None:
        """Copy the content and the size of a file, up to *most*; nothing beyond that is ever read."""
        size = min(self._files.size(source), most)
        end = min(self._files.data_end(source), size)
        for position in range(0, end, _CHUNK):
            content = self._files.read_at(source, min(_CHUNK, end - position), position)
            self._files.write_at(descriptor, content, position)
        self._files.grow(descriptor, size)

    def _most(self, path: Path) -> int:
        """Return the maximum size of a file of this kind."""
        if path.parent.name == SEGMENTS:
            return self._limits.size
        if path == self._channel / CONTROL:
            return CONTROL_SIZE  # the rest is allocated again when the channel is opened
        return POSITION_SIZE if path.parent.name == PRODUCERS else GROUP_SIZE
