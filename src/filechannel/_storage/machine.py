"""Which boot of which machine this is: what was not flushed is there only within one boot."""

from __future__ import annotations

import uuid
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_MACHINE_ID = Path("/etc/machine-id")


def boot_id() -> bytes:
    """Return 16 bytes that change with every boot."""
    return uuid.UUID(_BOOT_ID.read_text().strip()).bytes


def machine_id() -> str:
    """Return a name for this machine that outlives boots; empty if it has none."""
    try:
        return _MACHINE_ID.read_text().strip()
    except OSError:
        return ""
