"""Segments are compressed in one process while others send, read and reclaim them, and while processes are killed."""

from __future__ import annotations

from pathlib import Path
from random import Random
from threading import Event

from filechannel._storage.segments.compressed_segment import CompressedSegment
from filechannel._storage.segments.segment import HALF_MADE
from tests.processes.compressing import (
    compress_for_ever,
    payload_of,
    read_what_is_left,
    reclaim_for_ever,
    send,
)
from tests.processes.workers import Workers
from tests.storage.channels import opened, read_all
from tests.storage.compressing import NO_FREE_LIST, compress_all

TOTAL = 6000


def _make(path: Path) -> None:
    with opened(path, NO_FREE_LIST):
        pass


def _begins(path: Path) -> list[int]:
    """Return where each segment begins; nothing else may be there but indexes, and what the dead half made."""
    names = [file.name for file in (path / "segments").iterdir() if file.suffix != ".idx"]
    return sorted(int(name.split(".")[0]) for name in names if not name.startswith(HALF_MADE))


def _check_the_rest(path: Path, first: int = 0) -> None:
    """Check that what is left is what was sent, in one encoding each, without stray files."""
    left = _begins(path)  # before a process opens it, which would remove what should not be there
    with opened(path) as store:
        assert left[0] >= store.control.oldest_offset, "a segment came back"
        found = read_all(store)
        assert [message.payload for message in found] == [payload_of(message.sequence) for message in found]
        assert found[-1].sequence == TOTAL - 1
        assert len(found) == TOTAL - found[0].sequence
        assert found[0].sequence >= first
        assert not list((path / "segments").glob(f"{HALF_MADE}*")), "what the dead half made is removed by now"
        compress_all(store, block_size=512)
        assert len(_begins(path)) == len(set(_begins(path))), "in both forms"
        assert read_all(store) == found
        assert any(isinstance(store.segments.get(begin), CompressedSegment) for begin in store.segments.begins)


def test_every_reader_gets_the_same_while_segments_are_compressed(path: Path, workers: Workers) -> None:
    """While two processes compress, two readers of another process get every message once."""
    _make(path)
    compressors = [workers.start(compress_for_ever, path) for _ in range(2)]
    readers = [workers.start(read_what_is_left, path, TOTAL) for _ in range(2)]
    sender = workers.start(send, path, TOTAL)
    for child in (*compressors, *readers, sender):
        child.meet()
        child.send("go")
    sender.result()
    assert [reader.result() for reader in readers] == [TOTAL, TOTAL]
    late = workers.start(read_what_is_left, path, TOTAL)
    late.meet()
    late.send("go")
    assert late.result() == TOTAL
    for compressor in compressors:
        compressor.send("stop")
    assert sum(compressor.result() for compressor in compressors) > 50
    _check_the_rest(path)


def test_reclaiming_wins_the_race(path: Path, workers: Workers) -> None:
    """A segment that is reclaimed while it is compressed does not return, and readers get nothing else."""
    _make(path)
    compressor, reclaimer = workers.start(compress_for_ever, path), workers.start(reclaim_for_ever, path)
    readers = [workers.start(read_what_is_left, path, TOTAL) for _ in range(2)]
    sender = workers.start(send, path, TOTAL)
    for child in (compressor, reclaimer, *readers, sender):
        child.meet()
        child.send("go")
    sender.result()
    for reader in readers:
        assert reader.result() > 0
    for child in (compressor, reclaimer):
        child.send("stop")
    compressor.result()
    reclaimer.result()
    _check_the_rest(path, first=1)


def test_a_compressing_process_may_be_killed_at_any_moment(path: Path, workers: Workers, rng: Random) -> None:
    """After a compressing process is killed another one finishes its work, and readers never notice."""
    _make(path)
    reader, sender = workers.start(read_what_is_left, path, TOTAL), workers.start(send, path, TOTAL)
    for child in (reader, sender):
        child.meet()
        child.send("go")
    for _ in range(25):
        compressor = workers.start(compress_for_ever, path)
        compressor.meet()
        compressor.send("go")
        Event().wait(rng.uniform(0, 0.05))
        compressor.kill()
    sender.result()
    assert reader.result() == TOTAL
    _check_the_rest(path)
