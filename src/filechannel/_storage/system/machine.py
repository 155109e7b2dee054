"""Which boot of which machine this is: what was not flushed is there only within one boot."""

from __future__ import annotations

from functools import cache
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_MACHINE_ID = Path("/etc/machine-id")
_LONGEST = 100  # bytes; an id of either kind has 37 at most


@cache  # no process outlives its boot
def boot_id() -> bytes:
    """Return 16 bytes that change with every boot."""
    return bytes.fromhex(_content(_BOOT_ID).decode().replace("-", ""))


def machine_id() -> str:
    """Return a name for this machine that outlives boots; empty if it has none."""
    try:
        return _content(_MACHINE_ID).decode().strip()
    except OSError:
        return ""


def _content(path: Path) -> bytes:
    with path.open("rb", buffering=0) as file:
        return file.read(_LONGEST)
