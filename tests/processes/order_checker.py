"""Messages that name their sender, order and batch, and a checker of all that."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from random import Random
from struct import Struct
from typing import NamedTuple

from filechannel._format import load_u64, store_u64

_HEADER = Struct("<IIII")
_SIZES = (1, 1, 1, 2, 5, 30)


class Message(NamedTuple):
    """What a message says about itself."""

    writer: int
    number: int
    """Counts what this writer sends."""
    index: int
    """Its index in its batch."""
    size: int
    """Of the batch."""

    def pack(self, padding: int = 0) -> bytes:
        """Return the payload."""
        return _HEADER.pack(*self) + b"." * padding

    @classmethod
    def unpack(cls, payload: bytes) -> Message:
        """Read a payload."""
        assert payload[_HEADER.size :].strip(b".") == b"", f"not a message of ours: {payload!r}"
        return cls(*_HEADER.unpack_from(payload))


def batches(writer: int, random: Random, first: int = 0, stop: int | None = None) -> Iterator[list[bytes]]:
    """Yield what a writer sends: single messages and batches, of any length."""
    number = first
    while stop is None or number < stop:
        size = random.choice(_SIZES)
        size = size if stop is None else min(size, stop - number)
        yield [Message(writer, number + index, index, size).pack(random.randrange(100)) for index in range(size)]
        number += size


class OrderChecker:
    """Checks every message of a channel in order."""

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        """How many messages of each writer there were."""
        self.total = 0
        self._digest = blake2b(digest_size=16)
        self._expected: Message | None = None
        self._seen_since: set[int] | None = None

    def skip(self) -> None:
        """Accept that whole batches are missing here, of any writer."""
        self._seen_since = set()
        self._expected = None

    def add(self, payload: bytes) -> None:
        """Take one down; nothing may be missing, doubled, out of order or in the middle of another's batch."""
        message = Message.unpack(payload)
        expected = self.counts.get(message.writer, 0)
        if self._seen_since is not None and message.writer not in self._seen_since:
            assert message.number >= expected, f"{message} after {expected} of that writer"
            self._seen_since.add(message.writer)
            expected = message.number
        assert message.number == expected, f"{message} after {expected} of that writer"
        assert message.index == 0 if self._expected is None else message == self._expected, (
            f"{message} in place of {self._expected or 'a new batch'}"
        )
        self.counts[message.writer] = expected + 1
        self.total += 1
        self._digest.update(payload)
        last = message.index + 1 == message.size
        self._expected = None if last else message._replace(number=message.number + 1, index=message.index + 1)

    @property
    def digest(self) -> str:
        """What is the same for two ledgers if and only if they are."""
        assert self._expected is None, f"half a batch: {self._expected} is missing"
        return self._digest.hexdigest()


class Accepted:
    """How many of its messages a writer knows to be sent, in memory that outlives it."""

    def __init__(self, directory: Path, writer: int) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(directory / f"{writer}", os.O_RDWR | os.O_CREAT)
        os.ftruncate(descriptor, mmap.PAGESIZE)
        self._word = mmap.mmap(descriptor, mmap.PAGESIZE)
        os.close(descriptor)

    @property
    def count(self) -> int:
        """How many."""
        return load_u64(self._word, 0)

    @count.setter
    def count(self, count: int) -> None:
        store_u64(self._word, 0, count)
