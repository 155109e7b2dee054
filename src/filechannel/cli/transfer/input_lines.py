"""Reads the lines of an input as they arrive, without waiting for a full buffer."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple, final

from ..ui.failures import USAGE, Failure

_CHUNK: Final = 1 << 20


class Line(NamedTuple):
    """A line without its line break, otherwise unchanged."""

    number: int
    """Counted from 1."""
    text: bytes


@final
class Lines:
    """The lines of an open file, in groups of those that are available at once."""

    def __init__(self, descriptor: int, size: int | None) -> None:
        self._descriptor = descriptor
        self.size = size
        """The size of the input in bytes; None if it is unknown."""
        self.is_typed: bool = os.isatty(descriptor)
        """Whether the input is a terminal."""
        self.position: int = 0
        """How many bytes were read."""
        self._number = 0
        self._groups = self._read()

    def __iter__(self) -> Iterator[list[Line]]:
        """Return groups of lines until the end of the input."""
        return self._groups

    def take_first(self, is_wanted: Callable[[bytes], bool]) -> bytes | None:
        """Return and remove the first line if *is_wanted* accepts it; None otherwise."""
        group = next(self._groups, list[Line]())
        wanted = group[0].text if group and is_wanted(group[0].text) else None
        self._groups = chain([group if wanted is None else group[1:]], self._groups)
        return wanted

    def _read(self) -> Iterator[list[Line]]:
        partial: list[bytes] = []
        while chunk := os.read(self._descriptor, _CHUNK):
            self.position += len(chunk)
            first, *rest = chunk.split(b"\n")
            partial.append(first)
            if rest:
                found = [b"".join(partial), *rest[:-1]]
                partial = [rest[-1]]
                yield self._numbered(found)
        if last := b"".join(partial):
            yield self._numbered([last])

    def _numbered(self, texts: list[bytes]) -> list[Line]:
        first = self._number + 1
        self._number += len(texts)
        return [Line(number, text) for number, text in enumerate(texts, first)]

    def rest(self) -> bytes:
        """Return the whole input, unchanged."""
        parts: list[bytes] = []
        while chunk := os.read(self._descriptor, _CHUNK):
            parts.append(chunk)
        return b"".join(parts)


@contextmanager
def opened_lines(path: Path | None) -> Generator[Lines]:
    """Open a file; stdin if the path is None or `-`.

    The main thread reads it, so that Ctrl-C interrupts a read; another thread would keep waiting.
    """
    if path is None or str(path) == "-":
        yield Lines(sys.stdin.fileno(), _size(sys.stdin.fileno()))
        return
    if path.is_dir():
        raise Failure(f"{path} is a directory", USAGE)
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield Lines(descriptor, _size(descriptor))
    finally:
        os.close(descriptor)


def _size(descriptor: int) -> int | None:
    status = os.fstat(descriptor)
    return status.st_size if stat.S_ISREG(status.st_mode) else None
