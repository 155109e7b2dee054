"""The first message of the next segment, when its file waits: what the sender does, and what is left to others."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest

from filechannel import ChannelOptions, Durability
from filechannel._format import PURE, store_u32
from filechannel._format.layout import WAKE, WAKE_LOOPS
from filechannel._offset import Offset
from filechannel._storage.segments.segment import Segment
from filechannel._storage.segments.segment_index import ActiveIndex, index_path, read_entries
from filechannel._storage.store import Store
from filechannel._storage.system.os_calls import Files
from tests.storage.background import Background
from tests.storage.channels import opened, payloads_of
from tests.storage.faults import FaultyFiles, disk_full, input_output_error
from tests.storage.handling import handle
from tests.storage.reclaiming import reclaim

SIZE = 8192
OPTIONS = ChannelOptions(segment_size=SIZE)
MESSAGE = os.urandom(1000)
FULL = SIZE // 1008  # messages in a segment
NEXT = b"next" * 50  # which does not fit after them
files = Files()


def _fill(store: Store) -> None:
    """Fill a segment, so that the next message begins another, and let a file wait for it."""
    for _ in range(FULL):
        store.log.writer.append(MESSAGE)
    active = store.segments.get(store.segments.begins[-1])
    assert isinstance(active, Segment)
    store.segments.prepare_free_file(active)
    store.log.prepare_next_segment()


def _top_up(store: Store) -> None:
    """The same with a single message, whatever is there."""
    active = store.segments.get(store.segments.begins[-1])
    assert isinstance(active, Segment)
    store.log.writer.append(bytes(active.space_end - store.log.writer.pending - 8))
    store.segments.prepare_free_file(active)
    store.log.prepare_next_segment()


def test_the_next_segment_is_written_in_the_prepared_file(path: Path, background: Background) -> None:
    """A fast roll renames the prepared file and changes nothing else on disk; flushing and maintenance follow later."""
    faulty, raised = FaultyFiles(), list[str]()
    with opened(path, OPTIONS, files=faulty) as store:
        _fill(store)
        handle(store.events.maintenance_due, lambda: raised.append("rolled"))
        handle(store.events.segment_finished, lambda: raised.append("finished"))
        before = faulty.calls.copy()
        store.log.writer.append(NEXT)
        done = faulty.calls - before
        assert done["replace"] == 1
        assert not {"create", "allocate", "map", "unlink", "write_at"} & set(done)
        assert raised == []
        store.log.writer.append(b"after it")
        assert raised == ["rolled"]
        assert store.log.dirty.has_finished
        store.log.catch_up()
        store.log.catch_up()
        assert raised == ["rolled", "finished"]
        assert store.log.dirty.is_between_batches(store.segments.begins[-1])
        assert payloads_of(store) == [*[MESSAGE] * FULL, NEXT, b"after it"]
        store.flusher.flush()
    with opened(path) as store:
        assert payloads_of(store) == [*[MESSAGE] * FULL, NEXT, b"after it"]


def test_other_processes_follow(path: Path) -> None:
    """Other processes follow a fast roll as they follow any segment that another process began."""
    with opened(path, OPTIONS) as store, opened(path, readonly=True) as reader:
        store.log.writer.append(MESSAGE)
        for number in range(3):
            _top_up(store)
            store.log.writer.append(NEXT + b"%d" % number)
            assert store.log.writer.pending_roll is not None
            assert payloads_of(reader)[-1] == NEXT + b"%d" % number
        assert payloads_of(reader) == payloads_of(store)


@pytest.mark.parametrize("step", ["check", "end", "header", "replace", "publish"])
@pytest.mark.parametrize("error", [disk_full, input_output_error])
def test_a_fast_roll_that_fails_is_repeated_as_a_slow_one(path: Path, error: object, step: str) -> None:
    """A fast roll that fails is repeated as a slow one, and the sender gets an error only if that fails too."""
    faulty = FaultyFiles()
    with opened(path, OPTIONS, files=faulty) as store:
        _fill(store)
        faulty.fail(frozenset({step}), error, once=True)  # type: ignore[arg-type]
        store.log.writer.append(NEXT)
        assert faulty.failures == 1
        assert payloads_of(store) == [*[MESSAGE] * FULL, NEXT]


@pytest.mark.parametrize("files", [FaultyFiles(), Files()])
def test_a_message_is_not_sent_twice_because_a_notification_failed(path: Path, files: Files) -> None:
    """An error of a notification after the publish does not cause a slow roll, which would send the message twice."""

    def fail() -> None:
        raise OSError("a FIFO is gone")

    with opened(path, OPTIONS, files=files) as store:
        _fill(store)
        handle(store.events.message_published, fail)
        store_u32(store.control.map, WAKE, WAKE_LOOPS)
        with pytest.raises(OSError, match="a FIFO is gone"):
            store.log.writer.append(NEXT)
        assert store.log.writer.pending_roll is not None
        assert payloads_of(store) == [*[MESSAGE] * FULL, NEXT]


def test_a_file_that_was_removed_is_not_missed(path: Path) -> None:
    """If the prepared file was removed the roll creates a segment, and the one before ends where it should."""
    with opened(path, OPTIONS) as store:
        _fill(store)
        for spare in (path / "segments").glob("spare-*"):
            spare.unlink()
        store.log.writer.append(NEXT)
        assert payloads_of(store) == [*[MESSAGE] * FULL, NEXT]


@pytest.mark.parametrize("options", [OPTIONS, ChannelOptions(segment_size=SIZE, durability=Durability.FSYNC)])
def test_what_is_not_simple_takes_the_slow_path(path: Path, background: Background, options: ChannelOptions) -> None:
    """A batch, and a message under FSYNC, take the slow path of a roll."""
    faulty = FaultyFiles()
    with opened(path, options, files=faulty) as store:
        _fill(store)
        if options is OPTIONS:
            store.log.writer.append_all([NEXT, NEXT])
        else:
            store.log.writer.append(NEXT)
            store.flusher.commit()
        assert "check" not in faulty.calls


def test_a_message_longer_than_the_prepared_file_gets_its_own(path: Path) -> None:
    """A message longer than the prepared file gets a segment of its own, and the file stays prepared."""
    with opened(path, OPTIONS) as store:
        _fill(store)
        store.log.writer.append(bytes(SIZE))
        assert payloads_of(store) == [*[MESSAGE] * FULL, bytes(SIZE)]
        assert len(list((path / "segments").glob("spare-*"))) == 1


def test_a_writer_that_has_to_reserve_capacity_does_not_roll(path: Path) -> None:
    """With a closed window, as after a change of the capacity, the writer does not roll by itself."""
    with opened(path, OPTIONS) as store:
        _fill(store)
        with store.log.writing():
            store.log.appender.close_window()
        store.log.prepare_next_segment()
        assert store.log.writer.fast_roll(NEXT) is None
        store.log.writer.append(NEXT)
        assert payloads_of(store) == [*[MESSAGE] * FULL, NEXT]


@pytest.mark.skipif(PURE, reason="the pure implementation has a channel for itself")
def test_another_process_may_retire_it_before_the_roll_is_acknowledged(path: Path) -> None:
    """If another process retires the segment before the roll is acknowledged, no missing name is listed."""
    with opened(path, OPTIONS) as store, opened(path) as other:
        store.log.writer.append(MESSAGE)
        _top_up(store)
        store.log.writer.append(NEXT)
        pending_roll = store.log.writer.pending_roll
        assert pending_roll is not None
        with other.log.writing():
            other.log.appender.finish_segment()
        other.log.append([MESSAGE])
        reclaim(other, other.segments.begins[-1])
        _top_up(other)
        other.log.writer.append(b"in the same file" * 20)
        assert store.segments.begins == other.segments.begins  # looked at before it is noted
        store.log.catch_up()
        assert store.segments.begins == other.segments.begins
        store.log.writer.append(b"after it")
        assert payloads_of(store) == payloads_of(other)
        assert payloads_of(store)[0] == MESSAGE
        assert payloads_of(store)[2:] == [b"in the same file" * 20, b"after it"]


@pytest.mark.skipif(PURE, reason="the pure implementation has a channel for itself")
def test_two_processes_with_the_same_prepared_file_do_not_disturb_each_other(path: Path) -> None:
    """Of two processes with the same prepared file one rolls to it, and the other one notices that and follows."""
    with opened(path, OPTIONS) as store, opened(path) as other:
        store.log.writer.append(MESSAGE)
        expected = [MESSAGE]
        for number, (one, two) in enumerate([(store, other), (other, store)] * 5):
            one.log.writer.append(b"%d" % number)
            two.log.writer.append(b"and %d" % number)
            _top_up(one)
            _top_up(two)
            one.log.writer.append(NEXT)
            two.log.writer.append(NEXT)
            assert payloads_of(one) == payloads_of(two)
            assert one.segments.begins == two.segments.begins
            expected += [b"%d" % number, b"and %d" % number, NEXT, NEXT]
        assert [payload for payload in payloads_of(store) if payload.strip(b"\0")] == expected


# Ctrl-C


def _interrupted(work: Callable[[], object], calls: int) -> bool:
    """Do something until so many functions of ours were called, and Ctrl-C comes; return whether it came."""

    def interrupt(frame: FrameType, event: str, _: object) -> None:
        nonlocal calls
        # A generator is also called to be closed, and what a finalizer raises is dropped.
        is_ours = "/filechannel/" in frame.f_code.co_filename and frame.f_code.co_name not in ("<genexpr>", "__del__")
        if event == "call" and is_ours:
            calls -= 1
            if calls == 0:
                raise KeyboardInterrupt

    sys.setprofile(interrupt)
    try:
        work()
    except KeyboardInterrupt:
        return True
    finally:
        sys.setprofile(None)
    return False


def test_ctrl_c_may_come_at_every_call(path: Path) -> None:
    """After Ctrl-C at any call of a roll the message is sent or not, and the next one is sent."""
    with opened(path, OPTIONS, files=FaultyFiles()) as store:
        store.log.writer.append(MESSAGE)
        for calls in itertools.count(1):
            _top_up(store)
            expected = payloads_of(store)
            was_interrupted = _interrupted(lambda: store.log.writer.append(NEXT), calls)
            store.log.writer.append(b"two")
            assert payloads_of(store) in ([*expected, NEXT, b"two"], [*expected, b"two"])
            _check_noted(store)
            reclaim(store, store.segments.begins[-1])
            if not was_interrupted:
                break
    assert calls > 3


@pytest.mark.skipif(not PURE, reason="nothing interrupts the C core there")
def test_ctrl_c_may_come_with_a_new_name(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After Ctrl-C after a rename, a message that would fit into the former segment is found in the new one."""
    rename = os.rename

    def interrupted(source: bytes, target: bytes, **directories: int) -> None:
        rename(source, target, **directories)
        raise KeyboardInterrupt

    with opened(path, OPTIONS) as store:
        _fill(store)
        expected = payloads_of(store)
        with monkeypatch.context() as patched:
            patched.setattr(os, "rename", interrupted)
            with pytest.raises(KeyboardInterrupt):
                store.log.writer.append(NEXT)
        store.log.writer.append(b"short")
    with opened(path, OPTIONS) as store:
        store.log.writer.append(b"after")
        assert payloads_of(store) == [*expected, b"short", b"after"]
        assert store.lookup.numbered(len(expected)).offset == FULL * (len(MESSAGE) + 8)


