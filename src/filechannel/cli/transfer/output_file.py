"""Creates output files atomically: a file is complete under its name, or does not exist.

A file is first written next to its destination under a reserved temporary name (a draft), and locked. The kernel
releases the lock of a killed process, so the next process that creates the same file finds the draft and deletes it.
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

from ..ui.failures import USAGE, Failure


@contextmanager
def replacing(path: Path, *, force: bool) -> Generator[Path]:
    """Yield a draft for the block to fill, then flush and rename it. The draft is deleted on an error.

    An existing file is replaced only with *force*.
    """
    if path.is_dir():
        raise Failure(f"{path} is a directory", USAGE)
    if path.exists() and not path.is_file():  # a rename would replace a device such as /dev/null for the whole system
        raise Failure(f"{path} is not a regular file: name another one, or leave it out to write to stdout", USAGE)
    if not path.parent.exists():
        raise Failure(f"there is not a directory {path.parent} for {path.name}: create it, or check the path", USAGE)
    sweep(path)
    if not force and path.exists():
        raise Failure(f"{path} exists: add --force to replace it", USAGE)
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
    """Give a draft its final name. Raise `Failure` if another process created the file first."""
    try:
        os.link(draft, path)
    except FileExistsError:
        raise Failure(f"{path} was created by another process: add --force to replace it", USAGE) from None


@contextmanager
def drafting(path: Path, make: Callable[[Path], object]) -> Generator[Path]:
    """Create a draft file or directory next to a path. The block renames it; if it did not, the draft is deleted."""
    names = list[Path]()
    lock = -1
    try:
        lock = _make_draft(path, make, names)
        yield names[-1]
    finally:
        for draft in names:
            with suppress(OSError):  # the error that ended the block matters more; the next command sweeps
                _remove(draft)
        if lock >= 0:
            os.close(lock)


def _make_draft(path: Path, make: Callable[[Path], object], names: list[Path]) -> int:
    """Create a draft and return its lock. The name is recorded first, because Ctrl-C may come in between."""
    while True:
        draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
        names.append(draft)
        try:
            make(draft)
        except OSError as error:
            raise type(error)(error.errno, error.strerror, str(path)) from error  # not the temporary name
        with suppress(FileNotFoundError):
            lock = os.open(draft, os.O_RDONLY)
            with suppress(OSError):  # a file system without locks, on which no process sweeps
                fcntl.flock(lock, fcntl.LOCK_EX)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.stat(draft), os.fstat(lock)):
                    return lock
            os.close(lock)  # another process swept it before it was locked


def sweep(path: Path) -> None:
    """Delete drafts for the same path that killed processes left behind."""
    ours = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{8}}\.part")
    with suppress(OSError):  # creating a file there reports the error
        for name in os.listdir(path.parent):
            if ours.fullmatch(name):
                _remove_unowned(path.with_name(name))


def _remove_unowned(draft: Path) -> None:
    with suppress(OSError):  # it is locked, or not a draft
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
    """Wait until a file, or the entries of a directory, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
