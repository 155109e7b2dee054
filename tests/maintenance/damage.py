"""A channel that has some of everything, and what can happen to its files."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from filechannel._format.layout import (
    CHECKPOINT_SLOTS,
    GROUP_HEAD,
    RECORD_HEADER_SIZE,
    SEGMENT_END,
    SEGMENT_HEADER_SIZE,
    TAIL_SLOTS,
    WRITE_TAIL,
)
from filechannel._storage.capacity.backlog import Batch
from filechannel._storage.idempotent_producer import IdempotentProducer
from filechannel._storage.store import Store
from tests.maintenance.stores import A_THIRD, consume, fill
from tests.storage.channels import opened
from tests.storage.compressing import compress_all

RECORD = A_THIRD + RECORD_HEADER_SIZE
CONSUMED = 4
SENT = 31


def make_channel(path: Path) -> list[bytes]:
    """Make a channel of eleven segments, the first four compressed, and return what was sent."""
    with opened(path) as store:
        sent = fill(store, 5)
        compress_all(store)
        sent += fill(store, 5)
        batch = [b"numbered".ljust(200)]
        IdempotentProducer(store, "job").append(1, Batch.of(200, 1), lambda: [batch])
        consume(store, CONSUMED)
        _join(store)
        store.flusher.flush()
    assert len(sent) + 1 == SENT
    return [*sent, *batch]


def _join(store: Store) -> None:
    """Leave a group behind that has a position."""
    assert store.processes is not None
    group = store.cursors.join("workers", store.processes)
    group.begin(store.lookup.earliest())
    store.cursors.close(group)


def segments_of(path: Path, suffix: str = ".seg") -> list[Path]:
    """Return the plain segments in order, or the compressed ones."""
    return sorted(file for file in (path / "segments").iterdir() if file.name.endswith(suffix) and file.name[0] == "0")


def overwrite(file: Path, position: int, content: bytes = b"\xff\xff\xff\xff") -> None:
    """Write over some bytes; a negative position counts from the end."""
    with file.open("r+b") as open_file:
        open_file.seek(position, 2 if position < 0 else 0)
        open_file.write(content)


def cut(file: Path, size: int) -> None:
    """Cut a file off."""
    with file.open("r+b") as open_file:
        open_file.truncate(size)


def _payload(path: Path) -> None:
    overwrite(segments_of(path)[1], SEGMENT_HEADER_SIZE + RECORD + 100)


def _word(path: Path) -> None:
    overwrite(segments_of(path)[1], SEGMENT_HEADER_SIZE + RECORD)


def _two_records(path: Path) -> None:
    overwrite(segments_of(path)[1], SEGMENT_HEADER_SIZE + 100)
    overwrite(segments_of(path)[1], SEGMENT_HEADER_SIZE + 2 * RECORD + 100)


def _active(path: Path) -> None:
    overwrite(segments_of(path)[-1], SEGMENT_HEADER_SIZE + 60)


def _block(path: Path) -> None:
    overwrite(segments_of(path, ".seg.z")[2], -10)


def _header(path: Path) -> None:
    overwrite(segments_of(path)[1], 40)


def _compressed_header(path: Path) -> None:
    overwrite(segments_of(path, ".seg.z")[2], 40)


def _end(path: Path) -> None:
    overwrite(segments_of(path)[1], SEGMENT_END)


def _cut_segment(path: Path) -> None:
    cut(segments_of(path)[1], SEGMENT_HEADER_SIZE + RECORD + 100)


def _remove_segment(path: Path) -> None:
    segments_of(path)[1].unlink()


def _remove_last(path: Path) -> None:
    segments_of(path)[-1].unlink()


def _remove_first(path: Path) -> None:
    segments_of(path, ".seg.z")[0].unlink()


def _empty_segment(path: Path) -> None:
    cut(segments_of(path)[1], 0)


def _index(path: Path) -> None:
    overwrite(sorted((path / "segments").glob("*.idx"))[-2], 4)


def _cursor(path: Path) -> None:
    overwrite(path / "consumers" / "consumer.cursor", 0, b"\xff" * 128)


def _group(path: Path) -> None:
    overwrite(path / "consumers" / "workers.group", GROUP_HEAD)


def _producer(path: Path) -> None:
    overwrite(path / "producers" / "sink.job.position", 0, b"\xff" * 128)


def _manifest(path: Path) -> None:
    overwrite(path / "channel.json", 0)


def _remove_manifest(path: Path) -> None:
    (path / "channel.json").unlink()


def _identity(path: Path) -> None:
    overwrite(path / "control", 20)


def _tail(path: Path) -> None:
    for slot in TAIL_SLOTS:
        overwrite(path / "control", WRITE_TAIL + slot, b"\xff" * 28)


def _checkpoints(path: Path) -> None:
    for slot in CHECKPOINT_SLOTS:
        overwrite(path / "control", slot, b"\xff" * 48)


def _cut_control(path: Path) -> None:
    cut(path / "control", 5000)


def _remove_control(path: Path) -> None:
    (path / "control").unlink()


def _half_made(path: Path) -> None:
    (path / "segments" / "new-00000000000000099999.seg").write_bytes(b"half")


def back_up(path: Path) -> Path:
    """Make a backup by hard links, as `cp -al` does, instead of the one before; return where it is."""
    backup = path.with_name(f"{path.name}-backup")
    shutil.rmtree(backup, ignore_errors=True)
    shutil.copytree(path, backup, copy_function=os.link, ignore=shutil.ignore_patterns("wake"))
    return backup


def _links(path: Path) -> None:
    back_up(path)


def _links_and_header(path: Path) -> None:
    back_up(path)
    _header(path)


DAMAGES: dict[str, tuple[Callable[[Path], None], set[str], set[int]]] = {
    "payload": (_payload, {"record"}, {16}),
    "word": (_word, {"record"}, {16}),
    "two records": (_two_records, {"record"}, {15, 17}),
    "newest record": (_active, {"record"}, {30}),
    "block": (_block, {"record"}, {8}),
    "header": (_header, {"header"}, set()),
    "compressed header": (_compressed_header, {"header"}, {6, 7, 8}),
    "end": (_end, {"end"}, set()),
    "cut segment": (_cut_segment, {"cut", "record"}, {16, 17}),
    "removed segment": (_remove_segment, {"missing", "orphan"}, {15, 16, 17}),
    "removed last segment": (_remove_last, {"missing", "orphan"}, {30}),
    "removed first segment": (_remove_first, {"missing", "orphan"}, {0, 1, 2}),
    "empty segment": (_empty_segment, {"header"}, {15, 16, 17}),
    "index": (_index, {"index"}, set()),
    "cursor": (_cursor, {"cursor"}, set()),
    "group": (_group, {"group"}, set()),
    "producer": (_producer, {"producer"}, set()),
    "manifest": (_manifest, {"manifest"}, set()),
    "removed manifest": (_remove_manifest, {"manifest"}, set()),
    "identity": (_identity, {"control"}, set()),
    "tail": (_tail, {"control"}, set()),
    "checkpoints": (_checkpoints, {"checkpoint"}, set()),
    "cut control file": (_cut_control, {"control"}, set()),
    "removed control file": (_remove_control, {"control"}, set()),
    "half-made file": (_half_made, {"half-made"}, set()),
    "links": (_links, {"links"}, set()),
    "links and header": (_links_and_header, {"links", "header"}, set()),
}
"""What is done, which kinds of findings that makes, and which messages are lost by it."""
