"""Who holds a lock: a note beside the kernel's lock, read only to name the holder in an error message."""

from __future__ import annotations

import os
import socket
import struct
import time
from dataclasses import dataclass
from datetime import UTC, datetime

from .._format.layout import HOLDER

SHORTEST_NOTE = 40
"""Bytes of a host's name that fit into every note; longer names are cut off, in some notes."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A process as it described itself; None where the note is not there or not readable."""

    pid: int | None
    host: str | None
    since: datetime | None

    @classmethod
    def unpack(cls, note: bytes) -> Holder:
        """Read a note."""
        try:
            pid, since, host = HOLDER.unpack(note)
            moment = datetime.fromtimestamp(since / 1e9, UTC)
            return cls(pid, host.rstrip(b"\0").decode(), moment) if pid else cls(None, None, None)
        except (struct.error, ValueError, OverflowError, OSError):
            return cls(None, None, None)

    def unless_ended(self) -> Holder:
        """Return it, or one without a name if that process has ended: then another one, without a note, has the lock.

        Of processes of other hosts and containers that is not known.
        """
        if self.pid is None or not self._is_here():
            return self
        try:
            os.kill(self.pid, 0)
        except (ProcessLookupError, OverflowError):
            return Holder(None, None, None)
        except PermissionError:
            pass  # it is that of another user
        return self

    def _is_here(self) -> bool:
        ours, host = socket.gethostname(), self.host or ""
        return ours == host or (len(host.encode()) >= SHORTEST_NOTE and ours.startswith(host))


def describe_this_process() -> bytes:
    """Return the note of this process, as of now."""
    return HOLDER.pack(os.getpid(), time.time_ns(), socket.gethostname().encode()[:64])
