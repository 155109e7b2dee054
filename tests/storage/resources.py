"""What a process holds of the kernel's."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def descriptors_under(path: Path) -> int:
    """Return how many files at or below a path this process has open, without unreferenced ones.

    Only there: threads that other tests left behind open and close their own files.
    """
    gc.collect()
    return sum(target == str(path) or target.startswith(f"{path}/") for target in _open_files())


def files_under(directory: Path) -> int:
    """Return the same without the directory itself."""
    gc.collect()
    return sum(target.startswith(f"{directory}/") for target in _open_files())


def _open_files() -> Iterator[str]:
    """Yield the names of open files; of a deleted file it is the name it had."""
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # closed since it was listed, like the listing itself
            yield os.readlink(f"/proc/self/fd/{descriptor}")


def maps_under(path: Path) -> int:
    """Return how many maps of files below a directory this process has, without unreferenced ones."""
    gc.collect()
    return Path("/proc/self/maps").read_text().count(f"{path}/")


def held_under(path: Path) -> list[str]:
    """Return what this process has open or mapped at or below a path, nothing collected before."""
    maps = [line.split(maxsplit=5)[-1] for line in Path("/proc/self/maps").read_text().splitlines()]
    return [target for target in (*_open_files(), *maps) if target == str(path) or target.startswith(f"{path}/")]
