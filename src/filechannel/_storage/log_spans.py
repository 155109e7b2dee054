"""Ranges of a log that are read independently: their boundaries and their bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from typing_extensions import Buffer

from .._errors import CorruptRecordError, DataExpiredError
from .._format import skip_records
from .._format.layout import SEGMENT_HEADER_SIZE
from .._offset import LogPosition, Offset
from .segments.compressed_segment import StoredSegment
from .segments.segment import Segment
from .store import Store


@dataclass(frozen=True, slots=True)
class Span:
    """Records from one boundary to another."""

    start: Offset
    stop: Offset
    sequence: int
    """The sequence of the first message."""


@dataclass(frozen=True, slots=True)
class Window:
    """Records in one buffer."""

    buffer: Buffer
    position: int
    stop: int
    offset: Offset
    """The offset of the record at `position`."""
    segment: StoredSegment
    """The segment that contains the records."""


def split(store: Store, start: LogPosition, stop: LogPosition, parts: int) -> list[Span]:
    """Split the range between two boundaries into at most *parts* spans of about the same size."""
    total, spans, begin = stop.offset - start.offset, list[Span](), start
    for part in range(1, parts + 1):
        end = stop if part == parts else store.lookup.at_or_after(start.offset + total * part // parts)
        end = stop if end.offset > stop.offset else end
        if end.offset > begin.offset:
            spans.append(Span(begin.offset, end.offset, begin.sequence))
            begin = end
    return spans


def windows(store: Store, span: Span) -> Iterator[Window]:
    """Return the records of a span, one segment or one compressed block at a time; offset gaps are skipped.

    The caller copies each record before it verifies the checksum. A record that is removed meanwhile fails the check;
    `expired` returns an error if that is the reason. The check fails too if the segment was compressed meanwhile and
    its file recycled: then the rest can be read from that offset on. Raises `DataExpiredError` if the records are
    reclaimed, `CorruptRecordError` if a segment is missing.
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
    """Return records of a segment: all of a plain one, or those that end in the current block of a compressed one."""
    if isinstance(segment, Segment):
        return Window(segment.map, segment.position(offset), segment.position(stop), offset, segment)
    content, _, end = segment.window(offset)
    first, last = SEGMENT_HEADER_SIZE, SEGMENT_HEADER_SIZE + min(end, stop) - offset
    reached, _ = skip_records(content, first, last, offset, last - first)
    # A window without a whole record ends in damage: the caller finds the same damage, and raises.
    return Window(content, first, reached if reached > first else last, offset, segment)


def expired(store: Store, offset: int, sequence: int) -> DataExpiredError | None:
    """Return the error if an offset is reclaimed, else None; *sequence* is that of the first unread message."""
    if offset >= store.control.oldest_offset:
        return None
    oldest = store.lookup.earliest()
    return DataExpiredError(max(0, oldest.sequence - sequence), oldest.offset)
