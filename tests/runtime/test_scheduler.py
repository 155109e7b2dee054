"""Functions that are called at given times, on threads that exist only while there are any."""

from __future__ import annotations

import gc
import os
import random
import signal
import threading
import time
import weakref
from collections.abc import Iterator
from queue import SimpleQueue

import pytest

from filechannel._runtime import scheduler
from filechannel._runtime.scheduler import COMPRESSION_LANE, FLUSH_LANE, LEASE_LANE, WATCHDOG_LANE, Lane, TimedCall
from filechannel._runtime.threads import NoThreadError
from tests.blocking.interruptions import InterruptError
from tests.blocking.threads import all_at_once, until
from tests.storage.background import no_more_threads

TIMEOUT = 60.0
NAME = "filechannel-lane-of-a-test"
forks = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


@pytest.fixture
def lane(monkeypatch: pytest.MonkeyPatch) -> Iterator[Lane]:
    """A lane whose thread ends soon when nothing is scheduled."""
    monkeypatch.setattr(scheduler, "LINGER_SECONDS", 0.02)
    yield Lane(NAME)
    until(lambda: not _threads())


def _threads() -> int:
    return sum(thread.name == NAME for thread in threading.enumerate())


class Calls:
    """A function that says when it is called, and wants to be called again after so many seconds."""

    def __init__(self, again: float | None = None) -> None:
        self.again = again
        self.seen: SimpleQueue[float] = SimpleQueue()

    def __call__(self) -> float | None:
        """Be called."""
        self.seen.put(time.monotonic())
        return self.again

    def wait(self) -> float:
        """Wait for a call, and return when it was."""
        return self.seen.get(timeout=TIMEOUT)


def test_a_function_is_called_once_for_all_requests_until_then(lane: Lane) -> None:
    """A scheduled function is called once for all requests before the call, and again for one after it."""
    calls = Calls()
    timed = TimedCall(lane, calls)
    for _ in range(3):
        begin = time.monotonic()
        for _ in range(5):
            timed.request(0.01)
        assert calls.wait() >= begin + 0.01
        until(lambda: not _threads())
        assert calls.seen.empty()


def test_a_function_is_called_again_as_long_as_it_returns_a_time(lane: Lane) -> None:
    """A scheduled function is called again at the time it returns, until it returns None."""
    calls = Calls(0.001)
    TimedCall(lane, calls).request(0.0)
    for _ in range(5):
        calls.wait()
    calls.again = None
    until(lambda: not _threads())


def test_functions_are_called_in_the_order_of_their_times(lane: Lane) -> None:
    """Scheduled functions are called in the order of their times, and those of one time in that of the requests."""
    order = SimpleQueue[float]()
    many = {seconds: TimedCall(lane, lambda seconds=seconds: order.put(seconds)) for seconds in (0.15, 0.05, 0.2, 0.1)}  # type: ignore[misc]
    for seconds, timed in many.items():
        timed.request(seconds)
    assert [order.get(timeout=TIMEOUT) for _ in many] == sorted(many)


def test_an_earlier_request_wakes_a_thread_that_sleeps_for_long(lane: Lane) -> None:
    """An earlier request wakes the sleeping thread, and a later one does not."""
    slow, quick = TimedCall(lane, Calls()), Calls()
    slow.request(3600)
    until(lambda: time.monotonic() + 60 < lane.wakes_at < float("inf"))
    sleeping = lane.wakes_at
    later = TimedCall(lane, Calls())
    later.request(7200)
    assert not lane._wakeup.is_pending
    assert lane.wakes_at == sleeping
    TimedCall(lane, quick).request(0.0)
    quick.wait()
    slow.cancel()
    later.cancel()
    lane.wake()


def test_a_cancelled_function_is_not_called_and_its_function_is_released(lane: Lane) -> None:
    """A cancelled function is not called, and is released at once; the thread ends when it is woken."""
    calls = Calls()
    released = weakref.ref(calls)
    timed = TimedCall(lane, calls)
    timed.request(3600)
    until(lambda: time.monotonic() + 60 < lane.wakes_at < float("inf"))
    timed.cancel()
    del calls
    gc.collect()
    assert released() is None
    assert timed.is_cancelled
    lane.wake_to_end()
    until(lambda: not _threads())
    timed.request(0.0)
    until(lambda: not _threads())


