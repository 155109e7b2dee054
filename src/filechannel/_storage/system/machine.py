"""The ids of the current boot and of the machine. Data that was not flushed survives only within one boot."""

from __future__ import annotations

from functools import cache
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_MACHINE_ID = Path("/etc/machine-id")
_LONGEST = 100  # bytes; an id of either kind has 37 at most


@cache  # a process never lives longer than its boot
def boot_id() -> bytes:
    """Return 16 bytes that change with every boot."""
    return bytes.fromhex(_content(_BOOT_ID).decode().replace("-", ""))


def machine_id() -> str:
    """Return an id of this machine that stays the same across boots; empty if it has none."""
    try:
        return _content(_MACHINE_ID).decode().strip()
    except OSError:
        return ""


def _content(path: Path) -> bytes:
    with path.open("rb", buffering=0) as file:
        return file.read(_LONGEST)
