"""Durability: what is on disk, and which callers get an error when it is not."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from filechannel import ChannelOptions, DiskFullError, Durability, StorageError
from filechannel._format import PURE
from filechannel._format.layout import WAKE, WAKE_LOOPS
from filechannel._offset import Offset
from filechannel._storage.control.control_reserve import ControlReserve
from filechannel._storage.durability.flusher import Flusher
from filechannel._storage.durability.group_commit import Ticket
from filechannel._storage.segments.catalog import Segments
from filechannel._storage.segments.segment import segment_name
from filechannel._storage.store import Store
from filechannel._storage.system.os_calls import Files
from tests.storage.background import Background
from tests.storage.boots import Boots
from tests.storage.channels import opened, payloads_of
from tests.storage.faults import FLUSHING, NEEDING_SPACE, FaultyFiles, FewDescriptors, disk_full, input_output_error
from tests.storage.handling import handle
from tests.storage.reclaiming import reclaim
from tests.storage.resources import descriptors_under

pytestmark = pytest.mark.disk
shares = pytest.mark.skipif(PURE, reason="the pure implementation has a channel for itself")

OS = ChannelOptions(segment_size=4096, durability=Durability.OS)
FSYNC = ChannelOptions(segment_size=4096, durability=Durability.FSYNC)
LARGE = b"." * 1500


class Sleeper:
    """A sender that waits for a commit."""

    def __init__(self) -> None:
        self._woken = threading.Event()

    def wake(self) -> None:
        """Let it continue."""
        self._woken.set()

    def wait(self) -> None:
        """Wait until woken."""
        assert self._woken.wait(30)


def _segment(path: Path, begin: int = 0) -> Path:
    return path / "segments" / segment_name(begin)


# What a flush covers


def test_a_flush_brings_everything_to_disk_in_order(path: Path, background: Background) -> None:
    """A flush writes segments, then their names, then consumers, and the checkpoint when all of it is on disk."""
    files = FaultyFiles()
    with opened(path, OS, files=files) as store:
        cursor = store.cursors.open("consumer")
        for _ in range(5):
            store.log.append([LARGE])
        files.flushed.clear()
        store.flusher.flush()
        assert files.flushed == [
            *(_segment(path, begin) for begin in store.segments.begins),
            path / "segments",
            path / "consumers" / "consumer.cursor",
            path / "consumers",
            path / "control",
        ]
        store.cursors.close(cursor)


class Meeting(FaultyFiles):
    """Disks on which a flush of a segment ends when several others have started."""

    def __init__(self, parties: int) -> None:
        super().__init__()
        self._barrier = threading.Barrier(parties)
        self.is_on = False

    def flush(self, descriptor: int) -> None:
        """Meet the others."""
        super().flush(descriptor)
        if self.is_on and self.flushed[-1].suffix == ".seg":
            self._barrier.wait(30)


def test_many_segments_are_flushed_at_once(path: Path) -> None:
    """Many segments are flushed at once, in the time of a few."""
    files = Meeting(4)
    with opened(path, FSYNC, files=files) as store:
        store.events.segment_finished.detach_all()
        while len(store.segments.begins) < 8:
            store.log.append([LARGE])
        files.is_on = True
        store.flusher.commit()
        files.is_on = False
        assert {_segment(path, begin) for begin in store.segments.begins} <= set(files.flushed)
        assert store.control.write_offset == store.control.tail(deferred=True).offset


def test_one_of_many_segments_that_fails_fails_the_flush(path: Path) -> None:
    """If one of many segments cannot be flushed the flush fails, and nothing becomes visible."""
    files = FaultyFiles()
    with opened(path, FSYNC, files=files) as store:
        store.events.segment_finished.detach_all()
        while len(store.segments.begins) < 8:
            store.log.append([LARGE])
        files.fail(frozenset({"flush"}), input_output_error, at=5, once=True)
        with pytest.raises(StorageError):
            store.flusher.commit()
        assert payloads_of(store) == []


@pytest.mark.parametrize("options", [OS, FSYNC])
def test_segments_that_wait_for_a_flush_are_bounded(
    memory: Path, options: ChannelOptions, background: Background
) -> None:
    """On a slow disk senders wait for the flush, so that few segments with their descriptors wait for it."""
    with opened(memory, options) as store:
        for _ in range(600):
            store.log.append([LARGE])
        assert len(store.segments.begins) == 300
        assert descriptors_under(memory) < 200
        store.flusher.flush()
        assert len(payloads_of(store)) == 600


def test_a_segment_that_cannot_be_flushed_in_time_fails_the_next_flush(path: Path, background: Background) -> None:
    """A finished segment whose flush fails makes the next flush fail, and is not flushed again."""
    files = FaultyFiles()
    with opened(path, FSYNC, files=files) as store:
        files.fail(frozenset({"flush"}), input_output_error, once=True)
        while not files.failures:
            store.log.append([LARGE])
        flushes = files.calls["flush"]
        for _ in range(10):
            store.log.append([LARGE])
        assert files.calls["flush"] == flushes
        with pytest.raises(StorageError):
            store.flusher.flush()
        assert payloads_of(store) == []


def test_a_segment_that_could_not_be_flushed_in_time_is_not_forgotten(path: Path, background: Background) -> None:
    """After a failed flush of a finished segment the next open gets the error, although closing under OS flushes
    nothing.
    """
    files = FaultyFiles()
    with opened(path, OS, files=files) as store:
        files.fail(frozenset({"flush"}), input_output_error, once=True)
        while not files.failures:
            store.log.append([LARGE])
    with opened(path, OS) as store, pytest.raises(StorageError, match="may not be on disk"):
        store.flusher.flush()


def test_a_flush_covers_only_what_changed(path: Path, background: Background) -> None:
    """A flush leaves out segments and names that are on disk already, but not the active segment."""
    files = FaultyFiles()
    with opened(path, OS, files=files) as store:
        for _ in range(5):
            store.log.append([LARGE])
        store.flusher.flush()
        files.flushed.clear()
        store.log.append([b"one more"])
        store.flusher.flush()
        assert files.flushed == [_segment(path, store.segments.begins[-1]), path / "control"]


def test_a_checkpoint_says_what_was_on_disk(path: Path) -> None:
    """A checkpoint has the offset and sequence of what was flushed, and the state of the channel."""
    with opened(path, OS) as store:
        store.log.append([b"one", b"two"])
        assert store.control.durable_offset == 0
        store.flusher.flush()
        checkpoint, tail = store.control.checkpoints.newest(), store.control.tail()
        assert checkpoint is not None
        assert (checkpoint.offset, checkpoint.sequence, checkpoint.sealed) == (tail.offset, 2, False)
        assert store.control.durable_offset == tail.offset
        store.seal()
        store.flusher.flush()
        checkpoint = store.control.checkpoints.newest()
        assert checkpoint is not None
        assert checkpoint.sealed


def test_what_others_left_unflushed_is_flushed(path: Path, background: Background) -> None:
    """A process that opens the channel flushes everything after the checkpoint."""
    with opened(path, OS) as store:
        for _ in range(6):
            store.log.append([LARGE])
    background.forget()
    files = FaultyFiles()
    with opened(path, OS, files=files) as store:
        files.flushed.clear()
        store.flusher.flush()
        assert {_segment(path, begin) for begin in store.segments.begins} <= set(files.flushed)
        assert path / "segments" in files.flushed


@shares
def test_a_process_that_only_maps_segments_of_others_keeps_none_of_them(path: Path, background: Background) -> None:
    """A process that only receives keeps no segment that others began to be flushed."""
    with opened(path, OS, mapped=2) as sender, opened(path, OS, mapped=2) as receiver:
        counts = []
        for _ in range(20):
            sender.log.append([LARGE, LARGE])
            sender.flusher.flush()
            with receiver.log.writing():
                pass
            counts.append(descriptors_under(path))
        assert len(sender.segments.begins) == 20
        assert len(set(counts[3:])) == 1  # from then on each has as many mapped as it may
        assert not len(receiver.log.dirty)


@shares
def test_names_that_others_made_are_flushed(path: Path, background: Background) -> None:
    """A flush covers the names of segments that other processes created."""
    files = FaultyFiles()
    with opened(path, FSYNC) as first, opened(path, FSYNC, files=files) as second:
        first.log.append([b"makes the file"])
        second.log.append([b"resumes in it"])
        files.flushed.clear()
        second.flusher.commit()
        assert files.flushed == [_segment(path), path / "segments"]


def test_nothing_new_needs_no_flush(path: Path) -> None:
    """A flush without new messages does not touch the disk."""
    files = FaultyFiles()
    with opened(path, OS, files=files) as store:
        store.log.append([b"one"])
        store.flusher.flush_if_needed()
        assert store.control.durable_offset == store.control.write_offset
        files.flushed.clear()
        store.flusher.flush_if_needed()
        assert files.flushed == []


# Finished segments


def test_finished_segments_are_flushed_in_the_background(path: Path, background: Background) -> None:
    """A finished segment is flushed in the background under any durability, with a checkpoint."""
    files = FaultyFiles()
    with opened(path, OS, files=files) as store:
        store.log.append([LARGE])
        store.log.append([LARGE])
        assert not background.waiting
        store.log.append([LARGE])
        files.flushed.clear()
        background.run()
        assert files.flushed == [_segment(path, 0), path / "segments", path / "control"]
        checkpoint = store.control.checkpoints.newest()
        assert checkpoint is not None
        assert (checkpoint.offset, checkpoint.sequence) == (2 * (len(LARGE) + 8), 2)


@shares
def test_a_segment_of_another_process_is_flushed_by_the_one_that_finishes_it(
    path: Path, background: Background
) -> None:
    """The process that finishes a segment flushes it, also one that another process began."""
    files = FaultyFiles()
    with opened(path, OS, files=files) as second:
        with opened(path, OS) as first:
            first.log.append([LARGE, LARGE])
        second.log.append([LARGE])
        files.flushed.clear()
        background.run()
        assert files.flushed == [_segment(path), path / "segments", path / "control"]


def test_a_checkpoint_lies_between_batches(path: Path, background: Background) -> None:
    """A checkpoint lies between batches, so that a power cut keeps or cuts a batch as a whole."""
    with opened(path, OS) as store:
        store.log.append([b"before"])
        store.log.append([LARGE] * 6)
        background.run()
        checkpoint = store.control.checkpoints.newest()
        assert checkpoint is not None
        assert (checkpoint.offset, checkpoint.sequence) == (8 + len(b"before"), 1)


def test_a_checkpoint_is_never_ahead_of_readers(path: Path, background: Background) -> None:
    """A checkpoint does not cover uncommitted records, which may be rolled back."""
    with opened(path, FSYNC) as store:
        store.log.append([b"shown"])
        store.flusher.commit()
        for _ in range(6):
            store.log.append([LARGE])
        background.run()
        checkpoint = store.control.checkpoints.newest()
        assert checkpoint is not None
        assert checkpoint.offset <= store.control.write_offset == 8 + len(b"shown")


def test_names_that_changed_are_not_forgotten(path: Path, background: Background) -> None:
    """New names are flushed by the next flush, also if no finished segment is left."""
    files = FaultyFiles()
    with opened(path, OS, files=files) as store:
        store.log.append([b"first"])
        files.fail(NEEDING_SPACE, disk_full, at=4)
        with pytest.raises(DiskFullError):
            store.log.append([LARGE] * 10)
        files.work()
        background.run()
        files.flushed.clear()
        store.flusher.flush()
        assert path / "segments" in files.flushed


def test_background_work_that_comes_too_late_does_nothing(path: Path, background: Background) -> None:
    """Background work for a channel that was closed does nothing."""
    files = FaultyFiles()
    with opened(path, OS, files=files) as store:
        for _ in range(5):
            store.log.append([LARGE])
    files.flushed.clear()
    background.run()
    assert files.flushed == []


# FSYNC


def test_a_message_is_visible_when_it_is_on_disk(path: Path, background: Background) -> None:
    """Under FSYNC a message is visible when it is on disk."""
    files = FaultyFiles()
    with opened(path, FSYNC, files=files) as store:
        store.log.append([b"one"])
        assert payloads_of(store) == []
        files.flushed.clear()
        store.flusher.commit()
        assert files.flushed == [_segment(path, 0), path / "segments"]
        assert payloads_of(store) == [b"one"]
        assert store.control.durable_offset == store.control.write_offset


def test_a_commit_does_not_ask_for_timestamps(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit does not read timestamps of the file, because from Linux 6.13 on that adds a write to the next flush."""
    with opened(path, ChannelOptions(durability=Durability.FSYNC)) as store:
        store.log.append([b"one"])
        store.flusher.commit()
        asked: list[int] = []
        real = os.fstat
        monkeypatch.setattr(os, "fstat", lambda descriptor: asked.append(descriptor) or real(descriptor))
        store.log.append([b"two"])
        store.flusher.commit()
        monkeypatch.undo()
        assert not asked


