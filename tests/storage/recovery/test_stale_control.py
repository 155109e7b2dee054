"""A control page that is older than the other files, or newer, within one boot."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from filechannel import ChannelOptions, CorruptRecordError, Durability, StorageError
from filechannel._format.layout import PAGE, SEGMENT_HEADER_SIZE
from filechannel._maintenance.repair.repair import repair
from filechannel._maintenance.verify.directory_scan import DirectoryScan
from filechannel._maintenance.verify.verification import verify
from filechannel._offset import Offset
from filechannel._storage.consumers.cursor_file_format import offsets_in_consumers
from filechannel._storage.control.checkpoints import Checkpoint
from filechannel._storage.control.control_file import CONTROL
from filechannel._storage.recovery.stale_control import is_stale
from filechannel._storage.store import Store
from filechannel._storage.system.os_calls import Files
from filechannel._storage.writable_store import WritableStore
from filechannel.blocking import open_channel
from tests.storage.background import Background
from tests.storage.channels import SMALL, open_store, opened, payloads_of, read_all, reader_of
from tests.storage.compressing import compress_all
from tests.storage.faults import FLUSHING, FaultyFiles, input_output_error
from tests.storage.producers.test_producer_positions import begin, produce

GAP = 1 << 40
FSYNC = replace(SMALL, durability=Durability.FSYNC)

pytestmark = pytest.mark.usefixtures("background")


class Mounted(Files):
    """Files of a mount whose id the test chooses."""

    def __init__(self, mounted: int) -> None:
        self._mounted = mounted

    def mount(self, descriptor: int) -> int:
        """Return the id."""
        return self._mounted


def _send(store: Store, first: int, last: int) -> None:
    for number in range(first, last):
        store.log.append([b"%d" % number])
    if store.control.deferred:
        store.flusher.commit()


def _sent(last: int) -> list[bytes]:
    return [b"%d" % number for number in range(last)]


def _page(path: Path) -> bytes:
    return (path / CONTROL).read_bytes()[:PAGE]


def _put_back(path: Path, page: bytes) -> None:
    with (path / CONTROL).open("r+b") as control:
        control.write(page)


def _lose_records(path: Path, offset: int) -> None:
    """Write zeros over everything in the first segment from an offset on."""
    with (path / "segments" / f"{0:020}.seg").open("r+b") as segment:
        segment.seek(SEGMENT_HEADER_SIZE + offset)
        segment.write(bytes(PAGE - SEGMENT_HEADER_SIZE - offset))


def _stale_page(path: Path, use: Callable[[Store], object]) -> int:
    """Send five messages, use the channel, and put the page back that it had after the five; return where they end."""
    with opened(path) as store:
        _send(store, 0, 5)
        store.flusher.flush()
        page, end = _page(path), store.control.write_offset
        use(store)
    _put_back(path, page)
    return end


def _die(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def _is_stale(store: Store) -> bool:
    return is_stale(store.files, store.path, store.control, store.segments)


def _check_resumes_elsewhere(path: Path, messages: int) -> None:
    """The messages are there, and no offset is used again."""
    with opened(path, readonly=True) as store:
        assert payloads_of(store) == _sent(messages)
        assert not store.is_current
    _check_resumes_for_writing(path, messages)


def _check_resumes_for_writing(path: Path, messages: int) -> None:
    with opened(path) as store:
        assert payloads_of(store) == _sent(messages)
        store.log.append([b"next"])
        found = read_all(store)
        assert [message.sequence for message in found] == list(range(messages + 1))
        assert found[-1].offset >= GAP
        assert store.is_current
        assert not _is_stale(store)
    with opened(path) as store:
        assert payloads_of(store) == [*_sent(messages), b"next"]


# Older than the other files


def test_batches_beyond_an_old_tail_are_found(path: Path) -> None:
    """One that ends beyond the reserved end was published: it is kept, and nothing is overwritten."""
    _stale_page(path, lambda store: _send(store, 5, 10))
    _check_resumes_elsewhere(path, 10)


def test_segments_beyond_an_old_tail_are_found(path: Path) -> None:
    """Messages in further segments are kept, and no segment is removed before that is known."""
    _stale_page(path, lambda store: _send(store, 5, 1000))
    _check_resumes_elsewhere(path, 1000)


def test_the_name_of_a_segment_is_evidence(path: Path) -> None:
    """Where the records before it were lost, the name says that offsets up to there were used.

    A read-only process gets an error that intact segments follow what was lost.
    """
    end = _stale_page(path, lambda store: _send(store, 5, 1000))
    _lose_records(path, end)
    with opened(path, readonly=True) as store:
        assert store.unreachable is not None
        with pytest.raises(CorruptRecordError):
            read_all(store)
    _check_resumes_for_writing(path, 5)


def test_a_compressed_segment_around_an_old_tail_is_evidence(path: Path) -> None:
    """A compressed segment beyond an old tail was flushed and published, and is kept."""
    more = [b"the same again " * 50] * 20

    def fill_and_compress(store: Store) -> None:
        for payload in more:
            store.log.append([payload])
        store.flusher.flush()
        assert compress_all(store, "gzip")

    _stale_page(path, fill_and_compress)
    with opened(path) as store:
        assert payloads_of(store) == _sent(5) + more
        store.log.append([b"next"])
        assert read_all(store)[-1].offset >= GAP


def test_verification_and_repair_do_not_believe_an_old_page(path: Path) -> None:
    """What lies beyond an old tail is not damage, and a repair removes nothing of it."""
    _stale_page(path, lambda store: _send(store, 5, 1000))
    with DirectoryScan.of(path) as scan:
        assert not scan.is_trusted
    report = verify(path)
    assert report.messages == 1000
    repair(path)
    with opened(path) as store:
        assert payloads_of(store) == _sent(1000)


def test_a_seal_beyond_an_old_tail_is_found(path: Path) -> None:
    """A channel that was sealed stays so."""
    _stale_page(path, WritableStore.seal)
    for readonly in (True, False):
        with opened(path, readonly=readonly) as store:
            assert store.control.sealed
            assert payloads_of(store) == _sent(5)


def test_a_consumer_beyond_an_old_tail_is_evidence(path: Path) -> None:
    """Where the messages it had got were lost, it gets what is sent next, at an offset it has never seen."""

    def consume(store: Store) -> None:
        _send(store, 5, 10)
        cursor = store.cursors.open("consumer")
        end = store.control.tail()
        cursor.store(end.offset, end.sequence, 0)
        store.cursors.close(cursor)

    end = _stale_page(path, consume)
    _lose_records(path, end)
    _check_resumes_elsewhere(path, 5)
    with opened(path) as store:
        cursor = store.cursors.open("consumer")
        position = cursor.position
        assert position is not None
        reader = reader_of(store, cursor)
        reader.move(position.log_position)
        assert reader.native.take() == b"next"
        reader.close()
        store.cursors.close(cursor)


def test_what_a_group_has_handed_out_beyond_an_old_tail_is_evidence(path: Path) -> None:
    """Its position may be before the tail: the members get what is sent next, at offsets they have never seen."""
    with open_channel(path, int) as channel, channel.group("group") as group:
        for number in range(5):
            channel.sender().send(number)
        channel.flush()
        page, end = _page(path), len(read_offsets(path))
        channel.sender().send(5)
        for number in range(6):
            assert group.receive_nowait() == number
    _put_back(path, page)
    _lose_records(path, end * 9)
    with open_channel(path, int) as channel, channel.group("group") as group:
        channel.sender().send(6)
        assert [group.receive_nowait() for _ in range(6)] == [0, 1, 2, 3, 4, 6]
    assert read_offsets(path)[-1] >= GAP


def read_offsets(path: Path) -> list[int]:
    """Return where every message begins."""
    with opened(path, readonly=True) as store:
        return [message.offset for message in read_all(store)]


def test_the_record_of_a_producer_beyond_an_old_tail_is_evidence(path: Path) -> None:
    """A producer whose record was lost finds the one before, and its next record has another offset."""

    def append(store: Store) -> None:
        place = produce(store, begin(store), 10, payload=b"5")
        produce(store, place, 20, payload=b"6")

    end = _stale_page(path, append)
    _lose_records(path, end)
    _check_resumes_elsewhere(path, 5)


def test_an_old_slot_of_a_producer_is_not_believed(path: Path) -> None:
    """After a recovery the log is searched: there may be a newer record than the slot that came back says."""
    with opened(path) as store:
        place = produce(store, begin(store), 10, payload=b"0")
        page, file = _page(path), next((path / "producers").iterdir())
        slots = file.read_bytes()
        newest = produce(store, place, 20, payload=b"1")
        store.flusher.flush()
    _put_back(path, page)
    file.write_bytes(slots)
    with opened(path) as store, store.log.writing():
        assert store.producers.open("key").find() == newest


@pytest.mark.parametrize("left", [b"", bytes(4096)], ids=["nothing", "zeros"])
def test_a_consumer_without_content_starts_at_the_oldest_message(
    path: Path, left: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """A consumer file without content is not damage, and the consumer starts at the oldest message."""

    def register(store: Store) -> None:
        _send(store, 5, 10)
        store.cursors.close(store.cursors.open("consumer"))

    _stale_page(path, register)
    (path / "consumers" / "consumer.cursor").write_bytes(left)
    with opened(path) as store:
        cursor = store.cursors.open("consumer")
        assert cursor.position is not None
        assert cursor.position.sequence == 0
        store.cursors.close(cursor)
    assert any("starts at the oldest message" in record.message for record in caplog.records)
    assert any("is older than the other files" in record.message for record in caplog.records)


def test_a_position_that_no_log_can_have_is_not_evidence(path: Path) -> None:
    """A damaged position near 2^64 leaves no offsets for a gap, and is ignored."""
    with opened(path) as store:
        _send(store, 0, 5)
        cursor = store.cursors.open("consumer")
        cursor.store((1 << 64) - 10, 5, 0)
        store.cursors.close(cursor)
        assert not _is_stale(store)
    with opened(path) as store:
        assert payloads_of(store) == _sent(5)


# What killed processes leave


def test_a_failed_flush_leaves_no_evidence(path: Path) -> None:
    """Discarded records, and the empty segment at which the log is to resume, are not taken for newer ones."""
    files = FaultyFiles()
    with opened(path, FSYNC, files=files) as store:
        _send(store, 0, 5)
        store.log.append([b"in doubt"])
        files.fail(FLUSHING, input_output_error)
        with pytest.raises(StorageError):
            store.flusher.commit()
        assert not _is_stale(store)
        files.work()
        assert not _is_stale(store)


def test_a_pending_gap_leaves_no_evidence_until_it_is_used(path: Path) -> None:
    """The segment at a pending gap means nothing while it is empty; a batch in it says that the page is old."""
    with opened(path) as store:
        _send(store, 0, 5)
        with store.log.writing():
            store.log._gap.poison_segments()
            pending = _page(path)
            assert not _is_stale(store)
            store.log._gap.make_pending()
        made = _page(path)
        _put_back(path, pending)
        assert not _is_stale(store)
        _put_back(path, made)
        store.log.append([b"5"])
    _put_back(path, pending)
    with opened(path) as store:
        assert payloads_of(store) == _sent(6)


# Another mount


@pytest.mark.parametrize("mounted", [2, 0], ids=["another", "unknown"])
@pytest.mark.parametrize("readonly", [True, False])
def test_a_page_that_is_newer_than_the_segments_is_not_trusted_after_a_remount(
    path: Path, mounted: int, readonly: bool
) -> None:
    """The log ends with the last valid record, although the page says more."""
    with opened(path, files=Mounted(1)) as store:
        _send(store, 0, 5)
        end = store.control.write_offset
        _send(store, 5, 10)
    _lose_records(path, end)
    with opened(path, files=Mounted(mounted), readonly=readonly) as store:
        assert payloads_of(store) == _sent(5)
        assert store.is_current != readonly
        if not readonly:
            store.log.append([b"next"])
            assert read_all(store)[-1].offset >= GAP


@pytest.mark.parametrize("mounted", [2, 0], ids=["another", "unknown"])
@pytest.mark.parametrize(("options", "gap"), [(SMALL, True), (FSYNC, False)], ids=["OS", "FSYNC"])
def test_a_remount_leaves_a_gap_where_offsets_may_have_been_used(
    path: Path, mounted: int, options: ChannelOptions, gap: bool
) -> None:
    """Under `FSYNC` nothing is visible before it is flushed: if the page is right about the end, no gap is needed."""
    with opened(path, options, files=Mounted(1)) as store:
        _send(store, 0, 5)
        end = store.control.write_offset
    with opened(path, readonly=True, files=Mounted(mounted)) as store:
        assert store.is_current
    with opened(path, files=Mounted(mounted)) as store:
        _send(store, 5, 6)
        found = read_all(store)
        assert [message.payload for message in found] == _sent(6)
        assert (found[-1].offset == end) != gap


def test_the_append_in_a_stale_reserved_range_is_kept_after_a_remount(path: Path) -> None:
    """Within one mount it looks like that of a killed process, and is rolled back; through another it was flushed."""
    with opened(path, FSYNC, files=Mounted(1)) as store:
        _send(store, 0, 5)
        store.log.append([b"5"])
        page = _page(path)
        store.flusher.commit()
    _put_back(path, page)
    with opened(path, files=Mounted(2)) as store:
        assert payloads_of(store) == _sent(6)


def test_doubt_is_kept_after_a_remount(path: Path, background: Background) -> None:
    """Another mount of the same file system looks the same, and there memory may have what the disk refused."""
    files = FaultyFiles()
    with opened(path, files=files) as store:
        _send(store, 0, 5)
        files.fail(FLUSHING, input_output_error)
        with pytest.raises(StorageError):
            store.flusher.flush()
        assert store.control.is_durability_unknown
        background.forget()
        files.work()
    with opened(path, files=Mounted(99)) as store:
        assert payloads_of(store) == _sent(5)
        assert store.control.is_durability_unknown


def test_a_live_process_proves_that_the_page_is_current(path: Path) -> None:
    """Through another mount nothing is recovered while a process has the channel open."""
    with opened(path, files=Mounted(1)) as store:
        _send(store, 0, 5)
        page = _page(path)
        with opened(path, readonly=True, files=Mounted(2)) as reader:
            assert reader.is_current
            _send(store, 5, 10)
            assert payloads_of(reader) == _sent(10)
        assert _page(path)[:64] == page[:64]


def test_an_interrupted_recovery_is_repeated(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a recovery is interrupted the next open repeats it, because it disowns the page first."""
    _stale_page(path, lambda store: _send(store, 5, 10))

    with monkeypatch.context() as patch:
        patch.setattr("filechannel._storage.recovery.recover.Recovery.run", _die)
        with pytest.raises(KeyboardInterrupt):
            open_store(path)
    _check_resumes_elsewhere(path, 10)


