"""Retiring the oldest segments, step by step, and what others find in between."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from filechannel import ChannelOptions, Durability, StorageError
from filechannel._errors import Busy
from filechannel._format import PURE
from filechannel._offset import Offset
from filechannel._storage.segments.free_list import FreeList
from filechannel._storage.segments.segment import segment_name
from filechannel._storage.store import Store
from tests.maintenance.stores import consume, consumer, files_of, fill, reclaim
from tests.storage.background import Background
from tests.storage.channels import SMALL, opened, payloads_of, reader_of
from tests.storage.compressing import NO_FREE_LIST, compress_all
from tests.storage.faults import FaultyFiles, input_output_error
from tests.storage.resources import files_under, maps_under

shares = pytest.mark.skipif(PURE, reason="the pure implementation has a channel for itself")


def _checkpointed(store: Store) -> Offset:
    checkpoint = store.control.checkpoints.newest()
    assert checkpoint is not None
    return checkpoint.oldest


def _segment_files(store: Store) -> list[str]:
    return [name for name in files_of(store) if name.endswith(".seg")]


def test_the_files_are_deleted_last(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the first retired file is deleted the new begin is on disk, and known to every process."""
    seen: list[tuple[int, int]] = []
    recycle = FreeList.recycle

    def watched(self: FreeList, path: Path, begin: int) -> None:
        seen.append((store.control.oldest_offset, _checkpointed(store)))
        recycle(self, path, begin)

    with opened(path, SMALL) as store:
        fill(store, 4)
        consume(store, 7)
        monkeypatch.setattr(FreeList, "recycle", watched)
        reclaim(store)
        assert seen == [(store.segments.begins[0], store.segments.begins[0])] * 2


