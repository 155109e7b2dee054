"""The log: one tail that grows through segments."""

from __future__ import annotations

import threading
from itertools import pairwise
from pathlib import Path

import pytest

from filechannel import (
    ChannelOptions,
    ChannelSealedError,
    DiskFullError,
    Durability,
    MessageTooLargeError,
    StorageError,
)
from filechannel._format import PURE, store_u64
from filechannel._format.layout import CONTROL_SIZE, INDEX_BYTES, RECORD_HEADER_SIZE, SEGMENT_HEADER_SIZE, WRITE_TAIL
from filechannel._runtime.threads import NoThreadError
from filechannel._storage.segments.segment import segment_name
from filechannel._storage.segments.segment_index import read_entries
from filechannel._storage.store import Store
from filechannel._storage.system.os_calls import Files
from tests.storage.background import Background, no_more_threads
from tests.storage.channels import opened, payloads_of, read_all
from tests.storage.faults import NEEDING_SPACE, FaultyFiles, FewDescriptors, disk_full, too_many_open_files
from tests.storage.handling import handle
from tests.storage.resources import descriptors_under, maps_under

CAPACITY_WAKE = 4096 - SEGMENT_HEADER_SIZE
"""Bytes of records in the smallest segment."""
_UNIT = 64 << 10


def _send(store: Store, *payloads: bytes) -> None:
    """Send each message separately, on the fast path."""
    for payload in payloads:
        store.log.writer.append(payload)


# Bytes


@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.soak)])
def test_every_length_is_read_back_after_reopening(memory: Path, step: int) -> None:
    """Payloads of 0 to 1,100 bytes, each sent by another open, are read back after reopening."""
    lengths = range(0, 1101, step)  # seven at a time: with each number of bytes up to the next word
    last: list[bytes] = []
    place = None
    for length in lengths:
        with opened(memory / "channel") as store:
            assert [message.payload for message in read_all(store, start=place)] == last
            place, last = store.lookup.latest(), [_payload(length)]
            _send(store, *last)
    with opened(memory / "channel") as store:
        assert payloads_of(store) == [_payload(length) for length in lengths]


