"""Where producers left off: records in the log, and the files that find them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from filechannel import ChannelOptions, CorruptRecordError, Durability
from filechannel._format import PURE
from filechannel._format.layout import POSITION_SIZE, POSITION_SLOTS, RECORD_HEADER_SIZE
from filechannel._offset import Offset
from filechannel._storage.log.batch_parts import HeaderRecord
from filechannel._storage.producers.producer_positions import Producer, ProducerPosition
from filechannel._storage.segments.segment import Segment, segment_name
from filechannel._storage.store import Store
from tests.storage.boots import Boots
from tests.storage.channels import SMALL, opened, payloads_of
from tests.storage.compressing import compress_all
from tests.storage.faults import FaultyFiles, disk_full

KEY, OTHER = "key", "other"
KIND = 2


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    """An open channel."""
    with opened(path) as store:
        yield store


def produce(
    store: Store, last: ProducerPosition, offset: int, key: str = KEY, payload: bytes = b"x"
) -> ProducerPosition:
    """Append a batch, and return where the producer is then."""
    made: list[ProducerPosition] = []

    def header_record(at: Offset) -> bytes:
        made.append(ProducerPosition(at, last.origin, offset, offset))
        return store.producers.open(key).record(KIND, made[0], last)

    store.log.append([payload], HeaderRecord(store.producers.open(key).record_size, header_record))
    return made[0]


def begin(store: Store, key: str = KEY) -> ProducerPosition:
    """Begin with an origin."""
    place = ProducerPosition(store.control.write_offset, 7, 0, 0)
    store.producers.open(key).begin(place)
    return place


def find(store: Store, key: str = KEY) -> ProducerPosition | None:
    """Look for a producer."""
    with store.log.writing():
        return store.producers.open(key).find()


def slots_of(producer: Producer) -> dict[int, ProducerPosition]:
    """Return what is in the slots, by generation."""
    return {slot.generation: slot.position for slot in producer._slots()}


class FailedError(Exception):
    """Writing went wrong."""


def fail_to_produce(store: Store, last: ProducerPosition, offset: int) -> None:
    """Fill the slot, and die before the batch is published, as other processes see it."""

    def header_record(at: Offset) -> bytes:
        store.producers.open(KEY).record(KIND, ProducerPosition(at, last.origin, offset, offset), last)
        raise FailedError

    with pytest.raises(FailedError):
        store.log.append([b"never"], HeaderRecord(0, header_record))


def test_a_new_producer_has_no_position(store: Store) -> None:
    """A new producer has no position."""
    assert find(store) is None
    assert payloads_of(store) == []


def test_the_newest_record_is_found(store: Store) -> None:
    """The newest record of a producer is found among any number of records of this and others."""
    mine, others = begin(store), begin(store, OTHER)
    assert find(store) == mine
    for offset in range(1, 10):
        mine = produce(store, mine, offset)
        others = produce(store, others, 100 + offset, OTHER)
    assert (find(store), find(store, OTHER)) == (mine, others)
    assert (mine.offset, others.offset) == (9, 109)
    assert payloads_of(store) == [b"x"] * 18
    assert store.control.tail().sequence == 18


def test_a_slot_counts_only_if_its_record_is_there(store: Store) -> None:
    """A slot without its record does not count, and the one before does, whatever is at that offset."""
    place = produce(store, begin(store), 5)
    fail_to_produce(store, place, 6)
    store.log.append([b"something else"])
    assert find(store) == place
    assert max(slots_of(store.producers.open(KEY)).items())[1] == place
    assert produce(store, place, 6) == find(store)


def test_many_failures_leave_the_slot_that_counts_alone(store: Store) -> None:
    """Repeated failures fill the same slot, and keep the one that valid."""
    place = produce(store, begin(store), 5)
    for offset in range(6, 11):
        fail_to_produce(store, place, offset)
    assert find(store) == place


def test_nothing_is_searched_if_the_newest_slot_counts(store: Store) -> None:
    """If the newest slot valid the log is not searched, however much was written since."""
    place = produce(store, begin(store), 5)
    offset = store.log.append([b"damaged"])
    segment = store.segments.get(store.segments.begins[0])
    segment.map[segment.position(offset) + RECORD_HEADER_SIZE] ^= 1
    assert find(store) == place
    fail_to_produce(store, place, 6)
    with pytest.raises(CorruptRecordError):
        find(store)


def test_after_a_power_cut_the_log_is_searched(path: Path, boots: Boots) -> None:
    """After a power cut the log is searched from the last known record on, also if the file is old or empty."""
    file = path / "producers" / f"{KEY}.position"
    with opened(path, ChannelOptions(segment_size=4096, durability=Durability.FSYNC)) as store:
        place = begin(store)
        old = [bytes(POSITION_SIZE), file.read_bytes()]
        for offset in range(1, 30):
            place = produce(store, place, offset, payload=b"x" * 700)
            old.append(file.read_bytes())
        store.flusher.commit()
    for content in old[::4]:
        file.write_bytes(content)
        boots.again()
        with opened(path) as store:
            assert find(store) == place
            assert find(store) == place


def test_a_record_that_was_cut_off_does_not_count(path: Path, boots: Boots) -> None:
    """If a batch is cut off the position in it does not count, and later records are found."""
    with opened(path) as store:
        first = produce(store, begin(store), 1)
        store.flusher.flush()
        end = store.control.write_offset
        produce(store, first, 2)
        segment = store.segments.get(store.segments.begins[0])
        segment.wipe(end, segment.space_end)
    boots.again()
    with opened(path) as store:
        assert payloads_of(store) == [b"x"]
        assert find(store) == first
        again = produce(store, first, 2)
        assert again.record >= 1 << 40
        assert find(store) == again
    boots.again()
    with opened(path) as store:
        assert find(store) == again


def test_a_purge_stores_the_position_of_every_producer(path: Path) -> None:
    """A purge stores the position of every producer on disk, because its records are removed."""
    with opened(path, SMALL) as store:
        mine = produce(store, begin(store), 5)
        others = produce(store, begin(store, OTHER), 6, OTHER)
        fail_to_produce(store, mine, 7)
        store.log.append([b"something else"] * 200)
        store.purge()
        assert (find(store), find(store, OTHER)) == (mine, others)
        assert payloads_of(store) == []
    with opened(path) as store:
        assert (find(store), find(store, OTHER)) == (mine, others)


def test_a_purge_needs_no_space_for_an_empty_producer_file(path: Path) -> None:
    """A purge skips an incomplete file of a producer, which its next append completes."""
    files = FaultyFiles()
    with opened(path, SMALL, files=files) as store:
        mine = produce(store, begin(store), 5)
        (path / "producers" / f"{OTHER}.position").touch()
        files.fail(frozenset({"create", "allocate"}), disk_full)
        store.purge()
        files.work()
        assert find(store) == mine
        assert produce(store, begin(store, OTHER), 6, OTHER) == find(store, OTHER)


def test_a_purge_skips_damage(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    """A purge reports damage, and the last known position valid."""
    place = produce(store, begin(store), 5)
    offset = store.log.append([b"damaged"])
    segment = store.segments.get(store.segments.begins[0])
    segment.map[segment.position(offset) + RECORD_HEADER_SIZE] ^= 1
    fail_to_produce(store, place, 6)
    store.log.append([b"something else"])
    store.purge()
    assert find(store) == place
    assert "after damage" in caplog.text


def test_a_record_that_was_never_written_does_not_count_when_its_segment_is_reclaimed(path: Path) -> None:
    """If a batch fails while segments are reclaimed, the position before it valid."""
    with opened(path, SMALL) as store:
        place = produce(store, begin(store), 5)
        fail_to_produce(store, place, 6)
        for _ in range(3):
            store.purge()
            store.log.append([b"something else"] * 200)
        assert find(store) == place


def test_the_seal_belongs_to_no_producer(path: Path, boots: Boots) -> None:
    """Control records of other kinds, such as the seal, are skipped."""
    with opened(path) as store:
        place = produce(store, begin(store), 5)
        store.seal()
    boots.again()
    with opened(path) as store:
        assert find(store) == place


def test_what_is_stored_says_what_it_is(store: Store) -> None:
    """Slots are filled alternately, each with a newer generation."""
    first = begin(store)
    second = produce(store, first, 5)
    assert slots_of(store.producers.open(KEY)) == {1: first, 2: second}
    third = produce(store, second, 6)
    assert slots_of(store.producers.open(KEY)) == {2: second, 3: third}
    content = (store.path / "producers" / f"{KEY}.position").read_bytes()
    assert content[POSITION_SLOTS[0]] == 3
    assert (store.path / "producers" / f"{KEY}.position").stat().st_mode & 0o777 == 0o600


@pytest.mark.skipif(PURE, reason="the pure implementation has a channel for itself")
def test_a_record_is_found_while_its_plain_file_is_recycled_here(path: Path) -> None:
    """A record is found although this process recycles the plain file of its compressed segment."""
    with opened(path) as store:
        last = produce(store, begin(store), 5, payload=bytes(3000))
        for _ in range(2):
            store.log.append([bytes(4000)])
        with opened(path, create=False) as other:
            assert compress_all(other)[0] == 0
        waiting = store.segments.directory / f"spare-{segment_name(0)}"
        assert waiting.exists()
        while waiting.exists():
            newest = store.segments.get(store.segments.begins[-1])
            assert isinstance(newest, Segment)
            store.segments.prepare_free_file(newest)
            store.log.append([bytes(4000)])
        assert find(store) == last


@pytest.mark.parametrize("kept", [True, False], ids=["with a record", "without one"])
def test_generations_start_over_behind_the_last_one(store: Store, kept: bool) -> None:
    """After the largest generation, which only a damaged file has, generations start over, and the last position
    valid.
    """
    first = produce(store, begin(store), 1) if kept else begin(store)
    producer = store.producers.open(KEY)
    valid = producer._slots()[-1]
    producer._fill(valid.index, (1 << 63) - 1, first, valid.identity)
    second = produce(store, first, 2)
    assert producer.newest == find(store) == second
    assert list(slots_of(producer).values())[-2:-1] == [first]
