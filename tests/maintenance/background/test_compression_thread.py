"""The thread that compresses, and the step that gives it work."""

from __future__ import annotations

import gc
import os
import random
import time
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Event, get_native_id
from threading import enumerate as threads

import pytest

from filechannel import ChannelOptions, Compression, DiskFullError
from filechannel._format import PURE
from filechannel._maintenance.background import compression_thread as module
from filechannel._maintenance.background.compression_thread import compress_step
from filechannel._storage.store import Store
from tests.storage.background import Background
from tests.storage.channels import opened, payloads_of, read_all
from tests.storage.faults import NEEDING_SPACE, FaultyFiles, disk_full

shares = pytest.mark.skipif(PURE, reason="the pure implementation has a channel for itself")
AT_ONCE = ChannelOptions(segment_size=4096, spare_segments=0, compression=Compression(after=0.0))
LATER = ChannelOptions(segment_size=4096, compression=Compression(after=30.0))


def _fill(store: Store, count: int = 60) -> None:
    for number in range(count):
        store.log.append([b"%d " % number + b"text " * 60])
    store.flusher.flush()


def _step_until(store: Store, is_so: Callable[[], object]) -> None:
    """Do what the worker does, without its pauses, until something is so."""
    until = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < until
        compress_step(store)
        module.JOBS.of(store).idle.wait(10)


def _all_compressed(store: Store) -> bool:
    return store.segments.usage().plain == 1


def test_old_segments_are_compressed_in_the_background(path: Path) -> None:
    """The background thread compresses every segment but the active one, and readers notice nothing."""
    with opened(path, AT_ONCE) as store:
        _fill(store)
        before = read_all(store)
        _step_until(store, lambda: _all_compressed(store))
        assert store.control.compressed_offset == store.segments.begins[-1]
        assert read_all(store) == before
        store.log.append([b"resumes"])
        assert payloads_of(store)[-1] == b"resumes"


def test_young_segments_wait(path: Path) -> None:
    """A segment younger than the option is not compressed, and the step returns when it will be old enough."""
    with opened(path, LATER) as store:
        _fill(store)
        assert 25 < compress_step(store) <= 30
        assert module.JOBS.of(store).idle.is_set()
        assert store.segments.usage().compressed == 0


def test_without_a_method_nothing_happens(path: Path) -> None:
    """Without a compression method, the default, no segment is compressed."""
    with opened(path) as store:
        _fill(store)
        assert compress_step(store) >= 60
        assert store.segments.usage().compressed == 0


def test_a_channel_with_nothing_to_compress_is_left_alone(path: Path, background: Background) -> None:
    """A channel with nothing to compress is left alone, and checked again soon if its last segment is being flushed."""
    with opened(path, AT_ONCE) as store:
        assert compress_step(store) == 60
        store.log.append([b"a message"])
        assert compress_step(store) == 60
        for _ in range(3):
            store.log.append([b"text " * 500])
        assert compress_step(store) == 1
        background.run()
        _step_until(store, lambda: _all_compressed(store))
        assert compress_step(store) == 60


def test_what_is_not_worth_it_is_tried_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment that is not worth compressing is tried once by all processes together."""
    noise = random.Random(1)
    with opened(path, AT_ONCE) as store:
        for _ in range(60):
            store.log.append([noise.randbytes(300)])
        store.flusher.flush()
        _step_until(store, lambda: store.control.compressed_offset == store.segments.begins[-1])
        assert store.segments.usage().compressed == 0
    with opened(path, AT_ONCE) as store:
        monkeypatch.setattr(module.SegmentCompressor, "prepare", None)
        assert compress_step(store) > 0
        assert module.JOBS.of(store).idle.is_set()


def test_an_error_is_raised_by_the_next_step_and_it_is_retried(path: Path) -> None:
    """An error of a compression is raised by the next step, and the segment is tried again."""
    files = FaultyFiles()
    with opened(path, AT_ONCE, files=files) as store:
        _fill(store)
        before = read_all(store)
        files.fail(NEEDING_SPACE, disk_full)
        compress_step(store)
        module.JOBS.of(store).idle.wait(10)
        with pytest.raises(DiskFullError):
            compress_step(store)
        files.work()
        _step_until(store, lambda: _all_compressed(store))
        assert read_all(store) == before


def test_an_error_at_the_end_is_raised_and_it_is_repeated(path: Path) -> None:
    """After an error at the end of a compression those prepared after it are repeated, and none is skipped."""
    files = FaultyFiles()
    with opened(path, AT_ONCE, files=files) as store:
        _fill(store)
        compress_step(store)
        module.JOBS.of(store).idle.wait(10)
        files.fail(frozenset({"replace"}), disk_full, at=2, once=True)
        with pytest.raises(DiskFullError):
            compress_step(store)
        assert store.control.compressed_offset == store.segments.begins[1]
        _step_until(store, lambda: _all_compressed(store))


def test_closing_ends_it_and_leaves_nothing_half_made(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Closing a channel in the middle of a compression, or with prepared segments, leaves no incomplete file."""
    started = Event()
    throttle = module._Job._throttle

    def watched(self: module._Job) -> None:
        started.set()
        self._stopping.wait(20)
        throttle(self)

    monkeypatch.setattr(module._Job, "_throttle", watched)
    with opened(path, AT_ONCE) as store:
        _fill(store)
        compress_step(store)
        assert started.wait(20)
    assert not list((path / "segments").glob("*.z"))
    assert path not in [job._store.path for job in module.JOBS._jobs.values()]
    monkeypatch.undo()
    with opened(path, AT_ONCE) as store:
        compress_step(store)
        module.JOBS.of(store).idle.wait(10)
        assert list((path / "segments").glob("new-*.z"))
    assert not list((path / "segments").glob("*.z"))


