"""Files that are recycled while other processes read what they contained."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from filechannel import ChannelOptions
from tests.processes.numbered import numbered, replay_numbered, retire_old_segments, send_numbered
from tests.processes.tasks import create
from tests.processes.workers import Workers
from tests.storage.channels import opened

TOTAL = 120_000
"""Messages; with segments of four pages every file is recycled some hundred times."""


@pytest.mark.parametrize("segment_size", [16384, 65536])
def test_an_overtaken_reader_sees_no_wrong_message(path: Path, workers: Workers, segment_size: int) -> None:
    """Readers of recycled files, mapped writable or read-only, get whole messages in order, or an error."""
    anyio.run(create, path, ChannelOptions(segment_size=segment_size))
    readers = [workers.start(replay_numbered, path, readonly) for readonly in (True, True, False)]
    recycler, writer = workers.start(retire_old_segments, path), workers.start(send_numbered, path, TOTAL)
    children = [*readers, recycler, writer]
    for child in children:
        child.meet()
    for child in children:
        child.send("go")
    writer.result(timeout=120)
    assert recycler.result() <= 2
    for reader in readers:
        seen, _ = reader.result()
        assert seen
    with opened(path, create=False, readonly=True) as store:
        assert store.control.tail().sequence == TOTAL
        assert store.control.oldest_offset > sum(8 + len(numbered(number)) for number in range(TOTAL // 2))
