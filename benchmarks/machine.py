"""Describes the machine on which the figures were measured."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path

from filechannel._format import PURE

from .harness import Bench


def describe(bench: Bench) -> list[str]:
    """Return one line per property, without names or paths of this machine."""
    return [
        f"{_cpu()}, {len(os.sched_getaffinity(0))} cores",
        f"{platform.system()} {platform.release().split('-')[0]}",
        f"{platform.python_implementation()} {platform.python_version()}",
        f"filechannel {version('filechannel')} on its {'pure-Python implementation' if PURE else 'native core'}",
        f"msgspec {version('msgspec')}, anyio {version('anyio')}",
        *(f"{package} {version}" for package, version in bench.peers.items() if version is not None),
        f"channels on {file_system(bench.memory)}, FSYNC on {file_system(bench.disk)}",
    ]


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def file_system(path: Path) -> str:
    """Return the type of the file system of a path."""
    place, found = path.resolve(), ("", "an unknown file system")
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, mount, kind, *_ = line.split()
        mount = mount.replace("\\040", " ")
        if place.is_relative_to(mount) and len(mount) >= len(found[0]):
            found = mount, kind
    return found[1]