def test_it_rests_while_messages_are_sent(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While messages are sent, compression pauses after each block for as long as that block took."""
    with opened(path, AT_ONCE) as store:
        _fill(store, 5)
        job = module.JOBS.of(store)
        rests: list[float] = []
        monkeypatch.setattr(job._stopping, "wait", lambda rest: rests.append(rest))
        job._throttle()
        rests.clear()
        job._throttle()
        assert rests == []
        store.log.append([b"one more here."])
        job._since = time.monotonic() - 0.02
        job._throttle()
        assert len(rests) == 1
        assert 0.02 <= rests[0] <= 0.1


def test_the_thread_has_a_low_priority(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compression thread has a low priority, and the process keeps its own."""
    found: list[tuple[int, int]] = []
    run = module._Job.run

    def watched(self: module._Job) -> None:
        found.append((os.getpriority(os.PRIO_PROCESS, get_native_id()), get_native_id()))
        run(self)

    monkeypatch.setattr(module._Job, "run", watched)
    before = os.getpriority(os.PRIO_PROCESS, 0)
    with opened(path, AT_ONCE) as store:
        _fill(store)
        _step_until(store, lambda: _all_compressed(store))
    assert found[0][0] == min(before + 10, 19)
    assert os.getpriority(os.PRIO_PROCESS, 0) == before


def test_several_channels_share_the_thread(path: Path) -> None:
    """All channels of a process are compressed by one thread, one after the other."""
    with opened(path / "a", AT_ONCE) as first, opened(path / "b", AT_ONCE) as second:
        for store in (first, second):
            _fill(store)
        _step_until(first, lambda: _all_compressed(first))
        _step_until(second, lambda: _all_compressed(second))
        assert sum(thread.name == "filechannel-compression" for thread in threads()) <= 1


@shares
def test_the_policy_is_what_the_channel_says_now(path: Path) -> None:
    """The compression policy of another process takes effect here, also where nothing is sent."""
    with opened(path, ChannelOptions(segment_size=4096, spare_segments=0)) as store, opened(path) as other:
        _fill(store)
        compress_step(store)
        assert not store.segments.usage().compressed
        options = replace(other.manifest.options, compression=Compression(after=0.0))
        other.configure(lambda manifest: replace(manifest, options=options))
        _step_until(store, lambda: _all_compressed(store))


def test_maintenance_sweeps_what_dead_processes_left(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Maintenance deletes files of dead compressors, also without a compression policy, but not in every step."""
    with opened(path, ChannelOptions(segment_size=4096)) as store:
        left = store.segments.directory / "new-00000000000000000000.seg.z"
        left.write_bytes(b"half")
        compress_step(store)
        assert not left.exists()
        left.write_bytes(b"half")
        compress_step(store)
        assert left.exists()
        monkeypatch.setattr(module, "_IDLE_SECONDS", 0.0)
        compress_step(store)
        assert not left.exists()


def test_nothing_is_left_of_a_channel_that_was_closed(path: Path) -> None:
    """A closed channel leaves no thread and no object, whether or not a segment was compressed."""

    def use() -> weakref.ref[Store]:
        with opened(path, AT_ONCE) as store:
            _fill(store)
            _step_until(store, lambda: _all_compressed(store))
            return weakref.ref(store)

    left = use()
    gc.collect()
    assert left() is None
