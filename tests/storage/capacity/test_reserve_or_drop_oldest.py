"""Capacity, where it is not simple: failures, overtaking, kills, and offset gaps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from filechannel import Capacity, ChannelFullError, ChannelOptions, DataExpiredError, Durability, StorageError
from filechannel._format.layout import CURSOR_OWNER, OFFSET_GAP, TRANSACTION
from filechannel._offset import LogPosition
from filechannel._storage.capacity.backlog import Batch
from filechannel._storage.durability.group_commit import Ticket
from filechannel._storage.log.batch_parts import HeaderRecord
from filechannel._storage.producers.producer_positions import ProducerPosition
from filechannel._storage.store import Store
from filechannel._storage.system.os_calls import Files
from tests.storage.background import Background
from tests.storage.channels import opened, payloads_of, reader_of
from tests.storage.faults import FLUSHING, NEEDING_SPACE, FaultyFiles, disk_full, input_output_error

FULL = ChannelOptions(capacity=Capacity(max_messages=4, on_full="raise"), segment_size=4096)
DURABLE = ChannelOptions(
    capacity=Capacity(max_messages=4, on_full="raise"), segment_size=4096, durability=Durability.FSYNC
)
DROP = ChannelOptions(capacity=Capacity(max_bytes=16384, on_full="drop_oldest"), segment_size=4096)


class Sleeper:
    """A sender that waits for a commit."""

    def wake(self) -> None:
        """Nothing has to be done."""


class LateFiles(Files):
    """A file system with a slow flush: something happens during it, once."""

    meanwhile: Callable[[], object] | None = None

    def flush(self, descriptor: int) -> None:
        """Let it happen, and flush."""
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        super().flush(descriptor)


def test_every_sender_of_a_failed_flush_gets_an_error_and_its_capacity_back(path: Path, background: Background) -> None:
    """After a failed flush each sender gets one error and its capacity back, and offset gaps are not counted."""
    files = FaultyFiles()
    with opened(path, DURABLE, files=files) as store:
        store.log.append([b"kept"])
        store.flusher.commit()
        files.fail(FLUSHING, input_output_error, once=True)
        tickets = [Ticket(store.log.append([b"lost"]), Sleeper()) for _ in range(3)]
        with pytest.raises(ChannelFullError):
            store.log.append([b"too much"])
        for ticket in tickets:
            store.group_commit.commit_later(ticket)
        background.run()
        assert all(isinstance(ticket.error, StorageError) for ticket in tickets)
        assert store.control.write_offset >= OFFSET_GAP
        assert store.backlog.used() == Batch(12, 1)
        fine = [Ticket(store.log.append([b"fine"]), Sleeper()) for _ in range(3)]
        with pytest.raises(ChannelFullError):
            store.log.append([b"too much"])
        for ticket in fine:
            store.group_commit.commit_later(ticket)
        background.run()
        assert [ticket.error for ticket in fine] == [None] * 3
        assert payloads_of(store) == [b"kept", b"fine", b"fine", b"fine"]
        assert store.backlog.used() == Batch(48, 4)
        with pytest.raises(StorageError, match="a flush failed"):
            store.flusher.flush()
        store.flusher.flush()
    with opened(path, create=False) as store:
        assert payloads_of(store) == [b"kept", b"fine", b"fine", b"fine"]
        assert store.backlog.used() == Batch(48, 4)


def test_an_overtaken_idle_reader_gets_where_the_log_begins(path: Path) -> None:
    """An overtaken idle reader gets the new begin of the log, although the files are not deleted yet."""
    with opened(path, DROP) as store:
        cursor = store.cursors.open("slow")
        reader = reader_of(store, cursor)
        reader.move(LogPosition(store.control.write_offset, 0))
        assert store.retain_from(0)
        for number in range(100):
            store.log.append([b"%03d" % number + bytes(989)])
            assert store.backlog.used().size <= 16384
        with pytest.raises(DataExpiredError) as caught:
            reader.native.take()
        first = int(bytes(reader.native.take())[:3])  # type: ignore[call-overload]
        assert caught.value.missed == first
        assert caught.value.oldest == first * 1000
        reader.close()


def test_a_process_that_dies_before_the_files_are_removed_leaves_them_to_the_next(
    path: Path, background: Background
) -> None:
    """If a process dies before it deletes dropped files, the next open does, and the begin of the log stays."""
    with opened(path, DROP) as store:
        cursor = store.cursors.open("slow")
        reader = reader_of(store, cursor)
        reader.move(LogPosition(store.control.write_offset, 0))
        reader.close()
        store.cursors.close(cursor)
        assert store.retain_from(0)
        for number in range(40):
            store.log.append([b"%03d" % number + bytes(989)])
        oldest = store.control.oldest_offset
        assert store.segments.begins[0] < oldest  # nothing has run that removes them
        background.forget()
    with opened(path, create=False) as store:
        assert store.control.oldest_offset == oldest
        assert store.segments.begins[0] == oldest
        position = store.consumer_listing.registrations()[0].position
        assert position.offset == 0


def _send_beside_a_slow_consumer(store: Store, messages: int) -> None:
    """Register a consumer that reads nothing, close it, and send."""
    cursor = store.cursors.open("slow")
    cursor.store(0, 0, 0)
    store.cursors.close(cursor)
    assert store.retain_from(0)
    for number in range(messages):
        store.log.append([b"%03d" % number + bytes(989)])


@pytest.mark.parametrize("capacity", [None, Capacity(max_messages=1000)])
def test_an_overtaken_consumer_gets_the_error_whatever_the_capacity_is_then(
    path: Path, background: Background, capacity: Capacity | None
) -> None:
    """An overtaken consumer gets the error although the capacity changed and every process died in between."""
    with opened(path, DROP) as store:
        _send_beside_a_slow_consumer(store, 40)
        store.configure(lambda manifest: replace(manifest, options=replace(manifest.options, capacity=capacity)))
        assert store.segments.begins[0] < store.control.oldest_offset
        background.forget()
    with opened(path, create=False) as store:
        assert store.segments.begins[0] == store.control.oldest_offset > 0
        assert store.consumer_listing.registrations()[0].position.offset == 0


@pytest.mark.parametrize("options", [ChannelOptions(segment_size=4096), DROP])
def test_a_purge_that_died_is_finished_by_the_next_process(
    path: Path, options: ChannelOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next process finishes a purge whose process died, and closed consumers continue after it."""
    with opened(path, options) as store:
        _send_beside_a_slow_consumer(store, 12)
        monkeypatch.setattr(store.cursors, "move_unowned", _die)
        with pytest.raises(KeyboardInterrupt):
            store.purge()
        end = store.control.write_offset
    with opened(path, create=False) as store:
        assert payloads_of(store) == []
        position = store.consumer_listing.registrations()[0].position
        assert (position.offset, position.sequence) == (end, 12)


