"""Parts of a log: they begin and end between records, and together they are all of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from filechannel import CorruptRecordError, DataExpiredError
from filechannel._format import read_record
from filechannel._format.layout import CONTROL_RECORD, RECORD_HEADER_SIZE
from filechannel._storage.log_spans import Span, expired, split, windows
from filechannel._storage.store import Store
from tests.storage.channels import SMALL, opened
from tests.storage.compressing import NO_FREE_LIST, compress_all


def read(store: Store, span: Span) -> list[bytes]:
    """Return the messages of a span."""
    found: list[bytes] = []
    for window in windows(store, span):
        position, offset = window.position, window.offset
        while position < window.stop:
            word, payload = read_record(window.buffer, position, window.stop, offset)
            if not word & CONTROL_RECORD:
                found.append(payload)
            position += RECORD_HEADER_SIZE + len(payload)
            offset += RECORD_HEADER_SIZE + len(payload)
    return found


@pytest.mark.parametrize("parts", [1, 2, 3, 10, 500])
def test_spans_are_all_of_it(path: Path, parts: int) -> None:
    """Each message is in one of any number of spans, in order and with its sequence."""
    with opened(path, options=SMALL) as store:
        payloads = [bytes([number]) * (number % 90) for number in range(200)]
        for payload in payloads:
            store.log.append([payload])
        spans = split(store, store.lookup.earliest(), store.lookup.latest(), parts)
        assert len(spans) <= parts
        assert [payload for span in spans for payload in read(store, span)] == payloads
        counts = [len(read(store, span)) for span in spans]
        assert [span.sequence for span in spans] == [sum(counts[:index]) for index in range(len(counts))]


def test_an_empty_range_has_no_span(path: Path) -> None:
    """An empty range has no spans."""
    with opened(path) as store:
        assert split(store, store.lookup.earliest(), store.lookup.latest(), 5) == []


def test_reclaimed_messages_are_an_error(path: Path) -> None:
    """A span whose messages were reclaimed raises with their number and the next position."""
    with opened(path, options=SMALL) as store:
        for _ in range(10):
            store.log.append([b"x"])
        (span,) = split(store, store.lookup.earliest(), store.lookup.latest(), 1)
        store.purge()
        with pytest.raises(DataExpiredError) as caught:
            list(windows(store, span))
        assert (caught.value.missed, caught.value.oldest) == (10, span.stop)
        assert expired(store, span.stop, 10) is None


def test_a_missing_segment_is_an_error(path: Path) -> None:
    """A span whose segment is missing raises an error instead of ending."""
    with opened(path, options=SMALL) as store:
        for _ in range(300):
            store.log.append([b"x" * 50])
        (span,) = split(store, store.lookup.earliest(), store.lookup.latest(), 1)
    segments = sorted((path / "segments").glob("*.seg"))
    segments[1].unlink()
    with opened(path, options=SMALL) as store, pytest.raises(CorruptRecordError, match="missing"):
        list(windows(store, span))


@pytest.mark.parametrize("block_size", [64, 256, 1 << 16])
def test_compressed_segments_are_read_as_others(path: Path, block_size: int) -> None:
    """Spans of compressed segments have whole records, also where a block ends inside one."""
    with opened(path, options=NO_FREE_LIST) as store:
        payloads = [bytes([number]) * (number * 7 % 900) for number in range(200)]
        for payload in payloads:
            store.log.append([payload])
        plain = split(store, store.lookup.earliest(), store.lookup.latest(), 7)
        assert len(compress_all(store, block_size=block_size)) == len(store.segments.begins) - 1
        spans = split(store, store.lookup.earliest(), store.lookup.latest(), 7)
        assert spans == plain
        assert [payload for span in spans for payload in read(store, span)] == payloads
