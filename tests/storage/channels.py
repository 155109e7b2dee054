"""Opening stores without the typed objects above them, and reading them out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, NoReturn

from filechannel import ChannelOptions
from filechannel._format import NOTHING
from filechannel._offset import LogPosition
from filechannel._storage import open_directory as opening
from filechannel._storage.consumers.cursor import Cursor
from filechannel._storage.manifest import Manifest
from filechannel._storage.reading.log_reader import LogReader
from filechannel._storage.store import Store
from filechannel._storage.system.os_calls import Files

SMALL = ChannelOptions(segment_size=4096)
"""Segments of one page: everything that happens at their ends happens often."""


class Message(NamedTuple):
    """One message as it was read."""

    payload: bytes
    offset: int
    sequence: int


def open_store(
    path: Path,
    options: ChannelOptions = SMALL,
    *,
    files: Files | None = None,
    readonly: bool = False,
    create: bool = True,
    mapped: int = 8,
) -> Store:
    """Open a directory as a channel of raw bytes."""
    return opening.open_store(
        files or Files(),
        path,
        check=lambda _: None,
        new=(lambda: Manifest.new("machine", "raw", None, options.resolve())) if create else None,
        readonly=readonly,
        max_mapped_segments=mapped,
        wanted=lambda: True,
    )


@contextmanager
def opened(
    path: Path,
    options: ChannelOptions = SMALL,
    *,
    files: Files | None = None,
    readonly: bool = False,
    create: bool = True,
    mapped: int = 8,
) -> Iterator[Store]:
    """The same for a `with` block, which closes it."""
    store = open_store(path, options, files=files, readonly=readonly, create=create, mapped=mapped)
    try:
        yield store
    finally:
        store.close()


def _refuse(_offset: int, _next: int, _payload: bytes, error: Exception) -> NoReturn:
    raise error


def reader_of(
    store: Store, cursor: Cursor | None = None, *, skip: bool = False, stop: LogPosition | None = None
) -> LogReader:
    """Return a reader of raw bytes; it stands nowhere yet."""
    options = ChannelOptions(on_corruption="skip" if skip else "raise").per_open()
    return store.reader(cursor, None, _refuse, options, reuse=False, stop=stop)


def take_all(reader: LogReader) -> list[Message]:
    """Read to the end."""
    messages: list[Message] = []
    while (record := reader.native.take_record()) is not NOTHING:
        messages.append(Message(*record))
    return messages


def read_all(store: Store, *, start: LogPosition | None = None, skip: bool = False) -> list[Message]:
    """Read everything from the oldest message on."""
    reader = reader_of(store, skip=skip)
    try:
        reader.move(start or store.lookup.earliest())
        return take_all(reader)
    finally:
        reader.close()


def payloads_of(store: Store, *, skip: bool = False) -> list[bytes]:
    """Read every payload from the oldest message on."""
    return [message.payload for message in read_all(store, skip=skip)]
