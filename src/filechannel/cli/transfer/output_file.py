"""Files that commands make: complete under their name, or not there.

They are made beside their place, under a name that only we give, and locked meanwhile. The kernel frees the lock of
whoever is killed, so the next one who makes the same file finds what it left, and removes it.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from .failures import USAGE, Failure


@contextmanager
def replacing(path: Path, *, force: bool) -> Generator[Path]:
    """Let the block fill a file under another name, and give it its own when it is on disk; on an error it goes.

    A file that is there is replaced only with *force*.
    """
    if path.is_dir():
        raise Failure(f"{path} is a directory", USAGE)
    sweep(path)
    if not force and path.exists():
        raise Failure(f"{path} is there already: give --force to replace it", USAGE)
    with drafting(path, _touch) as draft:
        yield draft
        flush(draft)
        if force:
            os.replace(draft, path)
        else:
            _name(draft, path)
        flush(path.parent)


def _touch(draft: Path) -> None:
    draft.touch(exist_ok=False)


def _name(draft: Path, path: Path) -> None:
    """Give a file its name, unless somebody else was faster."""
    try:
        os.link(draft, path)
    except FileExistsError:
        raise Failure(f"{path} is there by now: give --force to replace it", USAGE) from None


@contextmanager
def drafting(path: Path, make: Callable[[Path], object]) -> Generator[Path]:
    """Make a file or directory beside a path for the block, which gives it its name; what has none then is removed."""
    names = list[Path]()
    lock = -1
    try:
        lock = _make_draft(path, make, names)
        yield names[-1]
    finally:
        for draft in names:
            _remove(draft)
        if lock >= 0:
            os.close(lock)


def _make_draft(path: Path, make: Callable[[Path], object], names: list[Path]) -> int:
    """Make a draft and return its lock. It is noted before it is made: Ctrl-C may come in between."""
    while True:
        draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
        names.append(draft)
        try:
            make(draft)
        except OSError as error:
            raise type(error)(error.errno, error.strerror, str(path)) from error  # nobody knows the other name
        with suppress(FileNotFoundError):
            lock = os.open(draft, os.O_RDONLY)
            with suppress(OSError):  # a file system without locks, on which nobody sweeps
                fcntl.flock(lock, fcntl.LOCK_EX)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.stat(draft), os.fstat(lock)):
                    return lock
            os.close(lock)  # swept in the moment in which it had no owner yet


def sweep(path: Path) -> None:
    """Remove what others left who were killed while they made the same."""
    ours = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{8}}\.part")
    with suppress(OSError):  # that is for whoever makes something there
        for name in os.listdir(path.parent):
            if ours.fullmatch(name):
                _remove_unowned(path.with_name(name))


def _remove_unowned(draft: Path) -> None:
    with suppress(OSError):  # it has an owner, or is not ours
        lock = os.open(draft, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(draft)
        finally:
            os.close(lock)


def _remove(draft: Path) -> None:
    if draft.is_dir():
        shutil.rmtree(draft, ignore_errors=True)
    else:
        draft.unlink(missing_ok=True)


def flush(path: Path) -> None:
    """Wait until a file, or the names in a directory, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
