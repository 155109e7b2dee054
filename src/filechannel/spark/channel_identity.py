"""Which channel a task belongs to: what the driver planned with, compared where the task runs.

A path says nothing about that: another host may have another channel there, or the directory may have been replaced
since. The id in the manifest tells channels apart that were created, but not copies of a directory. Those have the
segments in common that were there when the copy was made; opened to write, a copy continues in a segment of its own.
So the headers of the segments that a span begins and ends in are compared, too: each has a random id.
"""

from __future__ import annotations

import socket
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self, final

from .._errors import (
    ChannelMismatchError,
    ChannelNotFoundError,
    CorruptRecordError,
    NotAChannelError,
    SchemaMismatchError,
)
from .._offset import Offset
from .._storage.segment import Header
from .._storage.spans import Span
from .._storage.store import Store


@final
@dataclass(frozen=True, slots=True)
class Part:
    """A segment that a span was planned in."""

    header: Header
    reach: Offset
    """How far its records went, or the span."""

    @classmethod
    def at(cls, store: Store, offset: Offset, stop: Offset) -> Self | None:
        """Return what has the record at an offset, or behind offsets that were never used; None if it is damaged."""
        begin = store.segments.covering(offset)
        try:
            if begin is None or store.segments.get(begin).limit <= offset:
                begin = store.segments.following(offset) if begin is None else store.segments.following(begin)
            if begin is None or begin >= stop:
                return None
            return cls(store.segments.header(begin), Offset(min(store.segments.get(begin).limit, stop)))
        except CorruptRecordError:
            return None  # reading it raises that again, after everything before it

    def check(self, store: Store) -> None:
        """Raise `ChannelMismatchError` if another segment is there, or one that ends before.

        One that is not there is left to the reader, which finds that it is missing; but not if the next one says that
        nothing was there, as in a copy that continues elsewhere.
        """
        begin, planned = store.segments.covering(self.header.begin), self.header
        try:
            if begin is not None and begin == planned.begin:
                found = store.segments.header(begin)
                if found != planned:
                    raise segment_mismatch(store, planned, f"segment {begin} of id {found.id:08x}")
                if store.segments.get(begin).limit < self.reach:
                    raise segment_mismatch(store, planned, f"a copy of it that ends before offset {self.reach}")
                return
            following = store.segments.following(planned.begin)
            is_passed = following is not None and store.segments.header(following).previous_end <= planned.begin
            if is_passed or (begin is not None and store.segments.get(begin).limit > planned.begin):
                raise segment_mismatch(store, planned, "other segments")
        except CorruptRecordError:
            pass  # as above


@final
@dataclass(frozen=True, slots=True)
class Identity:
    """The channel and the segments that a span was planned in."""

    channel: str
    """The id in the manifest."""
    parts: tuple[Part | None, Part | None]
    """The first and the last segment."""

    @classmethod
    def of(cls, store: Store, span: Span) -> Self:
        """Return what a span was planned in."""
        last = store.segments.covering(span.stop - 1)
        end = span.start if last is None else max(span.start, last)
        return cls(store.manifest.id, (Part.at(store, span.start, span.stop), Part.at(store, end, span.stop)))

    def check(self, store: Store, span: Span) -> None:
        """Raise `ChannelMismatchError` unless this store is what the span was planned in.

        What was removed since is left to the reader, which finds that it is gone.
        """
        check_channel(store.path, self.channel, store.manifest.id)
        for part in dict.fromkeys(self.parts):
            if part is not None and span.start >= store.control.oldest_offset:
                part.check(store)


@contextmanager
def naming_host() -> Generator[None]:
    """Let an error about what is at a path say on which host."""
    try:
        yield
    except (ChannelNotFoundError, NotAChannelError, SchemaMismatchError) as error:
        error.add_note(f"This is on host {socket.gethostname()}: every host must see the same directory at the path.")
        raise


def header_at(store: Store, offset: int) -> Header | None:
    """Return the header of the last segment that begins at or before an offset, if there is one and it is whole."""
    begin = store.segments.covering(offset)
    try:
        return None if begin is None else store.segments.header(begin)
    except CorruptRecordError:
        return None


def check_channel(path: Path, expected: str, found: str) -> None:
    """Raise `ChannelMismatchError` if the channel at a path is not the one that is expected there."""
    if expected != found:
        raise ChannelMismatchError(path, f"channel {expected}", f"channel {found}", socket.gethostname())


def segment_mismatch(store: Store, expected: Header, found: str) -> ChannelMismatchError:
    """Return the error for a copy of a channel that has something else in the place of a segment."""
    channel = f"channel {store.manifest.id} with"
    wanted = f"{channel} segment {expected.begin} of id {expected.id:08x}"
    return ChannelMismatchError(store.path, wanted, f"{channel} {found}", socket.gethostname())
