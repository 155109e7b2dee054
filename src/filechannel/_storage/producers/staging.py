"""Messages in files of their own, which wait until they are published together or removed.

`staging/<group>/<name>.rows` contains messages in parts. Each part has a header, followed by the messages as records of
a log that begins with them: to publish them, they only have to be copied to their offset.
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

from ..._errors import StorageError
from ..._format import split_records
from ..._format.layout import RECORD_HEADER_SIZE
from ..log.batch_parts import Records
from ..system.os_calls import Files, directory_mode

STAGING: Final = "staging"
_PART: Final = struct.Struct("<QQ")
"""The number of messages, and the size of their records, which follow."""
_LIST: Final = "list.json"
_NAME: Final = re.compile("[0-9a-f]{24}[.]rows")
_LIST_LIMIT: Final = 64 << 20
"""The maximum size of a list; an entry has some hundred bytes per task."""
_PART_LIMIT: Final = 2 << 30
"""The maximum size of a part; that of an Arrow column."""
_ABANDONED_AFTER: Final = 24 * 3600.0  # seconds


@final
@dataclass(frozen=True, slots=True)
class Staged:
    """A file with staged messages: what is needed to find it, and to check that it is complete."""

    group: str
    name: str
    count: int
    """The number of messages."""
    length: int
    """The total size of their payloads."""
    size: int
    """The size of the file."""


@final
class Staging:
    """The files of one group, which are published or removed together."""

    def __init__(self, files: Files, channel: Path, group: str, mode: int) -> None:
        """The group must be a valid file name."""
        files.confine(channel)
        self.channel: Path = channel
        self._files = files
        self._directory = channel / STAGING / group
        self._group = group
        self._mode = mode

    def write(self, parts: Iterable[Records]) -> Staged:
        """Write messages to a new file."""
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
        """Return whether the file exists."""
        return staged.name in self._files.list(self._directory)

    def _make_directories(self) -> None:
        for directory in (self._directory.parent, self._directory):
            self._files.make_directory(directory, directory_mode(self._mode))

    def read(self, staged: Staged) -> Iterator[Records]:
        """Return the messages of a file, part by part; `StorageError` if it was removed or has another size.

        Checksums are verified when the records are appended, not here.
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

    def read_and_remove(self, staged: Staged) -> Iterator[Records]:
        """Like `read`, but remove the file at its end, which frees its page cache for the data that is written next.

        For the process that publishes. If publishing fails, the file is not needed again: the batch is staged again.
        """
        yield from self.read(staged)
        self._files.unlink(self._directory / staged.name)

    def payloads(self, staged: Staged) -> Iterator[list[bytes]]:
        """Return the payloads of a file, part by part; `StorageError` if it was removed or has changed."""
        for part in self.read(staged):
            try:
                yield split_records(part.content)
            except ValueError:
                raise self._damaged(staged) from None

    def _damaged(self, staged: Staged) -> StorageError:
        return StorageError(f"{self._directory / staged.name} was changed after it was written; nothing was sent")

    def list_for_later(self, staged: Iterable[Staged]) -> None:
        """Store which files there are, and in which order, for a later call of `listed`."""
        content = json.dumps([asdict(each) for each in staged]).encode()
        self._make_directories()
        self._files.write_atomically(self._directory / _LIST, content, self._mode)

    def listed(self) -> list[Staged]:
        """Return the stored list; `StorageError` if it names anything but files of this group."""
        path = self._directory / _LIST
        content = self._files.read(path, _LIST_LIMIT + 1)
        try:
            if len(content) > _LIST_LIMIT:
                raise ValueError("too long")
            return [self._staged(each) for each in json.loads(content)]
        except (ValueError, TypeError, RecursionError) as error:
            raise StorageError(f"{path} was changed after it was written ({error}); nothing was sent") from error

    def _staged(self, fields: dict[str, object]) -> Staged:
        """Return an entry of a list; `TypeError` or `ValueError` if it is not a file of this group."""
        staged = Staged(**fields)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        numbers = (staged.count, staged.length, staged.size)
        if any(type(number) is not int or number < 0 for number in numbers) or staged.group != self._group:
            raise ValueError("not a file of this group")
        if _NAME.fullmatch(staged.name) is None:  # so that the name cannot lead out of the directory
            raise ValueError("not the name of a file")
        return staged

    def sweep(self) -> None:
        """Remove the whole group, and other groups that were not changed for a day."""
        self._files.remove_tree(self._directory)
        for name in self._files.list(self._directory.parent):
            other = self._directory.parent / name
            if self._last_change(other) < time.time() - _ABANDONED_AFTER:
                self._files.remove_tree(other)
        self._files.remove_if_empty(self._directory.parent)  # unless another process uses it

    def _last_change(self, directory: Path) -> float:
        """Return when something was last written in a directory; the current time if that is not known."""
        try:
            inside = [directory / name for name in self._files.list(directory)]
            return max(self._files.changed_at(path) for path in (directory, *inside))
        except OSError:
            return time.time()