def test_a_function_that_is_cancelled_during_its_call_is_not_called_again(lane: Lane) -> None:
    """A function that is cancelled during its call is not called again, although it returned a time."""
    calls: list[int] = []

    def call() -> float:
        calls.append(1)
        timed.cancel()
        return 0.0

    timed = TimedCall(lane, call)
    timed.request(0.0)
    until(lambda: bool(calls) and not _threads())
    assert len(calls) == 1


def test_a_request_during_the_call_causes_another_one(lane: Lane) -> None:
    """A request during the call causes another call, also if the function returned None."""
    started, go, calls = SimpleQueue[None](), SimpleQueue[None](), list[int]()

    def call() -> None:
        calls.append(1)
        started.put(None)
        go.get(timeout=TIMEOUT)

    timed = TimedCall(lane, call)
    timed.request(0.0)
    started.get(timeout=TIMEOUT)
    assert not timed.is_requested
    timed.request(0.0)
    assert timed.is_requested
    go.put(None)
    started.get(timeout=TIMEOUT)
    go.put(None)
    until(lambda: not _threads())
    assert len(calls) == 2


def test_an_error_is_logged_and_ends_that_call_alone(lane: Lane, caplog: pytest.LogCaptureFixture) -> None:
    """An error of a scheduled function is logged, and the other functions are called, and that one on request."""
    failed, calls = SimpleQueue[None](), Calls(0.001)

    def fail() -> None:
        failed.put(None)
        raise ValueError("a mistake of ours")

    other = TimedCall(lane, calls)
    other.request(0.0)
    for _ in range(2):
        timed = TimedCall(lane, fail)
        timed.request(0.0)
        failed.get(timeout=TIMEOUT)
        for _ in range(3):
            calls.wait()
    other.cancel()
    until(lambda: "a mistake of ours" in caplog.text)


def test_a_thread_that_cannot_be_started_is_tried_again_by_the_next_request(lane: Lane) -> None:
    """If the thread cannot be started the next request of any function starts it, and it serves both."""
    first, second = Calls(), Calls()
    timed = TimedCall(lane, first)
    with no_more_threads():
        for _ in range(3):
            with pytest.raises(NoThreadError):
                timed.request(0.0)
    assert len(lane.requests) == 1
    TimedCall(lane, second).request(0.0)
    first.wait()
    second.wait()
    until(lambda: not lane.is_running)
    with no_more_threads(), pytest.raises(NoThreadError):
        timed.request(0.0)
    timed.request(0.0)
    first.wait()


def test_a_lane_that_polls_is_woken_by_the_first_request_alone(monkeypatch: pytest.MonkeyPatch, lane: Lane) -> None:
    """A lane that polls is woken by its first request, and other requests only append to a queue."""
    calls, woken = Calls(), list[None]()
    lane.polls_for = 3600.0
    timed = TimedCall(lane, calls)
    timed.request(0.02)
    calls.wait()
    keeps_it_awake = TimedCall(lane, Calls())
    keeps_it_awake.request(3600.0)
    until(lambda: not lane.requests)
    monkeypatch.setattr(Lane, "wake", lambda _: woken.append(None))
    for _ in range(10):
        timed.request(0.02)
        calls.wait()
    assert not woken
    monkeypatch.undo()
    keeps_it_awake.cancel()


