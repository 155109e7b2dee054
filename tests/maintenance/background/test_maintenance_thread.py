"""The one thread that maintains every open channel of a process."""

from __future__ import annotations

import logging
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from queue import Queue
from threading import Event, Thread

import pytest

from filechannel import Retention, blocking
from filechannel._errors import Busy
from filechannel._format import PURE
from filechannel._maintenance.background import maintenance_thread as module
from filechannel._maintenance.background.maintenance_thread import MAINTENANCE, Maintenance, _MaintainedChannel
from filechannel._runtime import scheduler
from filechannel._runtime.scheduler import Lane, TimedCall
from filechannel._storage.open_stores import STORES
from filechannel._storage.store import Store
from tests.maintenance.stores import consume, fill, reclaim
from tests.processes.workers import TIMEOUT, until
from tests.storage.channels import SMALL, open_store, opened, payloads_of
from tests.storage.resources import files_under

NAME = "filechannel-maintenance-of-a-test"
shares = pytest.mark.skipif(PURE, reason="the pure implementation has a channel for itself")


class Steps:
    """Replaces the maintenance of a channel: reports when it is called, and answers what the test sets."""

    def __init__(self) -> None:
        self.called: Queue[Store] = Queue()
        self.answer: float | Exception = 3600.0

    def __call__(self, store: Store) -> float:
        """Be called."""
        self.called.put(store)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def wait(self) -> Store:
        """Wait until it is called."""
        return self.called.get(timeout=TIMEOUT)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    """What the workers do."""
    steps = Steps()
    monkeypatch.setattr(module, "STEPS", [steps])
    return steps


@pytest.fixture
def store(path: Path, steps: Steps) -> Iterator[Store]:
    """A channel with a message in it, which a worker of the test may look after."""
    with opened(path, SMALL) as store:
        store.log.append([b"one"])
        yield store


@pytest.fixture
def maintenance(monkeypatch: pytest.MonkeyPatch) -> Maintenance:
    """One with a thread of its own, which ends soon after its work."""
    monkeypatch.setattr(scheduler, "LINGER_SECONDS", 0.1)
    return Maintenance(Lane(NAME, polls_for=0.1))


def _threads() -> list[Thread]:
    return [thread for thread in threading.enumerate() if thread.name == NAME]


def _is_due_after(maintenance: Maintenance, store: Store, seconds: float) -> bool:
    """Return whether the channel is scheduled, and not within so many seconds."""
    return time.monotonic() + seconds < maintenance._channels[store].passes.due < math.inf


def test_a_thread_runs_while_there_is_something_to_maintain(
    maintenance: Maintenance, store: Store, steps: Steps
) -> None:
    """The maintenance thread runs while a channel is open, ends with the last one, and keeps no process alive."""
    until(lambda: not _threads())  # that of an earlier test
    for _ in range(2):
        maintenance.register(store)
        maintenance.register(store)
        assert steps.wait() is store
        (thread,) = _threads()
        assert thread.daemon
        maintenance.forget(store)
        thread.join(TIMEOUT)
        assert not thread.is_alive()