def test_readers_are_woken_when_a_message_becomes_visible(path: Path) -> None:
    """A commit wakes an armed waiter, and an append does not."""
    with opened(path, FSYNC) as store:
        published: list[bool] = []
        handle(store.events.message_published, lambda: published.append(True))
        store.control.map[WAKE] = WAKE_LOOPS
        store.log.append([b"one"])
        assert published == []
        store.flusher.commit()
        assert published == [True]


def test_senders_share_one_flush(path: Path, background: Background) -> None:
    """One flush covers every message that was appended before it, however many senders wait."""
    files = FaultyFiles()
    with opened(path, FSYNC, files=files) as store:
        sleepers = [Sleeper() for _ in range(64)]
        tickets = [Ticket(store.log.append([b"%d" % number]), sleeper) for number, sleeper in enumerate(sleepers)]
        for ticket in tickets:
            store.group_commit.commit_later(ticket)
        before = files.calls["flush"]
        background.run()
        assert files.calls["flush"] - before == 1
        assert len(payloads_of(store)) == 64
        for sleeper in sleepers:
            sleeper.wait()
        assert all(ticket.error is None for ticket in tickets)


class SlowFiles(FaultyFiles):
    """A disk that waits for a sign."""

    def __init__(self) -> None:
        super().__init__()
        self.reached = threading.Event()
        self.may_continue = threading.Event()
        self.may_continue.set()

    def flush(self, descriptor: int) -> None:
        """Wait, then flush."""
        self.reached.set()
        assert self.may_continue.wait(30)
        super().flush(descriptor)


