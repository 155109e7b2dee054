"""Makes the golden channels: run it once for every new format version, and commit what it makes.

    python -m tests.data.make_golden

Everything that differs from run to run (clocks, ids, the machine) is fixed, so that a test can make them again and
compare.
"""

from __future__ import annotations

import os
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime, tzinfo
from pathlib import Path
from unittest.mock import patch

from filechannel import ChannelOptions, Durability
from filechannel._format.layout import CONTROL_SIZE, FORMAT_VERSION
from filechannel._policies import CompressionMethod
from filechannel._storage.store import Store
from filechannel._storage.system.kernel_locks import KernelLocks
from filechannel._storage.system.os_calls import Files
from tests.storage.background import Background
from tests.storage.channels import opened, reader_of
from tests.storage.compressing import compress_all

GOLDEN = Path(__file__).parent / f"golden-{FORMAT_VERSION}"
NOW = 2_000_000_000 * 10**9
CONSUMED = 5

BEFORE_THE_JUMP: list[list[bytes]] = [
    [b"a message"],
    [b""],
    [bytes(range(256)) * 4],
    [b"batch: first", b"batch: second", b"batch: third"],
    [b"over two segments " * 100, b"and on " * 200, b"to the end"],
    [b"larger than a segment " * 500],
    [b"x" * size for size in range(20)],
]
AFTER_THE_JUMP: list[list[bytes]] = [[b"after a jump"], [b"another", b"and the last"]]
METHODS: tuple[CompressionMethod, ...] = ("zstd", "lz4", "gzip")
COMPRESSIBLE: list[list[bytes]] = [[b"the same again " * (10 + number)] for number in range(20)]
MESSAGES = [payload for batch in BEFORE_THE_JUMP + AFTER_THE_JUMP for payload in batch]


def make(directory: Path) -> None:
    """Make one channel that is open, one that is sealed, and one that is compressed in every way."""
    with _nothing_varies() as background:
        options = ChannelOptions(segment_size=4096, max_message_size=1 << 20, mode=0o644)
        with opened(directory / "open", options) as store:
            _send(store, BEFORE_THE_JUMP)
            _consume(store)
            store.flusher.flush()
            with store.log.writing():
                store.log.abandon_active()
            _send(store, AFTER_THE_JUMP)
        background.forget()
        sealed = ChannelOptions(segment_size=1 << 16, durability=Durability.FSYNC, mode=0o644)
        with opened(directory / "sealed", sealed) as store:
            _send(store, AFTER_THE_JUMP)
            store.seal()
        background.forget()
        once = ChannelOptions(segment_size=4096, max_message_size=1 << 20, mode=0o644, spare_segments=0)
        with opened(directory / "compressed", once) as store:
            for method in METHODS:
                _send(store, COMPRESSIBLE)
                assert compress_all(store, method, block_size=1500)
        background.forget()
    for lock in directory.glob("*/lock"):
        lock.unlink()  # it is empty, and is made when it is missing


def _send(store: Store, batches: list[list[bytes]]) -> None:
    for batch in batches:
        store.log.append(batch)


def _consume(store: Store) -> None:
    cursor = store.cursors.open("a consumer")
    reader = reader_of(store, cursor)
    reader.move(store.lookup.earliest())
    for _ in range(CONSUMED):
        reader.native.take()
    reader.close()
    store.cursors.close(cursor)


class _Calendar:
    """Replaces `datetime`."""

    @staticmethod
    def now(zone: tzinfo) -> datetime:
        """It is always the same day."""
        return datetime.fromtimestamp(NOW / 1e9, zone)

    @staticmethod
    def fromisoformat(text: str) -> datetime:
        """Read a moment as ever."""
        return datetime.fromisoformat(text)


@contextmanager
def _nothing_varies() -> Iterator[Background]:
    background = Background()
    ids = iter(range(1, 1000))
    with ExitStack() as stack:
        for target, value in (
            ("filechannel._storage.durability.flusher.background_threads", lambda: background),
            ("filechannel._storage.durability.group_commit.background_threads", lambda: background),
            ("os.getpid", lambda: 4711),
            ("socket.gethostname", lambda: "host"),
            ("filechannel._storage.recovery.create.boot_id", lambda: b"b" * 16),
            ("filechannel._storage.recovery.recover.boot_id", lambda: b"b" * 16),
            ("filechannel._storage.store.boot_id", lambda: b"b" * 16),
            ("filechannel._storage.writable_store.boot_id", lambda: b"b" * 16),
            ("filechannel._storage.recovery.create.machine_id", lambda: "machine"),
            ("filechannel._storage.manifest.datetime", _Calendar),
            ("secrets.randbits", lambda _: next(ids)),
        ):
            stack.enter_context(patch(target, value))
        stack.enter_context(patch.object(time, "time_ns", lambda: NOW))
        stack.enter_context(patch.object(uuid, "uuid4", lambda: uuid.UUID(int=7)))
        stack.enter_context(patch.object(Files, "identity", lambda *_: (1, 2)))
        stack.enter_context(patch.object(Files, "mount", lambda *_: 3))
        stack.enter_context(patch.object(KernelLocks, "inode", 0))
        yield background


def _leave_out_what_means_nothing(directory: Path) -> None:
    """Remove the FIFOs, which no archive keeps, and the disk space that is kept behind the control pages."""
    for channel in directory.iterdir():
        shutil.rmtree(channel / "wake")
        os.truncate(channel / "control", CONTROL_SIZE)


if __name__ == "__main__":
    shutil.rmtree(GOLDEN, ignore_errors=True)
    make(GOLDEN)
    _leave_out_what_means_nothing(GOLDEN)
