"""Numbered batches: each is stored once, however often it is appended, and whichever process was killed in between."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from filechannel import Capacity, ChannelFullError, ChannelOptions, Durability, MessageTooLargeError, StorageError
from filechannel._format.layout import RECORD_HEADER_SIZE
from filechannel._offset import Offset
from filechannel._storage.capacity.backlog import Batch
from filechannel._storage.idempotent_producer import IdempotentProducer
from filechannel._storage.log.batch_parts import Records
from tests.maintenance.stores import consume, fill, reclaim
from tests.storage import numbering
from tests.storage.channels import SMALL, opened, payloads_of

ROOT = Path(__file__).parent.parent.parent


def append(producer: IdempotentProducer, number: int, parts: list[list[bytes]]) -> Offset | None:
    """Append lists of payloads as one batch."""
    payloads = [payload for part in parts for payload in part]
    return producer.append(number, Batch.of(sum(map(len, payloads)), len(payloads)), lambda: parts)


def test_a_batch_is_appended_once(path: Path) -> None:
    """A batch with the last number or a smaller one is not appended again, and each producer has numbers of its own."""
    with opened(path) as store:
        producer = IdempotentProducer(store, "a")
        assert producer.last is None
        assert append(producer, 0, [[b"0"]]) is not None
        assert append(producer, 0, [[b"0"]]) is None
        assert append(producer, 4, [[b"4"], [], [b"5"]]) is not None
        assert append(producer, 3, [[b"3"]]) is None
        assert append(IdempotentProducer(store, "b"), 0, [[b"b"]]) is not None
        assert producer.last == 4
    with opened(path) as store:
        assert IdempotentProducer(store, "a").last == 4
        assert payloads_of(store) == [b"0", b"4", b"5", b"b"]


def test_a_batch_that_fails_was_not_appended(path: Path) -> None:
    """A batch that fails in the middle is rolled back with its number."""

    def parts() -> list[list[bytes]]:
        raise StorageError("gone")

    def half() -> object:
        yield [b"1"]
        raise StorageError("gone")

    with opened(path) as store:
        producer = IdempotentProducer(store, "a")
        for broken in (parts, half):
            with pytest.raises(StorageError, match="gone"):
                producer.append(0, Batch.of(1, 1), broken)  # type: ignore[arg-type]
        assert producer.last is None
        assert payloads_of(store) == []
        assert append(producer, 0, [[b"0"]]) is not None


def test_records_are_relocated(path: Path) -> None:
    """A batch may consist of records and lists, and may span several segments."""
    payloads = [b"%d" % number + bytes(number % 700) for number in range(200)]
    parts = [Records.of(payloads[:150]), [], payloads[150:160], Records.of([]), Records.of(payloads[160:])]
    with opened(path, SMALL) as store:
        batch = Batch.of(sum(map(len, payloads)), len(payloads))
        assert IdempotentProducer(store, "a").append(0, batch, lambda: parts) is not None
        assert payloads_of(store) == payloads
        assert len(store.segments.begins) > 2
    with opened(path, SMALL) as store:
        assert payloads_of(store) == payloads


def test_damaged_records_take_the_batch_back(path: Path) -> None:
    """A batch with a damaged record is rolled back, and the next batch is appended."""
    whole = Records.of([b"a", b"b" * 100])
    for content in (whole.content[:-1] + b"x", whole.content[:-1], whole.content[:12], b"abc"):
        with opened(path) as store:
            with pytest.raises(StorageError, match="nothing was sent, because a record of it is damaged"):
                store.log.append_parts([[b"before"], Records(2, content)], Batch.of(107, 3))
            assert payloads_of(store) == []
    with opened(path) as store:
        store.log.append_parts([whole], Batch.of(101, 2))
        assert payloads_of(store) == [b"a", b"b" * 100]


def test_two_at_once_append_a_batch_once(path: Path) -> None:
    """Two processes that append one batch at once append it once, because each checks under the lock."""
    with opened(path) as store:
        slow, fast = IdempotentProducer(store, "a"), IdempotentProducer(store, "a")

        def overtaken() -> list[list[bytes]]:
            append(fast, 0, [[b"fast"]])
            return [[b"slow"]]

        assert slow.append(0, Batch.of(4, 1), overtaken) is None
        assert payloads_of(store) == [b"fast"]


def test_numbers_under_fsync(path: Path) -> None:
    """Under FSYNC pending records are flushed before a number is checked."""
    with opened(path, options=ChannelOptions(durability=Durability.FSYNC)) as store:
        producer = IdempotentProducer(store, "a")
        for _ in range(2):
            append(producer, 0, [[b"0"]])
        store.flusher.commit()
        assert payloads_of(store) == [b"0"]


def test_the_number_outlives_its_record(path: Path) -> None:
    """After a purge the number of a producer is known although its record is gone."""
    with opened(path) as store:
        append(IdempotentProducer(store, "a"), 7, [[b"7"]])
        store.purge()
    with opened(path) as store:
        assert append(IdempotentProducer(store, "a"), 7, [[b"7"]]) is None
        assert append(IdempotentProducer(store, "a"), 8, [[b"8"]]) is not None


def test_a_batch_in_parts_keeps_to_the_capacity(path: Path) -> None:
    """A batch in parts uses capacity with its control record, and without capacity its parts are not read."""
    with opened(path, ChannelOptions(capacity=Capacity(max_messages=4, on_full="raise"))) as store:
        producer = IdempotentProducer(store, "a")
        assert append(producer, 0, [[b"0"], [b"1"], [b"2"]]) is not None
        with pytest.raises(ChannelFullError):
            producer.append(1, Batch.of(2, 2), lambda: map(pytest.fail, ["it was asked for"]))
        with pytest.raises(MessageTooLargeError, match="5 messages"):
            append(producer, 1, [[b"x"] * 3, [b"x"] * 2])
        assert producer.last == 0
        assert append(producer, 1, [[b"3"]]) is not None
        assert store.backlog.used().messages == 4
        assert payloads_of(store) == [b"0", b"1", b"2", b"3"]


def test_the_control_record_uses_capacity(path: Path) -> None:
    """A batch that fits the capacity only without its control record is refused."""
    with opened(path, ChannelOptions(capacity=Capacity(max_bytes=16384, on_full="raise"))) as store:
        assert store.log.append([b"x" * 15000]) is not None
        whole = store.backlog.used().size
        with pytest.raises(ChannelFullError):
            append(IdempotentProducer(store, "a"), 0, [[b"x" * (16384 - whole - RECORD_HEADER_SIZE)]])
        assert store.log.append([b"x" * (16384 - whole - RECORD_HEADER_SIZE)]) is not None


def test_a_batch_in_parts_drops_the_oldest(path: Path) -> None:
    """With "drop_oldest" a batch in parts drops the oldest messages."""
    options = ChannelOptions(capacity=Capacity(max_bytes=16384, on_full="drop_oldest"), segment_size=4096)
    with opened(path, options) as store:
        producer = IdempotentProducer(store, "a")
        for number in range(30):
            assert append(producer, number, [[b"%d" % number, b"." * 900], [b"!" * 900]]) is not None
        assert payloads_of(store)[-3] == b"29"
        assert store.backlog.used().size <= 16384
        assert producer.last == 29


def test_the_number_outlives_the_segment_of_its_record(path: Path) -> None:
    """Before retention deletes a segment, the position files have the numbers in it."""
    with opened(path, SMALL) as store:
        append(IdempotentProducer(store, "a"), 7, [[b"7"]])
        fill(store, 4)
        consume(store)
        reclaim(store)
        assert store.control.oldest_offset > 0
    with opened(path, SMALL) as store:
        assert append(IdempotentProducer(store, "a"), 7, [[b"7"]]) is None
        assert append(IdempotentProducer(store, "a"), 8, [[b"8"]]) is not None


def test_killed_again_and_again_every_batch_is_there_once(path: Path, tmp_path: Path, rng: Random) -> None:
    """A process that is killed repeatedly resumes with its last batch, and each batch is stored once."""
    with opened(path):
        pass
    command = [sys.executable, "-m", "tests.storage.numbering", str(path), str(tmp_path / "checkpoint")]
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join([str(ROOT), str(ROOT / "src")]))
    kills = 0
    while True:
        child = subprocess.Popen(command, env=environment, cwd=ROOT)
        try:
            assert child.wait(rng.uniform(0.2, 0.5) if kills < 8 else None) == 0
            break
        except subprocess.TimeoutExpired:
            child.send_signal(signal.SIGKILL)
            child.wait()
            kills += 1
    with opened(path) as store:
        expected = [payload for number in range(numbering.BATCHES) for payload in numbering.payloads(number)]
        assert payloads_of(store) == expected
    assert not (path / "staging").exists()