@pytest.mark.skipif(PURE, reason="an exception in a guard written in Python is lost; see _format/mutex.py")
def test_an_update_after_a_roll_may_be_interrupted(path: Path, background: Background) -> None:
    """If Ctrl-C interrupts the update after a roll, the next one repeats it and reports the finished segment."""
    raised: list[int] = []
    with opened(path, OPTIONS) as store:
        handle(store.events.segment_finished, lambda: raised.append(calls))
        store.log.writer.append(MESSAGE)
        for calls in itertools.count(1):
            _top_up(store)
            store.log.writer.append(NEXT)
            assert store.log.writer.pending_roll is not None
            was_interrupted = _interrupted(store.log.catch_up, calls)
            store.log.catch_up()
            assert calls in raised
            assert store.log.writer.pending_roll is None
            _check_noted(store)
            reclaim(store, store.segments.begins[-1])
            if not was_interrupted:
                break
    assert calls > 4


def _check_noted(store: Store) -> None:
    """That a segment ends where the last one begins is known, and a flush brings it to disk."""
    begin = store.segments.begins[-1]
    store.log.catch_up()
    assert store.log.dirty.is_between_batches(begin)
    store.flusher.flush_finished()
    checkpoint = store.control.checkpoints.newest()
    assert checkpoint is not None
    assert checkpoint.offset == begin


