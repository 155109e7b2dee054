"""The lock holder: a note that a process stores beside its kernel lock, only to name the holder in error messages."""

from __future__ import annotations

import os
import socket
import struct
import time
from dataclasses import dataclass
from datetime import UTC, datetime

from ..._format.layout import HOLDER

SHORTEST_NOTE = 40
"""The bytes of a host name that fit into every note; some notes cut off longer names."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A process as it described itself; all fields are None if there is no readable note."""

    pid: int | None
    host: str | None
    since: datetime | None

    @classmethod
    def unpack(cls, note: bytes) -> Holder:
        """Read a note."""
        try:
            return cls.of(*HOLDER.unpack(note))
        except struct.error:
            return cls(None, None, None)

    @classmethod
    def of(cls, pid: int, since: int, host: bytes) -> Holder:
        """Decode the fields of a note; all fields are None if one is invalid. *since* is in ns since the epoch."""
        try:
            moment = datetime.fromtimestamp(since / 1e9, UTC)
            return cls(pid, host.rstrip(b"\0").decode(), moment) if pid else cls(None, None, None)
        except (ValueError, OverflowError, OSError):
            return cls(None, None, None)

    def unless_ended(self) -> Holder:
        """Return this holder, or an empty one if its process has ended: then a process without a note has the lock.

        Processes of other hosts and containers cannot be checked, and are returned.
        """
        if self.pid is None or not self._is_here():
            return self
        try:
            os.kill(self.pid, 0)
        except (ProcessLookupError, OverflowError):
            return Holder(None, None, None)
        except PermissionError:
            pass  # the process exists, and belongs to another user
        return self

    def _is_here(self) -> bool:
        ours, host = socket.gethostname(), self.host or ""
        return ours == host or (len(host.encode()) >= SHORTEST_NOTE and ours.startswith(host))


def describe_this_process() -> bytes:
    """Return the note of this process, with the current time."""
    return HOLDER.pack(os.getpid(), time.time_ns(), socket.gethostname().encode()[:64])
