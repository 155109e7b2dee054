"""Payloads that wait in files of their own until somebody publishes them all at once, or nobody does.

`staging/<group>/<name>.rows` has payloads in parts. Each has a head, the length of each payload, and then all of them.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import struct
import time
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Final, final

from .._errors import StorageError
from .._format import crc32c
from .files import Files, directory_mode

STAGING: Final = "staging"
_PART: Final = struct.Struct("<IQI")
"""How many payloads, how many bytes follow, and their CRC."""
_LIST: Final = "list.json"
_FORGOTTEN: Final = 24 * 3600.0  # seconds


@final
@dataclass(frozen=True, slots=True)
class Staged:
    """A file with payloads: enough to find it again, and to see that it is whole."""

    group: str
    name: str
    count: int
    """How many payloads."""
    length: int
    """How many bytes they have together."""
    size: int
    """How many bytes the file has."""


@final
class Staging:
    """The files of one group, which are published or removed together."""

    def __init__(self, files: Files, channel: Path, group: str, mode: int) -> None:
        """The group has only what a file name may have."""
        self._files = files
        self._directory = channel / STAGING / group
        self._group = group
        self._mode = mode

    def write(self, parts: Iterable[list[bytes]]) -> Staged:
        """Write payloads to a file that is theirs alone."""
        self._files.make_directory(self._directory.parent, directory_mode(self._mode))
        self._files.make_directory(self._directory, directory_mode(self._mode))
        name = f"{secrets.token_hex(12)}.rows"
        descriptor = self._files.open(self._directory / name, create=True, mode=self._mode)
        count = length = size = 0
        try:
            for part in filter(None, parts):
                content = _packed(part)
                self._files.write_at(descriptor, content, size)
                count, length, size = count + len(part), length + sum(map(len, part)), size + len(content)
        except BaseException:
            self._files.unlink(self._directory / name)
            raise
        finally:
            self._files.close(descriptor)
        return Staged(self._group, name, count, length, size)

    def read(self, staged: Staged) -> Iterator[list[bytes]]:
        """Return the payloads of a file, part by part; `StorageError` if it is gone or has changed."""
        path = self._directory / staged.name
        try:
            descriptor = self._files.open(path, writable=False)
        except FileNotFoundError:
            raise StorageError(f"{path} was removed before it was published; nothing was sent") from None
        try:
            if self._files.size(descriptor) != staged.size:
                raise StorageError(f"{path} is not what was written; nothing was sent")
            position = 0
            while position < staged.size:
                head = self._files.read_at(descriptor, _PART.size, position)
                count, size, crc = _PART.unpack(head)
                content = self._files.read_at(descriptor, size, position + _PART.size)
                if crc32c(content) != crc:
                    raise StorageError(f"{path} is not what was written; nothing was sent")
                yield _unpacked(content, count)
                position += _PART.size + size
        finally:
            self._files.close(descriptor)

    def list_for_later(self, staged: Iterable[Staged]) -> None:
        """Write down which files there are, in which order, for whoever calls `listed`."""
        content = json.dumps([asdict(each) for each in staged]).encode()
        self._files.make_directory(self._directory.parent, directory_mode(self._mode))
        self._files.make_directory(self._directory, directory_mode(self._mode))
        self._files.write_atomically(self._directory / _LIST, content, self._mode)

    def listed(self) -> list[Staged]:
        """Return what was written down."""
        return [Staged(**each) for each in json.loads(self._files.read(self._directory / _LIST))]

    def sweep(self) -> None:
        """Remove the whole group, and what others have left for a day."""
        shutil.rmtree(self._directory, ignore_errors=True)
        for name in self._files.list(self._directory.parent):
            other = self._directory.parent / name
            if _last_change(other) < time.time() - _FORGOTTEN:
                shutil.rmtree(other, ignore_errors=True)
        try:
            os.rmdir(self._directory.parent)
        except OSError:
            pass  # others are at it


def _packed(payloads: list[bytes]) -> bytes:
    content = b"".join([array("I", map(len, payloads)).tobytes(), *payloads])
    return _PART.pack(len(payloads), len(content), crc32c(content)) + content


def _unpacked(content: bytes, count: int) -> list[bytes]:
    ends = accumulate(array("I", content[: 4 * count]), initial=4 * count)
    return [content[start:stop] for start, stop in pairwise(ends)]


def _last_change(directory: Path) -> float:
    """Return when something was last written in a directory; now if that cannot be said."""
    try:
        return max(path.stat().st_mtime for path in (directory, *directory.iterdir()))
    except OSError:
        return time.time()
