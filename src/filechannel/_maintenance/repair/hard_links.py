"""Replacing a file that has names outside of the channel, as in a backup by hard links, by a copy that has none.

A file that is written in place must have its names inside the channel: otherwise a write would change the file under
the others as well. The copy is made whole under a new name, flushed, and renamed. A process that is killed in between
leaves the old file.
"""

from __future__ import annotations

from pathlib import Path
from typing import final

from .._format.layout import CONTROL_SIZE, GROUP_SIZE, POSITION_SIZE
from .._storage.control import CONTROL
from .._storage.files import REPLACING, Files
from .._storage.lock_file import LOCK
from .._storage.producers import PRODUCERS
from .._storage.segment import HALF_MADE, SegmentLimits
from .._storage.segments import SEGMENTS

_CHUNK = 4 << 20  # bytes that are copied at a time


@final
class OwnCopies:
    """Makes the copies for one channel, which no process has open."""

    def __init__(self, files: Files, channel: Path, mode: int, limits: SegmentLimits) -> None:
        self._files = files
        self._channel = channel
        self._mode = mode
        self._limits = limits

    def replace(self, path: Path) -> None:
        """Replace a file by a copy, unless it has no names elsewhere; the copy is on disk when this returns.

        The lock file has no content: its name is removed, and the next one who opens the channel makes it.
        """
        if self._files.link_problem(path) is None:
            return
        if path == self._channel / LOCK:
            self._files.unlink(path)
        else:
            self._copy(path)
        self._files.flush_directory(path.parent)

    def _copy(self, path: Path) -> None:
        # Among the segments, under a name that is known for what is half made: the next repair puts it aside.
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
        """Copy what a file has, and be as long; content beyond *most* is never read."""
        size = min(self._files.size(source), most)
        end = min(self._files.data_end(source), size)
        for position in range(0, end, _CHUNK):
            content = self._files.read_at(source, min(_CHUNK, end - position), position)
            self._files.write_at(descriptor, content, position)
        self._files.grow(descriptor, size)

    def _most(self, path: Path) -> int:
        """Return how many bytes a file of its kind may have."""
        if path.parent.name == SEGMENTS:
            return self._limits.size
        if path == self._channel / CONTROL:
            return CONTROL_SIZE  # what lies behind it is reserved again when the channel is opened
        return POSITION_SIZE if path.parent.name == PRODUCERS else GROUP_SIZE
