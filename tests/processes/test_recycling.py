"""Files that are written again while other processes read what they held."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from filechannel import ChannelOptions
from tests.processes.crew import Crew
from tests.processes.numbered import give_up, numbered, replay_numbered, send_numbered
from tests.processes.tasks import create
from tests.storage.channels import opened

TOTAL = 120_000
"""Messages; with segments of four pages every file is written again some hundred times."""


@pytest.mark.parametrize("segment_size", [16384, 65536])
def test_whoever_is_overtaken_sees_no_wrong_message(path: Path, crew: Crew, segment_size: int) -> None:
    """Readers that have the files mapped, writing or only reading, get whole messages in order, or are told."""
    anyio.run(create, path, ChannelOptions(segment_size=segment_size))
    readers = [crew.start(replay_numbered, path, readonly) for readonly in (True, True, False)]
    recycler, writer = crew.start(give_up, path), crew.start(send_numbered, path, TOTAL)
    children = [*readers, recycler, writer]
    for child in children:
        child.meet()
    for child in children:
        child.tell("go")
    writer.result(patience=120)
    assert recycler.result() <= 2
    for reader in readers:
        seen, _ = reader.result()
        assert seen
    with opened(path, create=False, readonly=True) as store:
        assert store.control.tail().sequence == TOTAL
        assert store.control.oldest_offset > sum(8 + len(numbered(number)) for number in range(TOTAL // 2))
