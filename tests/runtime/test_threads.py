"""Threads of our own: for work that blocks, and to keep time."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from queue import SimpleQueue

import pytest

from filechannel._storage import background
from filechannel._storage.background import Flag, ThreadPool, Timekeeper, do_all_at_once
from tests.storage.background import no_more_threads

PATIENCE = 60.0


def until(is_true: Callable[[], bool]) -> None:
    """Wait until it is so."""
    deadline = time.monotonic() + PATIENCE
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def _failing(number: int) -> Callable[[], object]:
    def fail() -> None:
        raise OSError(number)

    return fail


def _threads(name: str) -> int:
    return sum(thread.name == name for thread in threading.enumerate())


def test_work_is_done_by_a_thread_of_the_pool() -> None:
    """All of it, in threads of that name, of which there are no more than allowed."""
    pool, done = ThreadPool("filechannel-a-few", 3), SimpleQueue[str]()
    for _ in range(100):
        pool.do(lambda: done.put(threading.current_thread().name))
    assert {done.get(timeout=PATIENCE) for _ in range(100)} == {"filechannel-a-few"}
    until(lambda: 1 <= _threads("filechannel-a-few") <= 3)  # one too many ends at once


def test_work_does_not_wait_for_other_work() -> None:
    """As long as there may be more threads."""
    pool, done, go_on = ThreadPool("filechannel-pool", 2), SimpleQueue[int](), Flag()
    pool.do(lambda: go_on.wait(PATIENCE))
    pool.do(lambda: done.put(1))
    assert done.get(timeout=PATIENCE) == 1
    go_on.set()


def test_threads_without_work_end_but_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last one stays, so that work in the queue always has a thread."""
    monkeypatch.setattr(background, "_IDLE", 0.01)
    pool, arrived, go_on = ThreadPool("filechannel-ending", 3), SimpleQueue[None](), Flag()
    for _ in range(3):
        pool.do(lambda: (arrived.put(None), go_on.wait(PATIENCE)))
    for _ in range(3):
        arrived.get(timeout=PATIENCE)
    go_on.set()
    until(lambda: _threads("filechannel-ending") == 1)
    pool.do(lambda: arrived.put(None))
    arrived.get(timeout=PATIENCE)


def test_work_that_fails_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """And the thread does the next piece of work."""
    pool, done = ThreadPool("filechannel-pool", 1), SimpleQueue[int]()
    pool.do(_failing(7))
    pool.do(lambda: done.put(1))
    assert done.get(timeout=PATIENCE) == 1
    assert "work in the background failed" in caplog.text


def test_without_a_thread_the_caller_is_told() -> None:
    """Then nothing was handed over; with one thread, that does everything."""
    pool, done = ThreadPool("filechannel-pool", 2), SimpleQueue[int]()
    with no_more_threads():
        with pytest.raises(RuntimeError):
            pool.do(lambda: done.put(1))
    pool.do(lambda: done.put(2))
    assert done.get(timeout=PATIENCE) == 2
    with no_more_threads():
        pool.do(lambda: done.put(3))
    assert done.get(timeout=PATIENCE) == 3


@pytest.mark.parametrize("limited", [False, True], ids=["with threads", "without threads"])
def test_all_is_done_before_an_error_is_raised(monkeypatch: pytest.MonkeyPatch, *, limited: bool) -> None:
    """A caller that is told of the first failure knows that nothing runs any more, also where there are no threads."""
    monkeypatch.setitem(background._pools, "flush", ThreadPool("filechannel-pool", 3))
    done: list[int] = []
    work = [_failing(1), lambda: done.append(2), _failing(3), lambda: done.append(4)]
    with no_more_threads() if limited else nullcontext(), pytest.raises(OSError, match="1"):
        do_all_at_once(work)
    assert sorted(done) == [2, 4]
    do_all_at_once([lambda: done.append(5)])
    assert done[2:] == [5]


def test_a_timekeeper_ends_when_nothing_is_left_and_begins_again() -> None:
    """It is asked how long it may sleep, woken before that if need be, and needs no thread in between."""
    wanted, seen = [0], SimpleQueue[int]()

    def attend() -> float | None:
        if not wanted[0]:
            return None
        seen.put(wanted[0])
        wanted[0] = 0
        return 3600.0

    keeper = Timekeeper("filechannel-keeping-time", attend)
    for number in (1, 2):
        wanted[0] = number
        keeper.wake()
        assert seen.get(timeout=PATIENCE) == number
        keeper.wake()
        until(lambda: not keeper.is_running)
    until(lambda: not _threads("filechannel-keeping-time"))


def test_a_flag_lets_a_thread_wait() -> None:
    """Until it is set, or for so long."""
    flag = Flag()
    assert not flag.wait(0.01)
    timer = threading.Timer(0.01, flag.set)
    timer.start()
    assert flag.wait(PATIENCE)
    assert flag.is_set()
    flag.clear()
    assert not flag.is_set()
    timer.join()


def test_what_was_handed_over_is_done_before_the_interpreter_exits() -> None:
    """Although the threads are daemons."""
    program = """if True:
        import time
        from filechannel._storage.background import background_threads
        for number in range(3):
            background_threads().do(lambda number=number: (time.sleep(0.05), print(f' {number} ', flush=True)))
    """
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert sorted(ran.stdout.split()) == ["0", "1", "2"]


def test_work_that_does_not_end_does_not_keep_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a while it exits all the same."""
    monkeypatch.setattr(background, "_LONGEST_EXIT", 0.05)
    pool, go_on = ThreadPool("filechannel-pool", 1), Flag()
    monkeypatch.setitem(background._pools, "background", pool)
    pool.do(lambda: go_on.wait(PATIENCE))
    begin = time.monotonic()
    background._finish()
    assert time.monotonic() - begin < PATIENCE
    assert pool.is_busy
    go_on.set()
    until(lambda: not pool.is_busy)
