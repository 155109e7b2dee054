"""Other users: a child of a test that has dropped its rights, and what it may do to the files of a channel."""

from __future__ import annotations

import fcntl
import os
import pickle
import stat
import struct
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from tests.storage.forks import Fork

T = TypeVar("T")

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
GROUP = 54321
"""A group of no user in particular."""
READER, WRITER = 65534, 65533
"""Two users, neither of them root."""


def become(user: int, group: int = GROUP) -> None:
    """Drop the rights of root for good."""
    os.setgroups([])
    os.setresgid(group, group, group)
    os.setresuid(user, user, user)


def share_with_group(directory: Path) -> None:
    """Let what is made in a directory belong to the group, and let every user look into its parents."""
    os.chown(directory, -1, GROUP)
    directory.chmod(0o2775)
    directory.parent.chmod(0o755)


def run_as(user: int, work: Callable[[], T], group: int = GROUP) -> T:
    """Return what another user gets, or raise what it gets."""
    read, write = os.pipe()

    def report() -> object:
        become(user, group)
        try:
            result: tuple[bool, object] = True, work()
        except BaseException as error:
            result = False, error
        with open(write, "wb") as pipe:
            pipe.write(pickle.dumps(result))
        return None

    child = Fork(report)
    os.close(write)
    with open(read, "rb") as pipe:
        succeeded, value = pickle.load(pipe)
    child.end()
    if not succeeded:
        raise value
    return value  # type: ignore[no-any-return]


def locking_everything(channel: Path, user: int = READER) -> Fork:
    """Start a process of a user that locks every file that it can open, in every way that it can."""

    def lock() -> object:
        become(user)
        found = [path for path in channel.rglob("*") if not path.is_dir()]
        held = [_lock(path) for path in found if os.access(path, os.R_OK)]
        assert len(held) >= 3, found
        return held

    return Fork(lock)


def _lock(path: Path) -> int:
    """Hold locks of all kinds on a file, on as much of it as the kernel grants."""
    assert stat.S_ISREG(path.stat().st_mode), f"{path} can be read"
    descriptor = os.open(path, os.O_RDONLY)
    if not _locked(descriptor, 0, 0):
        for position in range(0, 1 << 17, 64):  # a part is locked by its owner
            _locked(descriptor, position, 64)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return descriptor


def _locked(descriptor: int, position: int, size: int) -> bool:
    """Try to lock a part of a file exclusively, and then shared; return whether it is locked."""
    for kind in (fcntl.F_WRLCK, fcntl.F_RDLCK):
        try:
            question = struct.pack("hhqqi", kind, os.SEEK_SET, position, size, 0)
            fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, question)
        except OSError:
            continue
        assert kind == fcntl.F_RDLCK, "an exclusive lock needs the right to write"
        return True
    return False
