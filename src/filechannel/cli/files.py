"""Files that commands make: complete under their name, or not there."""

from __future__ import annotations

import os
import secrets
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from .failures import USAGE, Failure


@contextmanager
def replacing(path: Path, *, force: bool) -> Generator[Path]:
    """Let the block write a file under another name, and give it its own when it is on disk; on an error it goes.

    A file that is there is replaced only with *force*.
    """
    if not force and path.exists():
        raise Failure(f"{path} is there already: give --force to replace it", USAGE)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        yield draft
        flush(draft)
        if force:
            os.replace(draft, path)
        else:
            _name(draft, path)
        flush(path.parent)
    finally:
        with suppress(FileNotFoundError):
            draft.unlink()


def _name(draft: Path, path: Path) -> None:
    """Give a file its name, unless somebody else was faster."""
    try:
        os.link(draft, path)
    except FileExistsError:
        raise Failure(f"{path} is there by now: give --force to replace it", USAGE) from None


def flush(path: Path) -> None:
    """Wait until a file, or the names in a directory, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
