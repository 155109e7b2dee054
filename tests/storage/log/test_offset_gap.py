"""Offset gaps: no offset is ever used twice."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from filechannel import ChannelOptions, Durability, StorageError
from filechannel._format import PURE
from filechannel._offset import Offset
from filechannel._storage.store import Store
from filechannel._storage.writable_store import WritableStore
from tests.storage.background import Background
from tests.storage.channels import opened, payloads_of, read_all
from tests.storage.faults import (
    FLUSHING,
    NEEDING_SPACE,
    FaultyFiles,
    disk_full,
    input_output_error,
    too_many_open_files,
)

GAP = 1 << 40

pytestmark = pytest.mark.usefixtures("background")


def _abandon(store: Store) -> None:
    with store.log.writing():
        store.log.abandon_active()


@pytest.mark.parametrize(
    ("beyond", "begin"),
    [(0, 1), (1000, 1), (GAP // 2 - 1, 1), (GAP // 2, 2), (GAP - 1, 2), (GAP, 2), (3 * GAP + GAP // 2, 5)],
)
def test_the_log_resumes_at_a_multiple_far_away(path: Path, beyond: int, begin: int) -> None:
    """After a failed flush the log resumes at least 2^39 further on, more than can have been written unflushed."""
    with opened(path) as store, store.log.writing():
        store.log._gap.resume_beyond(beyond, Offset(0))
        assert store.control.write_offset == begin * GAP
        assert store.control.tail() == store.control.tail(deferred=True)


def test_readers_skip_the_gap(path: Path) -> None:
    """Readers skip an offset gap, miss nothing, and sequences continue."""
    with opened(path) as store:
        store.log.append([b"before"])
        _abandon(store)
        store.log.append([b"after"])
        assert payloads_of(store) == [b"before", b"after"]
        assert [message.sequence for message in read_all(store)] == [0, 1]
        assert read_all(store)[1].offset == GAP


def test_each_step_is_on_disk_before_the_next(path: Path) -> None:
    """Before the log resumes each step is on disk: the new segment, the end of the log, the removal of the rest."""
    files = FaultyFiles()
    with opened(path, files=files) as store:
        store.log.append([b"before"])
        files.flushed.clear()
        _abandon(store)
        names, control = store.segments.directory, path / "control"
        assert files.flushed == [store.segments.path(GAP), names, control, names, control]
        checkpoint = store.control.checkpoints.newest()
        assert checkpoint is not None
        assert (checkpoint.offset, checkpoint.sequence) == (GAP, 1)


def test_a_gap_behind_an_empty_segment_leaves_no_trace_of_it(path: Path) -> None:
    """After several gaps without a message between them, readers at any position continue."""
    with opened(path) as store:
        store.log.append([b"before"])
        places = [store.lookup.earliest(), store.lookup.latest()]
        for _ in range(3):
            _abandon(store)
            places.append(store.lookup.latest())
        assert len(store.segments.begins) == 2
        store.log.append([b"after"])
        assert payloads_of(store) == [b"before", b"after"]
        for place in places[1:]:
            assert [message.payload for message in read_all(store, start=place)] == [b"after"]


def test_a_gap_stores_nothing_in_the_empty_segment_that_it_replaces(path: Path) -> None:
    """The gap removes an empty active segment; until then its header must not claim that the segment is finished."""
    with opened(path) as store, store.log.writing():
        store.log.begin_segment()
        segment = store.log._active.segment
        assert segment is not None
        store.log._gap.resume_beyond(0, Offset(0))
        assert segment.is_removed
        assert segment.end is None


@pytest.mark.parametrize("reopen", [False, True])
def test_a_second_gap_that_is_interrupted_is_made_again_from_the_end_of_the_records(path: Path, reopen: bool) -> None:
    """A process may die when its gap has removed the empty segment of the gap before, where the tail still is."""
    with opened(path) as store:
        start = store.log.append([b"before"])
        end = store.control.write_offset
        _abandon(store)
        with store.log.writing():
            store.log._gap.poison_segments()
            store.segments.remove(store.control.write_offset)
            store.log.appender.announce_change()
        if not reopen:
            store.log.append([b"after"])
            assert payloads_of(store) == [b"before", b"after"]
            assert store.segments.header(store.segments.begins[-1]).previous_end == end
            assert store.segments.begins[0] == start
    with opened(path) as store:
        store.log.append([b"later"])
        assert payloads_of(store) == [b"before", *([] if reopen else [b"after"]), b"later"]


# A gap that cannot be written at once


def _leave_gap_pending(store: Store, files: FaultyFiles, error: Callable[[Path], Exception] = disk_full) -> None:
    """Poison the active file when no other can be created."""
    files.fail(NEEDING_SPACE, error)
    _abandon(store)
    assert store.control.is_gap_pending
    assert store.control.write_offset < GAP


@pytest.mark.parametrize("error", [disk_full, too_many_open_files], ids=["no room", "no descriptors"])
@pytest.mark.parametrize("empty", [False, True], ids=["written to", "empty"])
def test_the_next_append_writes_a_pending_gap(path: Path, empty: bool, error: Callable[[Path], Exception]) -> None:
    """While a gap is pending and no segment can be created nothing is sent; then no former offset is used."""
    files = FaultyFiles()
    with opened(path, files=files) as store:
        sent = [b"before"]
        store.log.append(sent)
        if empty:
            store.log.append([b"." * 4000])
            sent.append(b"." * 4000)
            with store.log.writing():
                store.log.appender.finish_segment()
                store.log.begin_segment()
        begins = store.segments.begins
        _leave_gap_pending(store, files, error)
        for _ in range(2):
            with pytest.raises(StorageError):
                store.log.append([b"refused"])
        assert payloads_of(store) == sent
        files.work()
        files.flushed.clear()
        assert store.log.append([b"after"]) == GAP
        assert payloads_of(store) == [*sent, b"after"]
        with pytest.raises(StorageError):
            store.flusher.flush()  # not all of that is on disk
        assert not {store.segments.path(begin) for begin in begins} & set(files.flushed)


def test_the_next_open_writes_the_gap(path: Path) -> None:
    """A pending gap belongs to the channel: opening it needs no space, and the first append writes the gap."""
    files = FaultyFiles()
    with opened(path, files=files) as store:
        store.log.append([b"before"])
        _leave_gap_pending(store, files)
    with opened(path) as store:
        assert payloads_of(store) == [b"before"]
        assert store.log.append([b"after"]) == GAP
        assert payloads_of(store) == [b"before", b"after"]


@pytest.mark.skipif(PURE, reason="the pure implementation has a channel for itself")
def test_another_process_that_appends_writes_the_gap(path: Path) -> None:
    """A process that appends writes a pending gap, also if its window in the poisoned file is open."""
    files = FaultyFiles()
    with opened(path) as other, opened(path, files=files) as store:
        store.log.append([b"before"])
        other.log.append([b"theirs"])
        with other.log.writing():
            other.log.appender.close_window()
        _leave_gap_pending(store, files)
        assert other.log.writer.append(b"after") == GAP
        files.work()
        store.log.append([b"ours"])
        assert payloads_of(store) == [b"before", b"theirs", b"after", b"ours"]


@pytest.mark.parametrize("end", [WritableStore.seal, WritableStore.purge])
def test_sealing_and_purging_write_a_pending_gap(path: Path, end: Callable[[Store], None]) -> None:
    """A seal, which appends a record, and a purge, which begins a segment, write a pending gap."""
    files = FaultyFiles()
    with opened(path, ChannelOptions(durability=Durability.FSYNC, segment_size=4096), files=files) as store:
        store.log.append([b"before"])
        store.flusher.commit()
        _leave_gap_pending(store, files)
        files.work()
        end(store)
        assert store.control.write_offset >= GAP


@pytest.mark.parametrize("durability", [Durability.OS, Durability.FSYNC], ids=["os", "fsync"])
def test_wherever_poisoning_is_interrupted_no_offset_is_used_twice(memory: Path, durability: Durability) -> None:
    """After a crash at any step of poisoning the next process resumes at an unused offset."""
    at, failures = 0, 1
    while failures:
        at, files = at + 1, FaultyFiles()
        with opened(memory / str(at), ChannelOptions(segment_size=4096, durability=durability), files=files) as store:
            store.log.append([b"before"])
            store.flusher.commit()
            lost = store.log.append([b"." * 3000] * 3)
            files.fail(NEEDING_SPACE | FLUSHING | {"open", "map", "unlink"}, _interrupted, at=at, once=True)
            with suppress(_Interrupted):
                _abandon(store)
            failures = files.failures
            files.work()
            expected = [b"before", *([b"." * 3000] * 3 if durability == Durability.OS else [])]
            after = store.log.append([b"after"])
            store.flusher.commit()
            assert after >= GAP > lost
            assert payloads_of(store) == [*expected, b"after"]
    assert at > 10


class _Interrupted(BaseException):
    """Like Ctrl-C: nothing handles it."""


def _interrupted(_path: Path) -> BaseException:
    return _Interrupted()


def test_a_broken_disk_does_not_stop_the_log(path: Path) -> None:
    """On a broken disk sends continue, and the next flush raises."""
    files = FaultyFiles()
    with opened(path, files=files) as store:
        store.log.append([b"before"])
        files.fail(FLUSHING, input_output_error)
        _abandon(store)
        store.log.append([b"after"])
        assert payloads_of(store) == [b"before", b"after"]
        files.work()
        with store.log.writing(), pytest.raises(OSError, match="Input/output"):
            store.log.dirty.take()


def test_uncommitted_segments_are_removed(path: Path, background: Background) -> None:
    """Segments after the end of the log are deleted, and the deletion is flushed."""
    with opened(path) as store:
        store.log.append([b"before"])
        store.log.append([b"." * 3000] * 5)
        with store.log.writing():
            store.log._gap.resume_beyond(store.control.write_offset, Offset(8 + len(b"before")))
        assert store.segments.begins == [0, GAP]
