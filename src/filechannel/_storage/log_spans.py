"""Parts of a log that are read apart from each other: where they begin and end, and their bytes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from typing_extensions import Buffer

from .._errors import CorruptRecordError, DataExpiredError
from .._format import Columns
from .._format.layout import SEGMENT_HEADER_SIZE
from .._offset import Offset
from .compressed import StoredSegment
from .index import Mark
from .segment import Segment
from .store import Store


@dataclass(frozen=True, slots=True)
class Span:
    """Records from one boundary to another."""

    start: Offset
    stop: Offset
    sequence: int
    """The number of the first message."""


@dataclass(frozen=True, slots=True)
class Window:
    """Records that lie in one buffer."""

    buffer: Buffer
    position: int
    stop: int
    offset: Offset
    """Of what is at the position."""
    segment: StoredSegment
    """Where they come from."""


def split(store: Store, start: Mark, stop: Mark, parts: int) -> list[Span]:
    """Cut what lies between two boundaries into at most so many spans of about the same size."""
    total, spans, begin = stop.offset - start.offset, list[Span](), start
    for part in range(1, parts + 1):
        end = stop if part == parts else store.places.at_or_behind(start.offset + total * part // parts)
        end = stop if end.offset > stop.offset else end
        if end.offset > begin.offset:
            spans.append(Span(begin.offset, end.offset, begin.sequence))
            begin = end
    return spans


def windows(store: Store, span: Span) -> Iterator[Window]:
    """Return the records of a span, a segment or a block of one at a time; offsets that were never used are passed.

    Whoever reads them copies each record before it is checked. One that is removed meanwhile does not pass the check;
    `expired` tells whether that is why. Nor does one whose segment was compressed meanwhile, and its file written anew:
    the rest can be read from there on.
    Raises `DataExpiredError` if they are gone, `CorruptRecordError` if a segment is missing.
    """
    offset = span.start
    while offset < span.stop:
        gone = expired(store, offset, span.sequence)
        if gone is not None:
            raise gone
        begin = store.segments.covering(offset)
        segment = None if begin is None else store.segments.get(begin)
        if segment is not None and offset < segment.limit:
            window = _window(segment, offset, min(segment.limit, span.stop))
            yield window
            offset = Offset(offset + window.stop - window.position)
            continue
        following = store.segments.following(offset)
        if following is None or store.segments.get(following).header.previous_end > offset:
            name = store.segments.path(offset).name
            raise CorruptRecordError(name, offset, "the segment is missing", path=store.path)
        offset = following


def windows_of(segment: StoredSegment, span: Span) -> Iterator[Window]:
    """Return the records of a span that lies in one segment."""
    offset = span.start
    while offset < span.stop:
        window = _window(segment, offset, min(segment.limit, span.stop))
        yield window
        offset = Offset(offset + window.stop - window.position)


def _window(segment: StoredSegment, offset: Offset, stop: int) -> Window:
    """Return records of a segment: of a plain one all there are, of a compressed one those that end in its block."""
    if isinstance(segment, Segment):
        return Window(segment.map, segment.position(offset), segment.position(stop), offset, segment)
    content, _, end = segment.window(offset)
    first, last = SEGMENT_HEADER_SIZE, SEGMENT_HEADER_SIZE + min(end, stop) - offset
    with suppress(ValueError):  # whoever reads it comes to the same damage, and tells it
        last, _ = Columns(None).take(content, first, last, offset, last - first)
    return Window(content, first, last, offset, segment)


def expired(store: Store, offset: int, sequence: int) -> DataExpiredError | None:
    """Return the error for what is gone, if an offset is; *sequence* is that of what was to be read."""
    if offset >= store.control.oldest_offset:
        return None
    oldest = store.places.earliest()
    return DataExpiredError(max(0, oldest.sequence - sequence), oldest.offset)
