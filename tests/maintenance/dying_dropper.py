"""Senders that drop the oldest messages and are killed: run as a program, it forks one, and kills it at every step.

The steps are those of `dying`. The result is checked by a process that opens the channel afterwards, and by one that
had it open all the time.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from filechannel import Capacity, ChannelOptions, DataExpiredError, Durability
from filechannel._format import PURE
from filechannel._format.layout import TRANSACTION
from filechannel._storage.log.batch_parts import HeaderRecord
from filechannel._storage.producers.producer_positions import ProducerPosition
from filechannel._storage.store import Store
from tests.maintenance.dying import die_at_shared_stores
from tests.maintenance.stores import consume, consumer, files_of, reclaim
from tests.storage.background import Background
from tests.storage.channels import opened, payloads_of
from tests.storage.deaths import NEVER, Counts, die_at_each_step, die_in_child
from tests.storage.dying import DyingFiles

BEFORE, MORE, SIZE = 14, 8, 1000
CAPACITY = 16384
PRODUCER = "0" * 32 + ".step"


def _payload(number: int) -> bytes:
    return b"%d " % number + bytes(SIZE - 8 - len(b"%d " % number))


def _number(payload: bytes) -> int:
    return int(payload.split()[0])


def _prepare(path: Path, durability: Durability) -> ProducerPosition:
    """Make a channel that is nearly full; return the position of a producer whose record is among the oldest."""
    capacity = Capacity(max_bytes=CAPACITY, on_full="drop_oldest")
    with opened(path, ChannelOptions(segment_size=4096, durability=durability, capacity=capacity)) as store:
        assert consume(store, 0, "slow") == []
        producer = store.producers.open(PRODUCER)
        first = ProducerPosition(store.control.write_offset, 7, 0, 0)
        producer.begin(first)
        place = ProducerPosition(store.control.write_offset, 7, 5, 5)
        record = HeaderRecord(producer.record_size, lambda _: producer.record(TRANSACTION, place, first))
        store.log.append([_payload(0)], record)
        store.log.append([_payload(number) for number in range(1, BEFORE)])
        store.flusher.commit()
        return place


def _send(path: Path, last: int, counts: Counts) -> None:
    die_at_shared_stores(last, counts)
    with opened(path, create=False, files=DyingFiles(last, counts)) as store:
        counts["life"] = 1
        for number in range(BEFORE, BEFORE + MORE):
            store.log.append([_payload(number)])
            store.flusher.commit()
        with store.maintenance_lock.held():
            store.reclaim.finish()


def _check(store: Store, place: ProducerPosition) -> None:
    """What is left has no gap, overtaken consumers get an error, nothing else is forgotten, and sending works."""
    found = [_number(payload) for payload in payloads_of(store)]
    assert found == list(range(found[0], found[-1] + 1)), "a gap"
    assert BEFORE - 1 <= found[-1] < BEFORE + MORE
    assert store.backlog.used().size <= CAPACITY
    with store.log.writing():
        assert store.producers.open(PRODUCER).find() == place, "the producer would do it again"
    with consumer(store, "slow") as reader:
        if found[0]:
            with pytest.raises(DataExpiredError) as caught:
                reader.native.take()
            assert caught.value.missed == found[0]
        assert _number(reader.native.take()) == found[0]  # type: ignore[arg-type]
    reclaim(store)
    assert store.segments.begins[0] == store.control.oldest_offset, "not finished"
    assert {name.partition(".")[0] for name in files_of(store)} == {f"{begin:020}" for begin in store.segments.begins}
    for _ in range(20):
        store.log.append([_payload(99)])
        store.flusher.commit()
    assert {_number(payload) for payload in payloads_of(store)} == {99}


def die_at_every_step(directory: Path, durability: Durability, *, watched: bool, each: bool) -> int:
    """Kill a sender at each of its steps, or at the first of every kind; return how often."""
    background = Background.install(pytest.MonkeyPatch())

    def live(last: int) -> Counts:
        path, counts = directory / f"{last}", Counts()
        place = _prepare(path, durability)

        def work() -> None:
            _send(path, last, counts)

        finished = _watch(path, work, place) if watched else die_in_child(work)
        assert finished == (last == NEVER)
        with opened(path, create=False) as store:
            _check(store, place)
        background.forget()
        shutil.rmtree(path)
        return counts

    return die_at_each_step(live, each=each)


def _watch(path: Path, work: Callable[[], object], place: ProducerPosition) -> bool:
    with opened(path, create=False) as store:
        finished = die_in_child(work)
        found = [_number(payload) for payload in payloads_of(store)]
        assert found == list(range(found[0], found[-1] + 1)), "a gap"
        with store.log.writing():
            assert store.producers.open(PRODUCER).find() == place, "the producer would do it again"
    return finished


def main(durability: str, who: str, which: str) -> None:
    """Run one of them."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as directory:
        mode = Durability.FSYNC if durability == "fsync" else Durability.OS
        watched = who == "watched" and not PURE
        count = die_at_every_step(Path(directory), mode, watched=watched, each=which == "each")
    sys.stdout.write(f"{count}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
