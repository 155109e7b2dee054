"""Reading ahead: the same items, in order, and nothing left behind."""

from __future__ import annotations

from collections.abc import Generator
from threading import Event, current_thread
from threading import enumerate as threads_alive

import pytest

from filechannel._storage.archive.read_ahead import read_ahead


def _count(stop: int, ended: Event, error: Exception | None = None) -> Generator[int]:
    try:
        yield from range(1, stop)
        if error is not None:
            raise error
    finally:
        ended.set()


def _is_running() -> bool:
    return any(thread.name == "filechannel-ahead" for thread in threads_alive())


def test_everything_comes_in_order() -> None:
    """All items are read in order, also none, and then the thread has ended."""
    for stop in (1, 2, 3, 500):
        ended = Event()
        assert list(read_ahead(_count(stop, ended))) == list(range(1, stop))
        assert ended.is_set()
        assert not _is_running()


def test_the_next_item_is_read_while_one_is_used() -> None:
    """While the caller uses an item, another thread reads the next one."""
    taken = Event()
    threads = list[str]()

    def two() -> Generator[int]:
        yield 1
        threads.append(current_thread().name)
        taken.set()
        yield 2

    items = read_ahead(two())
    assert next(items) == 1
    assert taken.wait(30)
    assert list(items) == [2]
    assert threads == ["filechannel-ahead"]


def test_an_error_comes_behind_the_items_before_it() -> None:
    """An error of the source is raised after the items before it."""
    ended, found = Event(), list[int]()
    with pytest.raises(ValueError, match="gone"):
        found.extend(read_ahead(_count(4, ended, ValueError("gone"))))
    items = read_ahead(_count(4, ended, ValueError("gone")))
    assert [next(items) for _ in range(3)] == [1, 2, 3]
    with pytest.raises(ValueError, match="gone"):
        next(items)
    assert not _is_running()


def test_closing_early_leaves_nothing_behind() -> None:
    """Closing in the middle closes the source, and the thread ends."""
    ended = Event()
    items = read_ahead(_count(1000, ended))
    assert next(items) == 1
    items.close()
    assert ended.is_set()
    assert not _is_running()
    never = read_ahead(_count(2, Event()))
    never.close()  # before it started: there is no thread yet
    assert not _is_running()
