"""The one thread that maintains every open channel of a process."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from queue import Queue
from threading import Event, Thread

import pytest

from filechannel import Retention, blocking
from filechannel._errors import Busy
from filechannel._format import PURE
from filechannel._maintenance import worker as module
from filechannel._maintenance.worker import WORKER, Worker, _Charge
from filechannel._storage.store import Store
from filechannel._storage.stores import STORES
from tests.maintenance.stores import consume, fill, reclaim
from tests.processes.crew import PATIENCE, until
from tests.storage.channels import SMALL, open_store, opened, payloads_of
from tests.storage.resources import files_under

shares = pytest.mark.skipif(PURE, reason="the pure twin shares with nobody")


class Steps:
    """Stands in for what maintaining means: says when it is called, and answers as it is told."""

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
        return self.called.get(timeout=PATIENCE)


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


def _threads() -> list[Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "filechannel-maintenance"]


def test_a_thread_runs_while_there_is_something_to_look_after(store: Store, steps: Steps) -> None:
    """It ends when the last channel is closed, and begins again with the next; it never keeps a process alive."""
    until(lambda: not _threads())  # that of an earlier test
    worker = Worker()
    for _ in range(2):
        worker.look_after(store)
        worker.look_after(store)
        assert steps.wait() is store
        (thread,) = _threads()
        assert thread.daemon
        worker.forget(store)
        thread.join(PATIENCE)
        assert not thread.is_alive()


def test_channels_opened_in_quick_succession_share_the_thread(
    tmp_path: Path, steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread outlives a channel that is closed, for a while, and neither opening nor closing wakes it then."""
    until(lambda: not _threads())  # that of an earlier test
    monkeypatch.setattr(module, "_ATTENTIVE", 3600.0)
    worker = Worker()
    woken: list[object] = []
    for number in range(3):
        with opened(tmp_path / str(number), SMALL) as store:
            store.log.append([b"one"])
            worker.look_after(store)
            assert steps.wait() is store
            until(lambda: len(_threads()) == 1)
            monkeypatch.setattr(worker, "_wake", lambda: woken.append(None))
    assert not woken
    worker._attentive_until = 0.0
    until(lambda: not _threads())


def test_one_thread_serves_every_channel(tmp_path: Path, steps: Steps) -> None:
    """However many there are."""
    worker = Worker()
    stores = [open_store(tmp_path / str(number), SMALL) for number in range(20)]
    for store in stores:
        store.log.append([b"one"])
        worker.look_after(store)
    assert {id(steps.wait()) for _ in stores} == set(map(id, stores))
    until(lambda: len(_threads()) == 1)  # one too many ends at once
    for store in stores:
        store.close()  # which lets the worker forget it
    until(lambda: not _threads())


def test_what_happens_here_is_looked_at_soon(store: Store, steps: Steps) -> None:
    """A segment is finished, a reader goes on to the next, a name comes or goes."""
    worker = Worker()
    worker.look_after(store)
    charge = worker._charges[store]
    happenings: list[Callable[[], object]] = [
        lambda: fill(store, 2),
        lambda: consume(store, 5),
        lambda: store.cursors.remove_unowned("consumer"),
    ]
    for happen in happenings:
        steps.wait()
        until(lambda: not charge.is_nudged and charge.due > module.time.monotonic() + 60)
        steps.called = Queue()
        happen()
    steps.wait()
    worker.forget(store)
    store.on_boundary()  # nobody listens any more
    worker.nudge(store)
    assert not worker._charges


