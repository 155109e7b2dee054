"""The file system interface in a child: its calls are recorded, or the process is killed before one of them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

from filechannel._storage import open_stores
from filechannel._storage.system.os_calls import Files

Hook = Callable[[str, str], object]
"""Called before a call, with its name and the file it is about."""

CHANGING = (
    *("make_directory", "make", "open", "create", "write_at", "grow", "allocate", "map", "make_fifo", "open_fifo"),
    *("flush", "flush_directory", "flush_names", "replace", "unlink", "lock", "unlock"),
)


class HookedFiles(Files):
    """The real file system, with a hook before each call."""

    def __init__(self, hook: Hook) -> None:
        self.hook = hook


def _hooked(name: str) -> Callable[..., object]:
    def method(self: HookedFiles, *arguments: object, **options: object) -> object:
        self.hook(name, _name_of(arguments[0]))
        return getattr(Files, name)(self, *arguments, **options)

    return method


for _name in CHANGING:
    setattr(HookedFiles, _name, _hooked(_name))


def _name_of(where: object) -> str:
    if isinstance(where, int):
        return Path(f"/proc/self/fd/{where}").readlink().name
    assert isinstance(where, Path)
    return where.name


def use_files(files: Files) -> None:
    """Let every channel that this process opens from now on use *files*."""
    open_stores.Files = lambda: files  # type: ignore[assignment,misc]


def hooked(hook: Hook) -> HookedFiles:
    """Install a hook for the files of this process."""
    files = HookedFiles(hook)
    use_files(files)
    return files


def die() -> None:
    """Be killed, here and now."""
    os.kill(os.getpid(), signal.SIGKILL)


def stop_here() -> None:
    """Stop this process until it gets SIGCONT."""
    os.kill(os.getpid(), signal.SIGSTOP)