def _payload(length: int) -> bytes:
    return (bytes(range(256)) * (length // 256 + 2))[length % 256 :][:length]


@pytest.mark.parametrize("spare", range(17))
@pytest.mark.parametrize("length", [0, 1, 7, 8, 9, 100])
def test_any_number_of_spare_bytes_at_the_end_of_a_segment(path: Path, spare: int, length: int) -> None:
    """A segment may end with 0 to 16 unused bytes, whatever message comes next."""
    first = _payload(CAPACITY_WAKE - RECORD_HEADER_SIZE - spare)
    with opened(path) as store:
        _send(store, first, _payload(length))
        _send(store, _payload(3))
    with opened(path) as store:
        assert payloads_of(store) == [first, _payload(length), _payload(3)]
        fits = RECORD_HEADER_SIZE + length <= spare
        assert store.segments.begins == [0, CAPACITY_WAKE - spare + (RECORD_HEADER_SIZE + length if fits else 0)]


@pytest.mark.parametrize("length", [CAPACITY_WAKE - RECORD_HEADER_SIZE, CAPACITY_WAKE, 4096, 5000, 100_000, 3 << 20])
def test_a_message_larger_than_a_segment_gets_one_of_its_own(path: Path, length: int) -> None:
    """A message larger than a segment gets one of its own size, at the beginning, middle or end."""
    with opened(path) as store:
        _send(store, _payload(length), b"small", _payload(length), _payload(length))
    with opened(path) as store:
        assert payloads_of(store) == [_payload(length), b"small", _payload(length), _payload(length)]
        store.log.append([b"after"])
        assert payloads_of(store)[-1] == b"after"


def test_a_larger_file_replaces_an_empty_segment(path: Path) -> None:
    """A message larger than an empty segment replaces its file by a larger one."""
    with opened(path) as store:
        _send(store, _payload(100))
        store.purge()
        begin = store.segments.begins
        _send(store, _payload(10_000))
        assert store.segments.begins == begin
        assert payloads_of(store) == [_payload(10_000)]


@pytest.mark.parametrize("count", [1, 2, 10, 100])
def test_a_batch_may_span_segments(path: Path, count: int) -> None:
    """A batch may span segments, and its offset is that of its first record."""
    batch = [_payload(900 + index) for index in range(count)]
    with opened(path) as store:
        _send(store, b"before")
        assert store.log.writer.append_all(batch) == RECORD_HEADER_SIZE + len(b"before")
        _send(store, b"after")
    with opened(path) as store:
        assert payloads_of(store) == [b"before", *batch, b"after"]
        assert len(store.segments.begins) == count // 4 + 1


def test_an_empty_batch_changes_nothing(path: Path) -> None:
    """An empty batch sends nothing."""
    with opened(path) as store:
        store.log.append([])
        _send(store, b"one")
        store.log.append([])
        assert payloads_of(store) == [b"one"]


def test_segments_are_named_by_where_the_last_one_ended(path: Path) -> None:
    """The name of a segment is the end of the one before, which its header has too."""
    with opened(path) as store:
        _send(store, *(_payload(length) for length in range(300, 900)))
        begins = store.segments.begins
        for begin, following in pairwise(begins):
            assert store.segments.get(begin).end == following
            assert store.segments.get(begin).has_valid_end
            assert store.segments.get(following).header.previous_end == following
        assert store.segments.get(begins[-1]).end is None


def test_a_message_that_is_too_large_is_refused(path: Path) -> None:
    """A message that is too large is refused with the limit and its index, and nothing of its batch is sent."""
    with opened(path, ChannelOptions(segment_size=4096, max_message_size=100)) as store:
        _send(store, _payload(100))
        with pytest.raises(MessageTooLargeError) as single:
            _send(store, _payload(101))
        with pytest.raises(MessageTooLargeError, match="item 2") as several:
            store.log.writer.append_all([b"", b"", _payload(200)])
        assert (single.value.size, single.value.limit) == (101, 100)
        assert several.value.size == 200
        assert payloads_of(store) == [_payload(100)]


# Order


def test_threads_share_one_log(path: Path) -> None:
    """Messages of several threads keep the order of each thread, and batches stay whole."""
    threads, rounds = 4, 20 if PURE else 300

    def work(store: Store, thread: int) -> None:
        for number in range(rounds):
            batch = [b"%d %d %d" % (thread, number, index) for index in range(number % 4 + 1)]
            if len(batch) == 1:
                _send(store, *batch)
            else:
                store.log.writer.append_all(batch)

    with opened(path) as store:
        workers = [threading.Thread(target=work, args=(store, thread)) for thread in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        found = [tuple(map(int, payload.split())) for payload in payloads_of(store)]
    for thread in range(threads):
        own = [(number, index) for other, number, index in found if other == thread]
        assert own == [(number, index) for number in range(rounds) for index in range(number % 4 + 1)]
    for place, (thread, number, index) in enumerate(found):
        if index:
            assert found[place - 1] == (thread, number, index - 1)


def test_a_sealed_log_takes_no_more(path: Path) -> None:
    """The seal is a record that is not delivered, sealing twice is sealing once, and sends are refused."""
    with opened(path) as store:
        _send(store, b"last")
        store.seal()
        end = store.control.write_offset
        store.seal()
        assert store.control.write_offset == end
        with pytest.raises(ChannelSealedError):
            _send(store, b"too late")
        assert payloads_of(store) == [b"last"]
        assert store.has_ended(end)
    with opened(path) as store:
        with pytest.raises(ChannelSealedError):
            store.log.append([b"too late"])


# The index


def test_records_are_marked_every_64_kib(path: Path) -> None:
    """Each mark is the begin of a record with its sequence, at most 64 KiB and a record after the last one."""
    with opened(path, ChannelOptions(segment_size=1 << 20)) as store:
        for number in range(400):
            _send(store, _payload(number * 13 % 2000))
        boundaries = {message.offset: message.sequence for message in read_all(store)}
        store.log.store_index_entries()
        store.log.store_index_entries()
        entries = read_entries(store.files, store.segments.path(0))
        assert all(boundaries[entry.offset] == entry.sequence for entry in entries)
        ends = [*(entry.offset for entry in entries[1:]), store.control.write_offset]
        gaps = [end - entry.offset for entry, end in zip(entries, ends, strict=True)]
        assert len(entries) >= 5
        assert max(gaps) < INDEX_BYTES + 2100
        assert min(gaps[:-1]) >= INDEX_BYTES


def test_marks_wait_until_readers_see_their_records(path: Path, background: Background) -> None:
    """Records that may be rolled back are not in the index, so that under FSYNC marks wait for the flush."""
    options = ChannelOptions(segment_size=1 << 20, durability=Durability.FSYNC)
    with opened(path, options) as store:
        store.log.append([_payload(1000)] * 300)
        store.log.store_index_entries()
        assert [entry.offset for entry in read_entries(store.files, store.segments.path(0))] in ([], [0])
        store.flusher.commit()
        store.log.store_index_entries()
        assert len(read_entries(store.files, store.segments.path(0))) >= 4


def test_marks_of_a_batch_that_failed_are_forgotten(path: Path) -> None:
    """Marks of a failed batch are dropped, and what is sent instead is found."""
    files = FaultyFiles()
    with opened(path, ChannelOptions(segment_size=8 << 20), files=files) as store:
        _send(store, b"first")
        files.fail(frozenset({"allocate"}), disk_full)
        with pytest.raises(DiskFullError):
            store.log.append([_payload(1000)] * 2000)
        files.work()
        for _ in range(300):
            _send(store, _payload(777))
        for message in read_all(store)[::10]:
            assert store.lookup.at(message.offset).sequence == message.sequence


# Taking back


@pytest.mark.parametrize("sizes", [[4000], [900] * 10, [5000, 100], [100, 5000], [900] * 5 + [9000]])
def test_a_full_disk_is_a_clean_error_at_every_step(memory: Path, sizes: list[int], background: Background) -> None:
    """If any call finds no disk space nothing of the batch is sent, stored messages stay, and sending works later."""
    batch, at = [_payload(size) for size in sizes], 0
    while True:
        at += 1
        files, path = FaultyFiles(), memory / str(at)
        with opened(path, files=files) as store:
            _send(store, _payload(1000))
            files.fail(NEEDING_SPACE, disk_full, at=at)
            sent = _try_to_send(store, batch)
            assert payloads_of(store) == [_payload(1000), *sent]
            files.work()
            _send(store, b"resumes")
            store.log.append(batch)
            assert payloads_of(store) == [_payload(1000), *sent, b"resumes", *batch]
        with opened(path) as store:
            assert payloads_of(store) == [_payload(1000), *sent, b"resumes", *batch]
        if not files.failures:
            break
    assert at > 1


def _try_to_send(store: Store, batch: list[bytes]) -> list[bytes]:
    try:
        store.log.append(batch)
    except DiskFullError:
        return []
    return batch


def test_less_space_than_usual_is_enough(path: Path) -> None:
    """On an almost full disk a segment allocates what a message needs, instead of a mebibyte."""
    files = FaultyFiles()

    def only_little(path: Path, descriptor: int, position: int, size: int) -> None:
        if size > CONTROL_SIZE:
            raise disk_full(path)
        FaultyFiles.allocate(files, path, descriptor, position, size)

    files.allocate = only_little  # type: ignore[method-assign]
    with opened(path, ChannelOptions(segment_size=1 << 20), files=files) as store:
        payloads = [_payload(10_000)] * 200
        _send(store, *payloads)
        assert payloads_of(store) == payloads


@pytest.mark.parametrize("error", [OSError("the disk is broken"), NoThreadError("can't start new thread")])
def test_what_was_sent_was_sent(path: Path, error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    """An error after a message was published is logged and tried again, and not raised in the sender."""
    raised: list[bool] = []

    def fail() -> None:
        raised.append(True)
        if len(raised) == 1:
            raise error

    with opened(path) as store:
        handle(store.events.segment_finished, fail)
        sent = [bytes([number]) * 2000 for number in range(3)]
        for payload in sent:
            store.log.append([payload])
        assert str(error) in caplog.text
        assert raised == [True]
        store.log.append([b"next"])
        assert raised == [True, True]
        assert payloads_of(store) == [*sent, b"next"]


def test_a_process_that_can_start_no_thread_can_send(path: Path) -> None:
    """A process that cannot start a thread can send, and does background work later or in the sender."""
    with opened(path) as store:
        with no_more_threads():
            sent = [bytes([number]) * 2000 for number in range(30)]
            for payload in sent:
                store.log.writer.append(payload)
        store.flusher.flush()
        assert payloads_of(store) == sent


def test_running_out_of_descriptors_is_a_storage_error(path: Path) -> None:
    """If the kernel refuses a descriptor, or anything else, the sender gets a typed error, and sends again later."""
    files = FaultyFiles()
    with opened(path, files=files) as store:
        _send(store, _payload(3000))
        files.fail(frozenset({"create", "map"}), too_many_open_files)
        with pytest.raises(StorageError, match="nothing was sent"):
            _send(store, _payload(3000))
        files.work()
        _send(store, b"resumes")
        assert payloads_of(store) == [_payload(3000), b"resumes"]


def test_running_out_of_all_descriptors_is_a_storage_error(path: Path, background: Background) -> None:
    """If no descriptor is left for a rollback, which scans the directory, the sender gets a storage error."""
    files = FewDescriptors()
    with opened(path, files=files) as store:
        _send(store, _payload(3000))
        files.has_none = True
        for _ in range(2):
            with pytest.raises(StorageError, match="Too many open files") as caught:
                _send(store, _payload(3000))
            assert isinstance(caught.value.__cause__, OSError)
        files.has_none = False
        _send(store, b"resumes")
        assert payloads_of(store) == [_payload(3000), b"resumes"]


@pytest.mark.skipif(PURE, reason="the pure implementation has a channel for itself")
def test_what_others_did_needs_descriptors(path: Path, background: Background) -> None:
    """If no descriptor is left to follow another process's roll, the sender gets a storage error."""
    files = FewDescriptors()
    with opened(path) as other, opened(path, files=files) as store:
        _send(store, b"first")
        _send(other, *[_payload(3000)] * 3)
        files.has_none = True
        with pytest.raises(StorageError, match="Too many open files"):
            _send(store, b"second")
        files.has_none = False
        _send(store, b"second")
        assert payloads_of(store) == [b"first", *[_payload(3000)] * 3, b"second"]


def test_an_interrupted_batch_is_rolled_back(path: Path) -> None:
    """Ctrl-C in the middle of a batch leaves nothing of it."""
    files = FaultyFiles()
    with opened(path, files=files) as store:
        files.fail(frozenset({"replace"}), lambda _: KeyboardInterrupt(), at=2, once=True)
        with pytest.raises(KeyboardInterrupt):
            store.log.append([_payload(1000)] * 10)
        assert payloads_of(store) == []
        _send(store, b"resumes")
        assert payloads_of(store) == [b"resumes"]


def test_a_rollback_is_on_disk(path: Path, background: Background) -> None:
    """Rolling back wipes and flushes an unfinished batch, so that it does not reappear after a power cut."""
    files = FaultyFiles()
    with opened(path, files=files) as store:
        _send(store, b"first")
        files.fail(frozenset({"replace"}), disk_full, at=2)
        files.flushed.clear()
        with pytest.raises(DiskFullError):
            store.log.append([_payload(1000)] * 10)
        assert files.flushed == [store.segments.path(0), store.segments.directory]
        segment = store.segments.get(store.segments.begins[0])
        assert not segment.map[segment.position(store.control.write_offset) :].strip(b"\0")


def test_a_dead_writers_record_is_rolled_back(path: Path) -> None:
    """Opening a channel wipes the records of a dead writer after the tail."""
    with opened(path) as store:
        _send(store, b"first")
        with store.log.writing():
            store.log.writer.write([b"never published"], 0, 0)
    with opened(path) as store:
        assert payloads_of(store) == [b"first"]
        segment = store.segments.get(store.segments.begins[0])
        assert not segment.map[segment.position(store.control.write_offset) :].strip(b"\0")
        _send(store, b"x")
        assert payloads_of(store) == [b"first", b"x"]


# Resources


def test_a_log_whose_tail_is_damaged_releases_its_segment_when_it_closes(path: Path) -> None:
    """Closing cannot store the last index entries then, but it keeps no file open."""
    with opened(path) as store:
        _send(store, b"message")
        store_u64(store.control.map, WRITE_TAIL, 1 << 63)
    assert store.log._active.segment is None


class _Disk(Files):
    """Allocates space in units, as on a disk; remembers where the allocation of a segment ends, and the file."""

    def __init__(self) -> None:
        self.ends: list[tuple[int, int]] = []

    def allocation_unit(self, directory: Path) -> int:
        return _UNIT

    def allocate(self, path: Path, descriptor: int, position: int, size: int) -> None:
        super().allocate(path, descriptor, position, size)
        if path.suffix == ".seg":
            self.ends.append((position + size, self.size(descriptor)))


def test_disk_space_is_reserved_in_whole_units(path: Path, background: Background) -> None:
    """Disk space is allocated in units of the kernel or to the end of the file, however long a message is."""
    files, options = _Disk(), ChannelOptions(segment_size=8 * _UNIT)
    for size in (100, _UNIT, 3 * _UNIT + 5, 100, 7 * _UNIT, 20 * _UNIT, 100):
        with opened(path, options, files=files) as store:
            _send(store, bytes(size), bytes(size // 2))
        background.run()
    assert len(files.ends) > 5
    assert [(end, size) for end, size in files.ends if end % _UNIT and end != size] == []


def test_rolling_keeps_descriptors_and_maps_flat(memory: Path, background: Background) -> None:
    """Rolling thousands of times takes no more descriptors and maps than a few."""
    rounds = 200 if PURE else 2000
    with opened(memory / "channel", mapped=2) as store:
        reader_at = store.lookup.earliest()
        counts = set()
        for number in range(rounds):
            _send(store, _payload(3000))
            if number % (rounds // 10) == rounds // 10 - 1:
                store.flusher.flush()
                background.run()
                counts.add((descriptors_under(memory), maps_under(memory / "channel" / "segments")))
                assert len(read_all(store, start=reader_at)) == rounds // 10
                reader_at = store.lookup.latest()
        assert len(store.segments.begins) == rounds
        assert len(counts) == 1
        assert store.segments.mapped <= 2


def test_stray_files_are_left_alone(path: Path) -> None:
    """Other files in the directories of a channel stay there and do no harm."""
    with opened(path) as store:
        _send(store, *[_payload(1000)] * 10)
    strays = ["segments/notes.txt", "segments/1.seg", "segments/99999999999999999999999.seg", "consumers/x", "README"]
    for stray in strays:
        (path / stray).write_text("stray")
    (path / "segments" / "directory").mkdir()
    (path / "consumers" / "directory.cursor").mkdir()
    with opened(path) as store:
        assert payloads_of(store) == [_payload(1000)] * 10
        _send(store, b"resumes")
        store.purge()
    assert all((path / stray).read_text() == "stray" for stray in strays)


def test_a_segment_that_a_dead_writer_was_creating_is_removed(path: Path) -> None:
    """A segment that a dead writer was creating has no name yet, and is deleted."""
    with opened(path) as store:
        _send(store, b"one")
    leftover = path / "segments" / f"new-{segment_name(4711)}"
    leftover.write_bytes(b"half a segment")
    with opened(path) as store:
        assert payloads_of(store) == [b"one"]
    assert not leftover.exists()


def test_small_channels_stay_small(path: Path) -> None:
    """A large segment allocates a mebibyte of disk for its first message, not its whole size."""
    with opened(path, ChannelOptions(segment_size=64 << 20)) as store:
        _send(store, b"one")
        assert store.segments.bytes_on_disk() <= (1 << 20) + 4096
        store.log.store_index_entries()
        assert store.segments.path(0).stat().st_size == 64 << 20
