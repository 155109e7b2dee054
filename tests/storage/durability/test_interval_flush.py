"""Flushing in the background, at intervals."""

from __future__ import annotations

import gc
import logging
import threading
import weakref
from pathlib import Path

import pytest

from filechannel import ChannelOptions, Durability, StorageError
from filechannel._storage.flush_timer import FlushTimer
from tests.storage.background import no_more_threads
from tests.storage.channels import opened

SECONDS = 0.002


class Flushed:
    """Stands in for a flusher; counts how often it was asked."""

    is_closed = False

    def __init__(self, error: Exception | None = None) -> None:
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


def _register(timer: FlushTimer, flushed: Flushed, seconds: float = SECONDS) -> None:
    timer.register(flushed, seconds)  # type: ignore[arg-type]


def test_a_channel_is_flushed_again_and_again() -> None:
    """As long as it is registered, at its interval."""
    timer, flushed = FlushTimer(), Flushed()
    _register(timer, flushed)
    flushed.wait_for(5)
    timer.forget(flushed)  # type: ignore[arg-type]


def test_a_thread_that_cannot_be_started_is_tried_again() -> None:
    """Whoever asked has done its work and is not told; whoever asks next brings the thread about, for both."""
    timer, first, second = FlushTimer(), Flushed(), Flushed()
    with no_more_threads():
        _register(timer, first)
        timer.begin()
    _register(timer, second)
    first.wait_for(1)
    second.wait_for(1)
    for flushed in (first, second):
        timer.forget(flushed)  # type: ignore[arg-type]


def test_one_thread_serves_every_channel() -> None:
    """However many channels are registered, one thread flushes them; it goes when the last one does."""
    timer, channels = FlushTimer(), [Flushed() for _ in range(20)]
    for flushed in channels:
        _register(timer, flushed)
    for flushed in channels:
        flushed.wait_for(2)
    (thread,) = set().union(*(flushed.threads for flushed in channels))
    for flushed in channels:
        timer.forget(flushed)  # type: ignore[arg-type]
    thread.join(30)
    assert not thread.is_alive()


def test_a_forgotten_channel_is_left_alone() -> None:
    """Others go on, and it can be registered again."""
    timer, first, second = FlushTimer(), Flushed(), Flushed()
    _register(timer, first)
    _register(timer, second)
    first.wait_for(1)
    timer.forget(first)  # type: ignore[arg-type]
    second.wait_for(second.count + 2)  # a flush of the first that had begun is over by then
    count = first.count
    second.wait_for(second.count + 5)
    assert first.count == count
    _register(timer, first)
    first.wait_for(count + 1)
    for flushed in (first, second):
        timer.forget(flushed)  # type: ignore[arg-type]


def test_a_short_interval_does_not_wait_for_a_long_one() -> None:
    """Registering wakes the thread, whatever it was waiting for."""
    timer, slow, quick = FlushTimer(), Flushed(), Flushed()
    _register(timer, slow, 3600)
    _register(timer, quick)
    quick.wait_for(3)
    assert slow.count == 0
    for flushed in (slow, quick):
        timer.forget(flushed)  # type: ignore[arg-type]


@pytest.mark.parametrize("error", [StorageError("broken"), OSError(5, "broken"), RuntimeError("broken")])
def test_a_failure_is_logged_and_not_the_end(caplog: pytest.LogCaptureFixture, error: Exception) -> None:
    """The thread lives on, and tries again."""
    timer, flushed = FlushTimer(), Flushed(error)
    with caplog.at_level(logging.ERROR, "filechannel"):
        _register(timer, flushed)
        flushed.wait_for(3)
        timer.forget(flushed)  # type: ignore[arg-type]
    assert "flushing in the background failed" in caplog.text


def test_the_timer_keeps_nobody_alive() -> None:
    """A channel that nobody uses any more is collected although it was never forgotten."""
    timer, flushed = FlushTimer(), Flushed()
    _register(timer, flushed, 3600)
    gone = threading.Event()
    weakref.finalize(flushed, gone.set)
    del flushed
    gc.collect()
    assert gone.is_set()


def test_an_interval_channel_comes_to_disk_by_itself(path: Path) -> None:
    """Without anybody asking for it, a message is on disk after the interval."""
    options = ChannelOptions(segment_size=4096, durability=Durability.interval(SECONDS))
    with opened(path, options) as store:
        flushed = threading.Event()
        real = store.flusher.flush

        def flush(*, settled: bool = False) -> None:
            real(settled=settled)
            flushed.set()

        store.flusher.flush = flush  # type: ignore[method-assign]
        store.log.append([b"one"])
        assert flushed.wait(30)
        assert store.control.durable_offset > 0
