"""The dirty segments: which files a flush writes to disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from filechannel._format import PURE
from tests.storage.channels import SMALL, opened


@pytest.mark.skipif(PURE, reason="the pure implementation has a channel for itself")
def test_a_segment_that_another_process_replaced_is_not_flushed_in_place_of_the_new_one(path: Path) -> None:
    """A segment that another process replaced, to fit a larger message, is not flushed instead of the new one."""
    with opened(path) as store, opened(path) as other:
        store.log.append([b"first"])
        store.purge()
        store.flusher.flush()
        other.log.append([bytes(5 * SMALL.resolve().segment_size)])
        for _ in range(2):
            store.log.append([b"next"])
            with store.log.writing():
                work = store.log.dirty.take()
            directory = store.segments.names.open_directory()
            assert [segment.begin for segment in work.segments if not segment.is_in(directory)] == []
            assert {segment.begin for segment in work.segments} >= {store.log._active.segment.begin}
