"""Threads that wait for the kernel."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from filechannel._storage import background
from filechannel._storage.background import do_all_at_once


def _failing(number: int) -> Callable[[], object]:
    def fail() -> None:
        raise OSError(number)

    return fail


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
