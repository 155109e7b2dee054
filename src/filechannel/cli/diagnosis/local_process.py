"""Reads the state and limits of a local process from `/proc`."""

from __future__ import annotations

import os
import re
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import final

from ..._storage.control.lock_holder import Holder

_STOPPED = ("T", "t")
_LIMIT = re.compile(r"^Max open files +(\d+)", re.MULTILINE)


@final
@dataclass(frozen=True, slots=True)
class LocalProcess:
    """The state of a process; None where permission to read it is missing."""

    pid: int
    is_stopped: bool
    open_files: int | None
    most_open_files: int | None
    maps: int | None
    most_maps: int | None


def find_local(holder: Holder) -> LocalProcess | None:
    """Find the process of a slot; None if it runs on another machine, has ended, or cannot be identified."""
    if holder.pid is None or holder.host != socket.gethostname():
        return None
    directory = Path(f"/proc/{holder.pid}")
    status = _read(directory / "stat")
    if status is None:
        return None  # it has ended, or runs in a container
    state = status.rpartition(")")[2].split()[0]
    limit = _LIMIT.search(_read(directory / "limits") or "")
    maps, most_maps = _read(directory / "maps"), _read(Path("/proc/sys/vm/max_map_count"))
    return LocalProcess(
        pid=holder.pid,
        is_stopped=state in _STOPPED,
        open_files=_count(directory / "fd"),
        most_open_files=None if limit is None else int(limit[1]),
        maps=None if maps is None else maps.count("\n"),
        most_maps=None if most_maps is None else int(most_maps),
    )


def _read(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return None


def _count(directory: Path) -> int | None:
    try:
        return len(os.listdir(directory))
    except OSError:
        return None
