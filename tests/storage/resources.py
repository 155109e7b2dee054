"""What a process holds of the kernel's."""

from __future__ import annotations

import gc
import os
from pathlib import Path


def descriptors() -> int:
    """Return how many files this process has open, without those nobody uses any more."""
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


def maps_under(path: Path) -> int:
    """Return how many maps of files below a directory this process has, without those nobody uses any more."""
    gc.collect()
    return Path("/proc/self/maps").read_text().count(f"{path}/")