def test_producers_release_segments_before_the_log_moves(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Producers release the segments with the writer lock held, before the oldest offset moves."""
    with opened(path, SMALL) as store:
        fill(store, 4)
        consume(store, 7)
        released: list[tuple[int, int]] = []

        def release_before(oldest: Offset) -> None:
            released.append((store.control.oldest_offset, oldest))
            assert store.log._lock.is_held

        monkeypatch.setattr(store.producers, "release_before", release_before)
        reclaim(store)
        assert released == [(0, store.control.oldest_offset)]


def test_an_error_leaves_everything_for_the_next_time(path: Path) -> None:
    """If any call of a reclaim fails no file is deleted before the new begin is on disk, and it can be repeated."""
    files = FaultyFiles()
    with opened(path, SMALL, files=files) as store:
        sent = fill(store, 4)
        consume(store, 7)
        files.fail(frozenset({"flush"}), input_output_error)
        with pytest.raises(OSError, match="Input/output"):
            reclaim(store)
        assert payloads_of(store) == sent
        files.work()
        reclaim(store)
        assert payloads_of(store) == sent[6:]


@shares
def test_a_lock_that_a_stopped_process_holds_is_not_waited_for(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reclaim does not wait for a process that is stopped while it flushes or writes, and is repeated later."""
    monkeypatch.setattr("filechannel._runtime.may_sleep._LOCK_WAIT_SECONDS", 0.01)
    with opened(path, SMALL) as store, opened(path, SMALL) as other:
        sent = fill(store, 4)
        consume(store, 7)
        with other.log.writing(), pytest.raises(Busy):
            reclaim(store)
        assert store.control.oldest_offset == 0
        with other.flusher._lock.held(), pytest.raises(Busy):
            reclaim(store)
        assert store.control.oldest_offset > 0, "it is decided"
        assert len(_segment_files(store)) == 4, "and not carried out"
        assert payloads_of(other) == sent[6:]
        reclaim(other)
        assert len(_segment_files(store)) == 2
        assert _checkpointed(store) == store.control.oldest_offset == store.segments.begins[0]


@shares
def test_a_late_flush_does_not_bring_the_checkpoint_back(path: Path, background: Background) -> None:
    """A flush that ends after another process sealed and reclaimed everything does not restore an old checkpoint."""
    with opened(path, ChannelOptions(segment_size=4096, durability=Durability.OS)) as store:
        with opened(path, SMALL) as other:
            fill_without_flush(other)
            store.log.append([b"last"])
            store.seal()
            consume(store)
            reclaim(store, 0.0)
            background.run()  # what the other one had still to flush
            checkpoint = store.control.checkpoints.newest()
            assert checkpoint is not None
            assert checkpoint.sealed
            assert checkpoint.offset == checkpoint.oldest == store.control.write_offset


def fill_without_flush(store: Store) -> None:
    """Finish a segment, and leave it to the background to bring it to disk."""
    for _ in range(5):
        store.log.append([bytes(1300)])


@shares
def test_segments_of_others_are_flushed_although_earlier_ones_are_reclaimed(path: Path) -> None:
    """A flush begins with the first segment there is, if the one it would begin with was deleted."""
    with opened(path, SMALL) as store, opened(path, SMALL) as other:
        fill(store, 1)
        consume(store)
        reclaim(other, 0.0)
        fill_without_flush(other)  # several segments, unknown to the first
        store.control.durable_offset = 0
        with store.log.writing():
            assert sorted(segment.begin for segment in store.log.dirty.take().segments) == store.segments.begins
        assert len(store.segments.begins) > 1


def test_a_segment_that_is_missing_holds_nothing_back(path: Path) -> None:
    """A missing segment holds back nothing, and those around it are reclaimed."""
    with opened(path, SMALL) as store:
        fill(store, 3)
        _, missing, last = store.segments.begins
    (path / "segments" / segment_name(missing)).unlink()
    with opened(path, SMALL) as store:
        assert store.reclaim.up_to(last, lambda _: True, patiently=False)
        assert store.segments.begins == [last]


def test_an_index_without_its_segment_is_removed(path: Path) -> None:
    """An index whose segment is missing, as after a power cut, is deleted, and other files stay."""
    with opened(path, SMALL) as store:
        fill(store, 2)
        store.log.store_index_entries()
        kept = files_of(store)
    for name in ("00000000000000999999.idx", "notes.idx"):
        (path / "segments" / name).touch()
    with opened(path, SMALL) as store:
        assert files_of(store) == sorted([*kept, "notes.idx"])


@shares
def test_a_reader_whose_segment_was_reclaimed_gets_an_error(path: Path) -> None:
    """A reader in or before a reclaimed segment gets an error, also in a process that has not scanned since."""
    with opened(path, SMALL) as store, opened(path, SMALL) as other:
        sent = fill(store, 4)
        replay = reader_of(other)
        replay.move(other.lookup.earliest())
        assert other.segments.begins[0] == 0
        consume(store, 7)
        reclaim(store)
        with pytest.raises(StorageError, match="6 messages were dropped"):
            replay.native.take()
        assert replay.native.take() == sent[6]
        replay.close()


# What is removed is not held


def _held(store: Store) -> tuple[int, int]:
    """Return how many descriptors and maps of segments there are, in all that this process has open."""
    return files_under(store.segments.directory), maps_under(store.segments.directory)


def test_an_idle_channel_uses_no_disk_space(path: Path, background: Background) -> None:
    """An idle channel uses no disk space, because readers and senders release deleted files."""
    with opened(path, SMALL) as store, consumer(store) as receiver:
        for payload in fill(store, 1):
            assert receiver.native.take() == payload
        store.log.append([b"unflushed"])
        assert receiver.native.take() == b"unflushed"
        reclaim(store, 0.0)
        store.release_removed()
        assert files_of(store) == []
        assert _held(store) == (0, 0)
        store.log.append([b"next"])
        assert receiver.native.take() == b"next"


def test_a_reader_of_what_another_process_is_removing_may_continue(path: Path) -> None:
    """A reader in a segment that another process is deleting may continue."""
    with opened(path, SMALL) as store:
        sent = fill(store, 2)
        replay = reader_of(store)
        replay.move(store.lookup.earliest())
        assert replay.native.take() == sent[0]
        store.control.oldest_offset = store.segments.begins[1]
        store.segments.path(0).unlink()
        store.release_removed()
        assert replay.native.take() == sent[1]


@pytest.mark.parametrize("rests", [False, True])
def test_a_reader_of_what_is_removed_may_continue_unless_it_is_idle(
    path: Path, rests: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader may finish a segment that is being removed, and an idle reader releases it."""
    with opened(path, SMALL) as store:
        sent = fill(store, 1)
        replay = reader_of(store)
        replay.move(store.lookup.earliest())
        assert replay.native.take() == sent[0]
        consume(store)
        reclaim(store, 0.0)
        store.release_removed()
        assert _held(store) != (0, 0)
        monkeypatch.setattr("filechannel._storage.reading.log_reader.IDLE_SECONDS", 0.0 if rests else 3600.0)
        store.release_removed()
        assert (_held(store) == (0, 0)) is rests
        store.log.append([b"next"])
        if not rests:
            assert [replay.native.take(), replay.native.take()] == sent[1:]
        else:
            with pytest.raises(StorageError, match="2 messages were dropped"):
                replay.native.take()
        assert replay.native.take() == b"next"


@shares
def test_an_idle_reader_in_another_process_releases_it_too(path: Path, background: Background) -> None:
    """An idle reader releases a segment that another process removed, without any other event."""
    with opened(path, SMALL) as resting, opened(path, SMALL) as third, opened(path, SMALL) as other:
        resting.log.append([b"sent"])
        with third.log.writing():
            pass  # which only takes up the segment
        replay = reader_of(resting)
        replay.move(resting.lookup.earliest())
        assert replay.native.take() == b"sent"
        consume(other)
        reclaim(other, 0.0)
        for store in (other, resting, third):
            store.release_removed()
        assert _held(resting) == (0, 0)
        resting.log.append([b"next"])
        assert replay.native.take() == b"next"


@shares
def test_a_sender_releases_files_before_it_creates_one(path: Path, background: Background) -> None:
    """A sender releases deleted files before it creates one, because a full disk may have no other space."""
    with opened(path, SMALL) as sender, opened(path, SMALL) as other:
        sender.log.append([b"sent"])
        consume(other)
        reclaim(other, 0.0)
        other.release_removed()
        with sender.log.writing():
            assert _held(sender) == (0, 0)


def test_a_compressed_segment_that_was_removed_is_not_kept(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a removed compressed segment nor the plain file of a compressed one is kept open."""
    with opened(path, NO_FREE_LIST) as store:
        sent = fill(store, 4)
        replay = reader_of(store)
        replay.move(store.lookup.earliest())
        assert replay.native.take() == sent[0]
        assert compress_all(store)
        mapped = maps_under(store.segments.directory)
        store.release_removed()
        assert maps_under(store.segments.directory) == mapped - 1
        assert replay.native.take() == sent[1]
        monkeypatch.setattr("filechannel._storage.reading.log_reader.IDLE_SECONDS", 0.0)
        consume(store)
        reclaim(store, 0.0)
        store.release_removed()
        assert _held(store) == (0, 0)


def test_files_of_the_free_list_stay_mapped(path: Path, background: Background) -> None:
    """Files of the free list stay mapped, because they are written to again."""
    del background  # no other thread opens files
    with opened(path, SMALL) as store:
        fill(store, 2)
        consume(store)
        reclaim(store)
        assert store.segments.free_list is not None
        assert store.segments.free_list.names()
        held = _held(store)
        store.release_removed()
        assert _held(store) == held
        assert store.segments.next_free_file() is not None


def test_the_maps_of_a_deleted_channel_stay(path: Path) -> None:
    """A process keeps the maps of a channel that was deleted, and gets an error when it needs another file."""
    with opened(path, SMALL) as store:
        sent = fill(store, 1)
        replay = reader_of(store)
        replay.move(store.lookup.earliest())
        assert replay.native.take() == sent[0]
        shutil.rmtree(path)
        store.release_removed()
        assert replay.native.take() == sent[1]
