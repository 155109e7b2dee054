"""The directory of an open channel, which may be moved or replaced while the channel is open."""

from __future__ import annotations

import os
from pathlib import Path
from typing import final

from ..._errors import ClosedResourceError, StorageError
from ..system.os_calls import Files
from .control_file import CONTROL


@final
class ChannelDirectory:
    """The directory of one channel. The descriptor of the control file identifies the channel, wherever it is moved."""

    def __init__(self, files: Files, path: Path, descriptor: int) -> None:
        """The descriptor belongs to this object once the channel is open."""
        self._files = files
        self.path = path
        self._control_path = path / CONTROL
        self._descriptor = descriptor

    @property
    def descriptor(self) -> int:
        """The descriptor of the control file.

        Raises `ClosedResourceError` after `close`: by then the number may be the descriptor of another file.
        """
        if self._descriptor < 0:
            raise ClosedResourceError
        return self._descriptor

    @property
    def identity(self) -> tuple[int, int]:
        """Device and inode of the control file. They identify the channel, by whatever path it is reached."""
        status = os.fstat(self.descriptor)
        return status.st_dev, status.st_ino

    @property
    def is_at_path(self) -> bool:
        """Whether the path still leads to this channel."""
        return self._files.is_found_at(self._control_path, self.descriptor)

    def check(self) -> None:
        """Raise `StorageError` if the path leads to another directory: no file may be made in another channel."""
        if not self.is_at_path:
            raise StorageError(
                f"{self.path} was moved, removed or replaced while it was open; open it at its current path"
            )

    def close(self) -> None:
        """Close the control file."""
        self._files.unpin(self.path)
        descriptor, self._descriptor = self._descriptor, -1
        self._files.close(descriptor)
