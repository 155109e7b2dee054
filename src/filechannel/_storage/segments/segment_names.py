"""The names of the segment files: flushing them to disk, and checking that they are still those of the channel."""

from __future__ import annotations

from pathlib import Path
from typing import Final, final

from ..control.control_file import CONTROL, replaced
from ..control.control_page import Control
from ..system.mapped_files import OpenFile
from ..system.os_calls import Files

SEGMENTS: Final = "segments"
_CONTROL_ABOVE, _SEGMENTS_ABOVE = f"../{CONTROL}".encode(), f"../{SEGMENTS}".encode()


@final
class SegmentNames:
    """The directory that holds the segment files of one channel."""

    def __init__(self, files: Files, directory: Path) -> None:
        self._files = files
        self._path = directory
        self._kept: OpenFile | None = None

    def keep_directory_open(self) -> None:
        """Keep the directory open, so that names can be flushed even when descriptors have run out."""
        self._kept = OpenFile(self._files, self._files.open_directory(self._path))

    def open_directory(self) -> OpenFile:
        """Return the directory: the one that is kept open, or another one, which is closed with its last reference."""
        return self._kept or OpenFile(self._files, self._files.open_directory(self._path))

    def check_directory(self, control: Control) -> None:
        """Raise `StorageError` if the control file or this directory is not in the channel's directory any more.

        The channel itself may have been moved: its directory is found as the parent of this one.
        """
        directory = self.open_directory()
        control.file.check_name(directory, _CONTROL_ABOVE)
        if not directory.holds(_SEGMENTS_ABOVE, directory.descriptor, directory.inode):
            raise replaced(SEGMENTS)

    def flush(self) -> None:
        """Wait until all name changes in the directory are on disk."""
        if self._kept is not None:
            self._kept.flush_names()
        else:
            self._files.flush_directory(self._path)

    def close(self) -> None:
        """Close the directory if it is kept open."""
        if self._kept is not None:
            self._kept.close()
