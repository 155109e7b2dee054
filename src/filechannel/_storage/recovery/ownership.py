"""Owner and permissions of the parts of a channel, as the file system has them. The manifest is not consulted.

Only the directory and its direct entries are checked. Segments, cursors and the like are not: there may be many, and a
user needs access to their directory first.
"""

from __future__ import annotations

import stat
from dataclasses import dataclass
from pathlib import Path

from ..consumers.cursor_file_format import CONSUMERS
from ..control.control_file import CONTROL
from ..control.lock_file import LOCK, lock_mode
from ..control.wake_fifos import WAKE_FIFOS
from ..manifest import MANIFEST
from ..producers.producer_positions import PRODUCERS
from ..producers.staging import STAGING
from ..segments.segment_names import SEGMENTS
from ..system.os_calls import QUARANTINE, Files, directory_mode

_PARTS = (MANIFEST, CONTROL, LOCK, SEGMENTS, CONSUMERS, PRODUCERS, WAKE_FIFOS, QUARANTINE, STAGING)
_OTHERS = 0o077
_OTHERS_WRITE = 0o022


@dataclass(frozen=True, slots=True)
class Ownership:
    """The owner of a part, and its mode including the file type."""

    name: str
    """The name in the directory; "" is the directory itself."""
    user: int
    mode: int

    @property
    def permissions(self) -> int:
        """The permission bits of owner, group and others."""
        return stat.S_IMODE(self.mode) & 0o777

    def excess(self, mode: int) -> int:
        """Return the permissions that other users have here, but should not have in a channel of this mode.

        The user may have created the directory itself, with names that can be listed. So only write permission counts
        there.
        """
        if not self.name:
            return self.permissions & _OTHERS_WRITE & ~directory_mode(mode)
        if stat.S_ISDIR(self.mode):
            return self.permissions & _OTHERS & ~directory_mode(mode)
        return self.permissions & _OTHERS & ~(lock_mode(mode) if self.name == LOCK else mode)


def ownership_of(files: Files, path: Path) -> tuple[Ownership, ...]:
    """Return the ownership of a channel's directory and of those parts that exist; symbolic links are left out."""
    found = [Ownership("", *files.ownership(path))]
    for name in _PARTS:
        try:
            found.append(Ownership(name, *files.ownership(path / name)))
        except FileNotFoundError:
            continue
    return tuple(each for each in found if not stat.S_ISLNK(each.mode))  # a link has no permissions of its own
