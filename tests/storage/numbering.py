"""Run as a program: append numbered batches to a channel, each staged first, until all are there or it is killed.

Where it begins is in a file that is written after each batch, like the checkpoint of a query: a process that was killed
in between repeats a batch.
"""

from __future__ import annotations

import sys
from itertools import chain
from pathlib import Path

from filechannel._storage.capacity.backlog import Batch
from filechannel._storage.idempotent_producer import IdempotentProducer
from filechannel._storage.log.batch_parts import Records
from filechannel._storage.producers.staging import Staging
from filechannel._storage.system.os_calls import Files
from tests.storage.channels import opened

BATCHES = 150


def payloads(number: int) -> list[bytes]:
    """Return the messages of a batch: some are large enough to fill a segment."""
    return [b"%d.%d " % (number, index) + bytes(number % 7 * 300) for index in range(number % 5 + 1)]


def main(path: Path, checkpoint: Path) -> None:
    """Append what is missing."""
    begin = int(checkpoint.read_text() or 0) if checkpoint.exists() else 0
    with opened(path) as store:
        staging, producer = Staging(Files(), path, "group", 0o600), IdempotentProducer(store, "query")
        for number in range(begin, BATCHES):
            parts = [Records.of([payload]) for payload in payloads(number)]
            staged = [staging.write(parts[:1]), staging.write(parts[1:])]
            size, count = sum(each.length for each in staged), sum(each.count for each in staged)
            producer.append(number, Batch.of(size, count), lambda: chain.from_iterable(map(staging.read, staged)))  # noqa: B023
            staging.sweep()
            scratch = checkpoint.with_suffix(".new")
            scratch.write_text(str(number + 1))
            scratch.replace(checkpoint)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
