"""Reading ahead: the same items, in order, and nothing left behind."""

from __future__ import annotations

from collections.abc import Generator
from threading import Event, current_thread
from threading import enumerate as threads_alive

import pytest

from filechannel._storage.ahead import taken_ahead


def _count(stop: int, ended: Event, error: Exception | None = None) -> Generator[int]:
    try:
        yield from range(1, stop)
        if error is not None:
            raise error
    finally:
        ended.set()


def _is_at_work() -> bool:
    return any(thread.name == "filechannel-ahead" for thread in threads_alive())


def test_everything_comes_in_order() -> None:
    """All items, also if there is none; then the thread is gone."""
    for stop in (1, 2, 3, 500):
        ended = Event()
        assert list(taken_ahead(_count(stop, ended))) == list(range(1, stop))
        assert ended.is_set()
        assert not _is_at_work()


def test_the_next_is_taken_while_one_is_used() -> None:
    """Whoever is busy with an item finds that the next one was taken meanwhile, by another thread."""
    taken = Event()
    threads = list[str]()

    def two() -> Generator[int]:
        yield 1
        threads.append(current_thread().name)
        taken.set()
        yield 2

    items = taken_ahead(two())
    assert next(items) == 1
    assert taken.wait(30)
    assert list(items) == [2]
    assert threads == ["filechannel-ahead"]


def test_an_error_comes_behind_the_items_before_it() -> None:
    """What fails over there is raised here."""
    ended, found = Event(), list[int]()
    with pytest.raises(ValueError, match="gone"):
        found.extend(taken_ahead(_count(4, ended, ValueError("gone"))))
    items = taken_ahead(_count(4, ended, ValueError("gone")))
    assert [next(items) for _ in range(3)] == [1, 2, 3]
    with pytest.raises(ValueError, match="gone"):
        next(items)
    assert not _is_at_work()


def test_who_stops_early_leaves_nothing_behind() -> None:
    """Closed in the middle, no more is taken, the source is closed and the thread is gone."""
    ended = Event()
    items = taken_ahead(_count(1000, ended))
    assert next(items) == 1
    items.close()
    assert ended.is_set()
    assert not _is_at_work()
    never = taken_ahead(_count(2, Event()))
    never.close()  # before it began: there is no thread yet
    assert not _is_at_work()
