"""The maintenance lock: which process maintains a channel."""

from __future__ import annotations

from pathlib import Path
from threading import Thread

import pytest

from filechannel._errors import Busy
from filechannel._format import PURE
from tests.storage.channels import SMALL, opened
from tests.storage.clocks import Clock

shares = pytest.mark.skipif(PURE, reason="the pure implementation has a channel for itself")


@shares
def test_one_process_at_a_time_maintains(path: Path) -> None:
    """One process at a time holds the maintenance lock, and the others notice and do not wait."""
    with opened(path, SMALL) as store, opened(path, SMALL) as other:
        with store.maintenance_lock.held():
            with pytest.raises(Busy), other.maintenance_lock.held():
                pass
        with other.maintenance_lock.held():
            pass


def test_one_thread_at_a_time_maintains(path: Path) -> None:
    """One thread of a process at a time holds the maintenance lock."""
    refused: list[bool] = []
    with opened(path, SMALL) as store:

        def try_it() -> None:
            try:
                with store.maintenance_lock.held():
                    refused.append(False)
            except Busy:
                refused.append(True)

        with store.maintenance_lock.held():
            thread = Thread(target=try_it)
            thread.start()
            thread.join()
        try_it()
    assert refused == [True, False]


@shares
def test_a_caller_that_may_wait_waits(path: Path) -> None:
    """A caller that may wait gets the maintenance lock when it is free, or gives up after its time."""
    with opened(path, SMALL) as store, opened(path, SMALL) as other:
        looks: list[int] = []
        turn = other.maintenance_lock.held()
        turn.__enter__()

        def look() -> bool:
            looks.append(1)
            if len(looks) == 3:
                turn.__exit__(None, None, None)
            return True

        with store.maintenance_lock.held(look):
            assert len(looks) == 3
            with pytest.raises(Busy), other.maintenance_lock.held(lambda: False):
                pass


@shares
def test_every_process_knows_which_one_maintained_last(path: Path) -> None:
    """Every process can name the one that maintained last, as long as that lives."""
    with opened(path, SMALL) as store:
        assert store.maintenance_lock.maintainer is None
        assert store.maintenance_lock.last_run is None
        with opened(path, SMALL) as other:
            with other.maintenance_lock.held():
                pass
            assert other.processes is not None
            assert store.maintenance_lock.maintainer == other.processes.holder(other.processes.slot)
            assert store.maintenance_lock.last_run is not None
        assert store.maintenance_lock.maintainer is None


@shares
def test_every_process_knows_whether_the_lock_is_held(path: Path) -> None:
    """Every process knows whether the maintenance lock is held, here or in another process."""
    with opened(path, SMALL) as store, opened(path, SMALL) as other:
        assert not store.maintenance_lock.is_running
        with other.maintenance_lock.held():
            assert store.maintenance_lock.is_running
            assert other.maintenance_lock.is_running
        assert not store.maintenance_lock.is_running
        assert not other.maintenance_lock.is_running


def test_the_time_without_a_new_message_is_known(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time without a new message counts from the first maintenance that saw the end of the log."""
    clock = Clock.install(monkeypatch)

    def quiet() -> float:
        return store.maintenance_lock.quiet(store.control.write_offset) / 1e9

    with opened(path, SMALL) as store:
        store.log.append([b"one"])
        assert quiet() == 0
        clock.pass_seconds(5)
        with store.maintenance_lock.held():
            assert quiet() == 0
        clock.pass_seconds(5)
        with store.maintenance_lock.held():
            assert quiet() == 5
            end = store.control.write_offset
            store.log.append([b"two"])
            assert quiet() == 0
            assert store.maintenance_lock.quiet(end) == 5 * 10**9
    with opened(path, SMALL) as store:
        with store.maintenance_lock.held():
            pass
        clock.pass_seconds(7)
    with opened(path, SMALL) as store:
        assert quiet() == 7, "for every process that has it open"
        clock.pass_seconds(-60)
        assert quiet() == 0, "a clock that was set back"


def test_errors_and_what_was_reclaimed_are_counted(path: Path) -> None:
    """Errors of maintenance and reclaimed segments are counted for all processes."""
    with opened(path, SMALL) as store:
        store.maintenance_lock.count_error()
        store.maintenance_lock.count_reclaimed(2, 100)
        store.maintenance_lock.count_reclaimed(1, 50)
    with opened(path, SMALL) as store:
        assert store.maintenance_lock.errors == 1
        assert store.maintenance_lock.reclaimed == (3, 150)