def _die(_: LogPosition) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("at", range(1, 8))
def test_a_full_disk_while_the_oldest_are_dropped(path: Path, at: int) -> None:
    """If any call fails on a full disk while the oldest are dropped, the batch is sent whole or not at all."""
    options = ChannelOptions(capacity=Capacity(max_messages=2, on_full="drop_oldest"), segment_size=4096)
    files = FaultyFiles()
    with opened(path, options, files=files) as store:
        store.log.append([b"a"])
        store.log.append([b"b"])
        files.fail(NEEDING_SPACE, disk_full, at=at)
        sent = True
        try:
            store.log.append([b"c", b"d"])
        except StorageError:
            sent = False
        files.work()
        assert payloads_of(store)[-2:] == ([b"c", b"d"] if sent else payloads_of(store)[-2:])
        store.log.append([b"e", b"f"])
        assert payloads_of(store) == [b"e", b"f"]
    with opened(path, create=False) as store:
        assert payloads_of(store) == [b"e", b"f"]


def test_a_seal_needs_no_capacity(path: Path) -> None:
    """A seal needs no capacity, because it is not a message."""
    with opened(path, FULL) as store:
        for _ in range(4):
            store.log.append([b"x"])
        store.seal()
        assert store.control.sealed
        assert store.backlog.used().messages == 4


def test_senders_remove_what_they_dropped_if_no_other_process_does(path: Path) -> None:
    """Senders delete the segments they dropped if no other process does, so that few files wait."""
    options = ChannelOptions(capacity=Capacity(max_messages=4, on_full="drop_oldest"), segment_size=4096)
    with opened(path, options) as store:
        for number in range(200):
            store.log.append([b"%d" % number])
            assert len(store.segments.begins) < 45
        assert payloads_of(store) == [b"%d" % number for number in range(196, 200)]
        assert store.maintenance_lock.reclaimed[0] > 100


def test_a_sender_that_cannot_remove_what_it_dropped_has_sent_all_the_same(path: Path) -> None:
    """A sender that cannot delete what it dropped returns, the error is counted, and the next process tries again."""
    files = FaultyFiles()
    options = ChannelOptions(capacity=Capacity(max_messages=4, on_full="drop_oldest"), segment_size=4096)
    with opened(path, options, files=files) as store:
        for _ in range(32):
            store.log.append([b"x"])
        files.fail(FLUSHING, input_output_error)
        for _ in range(8):
            store.log.append([b"y"])
        assert store.maintenance_lock.errors
        files.work()
        store.log.append([b"z"])
        assert len(store.segments.begins) < 10
        assert payloads_of(store) == [b"y", b"y", b"y", b"z"]


