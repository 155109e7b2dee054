"""Messages that wait in files of their own until somebody publishes them all at once, or nobody does.

`staging/<group>/<name>.rows` has messages in parts. Each has a head, and the messages as records of a log that begins
with them: to be published, they only have to be moved to their place.
"""

from __future__ import annotations

import json
import re
import secrets
import struct
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, final

from .._errors import StorageError
from .._format import split_records
from .._format.layout import RECORD_HEADER_SIZE
from .files import Files, directory_mode
from .parts import Records

STAGING: Final = "staging"
_PART: Final = struct.Struct("<QQ")
"""How many messages, and how many bytes their records have, which follow."""
_LIST: Final = "list.json"
_NAME: Final = re.compile("[0-9a-f]{24}[.]rows")
_LIST_LIMIT: Final = 64 << 20
"""How many bytes a list may have: some hundred for each task."""
_PART_LIMIT: Final = 2 << 30
"""How many bytes a part may have: as many as a column of Arrow."""
_FORGOTTEN: Final = 24 * 3600.0  # seconds


@final
@dataclass(frozen=True, slots=True)
class Staged:
    """A file with messages: enough to find it again, and to see that it is whole."""

    group: str
    name: str
    count: int
    """How many messages."""
    length: int
    """How many bytes their payloads have together."""
    size: int
    """How many bytes the file has."""


@final
class Staging:
    """The files of one group, which are published or removed together."""

    def __init__(self, files: Files, channel: Path, group: str, mode: int) -> None:
        """The group has only what a file name may have."""
        files.confine(channel)
        self.channel: Path = channel
        self._files = files
        self._directory = channel / STAGING / group
        self._group = group
        self._mode = mode

    def write(self, parts: Iterable[Records]) -> Staged:
        """Write messages to a file that is theirs alone."""
        self._make_directories()
        name = f"{secrets.token_hex(12)}.rows"
        descriptor = self._files.create(self._directory / name, self._mode)
        count = length = size = 0
        try:
            for part in parts:
                if part.count:
                    head = _PART.pack(part.count, len(part.content))
                    self._files.write_at(descriptor, head, size)
                    self._files.write_at(descriptor, part.content, size + len(head))
                    count, size = count + part.count, size + len(head) + len(part.content)
                    length += len(part.content) - RECORD_HEADER_SIZE * part.count
        except BaseException:
            self._files.unlink(self._directory / name)
            raise
        finally:
            self._files.close(descriptor)
        return Staged(self._group, name, count, length, size)

    def has(self, staged: Staged) -> bool:
        """Return whether the file is there."""
        return staged.name in self._files.list(self._directory)

    def _make_directories(self) -> None:
        for directory in (self._directory.parent, self._directory):
            self._files.make_directory(directory, directory_mode(self._mode))

    def read(self, staged: Staged) -> Iterator[Records]:
        """Return the messages of a file, part by part; `StorageError` if it is gone, or is not as long as it was.

        Whether a record is what was written is seen by whoever takes it up.
        """
        path = self._directory / staged.name
        try:
            descriptor = self._files.open(path, writable=False)
        except FileNotFoundError:
            raise StorageError(f"{path} was removed before it was published; nothing was sent") from None
        try:
            if self._files.size(descriptor) != staged.size:
                raise self._damaged(staged)
            position = 0
            while position < staged.size:
                head = self._files.read_at(descriptor, _PART.size, position)
                count, size = _PART.unpack(head.ljust(_PART.size, b"\0"))
                if not 0 < size <= min(staged.size - position, _PART_LIMIT):
                    raise self._damaged(staged)
                content = self._files.read_at(descriptor, size, position + _PART.size)
                if not count or len(content) != size:
                    raise self._damaged(staged)
                yield Records(count, content)
                position += _PART.size + size
        finally:
            self._files.close(descriptor)

    def take(self, staged: Staged) -> Iterator[Records]:
        """Like `read`, and remove the file at its end: what is written next gets its memory, and needs no other.

        For whoever publishes. If that fails, nobody asks for the file again: the batch is staged anew.
        """
        yield from self.read(staged)
        self._files.unlink(self._directory / staged.name)

    def payloads(self, staged: Staged) -> Iterator[list[bytes]]:
        """Return the payloads of a file, part by part; `StorageError` if it is gone or has changed."""
        for part in self.read(staged):
            try:
                yield split_records(part.content)
            except ValueError:
                raise self._damaged(staged) from None

    def _damaged(self, staged: Staged) -> StorageError:
        return StorageError(f"{self._directory / staged.name} is not what was written; nothing was sent")

    def list_for_later(self, staged: Iterable[Staged]) -> None:
        """Write down which files there are, in which order, for whoever calls `listed`."""
        content = json.dumps([asdict(each) for each in staged]).encode()
        self._make_directories()
        self._files.write_atomically(self._directory / _LIST, content, self._mode)

    def listed(self) -> list[Staged]:
        """Return what was written down; `StorageError` if it names anything but files of this group."""
        path = self._directory / _LIST
        content = self._files.read(path, _LIST_LIMIT + 1)
        try:
            if len(content) > _LIST_LIMIT:
                raise ValueError("too long")
            return [self._staged(each) for each in json.loads(content)]
        except (ValueError, TypeError, RecursionError) as error:
            raise StorageError(f"{path} is not what was written ({error}); nothing was sent") from error

    def _staged(self, fields: dict[str, object]) -> Staged:
        """Return what a list says of a file; `TypeError` or `ValueError` if it is not a file of this group."""
        staged = Staged(**fields)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        numbers = (staged.count, staged.length, staged.size)
        if any(type(number) is not int or number < 0 for number in numbers) or staged.group != self._group:
            raise ValueError("not a file of this group")
        if _NAME.fullmatch(staged.name) is None:  # it leads nowhere else
            raise ValueError("not the name of a file")
        return staged

    def sweep(self) -> None:
        """Remove the whole group, and what others have left for a day."""
        self._files.remove_tree(self._directory)
        for name in self._files.list(self._directory.parent):
            other = self._directory.parent / name
            if self._last_change(other) < time.time() - _FORGOTTEN:
                self._files.remove_tree(other)
        self._files.remove_if_empty(self._directory.parent)  # unless others are at it

    def _last_change(self, directory: Path) -> float:
        """Return when something was last written in a directory; now if that is not known."""
        try:
            inside = [directory / name for name in self._files.list(directory)]
            return max(self._files.changed_at(path) for path in (directory, *inside))
        except OSError:
            return time.time()
