"""The manifest of an open channel: as this process applies it, and as it is stored now.

Any process may store other options. The epoch in the control page changes after that.
"""

from __future__ import annotations

from typing import final

from .._errors import storage_error
from .._options import StoredOptions
from .control.channel_directory import ChannelDirectory
from .control.control_page import Control
from .manifest import Manifest
from .system.os_calls import Files


@final
class CurrentManifest:
    """The manifest of one open channel."""

    def __init__(self, files: Files, directory: ChannelDirectory, control: Control, manifest: Manifest) -> None:
        self._files = files
        self._directory = directory
        self._control = control
        self.applied = manifest
        """The manifest as this process applies it."""
        self._read: tuple[int, StoredOptions] | None = None
        """The options that were read last, and the epoch before that."""

    def options(self) -> StoredOptions:
        """Return the options that are stored now, whichever process stored them."""
        epoch = self._control.epoch  # before the manifest is read: a later change is seen by the next call
        if self._read is None or self._read[0] != epoch:
            self._read = epoch, self.read().options
        return self._read[1]

    def read(self) -> Manifest:
        """Return the manifest that is stored now."""
        self._directory.check()
        try:
            return Manifest.read(self._files, self._directory.path)
        except OSError as error:
            raise storage_error(f"{self._directory.path}: the options cannot be read", error) from error

    def write(self, manifest: Manifest) -> None:
        """Store another manifest. The caller holds the open lock."""
        try:
            manifest.write(self._files, self._directory.path)
        except OSError as error:
            raise storage_error(f"{self._directory.path}: the options could not be stored", error) from error