def test_who_is_nudged_often_is_looked_at_without_being_woken(
    store: Store, steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever nudges waits for nobody then, not even for the lock under which the thread would be woken."""
    monkeypatch.setattr(module, "_ATTENTIVE", 3600.0)
    worker, held, free = Worker(), Event(), Event()

    def hold() -> None:
        with worker._lock.held():
            held.set()
            assert free.wait(PATIENCE)

    worker.look_after(store)
    steps.wait()
    worker.nudge(store)
    assert steps.wait() is store
    holder = Thread(target=hold)
    holder.start()
    assert held.wait(PATIENCE)
    worker.nudge(store)
    free.set()
    holder.join(PATIENCE)
    assert steps.wait() is store
    worker.forget(store)


def test_who_is_nudged_seldom_wakes_the_thread(store: Store, steps: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it would sleep otherwise."""
    monkeypatch.setattr(module, "_ATTENTIVE", 0.0)
    worker = Worker()
    worker.look_after(store)
    steps.wait()
    for _ in range(10):
        worker.nudge(store)
        assert steps.wait() is store
    worker.forget(store)


def test_a_sender_makes_room_itself_where_the_thread_gets_no_chance(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is consumed does not pile up, however busy the machine is."""
    monkeypatch.setattr(Worker, "_wake", lambda _: None)
    with opened(path, SMALL) as store:
        worker = Worker()
        worker.look_after(store)
        most = 0
        for _ in range(5 * module._MANY):
            fill(store, 2)
            consume(store)
            most = max(most, len(store.segments.begins))
        assert module._MANY < most <= module._MANY + 4
        assert store.upkeep.reclaimed[0] > 2 * module._MANY


def test_an_event_loop_is_not_held_up_by_what_piles_up(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has pauses, in which the thread gets its chance."""
    monkeypatch.setattr(Worker, "_wake", lambda _: None)
    with opened(path, SMALL) as store:
        worker = Worker()
        worker.look_after(store)
        store.log.may_sleep = lambda: False
        for _ in range(3 * module._MANY):
            fill(store, 2)
            consume(store)
        assert store.upkeep.reclaimed == (0, 0)


def test_a_step_says_when_to_come_again(store: Store, steps: Steps) -> None:
    """And is called again by then."""
    worker, steps.answer = Worker(), 0.001
    worker.look_after(store)
    for _ in range(3):
        steps.wait()
    worker.forget(store)


def test_an_empty_channel_is_left_alone(path: Path, steps: Steps) -> None:
    """Nothing is stored, so nothing is to be done, and no lock is asked for."""
    worker = Worker()
    with opened(path, SMALL) as store:
        worker.look_after(store)
        until(lambda: worker._charges[store].due > module.time.monotonic() + 5)
        assert store.upkeep.last_turn is None
        assert steps.called.empty()


@pytest.mark.parametrize(("max_age", "pause"), [(None, 60.0), (2.0, 1.0), (40.0, 10.0), (4000.0, 60.0)])
def test_an_empty_channel_is_looked_at_before_its_first_message_is_too_old(
    path: Path, max_age: float | None, pause: float
) -> None:
    """Nobody tells of a message that finishes no segment."""
    with opened(path, replace(SMALL, retention=Retention(max_age=max_age))) as store:
        assert Worker()._maintain(_Charge(store)) == pause
        store.configure(lambda manifest: replace(manifest, options=replace(manifest.options, retention=Retention())))
        assert Worker()._maintain(_Charge(store)) == 60.0


@shares
def test_what_another_process_removed_is_let_go(path: Path, steps: Steps) -> None:
    """By whoever looks after the channel here, though nothing is left to be maintained."""
    worker = Worker()
    with opened(path, SMALL) as store, opened(path, SMALL) as other:
        store.log.append([b"one"])
        consume(other)
        reclaim(other, 0.0)
        assert files_under(store.segments.directory)
        worker.look_after(store)
        until(lambda: not files_under(store.segments.directory))
        assert steps.called.empty()


def test_an_error_is_logged_counted_and_retried(
    store: Store, steps: Steps, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At ever longer intervals, and whoever sends does not notice."""
    worker, delays = Worker(), list[float]()
    steps.answer = OSError(5, "Input/output error")
    attend = worker._maintain

    def impatient(charge: module._Charge) -> float:
        delays.append(attend(charge))
        return 0.001

    monkeypatch.setattr(worker, "_maintain", impatient)
    worker.look_after(store)
    for _ in range(8):
        steps.wait()
        store.log.append([b"another"])
    until(lambda: len(delays) >= 8)
    assert delays[:8] == [2, 4, 8, 16, 32, 60, 60, 60]
    assert store.upkeep.errors >= 8
    message = next(record for record in caplog.records if record.levelno == logging.ERROR).getMessage()
    assert "maintenance failed, and will be tried again" in message
    assert "Input/output error" in message
    assert str(store.path) in message
    steps.answer = 7.0
    until(lambda: delays[-1] == 7)
    assert not worker._charges[store].failures
    worker.forget(store)


def test_one_step_that_fails_keeps_no_other_from_its_work(
    store: Store, steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor any other channel."""

    def fail(_: Store) -> float:
        raise ValueError("a mistake of ours")

    monkeypatch.setattr(module, "STEPS", [fail, steps])
    worker = Worker()
    worker.look_after(store)
    assert steps.wait() is store
    until(lambda: store.upkeep.errors)
    worker.forget(store)


def test_nothing_ends_the_thread(tmp_path: Path, store: Store, steps: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even what fails before the first step; and who is nudged in trouble is not looked at any sooner."""

    def fail(_: object) -> None:
        raise OSError(5, "Input/output error")

    worker = Worker()
    monkeypatch.setattr(type(store.upkeep), "turn", fail)
    worker.look_after(store)
    until(lambda: store.upkeep.errors)
    monkeypatch.undo()
    monkeypatch.setattr(module, "STEPS", [steps])
    until(lambda: worker._charges[store].due > module.time.monotonic() + 1)
    worker.nudge(store)
    assert worker._charges[store].due > module.time.monotonic() + 1
    with opened(tmp_path / "another", SMALL) as another:
        another.log.append([b"one"])
        worker.look_after(another)
        assert steps.wait() is another
    worker.forget(store)


def test_being_in_the_way_of_each_other_is_no_error(store: Store, steps: Steps) -> None:
    """It is tried again shortly after."""
    worker, steps.answer = Worker(), Busy()
    worker.look_after(store)
    steps.wait()
    steps.wait()
    assert store.upkeep.errors == 0
    worker.forget(store)


@shares
def test_who_is_not_on_turn_tries_again(path: Path, store: Store, steps: Steps) -> None:
    """Another process maintains the channel, and then is gone."""
    worker = Worker()
    with opened(path, SMALL) as other, other.upkeep.turn():
        worker.look_after(store)
        until(lambda: worker._charges[store].due > module.time.monotonic())
        assert steps.called.empty()
    assert steps.wait() is store
    worker.forget(store)


def test_closing_waits_until_nobody_works_on_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the step has open is not closed under it."""
    begun, go_on, order = Event(), Event(), list[str]()

    def step(_: Store) -> float:
        begun.set()
        assert go_on.wait(PATIENCE)
        order.append("done")
        return 3600.0

    monkeypatch.setattr(module, "STEPS", [step])
    store = open_store(path, SMALL)
    store.log.append([b"one"])
    Worker().look_after(store)
    assert begun.wait(PATIENCE)
    closing = Thread(target=lambda: (store.close(), order.append("closed")))
    closing.start()
    assert not order
    go_on.set()
    closing.join(PATIENCE)
    assert order == ["done", "closed"]


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_has_a_worker_of_its_own(tmp_path: Path) -> None:
    """It looks after what the child opens, and not after what is the parent's."""
    with blocking.open_channel(tmp_path / "parent", bytes, options=SMALL) as channel:
        channel.sender().send(b"one")
        assert WORKER._charges
        child = os.fork()
        if not child:
            status = 1
            try:
                assert not WORKER._charges
                with opened(tmp_path / "child", SMALL) as store:
                    WORKER.look_after(store)
                    fill(store, 3)
                    consume(store)
                    until(lambda: len(payloads_of(store)) == 3)
                status = 0
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_process_ends_although_channels_are_open(path: Path) -> None:
    """With a thread in the middle of maintaining one."""
    program = """
import sys, time
from filechannel import Retention, blocking
from filechannel._maintenance import worker
worker.STEPS.append(lambda store: time.sleep(3600))
channel = blocking.open_channel(sys.argv[1], bytes)
channel.sender().send(b"one")
while not channel.statistics().maintenance.last_run:
    time.sleep(0.001)
"""
    command = [sys.executable, "-W", "ignore", "-c", program, str(path)]
    assert subprocess.run(command, timeout=60, check=False).returncode == 0


def test_channels_are_looked_after_from_opening_to_closing(path: Path) -> None:
    """By the worker of the process, however often they are open; not if they are open read-only."""
    with blocking.open_channel(path, bytes) as channel, blocking.open_channel(path, bytes):
        assert list(WORKER._charges) == [channel._store]
    assert not WORKER._charges
    with blocking.open_channel(path, bytes, readonly=True):
        assert not WORKER._charges
    assert not STORES._open


def test_a_channel_that_is_closed_while_it_is_looked_at_is_let_go(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of it waits in the queue for a time that never matters."""
    begun, go_on, worker = Event(), Event(), Worker()

    def step(_: Store) -> float:
        begun.set()
        assert go_on.wait(20)
        return 60.0

    monkeypatch.setattr(module, "STEPS", [step])
    with opened(path, SMALL) as store:
        store.log.append([b"something"])
        worker.look_after(store)
        assert begun.wait(20)
        closing = Thread(target=worker.forget, args=(store,))
        closing.start()
        until(lambda: not worker._charges)
        go_on.set()
        closing.join(20)
        assert not worker._queue
