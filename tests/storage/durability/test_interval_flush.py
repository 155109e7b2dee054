"""Flushing in the background, at intervals."""

from __future__ import annotations

import gc
import logging
import threading
import weakref
from pathlib import Path

import pytest

from filechannel import ChannelOptions, Durability, StorageError
from filechannel._runtime.scheduler import Lane, TimedCall, TimedFunction
from filechannel._storage.durability import interval_flush as interval_flush_module
from filechannel._storage.durability.interval_flush import IntervalFlush
from tests.blocking.threads import until
from tests.storage.background import no_more_threads
from tests.storage.channels import opened

SECONDS = 0.002


class Flushed:
    """Stands in for a flusher; counts how often it was asked."""

    def __init__(self, error: Exception | None = None) -> None:
        self.is_closed = False
        self.count = 0
        self.threads: set[threading.Thread] = set()
        self._changed = threading.Condition()
        self._error = error

    def flush_if_needed(self) -> None:
        """Count."""
        with self._changed:
            self.count += 1
            self.threads.add(threading.current_thread())
            self._changed.notify_all()
        if self._error is not None:
            raise self._error

    def wait_for(self, count: int) -> None:
        """Wait until it was asked so often."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.count >= count, timeout=30)


def _started(lane: Lane, flushed: Flushed, seconds: float = SECONDS) -> IntervalFlush:
    interval_flush = IntervalFlush(flushed, lane)
    interval_flush.start(seconds)
    return interval_flush


@pytest.fixture
def lane() -> Lane:
    """A thread for the flushes of a test."""
    return Lane("filechannel-interval-flush-of-a-test")


def test_two_starts_at_once_leave_one_interval(lane: Lane, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start cancels what another thread has started in the middle of it."""
    interval_flush, calls = IntervalFlush(Flushed(), lane), list[TimedCall]()

    def timed_call(lane: Lane, function: TimedFunction) -> TimedCall:
        call = TimedCall(lane, function)
        calls.append(call)
        if len(calls) == 1:
            interval_flush.start(3600)
        return call

    monkeypatch.setattr(interval_flush_module, "TimedCall", timed_call)
    interval_flush.start(3600)
    assert [call.is_cancelled for call in calls] == [False, True]
    interval_flush.stop()


def test_an_object_is_flushed_again_and_again(lane: Lane) -> None:
    """A registered object is flushed at its interval until it is stopped."""
    flushed = Flushed()
    interval_flush = _started(lane, flushed)
    flushed.wait_for(5)
    interval_flush.stop()
    until(lambda: not lane.is_running)


def test_a_thread_that_cannot_be_started_is_tried_again(lane: Lane, caplog: pytest.LogCaptureFixture) -> None:
    """If the timer thread cannot be started the caller gets no error, and the next call starts it for both."""
    first, second = Flushed(), Flushed()
    with no_more_threads():
        flushes = [_started(lane, first)]
    assert "the flush thread could not be started" in caplog.text
    flushes.append(_started(lane, second))
    first.wait_for(1)
    second.wait_for(1)
    for each in flushes:
        each.stop()


def test_one_thread_serves_every_channel(lane: Lane) -> None:
    """One thread flushes every registered channel, and ends after the last one was stopped."""
    channels = [Flushed() for _ in range(20)]
    flushes = [_started(lane, flushed) for flushed in channels]
    for flushed in channels:
        flushed.wait_for(2)
    (thread,) = set().union(*(flushed.threads for flushed in channels))
    for each in flushes:
        each.stop()
    thread.join(30)
    assert not thread.is_alive()


def test_a_stopped_object_is_not_flushed(lane: Lane) -> None:
    """A stopped object is not flushed, others are, and it can be started again."""
    first, second = Flushed(), Flushed()
    first_flush, second_flush = _started(lane, first), _started(lane, second)
    first.wait_for(1)
    first_flush.stop()
    second.wait_for(second.count + 2)  # a flush of the first that was running has ended by then
    count = first.count
    second.wait_for(second.count + 5)
    assert first.count == count
    first_flush.start(SECONDS)
    first.wait_for(count + 1)
    first_flush.stop()
    second_flush.stop()


def test_a_new_interval_replaces_the_one_before(lane: Lane) -> None:
    """A new interval replaces the one before."""
    flushed = Flushed()
    interval_flush = _started(lane, flushed)
    flushed.wait_for(1)
    interval_flush.start(3600)
    other = Flushed()
    other_flush = _started(lane, other)
    other.wait_for(2)
    count = flushed.count
    other.wait_for(other.count + 10)
    assert flushed.count == count
    interval_flush.stop()
    other_flush.stop()


def test_a_short_interval_does_not_wait_for_a_long_one(lane: Lane) -> None:
    """Starting a short interval wakes the thread that waits for a long one."""
    slow, quick = Flushed(), Flushed()
    flushes = [_started(lane, slow, 3600), _started(lane, quick)]
    quick.wait_for(3)
    assert slow.count == 0
    for each in flushes:
        each.stop()


@pytest.mark.parametrize("error", [StorageError("broken"), OSError(5, "broken"), RuntimeError("broken")])
def test_a_failure_is_logged_and_not_the_end(lane: Lane, caplog: pytest.LogCaptureFixture, error: Exception) -> None:
    """A failed flush is logged and tried again at the interval."""
    flushed = Flushed(error)
    with caplog.at_level(logging.ERROR, "filechannel"):
        interval_flush = _started(lane, flushed)
        flushed.wait_for(3)
        interval_flush.stop()
    assert "a background flush failed" in caplog.text


def test_an_object_is_not_kept_alive(lane: Lane) -> None:
    """The timer does not keep an unused channel alive."""
    flushed = Flushed()
    _started(lane, flushed, 3600)
    gone = threading.Event()
    weakref.finalize(flushed, gone.set)
    del flushed
    gc.collect()
    assert gone.is_set()


def test_an_object_that_was_closed_or_deleted_is_not_flushed_any_more(lane: Lane) -> None:
    """After an object was closed or deleted the thread does not flush it, and ends."""
    closed, deleted = Flushed(), Flushed()
    _started(lane, closed)
    _started(lane, deleted)
    closed.wait_for(1)
    deleted.wait_for(1)
    closed.is_closed = True
    del deleted
    until(lambda: not lane.is_running)


def test_an_interval_channel_comes_to_disk_by_itself(path: Path) -> None:
    """With an interval a message is on disk after that time, without a call."""
    options = ChannelOptions(segment_size=4096, durability=Durability.interval(SECONDS))
    with opened(path, options) as store:
        flushed = threading.Event()
        real = store.flusher.flush_with_lock

        def flush() -> None:
            real()
            flushed.set()

        store.flusher.flush_with_lock = flush  # type: ignore[method-assign]
        store.log.append([b"one"])
        assert flushed.wait(30)
        assert store.control.durable_offset > 0
