"""Something that is done once, some time after it was asked for."""

from __future__ import annotations

from threading import Event

import pytest

from filechannel._storage.delay import Delay
from filechannel._storage.flush_timer import FLUSH_TIMER
from tests.storage.background import no_more_threads

PATIENCE = 30.0


def test_what_was_asked_for_twice_is_done_once() -> None:
    """And again, when it is asked for after that."""
    done: list[int] = []
    happened = Event()

    def work() -> None:
        done.append(1)
        happened.set()

    delay = Delay(work, 0.01)
    for expected in (1, 2):
        happened.clear()
        delay.begin()
        delay.begin()
        assert happened.wait(PATIENCE)
        assert len(done) == expected
    delay.end()


def test_what_could_not_be_begun_is_begun_the_next_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """There may be no thread to be had for a moment; it may have been asked for already."""
    happened = Event()
    delay = Delay(happened.set, 0.01)
    with monkeypatch.context() as limited, no_more_threads():
        limited.setattr(FLUSH_TIMER._thread, "is_running", False)
        delay.begin()
    delay.begin()
    assert happened.wait(PATIENCE)
    delay.end()


def test_what_has_ended_is_not_done() -> None:
    """Neither what was asked for before nor what is asked for after."""
    delay = Delay(lambda: done.append(1), 0.0)
    done: list[int] = []
    delay.end()
    delay.begin()
    delay.flush_if_needed()
    assert delay.is_closed
    assert done == []
