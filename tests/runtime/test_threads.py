"""Threads of our own, for work that blocks."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from queue import SimpleQueue

import pytest

from filechannel._runtime import threads
from filechannel._runtime.threads import Flag, ThreadPool, do_in_parallel
from tests.storage.background import no_more_threads

TIMEOUT = 60.0


def until(is_true: Callable[[], bool]) -> None:
    """Wait until it is so."""
    deadline = time.monotonic() + TIMEOUT
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
    """Work runs in threads of the pool, which have its name and a limited number."""
    pool, done = ThreadPool("filechannel-a-few", 3), SimpleQueue[str]()
    for _ in range(100):
        pool.do(lambda: done.put(threading.current_thread().name))
    assert {done.get(timeout=TIMEOUT) for _ in range(100)} == {"filechannel-a-few"}
    until(lambda: 1 <= _threads("filechannel-a-few") <= 3)  # one too many ends at once


def test_work_does_not_wait_for_other_work() -> None:
    """Work does not wait for other work while the pool may start threads."""
    pool, done, may_continue = ThreadPool("filechannel-pool", 2), SimpleQueue[int](), Flag()
    pool.do(lambda: may_continue.wait(TIMEOUT))
    pool.do(lambda: done.put(1))
    assert done.get(timeout=TIMEOUT) == 1
    may_continue.set()


def test_threads_without_work_end_but_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Idle threads end except for the last one, which takes what comes into the queue."""
    monkeypatch.setattr(threads, "_IDLE_SECONDS", 0.01)
    pool, arrived, may_continue = ThreadPool("filechannel-ending", 3), SimpleQueue[None](), Flag()
    for _ in range(3):
        pool.do(lambda: (arrived.put(None), may_continue.wait(TIMEOUT)))
    for _ in range(3):
        arrived.get(timeout=TIMEOUT)
    may_continue.set()
    until(lambda: _threads("filechannel-ending") == 1)
    pool.do(lambda: arrived.put(None))
    arrived.get(timeout=TIMEOUT)


def test_work_that_fails_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """An error of the work is logged, and the thread continues with the next."""
    pool, done = ThreadPool("filechannel-pool", 1), SimpleQueue[int]()
    pool.do(_failing(7))
    pool.do(lambda: done.put(1))
    assert done.get(timeout=TIMEOUT) == 1
    assert "background work failed" in caplog.text


def test_without_a_thread_the_caller_gets_an_error() -> None:
    """If no thread can be started the caller gets an error and nothing is queued; a single thread does all work."""
    pool, done = ThreadPool("filechannel-pool", 2), SimpleQueue[int]()
    with no_more_threads():
        with pytest.raises(RuntimeError):
            pool.do(lambda: done.put(1))
    pool.do(lambda: done.put(2))
    assert done.get(timeout=TIMEOUT) == 2
    with no_more_threads():
        pool.do(lambda: done.put(3))
    assert done.get(timeout=TIMEOUT) == 3


@pytest.mark.parametrize("limited", [False, True], ids=["with threads", "without threads"])
def test_all_is_done_before_an_error_is_raised(monkeypatch: pytest.MonkeyPatch, *, limited: bool) -> None:
    """An error of one piece of work is raised when all are done, also without threads."""
    monkeypatch.setitem(threads._pools, "flush", ThreadPool("filechannel-pool", 3))
    done: list[int] = []
    work = [_failing(1), lambda: done.append(2), _failing(3), lambda: done.append(4)]
    with no_more_threads() if limited else nullcontext(), pytest.raises(OSError, match="1"):
        do_in_parallel(work)
    assert sorted(done) == [2, 4]
    do_in_parallel([lambda: done.append(5)])
    assert done[2:] == [5]


def test_a_flag_lets_a_thread_wait() -> None:
    """A thread waits for a flag until it is set or the time is over."""
    flag = Flag()
    assert not flag.wait(0.01)
    timer = threading.Timer(0.01, flag.set)
    timer.start()
    assert flag.wait(TIMEOUT)
    assert flag.is_set()
    flag.clear()
    assert not flag.is_set()
    timer.join()


def test_what_was_handed_over_is_done_before_the_interpreter_exits() -> None:
    """Queued work is done before the interpreter exits, although the threads are daemons."""
    program = """if True:
        import time
        from filechannel._runtime.threads import background_threads
        for number in range(3):
            background_threads().do(lambda number=number: (time.sleep(0.05), print(f' {number} ', flush=True)))
    """
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert sorted(ran.stdout.split()) == ["0", "1", "2"]


def test_work_that_does_not_end_does_not_keep_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work that does not end keeps the interpreter from exiting only for a while."""
    monkeypatch.setattr(threads, "_LONGEST_EXIT_SECONDS", 0.05)
    pool, may_continue = ThreadPool("filechannel-pool", 1), Flag()
    monkeypatch.setitem(threads._pools, "background", pool)
    pool.do(lambda: may_continue.wait(TIMEOUT))
    begin = time.monotonic()
    threads._finish()
    assert time.monotonic() - begin < TIMEOUT
    assert pool.is_busy
    may_continue.set()
    until(lambda: not pool.is_busy)