def test_a_thread_lingers_so_that_the_next_request_does_not_start_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread without calls lingers, and a request that is due later than that does not wake it."""
    monkeypatch.setattr(scheduler, "LINGER_SECONDS", 0.2)
    lane, calls = Lane(NAME), Calls()
    timed = TimedCall(lane, calls)
    timed.request(0.0)
    calls.wait()
    (thread,) = [thread for thread in threading.enumerate() if thread.name == NAME]
    for _ in range(3):
        timed.request(0.2)
        assert not lane._wakeup.is_pending
        calls.wait()
        assert thread.is_alive()
    until(lambda: not _threads())


def test_cancelled_calls_do_not_pile_up(lane: Lane) -> None:
    """Neither unseen requests nor the heap of a lane grow with cancelled calls."""
    keeps_it_awake = TimedCall(lane, Calls())
    keeps_it_awake.request(3600.0)
    most = 0
    for _ in range(20_000):
        timed = TimedCall(lane, Calls())
        timed.request(3600.0)
        timed.cancel()
        most = max(most, len(lane.requests))
    assert most < 20_000
    until(lambda: len(lane.requests) <= scheduler._UNSEEN_REQUESTS)
    for _ in range(10):
        many = [TimedCall(lane, Calls()) for _ in range(500)]
        for timed in many:
            timed.request(3600.0)
        lane.wake()
        until(lambda: not lane.requests)
        assert len(lane._heap) <= 2000
        for timed in many:
            timed.cancel()
    keeps_it_awake.cancel()
    lane.wake_to_end()


def test_requests_of_many_threads_are_all_followed(lane: Lane) -> None:
    """Requests of many threads are all carried out, while threads of the lane end and start."""
    rounds, count = 200, 4
    all_calls = [Calls() for _ in range(count)]

    def use(calls: Calls) -> None:
        timed, chance = TimedCall(lane, calls), random.Random(1)
        for _ in range(rounds):
            timed.request(0.0)
            calls.wait()
            if chance.random() < 0.05:
                time.sleep(0.03)  # the thread is about to end now, or has just ended

    all_at_once(*(lambda calls=calls: use(calls) for calls in all_calls))


@pytest.mark.skipif(threading.current_thread() is not threading.main_thread(), reason="needs signals")
def test_a_request_that_a_signal_handler_interrupts_is_made_up_for_by_the_next(lane: Lane) -> None:
    """After a signal handler interrupts a request at any line no lock is held, and the next request is carried out."""
    is_armed = False

    def interrupt(*_: object) -> None:
        nonlocal is_armed
        if is_armed:  # on a busy machine the signal may come after the requests
            is_armed = False
            raise InterruptError

    calls = Calls()
    timed, interrupted = TimedCall(lane, calls), 0
    before = signal.signal(signal.SIGALRM, interrupt)
    chance = random.Random(1)
    try:
        for _ in range(300):
            try:
                is_armed = True
                signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-5, 1e-4))
                for _ in range(1000):
                    timed.request(0.0)
                is_armed = False
            except InterruptError:
                interrupted += 1
            signal.setitimer(signal.ITIMER_REAL, 0)
            while not calls.seen.empty():
                calls.seen.get()
            timed.request(0.0)
            calls.wait()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert interrupted


def test_the_priority_of_a_lane_is_its_own() -> None:
    """The thread of compression has a low priority, and the process and other lanes keep theirs."""
    before = os.getpriority(os.PRIO_PROCESS, 0)
    found: SimpleQueue[int] = SimpleQueue()

    def look() -> None:
        found.put(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))

    for lane, expected in ((COMPRESSION_LANE, min(before + 10, 19)), (FLUSH_LANE, before)):
        TimedCall(lane, look).request(0.0)
        assert found.get(timeout=TIMEOUT) == expected
    assert os.getpriority(os.PRIO_PROCESS, 0) == before


def test_leases_and_the_watchdog_do_not_wait_for_other_lanes() -> None:
    """Leases and the watchdog are on time although flushing, maintenance and compression wait for the disk."""
    stuck, free = SimpleQueue[None](), SimpleQueue[None]()
    blocked = (FLUSH_LANE, scheduler.MAINTENANCE_LANE, COMPRESSION_LANE)
    for lane in blocked:
        TimedCall(lane, lambda: (stuck.put(None), free.get(timeout=TIMEOUT))[1]).request(0.0)
    for _ in blocked:
        stuck.get(timeout=TIMEOUT)
    for lane in (LEASE_LANE, WATCHDOG_LANE):
        calls = Calls()
        TimedCall(lane, calls).request(0.0)
        calls.wait()
    for _ in blocked:
        free.put(None)


@forks
def test_a_forked_child_has_empty_lanes_that_work() -> None:
    """A forked child, and a child of it, start with empty lanes, whatever the threads of the parent did."""
    lane, ticking = Lane(NAME), Calls(0.0)
    TimedCall(lane, ticking).request(0.0)

    def fork(generations: int) -> int:
        child = os.fork()
        if child:
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        status = 1
        try:
            assert not lane.is_running
            assert not lane.requests
            calls = Calls(0.0005)
            TimedCall(lane, calls).request(0.0)
            calls.wait()
            status = fork(generations - 1) if generations > 1 else 0
        finally:
            os._exit(status)

    def fork_often() -> None:
        for _ in range(10):
            assert fork(2) == 0

    try:
        fork_often()
        all_at_once(fork_often, fork_often)  # from threads, too
        ticking.wait()
    finally:
        ticking.again = None
        until(lambda: not _threads())