def test_channels_opened_in_quick_succession_share_the_thread(
    maintenance: Maintenance, tmp_path: Path, steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The maintenance thread outlives the last channel for a while, in which opening and closing do not wake it."""
    until(lambda: not _threads())  # that of an earlier test
    monkeypatch.setattr(scheduler, "LINGER_SECONDS", 3600.0)
    maintenance._lane.polls_for = 3600.0
    woken: list[object] = []
    for number in range(3):
        with opened(tmp_path / str(number), SMALL) as store:
            store.log.append([b"one"])
            maintenance.register(store)
            assert steps.wait() is store
            until(lambda: len(_threads()) == 1)
            monkeypatch.setattr(Lane, "wake", lambda _: woken.append(None))
    assert not woken
    maintenance._lane._ends_at = 0.0
    until(lambda: not _threads())


def test_one_thread_serves_every_channel(maintenance: Maintenance, tmp_path: Path, steps: Steps) -> None:
    """One maintenance thread serves every channel."""
    stores = [open_store(tmp_path / str(number), SMALL) for number in range(20)]
    for store in stores:
        store.log.append([b"one"])
        maintenance.register(store)
    assert {id(steps.wait()) for _ in stores} == set(map(id, stores))
    until(lambda: len(_threads()) == 1)  # one too many ends at once
    for store in stores:
        store.close()  # which lets the maintenance forget it
    until(lambda: not _threads())


def test_what_happens_here_is_looked_at_soon(maintenance: Maintenance, store: Store, steps: Steps) -> None:
    """A finished segment, a reader that moves to the next segment, or a consumer that changes requests maintenance
    soon.
    """
    maintenance.register(store)
    channel = maintenance._channels[store]
    happenings: list[Callable[[], object]] = [
        lambda: fill(store, 2),
        lambda: consume(store, 5),
        lambda: store.cursors.remove_unowned("consumer"),
    ]
    for happen in happenings:
        steps.wait()
        until(lambda: not channel.passes.is_requested and _is_due_after(maintenance, store, 60))
        steps.called = Queue()
        happen()
    steps.wait()
    maintenance.forget(store)
    store.events.maintenance_due()  # the maintenance thread ignores it
    maintenance.request(store)
    assert not maintenance._channels


def test_frequent_requests_do_not_wake_the_thread(
    maintenance: Maintenance, store: Store, steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Frequent requests are noticed without waking the thread, and wait for no lock."""
    maintenance._lane.polls_for = 3600.0
    held, free = Event(), Event()

    def hold() -> None:
        with maintenance._lock.held():
            held.set()
            assert free.wait(TIMEOUT)

    maintenance.register(store)
    steps.wait()
    maintenance.request(store)
    assert steps.wait() is store
    holder = Thread(target=hold)
    holder.start()
    assert held.wait(TIMEOUT)
    maintenance.request(store)
    free.set()
    holder.join(TIMEOUT)
    assert steps.wait() is store
    maintenance.forget(store)


def test_a_rare_request_wakes_the_thread(
    maintenance: Maintenance, store: Store, steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rare request wakes the thread, however long it would sleep."""
    maintenance._lane.polls_for = 0.0
    maintenance.register(store)
    steps.wait()
    for _ in range(10):
        maintenance.request(store)
        assert steps.wait() is store
    maintenance.forget(store)


def test_a_sender_reclaims_if_the_thread_is_starved(
    maintenance: Maintenance, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sender reclaims consumed segments itself if the maintenance thread gets no time on a busy machine."""
    monkeypatch.setattr(Lane, "wake", lambda _: None)
    with opened(path, SMALL) as store:
        maintenance.register(store)
        most = 0
        for _ in range(5 * module._MANY_SEGMENTS):
            fill(store, 2)
            consume(store)
            most = max(most, len(store.segments.begins))
        assert module._MANY_SEGMENTS < most <= module._MANY_SEGMENTS + 4
        assert store.maintenance_lock.reclaimed[0] > 2 * module._MANY_SEGMENTS


def test_an_event_loop_does_not_reclaim(maintenance: Maintenance, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sender in an event loop does not reclaim, because the thread gets its time when the loop waits."""
    monkeypatch.setattr(Lane, "wake", lambda _: None)
    with opened(path, SMALL) as store:
        maintenance.register(store)
        monkeypatch.setattr(module, "may_sleep", lambda: False)
        for _ in range(3 * module._MANY_SEGMENTS):
            fill(store, 2)
            consume(store)
        assert store.maintenance_lock.reclaimed == (0, 0)


def test_a_step_returns_when_it_is_due_again(maintenance: Maintenance, store: Store, steps: Steps) -> None:
    """A step returns a time, and is called again by then."""
    steps.answer = 0.001
    maintenance.register(store)
    for _ in range(3):
        steps.wait()
    maintenance.forget(store)


def test_an_empty_channel_is_left_alone(maintenance: Maintenance, path: Path, steps: Steps) -> None:
    """An empty channel needs no maintenance, and its maintenance lock is not acquired."""
    with opened(path, SMALL) as store:
        maintenance.register(store)
        until(lambda: _is_due_after(maintenance, store, 5))
        assert store.maintenance_lock.last_run is None
        assert steps.called.empty()


@pytest.mark.parametrize(("max_age", "pause"), [(None, 60.0), (2.0, 1.0), (40.0, 10.0), (4000.0, 60.0)])
def test_an_empty_channel_is_looked_at_before_its_first_message_is_too_old(
    maintenance: Maintenance, path: Path, max_age: float | None, pause: float
) -> None:
    """Maintenance checks an empty channel before its first message is too old, without a request."""
    with opened(path, replace(SMALL, retention=Retention(max_age=max_age))) as store:
        assert maintenance._maintain(_MaintainedChannel(store, TimedCall(maintenance._lane, lambda: None))) == pause
        store.configure(lambda manifest: replace(manifest, options=replace(manifest.options, retention=Retention())))
        assert maintenance._maintain(_MaintainedChannel(store, TimedCall(maintenance._lane, lambda: None))) == 60.0


@shares
def test_files_that_another_process_deleted_are_released(maintenance: Maintenance, path: Path, steps: Steps) -> None:
    """Maintenance releases files that another process deleted, although nothing else is left to do."""
    with opened(path, SMALL) as store, opened(path, SMALL) as other:
        store.log.append([b"one"])
        consume(other)
        reclaim(other, 0.0)
        assert files_under(store.segments.directory)
        maintenance.register(store)
        until(lambda: not files_under(store.segments.directory))
        assert steps.called.empty()


def test_an_error_is_logged_counted_and_retried(
    maintenance: Maintenance,
    store: Store,
    steps: Steps,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An error of a step is logged and counted, retried at growing intervals, and not raised in senders."""
    delays = list[float]()
    steps.answer = OSError(5, "Input/output error")
    attend = maintenance._maintain

    def impatient(channel: module._MaintainedChannel) -> float:
        delays.append(attend(channel))
        return 0.001

    monkeypatch.setattr(maintenance, "_maintain", impatient)
    maintenance.register(store)
    for _ in range(8):
        steps.wait()
        store.log.append([b"another"])
    until(lambda: len(delays) >= 8)
    assert delays[:8] == [2, 4, 8, 16, 32, 60, 60, 60]
    assert store.maintenance_lock.errors >= 8
    message = next(record for record in caplog.records if record.levelno == logging.ERROR).getMessage()
    assert "maintenance failed, and will be retried" in message
    assert "Input/output error" in message
    assert str(store.path) in message
    steps.answer = 7.0
    until(lambda: delays[-1] == 7)
    assert not maintenance._channels[store].failures
    maintenance.forget(store)


def test_one_step_that_fails_keeps_no_other_from_its_work(
    maintenance: Maintenance, store: Store, steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step that fails keeps neither other steps nor other channels from being maintained."""

    def fail(_: Store) -> float:
        raise ValueError("a mistake of ours")

    monkeypatch.setattr(module, "STEPS", [fail, steps])
    maintenance.register(store)
    assert steps.wait() is store
    until(lambda: store.maintenance_lock.errors)
    maintenance.forget(store)


def test_nothing_ends_the_thread(
    maintenance: Maintenance, tmp_path: Path, store: Store, steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error before the first step does not end the thread, and requests do not shorten the interval then."""

    def fail(_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(type(store.maintenance_lock), "held", fail)
    maintenance.register(store)
    until(lambda: store.maintenance_lock.errors)
    monkeypatch.undo()
    monkeypatch.setattr(module, "STEPS", [steps])
    until(lambda: _is_due_after(maintenance, store, 1))
    maintenance.request(store)
    assert _is_due_after(maintenance, store, 1)
    with opened(tmp_path / "another", SMALL) as another:
        another.log.append([b"one"])
        maintenance.register(another)
        assert steps.wait() is another
    maintenance.forget(store)


def test_a_held_lock_is_not_an_error(maintenance: Maintenance, store: Store, steps: Steps) -> None:
    """A step that finds a lock held is not an error, and is tried again soon."""
    steps.answer = Busy()
    maintenance.register(store)
    steps.wait()
    steps.wait()
    assert store.maintenance_lock.errors == 0
    maintenance.forget(store)


@shares
def test_a_step_that_may_not_run_yet_is_retried(
    maintenance: Maintenance, path: Path, store: Store, steps: Steps
) -> None:
    """Maintenance tries again while another process does it, and takes over when that is gone."""
    with opened(path, SMALL) as other, other.maintenance_lock.held():
        maintenance.register(store)
        until(lambda: _is_due_after(maintenance, store, 0))
        assert steps.called.empty()
    assert steps.wait() is store
    maintenance.forget(store)


def test_closing_waits_for_the_running_step(
    maintenance: Maintenance, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`close` waits for the running step, so that its files stay open."""
    started, may_continue, order = Event(), Event(), list[str]()

    def step(_: Store) -> float:
        started.set()
        assert may_continue.wait(TIMEOUT)
        order.append("done")
        return 3600.0

    monkeypatch.setattr(module, "STEPS", [step])
    store = open_store(path, SMALL)
    store.log.append([b"one"])
    maintenance.register(store)
    assert started.wait(TIMEOUT)
    closing = Thread(target=lambda: (store.close(), order.append("closed")))
    closing.start()
    assert not order
    may_continue.set()
    closing.join(TIMEOUT)
    assert order == ["done", "closed"]


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_has_its_own_maintenance_thread(tmp_path: Path) -> None:
    """The thread of a forked child maintains the channels that the child opens, and not its parent's."""
    with blocking.open_channel(tmp_path / "parent", bytes, options=SMALL) as channel:
        channel.sender().send(b"one")
        assert MAINTENANCE._channels
        child = os.fork()
        if not child:
            status = 1
            try:
                assert not MAINTENANCE._channels
                with opened(tmp_path / "child", SMALL) as store:
                    MAINTENANCE.register(store)
                    fill(store, 3)
                    consume(store)
                    until(lambda: len(payloads_of(store)) == 3)
                status = 0
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_process_ends_although_channels_are_open(path: Path) -> None:
    """A process ends while channels are open and a step of its maintenance thread runs."""
    program = """
import sys, time
from filechannel import Retention, blocking
from filechannel._maintenance.background import maintenance_thread
maintenance_thread.STEPS.append(lambda store: time.sleep(3600))
channel = blocking.open_channel(sys.argv[1], bytes)
channel.sender().send(b"one")
maintenance_thread.MAINTENANCE.request(channel._store)  # the first request may have found an empty channel
while not channel.statistics().maintenance.last_run:
    time.sleep(0.001)
"""
    command = [sys.executable, "-W", "ignore", "-c", program, str(path)]
    assert subprocess.run(command, timeout=60, check=False).returncode == 0


def test_channels_are_maintained_from_opening_to_closing(path: Path) -> None:
    """A channel is maintained once, however often it is open, until it is closed, and not if it is read-only."""
    with blocking.open_channel(path, bytes) as channel, blocking.open_channel(path, bytes):
        assert list(MAINTENANCE._channels) == [channel._store]
    assert not MAINTENANCE._channels
    with blocking.open_channel(path, bytes, readonly=True):
        assert not MAINTENANCE._channels
    assert not STORES._open


def test_a_channel_that_is_closed_during_its_maintenance_is_released(
    maintenance: Maintenance, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A channel that is closed during a step leaves nothing in the queue of the maintenance thread."""
    started, may_continue = Event(), Event()

    def step(_: Store) -> float:
        started.set()
        assert may_continue.wait(20)
        return 60.0

    monkeypatch.setattr(module, "STEPS", [step])
    with opened(path, SMALL) as store:
        store.log.append([b"something"])
        maintenance.register(store)
        assert started.wait(20)
        closing = Thread(target=maintenance.forget, args=(store,))
        closing.start()
        until(lambda: not maintenance._channels)
        may_continue.set()
        closing.join(20)
        assert not maintenance._lane._heap
