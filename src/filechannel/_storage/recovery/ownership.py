"""Who owns the parts of a channel, and whom they let in: as the file system says, whatever the manifest does.

Looked at are the directory and what lies directly in it. Segments, cursors and the like are not: there may be many, and
a user of one of them must have access to its directory first.
"""

from __future__ import annotations

import stat
from dataclasses import dataclass
from pathlib import Path

from .bells import WAKE_FIFOS
from .control import CONTROL
from .cursor_file import CONSUMERS
from .files import QUARANTINE, Files, directory_mode
from .lock_file import LOCK, lock_mode
from .manifest import MANIFEST
from .producers import PRODUCERS
from .segments import SEGMENTS
from .staging import STAGING

_PARTS = (MANIFEST, CONTROL, LOCK, SEGMENTS, CONSUMERS, PRODUCERS, WAKE_FIFOS, QUARANTINE, STAGING)
_OTHERS = 0o077
_OTHERS_WRITE = 0o022


@dataclass(frozen=True, slots=True)
class Ownership:
    """To whom a part belongs, and its mode, with the kind of file."""

    name: str
    """In the directory; "" is the directory itself."""
    user: int
    mode: int

    @property
    def permissions(self) -> int:
        """The permission bits of owner, group and others."""
        return stat.S_IMODE(self.mode) & 0o777

    def excess(self, mode: int) -> int:
        """Return the permissions of other users that a part of a channel of this mode does not have.

        The directory itself may have been made by the user, with names that can be listed: only writing counts there.
        """
        if not self.name:
            return self.permissions & _OTHERS_WRITE & ~directory_mode(mode)
        if stat.S_ISDIR(self.mode):
            return self.permissions & _OTHERS & ~directory_mode(mode)
        return self.permissions & _OTHERS & ~(lock_mode(mode) if self.name == LOCK else mode)


def ownership_of(files: Files, path: Path) -> tuple[Ownership, ...]:
    """Look at the directory of a channel and its parts, as far as they are there; links are not followed."""
    found = [Ownership("", *files.ownership(path))]
    for name in _PARTS:
        try:
            found.append(Ownership(name, *files.ownership(path / name)))
        except FileNotFoundError:
            continue
    return tuple(each for each in found if not stat.S_ISLNK(each.mode))  # which has no permissions of its own
