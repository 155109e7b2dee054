"""The open readers of a store: they release segments that are unmapped or deleted, and resume after a purge."""

from __future__ import annotations

from typing import final
from weakref import WeakValueDictionary

from ..._offset import LogPosition
from ..segments.segment import Segment
from ..system.mapped_files import MappedFile
from .log_reader import LogReader


@final
class OpenReaders:
    """The readers of one store, as long as they are referenced elsewhere."""

    def __init__(self) -> None:
        self._readers: WeakValueDictionary[int, LogReader] = WeakValueDictionary()
        """All readers, by identity."""
        self._consumers: WeakValueDictionary[int, LogReader] = WeakValueDictionary()
        """The readers that a purge moves, by identity."""

    def add(self, reader: LogReader) -> None:
        """Add a reader that was just opened."""
        self._readers[id(reader)] = reader

    def adopt(self, reader: LogReader) -> None:
        """Let a reader resume after a purge without an error: it reads for a consumer."""
        self._consumers[id(reader)] = reader

    def release_map(self, _file: MappedFile, segments: list[Segment]) -> None:
        """Release segments that are to be unmapped."""
        for reader in _alive(self._readers):
            for segment in segments:
                reader.release(segment)

    def release_removed(self) -> None:
        """Release segments whose file was deleted."""
        for reader in _alive(self._readers):
            reader.release_removed()

    def start_over(self, log_position: LogPosition) -> None:
        """Move the readers of consumers to the end of the log, which a purge has emptied."""
        for reader in _alive(self._consumers):
            reader.start_over(log_position)

    def close(self) -> None:
        """Close every reader."""
        for reader in _alive(self._readers):
            reader.close()


def _alive(readers: WeakValueDictionary[int, LogReader]) -> list[LogReader]:
    references = readers.valuerefs()  # a copy: other threads add and drop readers
    return [reader for reference in references if (reader := reference()) is not None]