def test_senders_that_arrive_during_a_flush_share_the_next_one(path: Path) -> None:
    """A hundred senders that arrive during a flush share the next one."""
    files = SlowFiles()
    with opened(path, FSYNC, files=files) as store:
        store.log.append([b"first"])
        store.flusher.commit()
        files.calls.clear()
        files.reached.clear()
        files.may_continue.clear()
        first = Sleeper()
        store.group_commit.commit_later(Ticket(store.log.append([b"0"]), first))
        assert files.reached.wait(30)
        sleepers = [Sleeper() for _ in range(100)]
        for number, sleeper in enumerate(sleepers):
            store.group_commit.commit_later(Ticket(store.log.append([b"%d" % number]), sleeper))
        assert len(payloads_of(store)) == 1
        files.may_continue.set()
        for sleeper in (first, *sleepers):
            sleeper.wait()
        assert files.calls["flush"] == 2
        assert len(payloads_of(store)) == 102


def test_threads_that_send_durably_get_what_they_were_promised(path: Path) -> None:
    """When `send` returns under FSYNC its message is visible and below the durable offset."""
    with opened(path, FSYNC) as store:

        def work(thread: int) -> None:
            for number in range(20):
                sleeper = Sleeper()
                ticket = Ticket(store.log.writer.append(b"%d %d" % (thread, number)), sleeper)
                store.group_commit.commit_later(ticket)
                sleeper.wait()
                assert ticket.error is None
                assert ticket.offset < store.control.durable_offset <= store.control.write_offset

        threads = [threading.Thread(target=work, args=(thread,)) for thread in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(payloads_of(store)) == 160


# Failures


def test_a_failed_flush_is_final(path: Path, background: Background) -> None:
    """After a failed flush the file is never flushed again, the log resumes in a new one, and later flushes raise."""
    files = FaultyFiles()
    with opened(path, OS, files=files) as store:
        store.log.append([b"may be lost"])
        files.fail(frozenset({"flush"}), input_output_error, once=True)
        with pytest.raises(StorageError, match="may not be on disk"):
            store.flusher.flush()
        assert payloads_of(store) == [b"may be lost"]
        files.flushed.clear()
        store.log.append([b"resumes"])
        with pytest.raises(StorageError, match="may not be on disk"):
            store.flusher.flush()
        assert _segment(path, 0) not in files.flushed
        assert _segment(path, 1 << 40) in files.flushed
        assert payloads_of(store) == [b"may be lost", b"resumes"]


@pytest.mark.parametrize("call", [1, 2, 3], ids=["segment", "control", "directory"])
def test_a_file_system_that_shuts_down_right_after_a_flush_is_a_failed_flush(
    path: Path, background: Background, call: int
) -> None:
    """If looking at flushed files fails because the file system shut down, the flush raises a StorageError."""
    files = FaultyFiles()
    with opened(path, FSYNC, files=files) as store:
        store.log.append([b"perhaps on disk"])
        files.fail(frozenset({"has_name"}), input_output_error, at=call, once=True)
        with pytest.raises(StorageError, match="may not be on disk"):
            store.flusher.commit()
        assert files.failures == 1
        assert payloads_of(store) == []


def test_a_flush_checks_that_the_file_system_still_runs_before_it_publishes(
    path: Path, background: Background, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the file system has shut down, a flush that it reports as successful acknowledges no message."""

    def refuse(_files: Files, _descriptor: int) -> None:
        raise OSError(errno.EIO, "shut down")

    with opened(path, FSYNC) as store:
        store.log.append([b"on disk"])
        store.flusher.commit()
        store.log.append([b"perhaps"])
        with monkeypatch.context() as patched:
            patched.setattr(Files, "check_running", refuse)
            with pytest.raises(StorageError, match="may not be on disk"):
                store.flusher.commit()
        assert payloads_of(store) == [b"on disk"]


def _lose(path: Path, options: ChannelOptions) -> FaultyFiles:
    """Leave a channel behind in which a flush has failed; return the files, which work again."""
    files = FaultyFiles()
    with opened(path, options, files=files) as store:
        store.log.append([b"may be lost"])
        files.fail(frozenset({"flush"}), input_output_error, once=True)
        with pytest.raises(StorageError):
            store.flusher.commit()
    files.flushed.clear()
    return files


def test_a_later_open_gets_the_error_as_well(path: Path, background: Background) -> None:
    """After a failed flush an open and each later flush get the error, and the file is not flushed again."""
    files = _lose(path, OS)
    for _ in range(2):
        with opened(path, OS, files=files) as store:
            store.log.append([b"resumes"])
            for _ in range(2):
                with pytest.raises(StorageError, match="may not be on disk"):
                    store.flusher.flush()
            assert store.control.failed_flushes == 1
            assert store.control.durable_offset < store.control.write_offset
    assert _segment(path, 0) not in files.flushed


def test_what_is_on_disk_after_a_failure_is_not_flushed_again(path: Path, background: Background) -> None:
    """After a failed flush the durable offset stays, and later segments are flushed once."""
    files = _lose(path, OS)
    with opened(path, OS, files=files) as store:
        for _ in range(2):
            files.flushed.clear()
            for _ in range(4):
                store.log.append([LARGE])
            with pytest.raises(StorageError):
                store.flusher.flush()
        assert _segment(path, 1 << 40) not in files.flushed


def test_what_may_be_lost_is_forgotten_when_it_is_reclaimed(path: Path, background: Background) -> None:
    """When the messages of unknown durability are reclaimed, flushes succeed and opens find no failure."""
    files = _lose(path, OS)
    with opened(path, OS, files=files) as store:
        store.log.append([b"resumes"])
        reclaim(store, store.control.write_offset, flush=False)
        store.flusher.flush()
        assert store.control.durable_offset == store.control.write_offset
    with opened(path, OS) as store:
        assert store.control.failed_flushes == 0


def test_unknown_durability_keeps_no_process_from_opening_the_channel(path: Path, background: Background) -> None:
    """Unknown durability does not prevent an open, which cleans up after dead processes; the next flush raises."""
    files = FaultyFiles()
    with opened(path, OS, files=files) as store:
        for _ in range(8):
            store.log.append([LARGE])
        files.fail(frozenset({"flush"}), input_output_error, once=True)
        with pytest.raises(StorageError):
            store.flusher.commit()
        store.control.oldest_offset = store.segments.begins[1]  # and the process that decided that died
        assert store.control.is_durability_unknown
    with opened(path, OS) as store:
        assert store.segments.begins[0] == store.control.oldest_offset
        with pytest.raises(StorageError, match="may not be on disk"):
            store.flusher.flush()


def test_a_purge_ends_the_doubt(path: Path, background: Background) -> None:
    """A purge ends the unknown durability, because it removes its messages."""
    files = _lose(path, OS)
    with opened(path, OS, files=files) as store:
        store.purge()
        store.flusher.flush()


def test_a_boot_ends_the_doubt(path: Path, background: Background, boots: Boots) -> None:
    """A reboot ends the unknown durability, because recovery finds what the disk has."""
    _lose(path, OS)
    boots.again()
    with opened(path, OS) as store:
        assert store.control.failed_flushes == 0
        store.flusher.flush()
        assert store.control.durable_offset == store.control.write_offset


def test_a_recovery_in_the_same_boot_does_not_end_the_doubt(path: Path, background: Background) -> None:
    """A recovery in the same boot keeps the unknown durability of messages that are only in memory."""
    _lose(path, OS)
    _segment(path, 1 << 40).unlink()
    with opened(path, OS) as store:
        assert payloads_of(store) == [b"may be lost"]
        assert store.control.write_offset == 2 << 40
        with pytest.raises(StorageError, match="may not be on disk"):
            store.flusher.flush()


def test_choosing_fsync_does_not_flush_what_may_be_lost(path: Path, background: Background) -> None:
    """After `configure` to FSYNC sends are acknowledged, and `flush` raises for messages of unknown durability."""
    files = _lose(path, OS)
    with opened(path, OS, files=files) as store:
        store.configure(lambda manifest: replace(manifest, options=FSYNC.resolve()))
        store.group_commit.commit_for(store.log.append([b"on disk"]))
        assert payloads_of(store) == [b"may be lost", b"on disk"]
        files.fail(frozenset({"flush"}), input_output_error, once=True)
        with pytest.raises(StorageError):
            store.group_commit.commit_for(store.log.append([b"lost"]))
        store.group_commit.commit_for(store.log.append([b"on disk too"]))
        for _ in range(2):
            with pytest.raises(StorageError, match="may not be on disk"):
                store.flusher.flush()


def test_a_channel_opened_under_fsync_later_has_lost_nothing(path: Path, background: Background) -> None:
    """If an earlier failure under FSYNC lost only messages whose senders got an error, later flushes succeed."""
    _lose(path, FSYNC)
    with opened(path, FSYNC) as store:
        store.group_commit.commit_for(store.log.append([b"on disk"]))
        store.flusher.flush()
        assert payloads_of(store) == [b"on disk"]


def test_a_failed_flush_of_what_is_on_disk_loses_nothing(path: Path, background: Background) -> None:
    """A failed flush of messages that are on disk is raised once, and loses nothing."""
    files = FaultyFiles()
    with opened(path, OS, files=files) as store:
        store.log.append([b"on disk"])
        store.flusher.flush()
        files.fail(frozenset({"flush"}), input_output_error, once=True)
        with pytest.raises(StorageError):
            store.flusher.flush()
        store.flusher.flush()


def test_a_failed_flush_under_fsync_rolls_back_what_was_not_visible(path: Path, background: Background) -> None:
    """After a failed flush under FSYNC senders get errors, their messages are removed, and later sends succeed."""
    files = FaultyFiles()
    with opened(path, FSYNC, files=files) as store:
        store.log.append([b"on disk"])
        store.flusher.commit()
        ticket = Ticket(store.log.append([b"lost"]), Sleeper())
        store.group_commit.commit_later(ticket)
        files.fail(frozenset({"flush"}), input_output_error, once=True)
        background.run()
        assert ticket.error is not None
        assert payloads_of(store) == [b"on disk"]
        again = Ticket(store.log.append([b"again"]), Sleeper())
        store.group_commit.commit_later(again)
        background.run()
        assert again.error is None
        assert payloads_of(store) == [b"on disk", b"again"]


@pytest.mark.parametrize("when", ["queued during the flush", "queued after the failure"])
def test_no_lost_message_is_acknowledged(path: Path, background: Background, when: str) -> None:
    """A sender that appended before a failed flush gets an error, also if the next flush succeeds."""
    files = FaultyFiles()
    with opened(path, FSYNC, files=files) as store:
        first = Ticket(store.log.append([b"lost"]), Sleeper())
        store.group_commit.commit_later(first)
        second = Ticket(store.log.append([b"lost too"]), Sleeper())
        real = files.flush

        def flush(descriptor: int) -> None:
            files.flush = real  # type: ignore[method-assign]
            if when == "queued during the flush":
                store.group_commit.commit_later(second)
            raise input_output_error(path)

        files.flush = flush  # type: ignore[method-assign]
        background.run()
        if when == "queued after the failure":
            store.group_commit.commit_later(second)
            background.run()
        assert first.error is not None
        assert second.error is not None
        assert payloads_of(store) == []


def test_a_message_that_was_not_lost_is_acknowledged(path: Path, background: Background) -> None:
    """A message that an earlier flush published is acknowledged, whatever the next flush does."""
    files = FaultyFiles()
    with opened(path, FSYNC, files=files) as store:
        ticket = Ticket(store.log.append([b"safe"]), Sleeper())
        store.flusher.flush()
        store.group_commit.commit_later(ticket)
        files.fail(frozenset({"flush"}), input_output_error, once=True)
        background.run()
        assert ticket.error is None
        assert payloads_of(store) == [b"safe"]


def test_a_reserve_that_fails_stops_no_flush(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When a segment is finished, its flush is requested before the used-up disk reserve is allocated again."""
    requests: list[Flusher] = []
    monkeypatch.setattr(Flusher, "flush_finished_later", lambda flusher: requests.append(flusher))

    def refuse(_: ControlReserve) -> bool:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with opened(path, ChannelOptions(segment_size=4096)) as store:
        requests.clear()
        monkeypatch.setattr(ControlReserve, "is_complete", False)
        monkeypatch.setattr(ControlReserve, "allocate", refuse)
        store.log.append([bytes(1000)] * 10)
        assert requests


def test_a_flush_may_fail_while_a_sender_asks_whether_its_message_is_lost(path: Path) -> None:
    """The sender gets its answer although another thread records a failed flush in the middle of the question."""
    error = StorageError("lost")

    class FailingMeanwhile:
        def __contains__(self, offset: object) -> bool:
            failures._lost.append((range(100, 200), error))
            return False

    with opened(path, FSYNC) as store:
        failures = store.flusher.failures
        failures._lost.append((FailingMeanwhile(), error))  # type: ignore[arg-type]
        failures._lost.append((range(10, 20), error))
        assert failures.known_loss(15) is error
        failures._lost.clear()


@pytest.mark.skipif(PURE, reason="the pure implementation has a channel for itself")
@pytest.mark.parametrize("look", ["covering", "get"])
def test_a_message_that_was_consumed_in_between_was_not_lost(
    path: Path, background: Background, monkeypatch: pytest.MonkeyPatch, look: str
) -> None:
    """A message that was consumed and reclaimed between two checks of its sender is acknowledged."""
    options = ChannelOptions(segment_size=4096, spare_segments=0, durability=Durability.FSYNC)
    files = FaultyFiles()
    with opened(path, options, files=files) as store, opened(path, options) as other:
        files.fail(frozenset({"flush"}), input_output_error, once=True)
        with pytest.raises(StorageError):
            store.group_commit.commit_for(store.log.append([b"lost"]))
        offsets = [other.log.append([LARGE]) for _ in range(10)]
        other.flusher.commit()
        find = getattr(Segments, look)

        def hooked(segments: Segments, offset: Offset) -> object:
            monkeypatch.undo()
            reclaim(other, offsets[-1], flush=False)
            return find(segments, offset)

        monkeypatch.setattr(Segments, look, hooked)
        store.group_commit.commit_for(offsets[4])
        assert offsets[4] < store.control.oldest_offset


def test_a_message_sent_without_waiting_is_reported_by_the_next_flush(path: Path, background: Background) -> None:
    """The loss of a message that no sender waits for is raised once by the next `flush`."""
    files = FaultyFiles()
    with opened(path, FSYNC, files=files) as store:
        store.group_commit.commit_later(Ticket(store.log.append([b"lost"])))
        files.fail(frozenset({"flush"}), input_output_error, once=True)
        background.run()
        with pytest.raises(StorageError, match="may not be on disk"):
            store.flusher.flush()
        store.flusher.flush()


@pytest.mark.parametrize("options", [OS, FSYNC], ids=["os", "fsync"])
@pytest.mark.parametrize("once", [True, False], ids=["once", "for a while"])
def test_a_disk_that_fails_at_any_flush(
    memory: Path, background: Background, options: ChannelOptions, once: bool
) -> None:
    """Whichever flush fails, the error is typed, acknowledged messages are readable, and sending works afterwards."""
    at = 0
    while True:
        at += 1
        files, path = FaultyFiles(), memory / str(at)
        acknowledged: list[bytes] = []
        with opened(path, options, files=files) as store:
            files.fail(FLUSHING, input_output_error, at=at, once=once)
            for number in range(6):
                acknowledged += _send_durably(store, [b"%d" % number + LARGE])
                background.run()
            files.work()
            last = _send_durably(store, [b"last"]) or _send_durably(store, [b"last"])
            if options is FSYNC:
                assert last == [b"last"]
                assert payloads_of(store) == acknowledged + last
            else:
                assert [payload for payload in payloads_of(store) if payload != b"last"] == [
                    b"%d" % number + LARGE for number in range(6)
                ]
            found = payloads_of(store)
        with opened(path, options) as store:
            assert payloads_of(store) == found
        if not files.failures:
            break
    assert at > 6


def _send_durably(store: Store, batch: list[bytes]) -> list[bytes]:
    """Return what was acknowledged."""
    try:
        store.log.append(batch)
        if store.log.writer.deferred:
            store.flusher.commit()
        else:
            store.flusher.flush()
    except StorageError:
        return []
    return batch


@pytest.mark.parametrize("options", [OS, FSYNC], ids=["os", "fsync"])
def test_a_disk_that_is_broken_and_full(path: Path, background: Background, options: ChannelOptions) -> None:
    """If a flush fails and there is no space for a new file the error is raised; sending works when there is space."""
    files = FaultyFiles()
    with opened(path, options, files=files) as store:
        store.log.append([b"shown"])
        if options is FSYNC:
            store.flusher.commit()
        store.log.append([b"next"])
        expected = [b"shown"] if options is FSYNC else [b"shown", b"next"]
        real = files.flush

        def flush(descriptor: int) -> None:
            files.flush = real  # type: ignore[method-assign]
            files.fail(NEEDING_SPACE, disk_full)
            raise input_output_error(path)

        files.flush = flush  # type: ignore[method-assign]
        with pytest.raises(StorageError):
            store.flusher.commit()
        assert payloads_of(store) == expected
        with pytest.raises(DiskFullError):
            store.log.append([b"no room"])
        files.work()
        offset = store.log.append([b"resumes"])
        store.group_commit.commit_for(offset)
        assert offset == 1 << 40, "an offset of before, which may be one of a message that was lost"
        assert payloads_of(store) == [*expected, b"resumes"]


@pytest.mark.skipif(PURE, reason="the pure implementation has a channel for itself")
@pytest.mark.parametrize("empty", [False, True], ids=["written to", "empty"])
def test_a_waiter_of_another_process_gets_an_error_on_a_disk_that_is_broken_and_full(
    path: Path, background: Background, empty: bool
) -> None:
    """If a flush fails and there is no space, a waiting sender of another process gets an error too."""
    files = FaultyFiles()
    with opened(path, FSYNC) as other, opened(path, FSYNC, files=files) as store:
        if not empty:
            store.group_commit.commit_for(store.log.append([b"on disk"]))
        lost = other.log.append([b"lost"])
        files.fail(FLUSHING | NEEDING_SPACE, _broken_and_full(), at=1)
        with pytest.raises(StorageError):
            store.flusher.commit()
        assert store.control.is_gap_pending
        with pytest.raises(StorageError, match=f"another process.*; 'filechannel verify {path}' shows what is"):
            other.group_commit.commit_for(lost)
        other.group_commit.commit_for(other.log.append([b"resumes"]))


def _broken_and_full() -> Callable[[Path], Exception]:
    """Return what the kernel says about a disk that is broken, and then that it is full."""
    errors = iter([input_output_error])
    return lambda path: next(errors, disk_full)(path)


@pytest.mark.parametrize("options", [OS, FSYNC], ids=["os", "fsync"])
def test_a_flush_needs_no_descriptors(path: Path, background: Background, options: ChannelOptions) -> None:
    """A flush needs no free descriptor, and their lack is not a failed flush."""
    files = FewDescriptors()
    with opened(path, options, files=files) as store:
        store.flusher.flush()
        files.flushed.clear()
        offset = store.log.append([b"first"])
        files.has_none = True
        if options is FSYNC:
            store.group_commit.commit_for(offset)
        store.flusher.flush()
        files.has_none = False
        assert store.control.failed_flushes == 0
        assert store.control.durable_offset == store.control.write_offset
        assert _segment(path, 0).parent in files.flushed


@pytest.mark.skipif(PURE, reason="the pure implementation has a channel for itself")
def test_a_flush_that_could_not_start_is_not_a_failed_one(path: Path, background: Background) -> None:
    """A flush that could not open a segment of another process is not a failed one, and is tried again."""
    files = FewDescriptors()
    with opened(path, OS, files=files) as store, opened(path, OS) as other:
        store.flusher.flush()
        for _ in range(6):
            other.log.append([LARGE])
        store.log.append([b"in the newest of their segments"])
        files.has_none = True
        with pytest.raises(StorageError, match="Too many open files"):
            store.flusher.flush()
        files.has_none = False
        store.flusher.flush()
        assert store.control.failed_flushes == 0
        assert {_segment(path, begin) for begin in store.segments.begins} <= set(files.flushed)


def test_a_consumer_that_cannot_be_flushed_is_an_error(path: Path) -> None:
    """If a consumer cannot be flushed an error is raised, the log stays, and the next flush may succeed."""
    files = FaultyFiles()
    with opened(path, OS, files=files) as store:
        cursor = store.cursors.open("consumer")
        store.log.append([b"zero"])
        store.flusher.flush()
        store.log.append([b"one"])
        files.fail(FLUSHING, input_output_error, at=2, once=True)
        with pytest.raises(StorageError, match="consumers or checkpoint"):
            store.flusher.flush()
        assert len(store.segments.begins) == 1
        store.flusher.flush()
        store.cursors.close(cursor)


def test_a_failure_in_the_background_is_raised_by_the_next_flush(
    path: Path, background: Background, caplog: pytest.LogCaptureFixture
) -> None:
    """A failed flush in the background is logged at once, and raised by the next flush."""
    files = FaultyFiles()
    with opened(path, OS, files=files) as store:
        for _ in range(5):
            store.log.append([LARGE])
        files.fail(frozenset({"flush"}), input_output_error, once=True)
        background.run()
        assert "a flush failed" in caplog.text
        assert payloads_of(store) == [LARGE] * 5
        with pytest.raises(StorageError, match="may not be on disk"):
            store.flusher.flush()


# Changing the durability


def test_switching_to_fsync_flushes_what_is_visible(path: Path, background: Background) -> None:
    """`configure` to FSYNC flushes what is visible before it returns."""
    files = FaultyFiles()
    with opened(path, OS, files=files) as store:
        for _ in range(4):
            store.log.append([LARGE])
        files.flushed.clear()
        store.configure(lambda manifest: replace(manifest, options=FSYNC.resolve()))
        assert {_segment(path, begin) for begin in store.segments.begins} <= set(files.flushed)
        store.log.append([b"later"])
        assert payloads_of(store) == [LARGE] * 4
        store.flusher.commit()
        assert payloads_of(store) == [LARGE] * 4 + [b"later"]


def test_switching_from_fsync_shows_what_was_appended(path: Path, background: Background) -> None:
    """`configure` from FSYNC makes pending messages visible, and later ones at once."""
    with opened(path, FSYNC) as store:
        store.log.append([b"on its way"])
        store.configure(lambda manifest: replace(manifest, options=OS.resolve()))
        assert payloads_of(store) == [b"on its way"]
        store.log.append([b"at once"])
        assert payloads_of(store) == [b"on its way", b"at once"]
    with opened(path, create=False) as store:
        assert store.manifest.options.durability == Durability.OS


def test_switching_while_others_send_loses_nothing(path: Path) -> None:
    """If the durability changes while processes send and flush, the visible tail never moves back."""
    stop = threading.Event()
    with opened(path, OS) as store:

        def work(thread: int) -> None:
            number = 0
            while not stop.is_set() or number < 50:
                sleeper = Sleeper()
                ticket = Ticket(store.log.writer.append(b"%d %d" % (thread, number)), sleeper)
                store.group_commit.commit_later(ticket)
                sleeper.wait()
                assert ticket.error is None
                number += 1
            sent.append(number)

        sent: list[int] = []
        threads = [threading.Thread(target=work, args=(thread,)) for thread in range(3)]
        for thread in threads:
            thread.start()
        seen = 0
        for round_ in range(30):
            options = (OS if round_ % 2 else FSYNC).resolve()
            store.configure(lambda manifest, options=options: replace(manifest, options=options))
            assert store.control.write_offset >= seen
            seen = store.control.write_offset
        stop.set()
        for thread in threads:
            thread.join()
        assert len(payloads_of(store)) == sum(sent)
