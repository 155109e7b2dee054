"""Threads that wait for the kernel."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from filechannel._storage import background
from filechannel._storage.background import _Threads, do_all_at_once
from tests.storage.background import no_more_threads


def _failing(number: int) -> Callable[[], object]:
    def fail() -> None:
        raise OSError(number)

    return fail


def test_what_waits_for_a_thread_that_cannot_be_started_is_done() -> None:
    """In the one that was to start it; otherwise whoever waits for it would wait for ever."""
    with no_more_threads():
        assert [_Threads(2).submit(int, number).result(30) for number in "12"] == [1, 2]


@pytest.mark.parametrize("is_over", [False, True], ids=["running", "shut down"])
def test_all_is_done_before_an_error_is_raised(monkeypatch: pytest.MonkeyPatch, *, is_over: bool) -> None:
    """Whoever is told of the first failure knows that nothing goes on, when the interpreter is shutting down too."""
    pool = ThreadPoolExecutor(3)
    monkeypatch.setattr(background, "_waiting_threads", lambda: pool)
    if is_over:
        pool.shutdown()
    done: list[int] = []
    with pytest.raises(OSError, match="1"):
        do_all_at_once([_failing(1), lambda: done.append(2), _failing(3), lambda: done.append(4)])
    assert sorted(done) == [2, 4]
    do_all_at_once([lambda: done.append(5)])
    assert done[2:] == [5]
    pool.shutdown()
