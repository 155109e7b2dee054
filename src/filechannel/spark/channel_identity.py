"""Checks that a task reads the same channel that the driver planned with.

A path does not identify a channel: another host may have another channel there, or the directory may have been replaced
since. The id in the manifest distinguishes channels that were created separately, but not copies of a directory. Copies
share the segments that existed when the copy was made. A copy that is opened for writing continues in a segment of its
own. Therefore the headers of the segments in which a span begins and ends are compared, too: each has a random id.
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
from .._storage.log_spans import Span
from .._storage.segments.segment import Header
from .._storage.store import Store


@final
@dataclass(frozen=True, slots=True)
class Part:
    """The segment in which a span begins or ends, as it was when the span was planned."""

    header: Header
    reach: Offset
    """The end of its records, or of the span if that is earlier."""

    @classmethod
    def at(cls, store: Store, offset: Offset, stop: Offset) -> Self | None:
        """Return the segment with the record at an offset, or after an offset gap there; None if it is damaged."""
        begin = store.segments.covering(offset)
        try:
            if begin is None or store.segments.get(begin).limit <= offset:
                begin = store.segments.following(offset) if begin is None else store.segments.following(begin)
            if begin is None or begin >= stop:
                return None
            return cls(store.segments.header(begin), Offset(min(store.segments.get(begin).limit, stop)))
        except CorruptRecordError:
            return None  # reading the segment raises this again, after all records before it

    def check(self, store: Store) -> None:
        """Raise `ChannelMismatchError` if there is another segment at this offset, or a copy that ends earlier.

        A missing segment is left to the reader, which reports it. But it is a mismatch if the next segment says that
        there never was one, as in a copy that continues elsewhere.
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
            pass  # the reader raises it, see above


@final
@dataclass(frozen=True, slots=True)
class Identity:
    """The channel and the segments in which a span was planned."""

    channel: str
    """The id in the manifest."""
    parts: tuple[Part | None, Part | None]
    """The first and the last segment."""

    @classmethod
    def of(cls, store: Store, span: Span) -> Self:
        """Return the channel and the segments of a span that is being planned."""
        last = store.segments.covering(span.stop - 1)
        end = span.start if last is None else max(span.start, last)
        return cls(store.manifest.id, (Part.at(store, span.start, span.stop), Part.at(store, end, span.stop)))

    def check(self, store: Store, span: Span) -> None:
        """Raise `ChannelMismatchError` if this is not the channel in which the span was planned.

        Segments that were removed since are left to the reader, which reports that they are missing.
        """
        check_channel(store.path, self.channel, store.manifest.id)
        for part in dict.fromkeys(self.parts):
            if part is not None and span.start >= store.control.oldest_offset:
                part.check(store)


@contextmanager
def naming_host() -> Generator[None]:
    """Add the host name to errors about what is at a path."""
    try:
        yield
    except (ChannelNotFoundError, NotAChannelError, SchemaMismatchError) as error:
        error.add_note(f"This is on host {socket.gethostname()}: every host must see the same directory at the path.")
        raise


def header_at(store: Store, offset: int) -> Header | None:
    """Return the header of the last segment that begins at or before an offset; None if missing or damaged."""
    begin = store.segments.covering(offset)
    try:
        return None if begin is None else store.segments.header(begin)
    except CorruptRecordError:
        return None


def check_channel(path: Path, expected: str, found: str) -> None:
    """Raise `ChannelMismatchError` if the channel at a path is not the expected one."""
    if expected != found:
        raise ChannelMismatchError(path, f"channel {expected}", f"channel {found}", socket.gethostname())


def segment_mismatch(store: Store, expected: Header, found: str) -> ChannelMismatchError:
    """Return the error for a copy of a channel in which a segment differs from the expected one."""
    channel = f"channel {store.manifest.id} with"
    wanted = f"{channel} segment {expected.begin} of id {expected.id:08x}"
    return ChannelMismatchError(store.path, wanted, f"{channel} {found}", socket.gethostname())