def test_a_checkpoint_beyond_the_tail_is_evidence(path: Path) -> None:
    """A checkpoint beyond the tail shows that the page is old, because the checkpoint is flushed."""
    with opened(path) as store:
        _send(store, 0, 5)
        end = store.control.tail()
        store.control.checkpoints.write(Checkpoint(end.offset, end.sequence, store.control.oldest_offset))
        assert not _is_stale(store)
        beyond = replace(store.control.checkpoints.newest() or pytest.fail("no checkpoint"), offset=end.offset + 9)
        store.control.checkpoints.write(beyond)
        assert _is_stale(store)
    assert offsets_in_consumers(Files(), path / "consumers") == []


def test_sequences_of_lost_messages_are_not_reused_after_an_interrupted_gap(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The active segment is deleted, and the process that recovers is killed when it has made the segment to resume in.

    The checkpoint is older than the lost messages then, and the tail is not trusted any more.
    """
    with opened(path) as store:
        store.flusher.flush()
        _send(store, 0, 500)
        _, *_, lost = store.segments.begins
        lost_path = store.segments.path(lost)
    lost_path.unlink()

    with monkeypatch.context() as patch:
        patch.setattr("filechannel._storage.log.offset_gap.OffsetGap._make_durable", _die)
        with pytest.raises(KeyboardInterrupt):
            open_store(path)
    assert any(int(file.stem) >= GAP for file in (path / "segments").glob("*.seg")), "it was interrupted too early"
    with opened(path) as store:
        store.log.append([b"next"])
        assert store.control.tail().sequence == 501, "a number was used twice"


@pytest.mark.parametrize("refused", [False, True], ids=["killed", "a gap is pending"])
def test_a_record_of_a_producer_that_was_rolled_back_is_not_evidence(
    path: Path,
    background: Background,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    refused: bool,
) -> None:
    """Under `FSYNC` its file has an offset beyond the tail; neither the next open nor later ones recover for that."""
    files = FaultyFiles()
    store = open_store(path, FSYNC, files=files)
    last = produce(store, begin(store), 10, payload=b"0")
    store.flusher.commit()
    store.log.append([b"not flushed yet"])
    produce(store, last, 20, payload=b"nor is this")
    if refused:
        files.fail(FLUSHING, input_output_error)
        with monkeypatch.context() as patch:
            patch.setattr("filechannel._storage.log.offset_gap.OffsetGap.make_pending", _die)
            with pytest.raises(KeyboardInterrupt):
                store.flusher.commit()
        assert store.control.is_gap_pending
        files.work()
    background.forget()
    left = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    store.close()
    for file in [each for each in path.rglob("*") if each.is_file()]:  # as if the process had been killed
        if file in left:
            with file.open("r+b") as again:
                again.write(left[file])
        else:
            file.unlink()
    for _ in range(3):
        with opened(path) as store:
            assert payloads_of(store) == [b"0"]
            assert not _is_stale(store)
            with store.log.writing():
                assert store.producers.open("key").find() == last
    assert not any("older than the other files" in record.message for record in caplog.records)


class _Watched(Files):
    """Notes which directories are listed, and how many files are mapped."""

    def __init__(self) -> None:
        super().__init__()
        self.listed: list[str] = []
        self.mapped = 0

    def list(self, directory: Path) -> list[str]:
        self.listed.append(directory.name)
        return super().list(directory)

    def map(self, *arguments: Any, **options: Any) -> mmap.mmap:
        self.mapped += 1
        return super().map(*arguments, **options)


def test_a_read_only_open_looks_at_the_segments_once(tmp_path: Path) -> None:
    """A read-only open with nothing beyond the tail maps no segment and lists them once."""
    with opened(tmp_path / "channel") as store:
        store.log.append([b"one"])
    files = _Watched()
    with opened(tmp_path / "channel", files=files, readonly=True) as store:
        assert files.listed.count("segments") == 2  # one scan
        assert files.mapped == 1  # the control page
        assert store.segments.mapped == 0
        assert payloads_of(store) == [b"one"]


def test_a_check_without_a_map_distinguishes_zeros_from_records(tmp_path: Path) -> None:
    """Without a map, a check of a segment tells zeros from records."""
    with opened(tmp_path / "channel") as store:
        store.log.append([b"one"])
        [begin] = store.segments.begins
        assert store.segments.is_blank(begin, store.control.write_offset)
        assert not store.segments.is_blank(begin, begin)
        assert not store.segments.is_blank(Offset(1 << 30), 1 << 30)