# The index of what was finished


def _indexes(path: Path) -> list[str]:
    return sorted(each.name for each in (path / "segments").glob("*.idx"))


def test_what_is_consumed_in_time_never_has_an_index(path: Path, background: Background) -> None:
    """A segment that is consumed before its flush never has an index, which would be deleted with it."""
    with opened(path, OPTIONS) as store:
        for _ in range(5):
            _fill(store)
        store.log.catch_up()
        reclaim(store, store.segments.begins[-1])
        background.run()
        assert _indexes(path) in ([], [index_path(store.segments.path(store.segments.begins[-1])).name])


def test_the_index_of_a_finished_segment_is_written_with_its_flush(path: Path, background: Background) -> None:
    """The index of a finished segment is written with its flush, by another thread than the sender's."""
    with opened(path, OPTIONS) as store:
        for _ in range(3):
            _fill(store)
        assert _indexes(path) == []
        store.flusher.flush_finished()
        for begin in store.segments.begins[:-1]:
            assert [entry.offset for entry in read_entries(files, store.segments.path(begin))] == [begin]


def test_a_mark_of_the_next_segment_is_not_put_into_the_index_before(
    path: Path, background: Background, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mark of the next segment is not written to the index of the former one, also if the writer rolls meanwhile."""
    store_late = ActiveIndex.store_late

    def roll_first(self: ActiveIndex, oldest: Callable[[], Offset]) -> None:
        store_late(self, oldest)
        if store.log.writer.pending_roll is None:
            store.log.writer.append(NEXT)

    with opened(path, OPTIONS) as store:
        _fill(store)
        with monkeypatch.context() as patched:
            patched.setattr(ActiveIndex, "store_late", roll_first)
            store.log.store_index_entries()
        store.log.store_index_entries()
        first, last = store.segments.begins
        assert [entry.offset for entry in read_entries(files, store.segments.path(first))] == [first]
        assert [entry.offset for entry in read_entries(files, store.segments.path(last))] == [last]


class Overtaking(Files):
    """Files of a channel that moves its oldest offset when the first index is written."""

    def __init__(self, store: Store, oldest: Offset) -> None:
        self._control, self._oldest = store.control, oldest

    def write_at(self, descriptor: int, data: bytes, position: int) -> None:
        """Write, and retire what is before it."""
        super().write_at(descriptor, data, position)
        self._control.oldest_offset = self._oldest


def test_an_index_that_comes_too_late_is_removed(path: Path) -> None:
    """An index that is written after its segment was retired is deleted."""
    with opened(path, OPTIONS) as store:
        _fill(store)
        store.log.writer.append(NEXT)
        last = store.segments.begins[-1]
        store.log._active._index._files = Overtaking(store, last)
        store.log.store_index_entries()
        assert _indexes(path) == [index_path(store.segments.path(last)).name]


def test_an_index_of_the_active_segment_may_come_too_late(path: Path) -> None:
    """An index of the active segment that is written after another process retired it is deleted."""
    with opened(path, OPTIONS) as store:
        store.log.append([b"consumed"])
        store.log._active._index._files = Overtaking(store, store.control.write_offset)
        store.log.store_index_entries()
        assert _indexes(path) == []


def test_not_too_many_wait_for_their_index(path: Path, background: Background) -> None:
    """If no other thread writes the pending indexes, the sender does."""
    with opened(path, ChannelOptions(segment_size=4096)) as store:
        for _ in range(70):
            store.log.append([bytes(4000)])
        background.forget()
        assert len(_indexes(path)) >= 64