def test_a_batch_whose_beginning_was_dropped_is_on_disk_before_its_files_are_deleted(path: Path) -> None:
    """The rest of a batch whose beginning was dropped is flushed before its files are deleted."""
    with opened(path, DROP) as store:
        store.log.append([b"%02d" % number + bytes(990) for number in range(12)])
        for _ in range(6):
            store.log.append([bytes(992)])
        oldest = store.control.oldest_offset
        assert 0 < oldest < 12000
        with store.maintenance_lock.held():
            store.reclaim.finish()
        assert store.segments.begins[0] == oldest
        checkpoint = store.control.checkpoints.newest()
        assert checkpoint is not None
        assert checkpoint.oldest == oldest
        assert checkpoint.offset >= 12000


@pytest.mark.parametrize("how", ["finished", "everything"])
def test_no_checkpoint_says_that_the_log_begins_behind_it(path: Path, background: Background, how: str) -> None:
    """A checkpoint never has a beginning of the log beyond its end, although senders drop during the flush."""
    files = LateFiles()
    with opened(path, DROP, files=files) as store:
        store.log.append([b"first"])
        files.meanwhile = lambda: [store.log.append([bytes(992)] * 8) for _ in range(4)]
        if how == "everything":
            store.flusher.flush()
        else:
            store.log.append([bytes(992)] * 12)
            store.flusher.flush_finished()
        assert store.control.oldest_offset > 0
        checkpoint = store.control.checkpoints.newest()
        assert checkpoint is not None
        assert checkpoint.oldest <= checkpoint.offset


def test_the_positions_of_producers_in_dropped_records_are_kept(path: Path) -> None:
    """Before dropped records are deleted the positions of their producers are in their files."""
    with opened(path, DROP) as store:
        producer = store.producers.open("0" * 32 + ".name")
        first = ProducerPosition(store.control.write_offset, 7, 0, 0)
        producer.begin(first)
        second = ProducerPosition(store.control.write_offset, 7, 5, 5)
        store.log.append(
            [b"x"], HeaderRecord(producer.record_size, lambda _: producer.record(TRANSACTION, second, first))
        )
        for _ in range(40):
            store.log.append([bytes(992)])
        assert store.control.oldest_offset > second.record
    with opened(path, create=False) as store, store.log.writing():
        assert store.producers.open("0" * 32 + ".name").find() == second


class TornFiles(Files):
    """A file system in which a look at a position finds it in the middle of being written."""

    torn = 0

    def read_at(self, descriptor: int, size: int, position: int) -> bytes:
        """Read, but not all of it."""
        content = super().read_at(descriptor, size, position)
        if self.torn and len(content) >= CURSOR_OWNER:
            self.torn -= 1
            return b"\1" * CURSOR_OWNER + content[CURSOR_OWNER:]
        return content


def test_a_consumer_counts_although_it_was_moving_when_it_was_looked_up(path: Path) -> None:
    """A consumer that moves while the backlog is computed counts like any other."""
    files = TornFiles()
    with opened(path, FULL, files=files) as store:
        cursor = store.cursors.open("busy")
        reader = reader_of(store, cursor)
        reader.move(store.lookup.earliest())
        assert store.retain_from(0)
        for _ in range(4):
            store.log.append([b"x"])
            reader.native.take()
        assert store.retain_from(store.control.write_offset)
        files.torn = 3
        assert store.backlog.used() == Batch(0, 0)
        reader.close()


@pytest.mark.parametrize("damaged", [b"", b"\1" * CURSOR_OWNER, bytes(4096)])
def test_a_damaged_position_holds_everything_back(path: Path, damaged: bytes) -> None:
    """A consumer with a damaged position holds back everything until it is repaired or removed."""
    with opened(path, FULL) as store:
        for name in ("damaged", "fine"):
            cursor = store.cursors.open(name)
            reader = reader_of(store, cursor)
            reader.move(store.lookup.earliest())
            reader.close()
            store.cursors.close(cursor)
        (path / "consumers" / "damaged.cursor").write_bytes(damaged)
        store.log.append([b"x"])
        cursor = store.cursors.open("fine")
        reader = reader_of(store, cursor)
        reader.move(store.lookup.earliest())
        assert reader.native.take() == b"x"
        assert store.retain_from(store.control.write_offset)
        assert store.backlog.used() == Batch(9, 1)
        store.cursors.remove_unowned("damaged")
        assert store.backlog.used() == Batch(0, 0)
        reader.close()
